// A trace of requests replayed against caches of prefix blocks: what `kvrail-sim cache` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "perf/sim/cache_policy.h"
#include "perf/sim/traces.h"

namespace kvrail::simulation {

struct CacheOptions {
  std::string trace;
  double size_fraction = 0;  // of the trace's different blocks
  double score_from = 0;     // requests before this share of them only warm the cache
  std::vector<std::string> policies;  // none: all
  bool json = false;
};

// The blocks of all requests, numbered by first use, with the request that uses each of them next.
class CacheTrace {
 public:
  [[nodiscard]] static Result<CacheTrace> create(const RequestTrace& trace, const std::string& path);
  [[nodiscard]] std::uint32_t blocks() const { return distinct_; }
  [[nodiscard]] std::size_t requests() const { return requests_.size(); }
  [[nodiscard]] CacheRequest request(std::size_t number) const;

 private:
  std::vector<Request> requests_;
  std::vector<std::uint32_t> blocks_, next_use_;
  std::uint32_t distinct_ = 0;
};

struct CacheScore {
  std::string policy;
  std::uint64_t hit_blocks = 0;  // at the head of their prompt, all there when it came
  std::uint64_t used_blocks = 0;
  [[nodiscard]] double token_hit_rate() const {
    return static_cast<double>(hit_blocks) / static_cast<double>(used_blocks);
  }
};
[[nodiscard]] CacheScore replay(const CacheTrace& trace, const std::string& name, CachePolicy& policy,
                                std::size_t score_from);

struct CacheReport {
  CacheOptions options;
  std::uint32_t blocks = 0, capacity_blocks = 0;
  std::vector<CacheScore> scores;
};
[[nodiscard]] Result<CacheReport> simulate_caches(const CacheOptions& options);
[[nodiscard]] std::string json_report(const CacheReport& report);
[[nodiscard]] std::string table_report(const CacheReport& report);

// Arguments from the word "cache" on; as parse_options().
[[nodiscard]] Result<CacheOptions> parse_cache_options(int argc, const char* const* argv, int& exit_code);

}  // namespace kvrail::simulation
