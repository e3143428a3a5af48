// Recorded requests and link rates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"

namespace kvrail::simulation {

struct Request {
  TimeNs at_ns = 0;  // from the first one on
  std::uint32_t tokens = 0;
  std::uint32_t first_hash = 0, hash_count = 0;
};
struct RequestTrace {
  std::vector<Request> requests;  // by time
  std::vector<std::uint64_t> hashes;
  static constexpr std::uint32_t kHashTokens = 512;  // of Mooncake's blocks
};
// Mooncake JSONL ({"timestamp": ms, "input_length": n, "hash_ids": [...]} a line) or Azure CSV
// (TIMESTAMP,ContextTokens,GeneratedTokens); told apart by the first character.
[[nodiscard]] Result<RequestTrace> load_requests(const std::string& path);
[[nodiscard]] Result<RequestTrace> parse_requests(std::string_view text, const std::string& path);

// Rates over time of one link, in bytes/s; from starts_ns[i] on rates[i], and from the beginning again at the end.
struct LinkTrace {
  std::vector<TimeNs> starts_ns;  // starts_ns[0] = 0
  std::vector<double> rates;
  TimeNs length_ns = 0;
};
using LinkTraces = std::vector<LinkTrace>;
// CSV of trace,t_s,mbit_s. Each trace is brought to the mean of mean_mbit_s.
[[nodiscard]] Result<LinkTraces> load_links(const std::string& path, double mean_mbit_s);
[[nodiscard]] Result<LinkTraces> parse_links(std::string_view text, const std::string& path, double mean_mbit_s);

}  // namespace kvrail::simulation
