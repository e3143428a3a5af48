// What the demo found, as numbers: per rate and policy, and as result.json.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"
#include "perf/demo/transfer_log.h"

namespace kvrail::demo {

struct Policy {
  std::string_view name;
  Medium medium;  // what every hand-over asks for; automatic: the engine decides
  bool exact;     // whether it must not change a single answer
  std::uint32_t every = 1;  // it has a task in every turn, or in each second one: those never near the best
};
inline constexpr std::array<Policy, 9> kPolicies{{{"adaptive", Medium::automatic, true},
                                                  {"tokens", Medium::tokens, true},
                                                  {"full", Medium::full, true},
                                                  {"int8", Medium::int8, false},
                                                  {"lossless", Medium::lossless, true, 2},
                                                  {"exact", Medium::exact, true, 2},
                                                  {"int4", Medium::int4, false},
                                                  {"lowrank", Medium::lowrank, false},
                                                  {"split", Medium::split, false, 2}}};

struct TaskResult {
  std::size_t policy = 0;  // index in kPolicies
  std::uint64_t task = 0;  // the engine's id
  std::int64_t latency_ns = 0;
  std::uint32_t right = 0, asked = 0;
};

struct PolicyResult {
  std::size_t n = 0;
  double p50_ms = 0, p95_ms = 0;
  std::uint64_t bytes = 0;  // of all its tasks, between the nodes
  std::uint64_t right = 0, asked = 0;
  [[nodiscard]] double accuracy() const noexcept {
    return asked == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(asked);
  }
};

struct RateResult {
  std::string name;  // "50 Mbit/s"
  std::uint64_t rate_bytes_per_s = 0;
  std::array<PolicyResult, kPolicies.size()> policies;
  std::array<std::size_t, kMediumCount> adaptive_media{};  // how often adaptive chose each
  std::uint64_t failed_tasks = 0, failed_transfers = 0;
};

/// Nearest rank; 0 for no values.
[[nodiscard]] double quantile(std::vector<double> values, double q);

[[nodiscard]] RateResult summarise(std::string name, std::uint64_t rate_bytes_per_s,
                                   const std::vector<TaskResult>& tasks, const TransferLog& log);
/// The table of one rate, several lines.
[[nodiscard]] std::string table_of(const RateResult& rate);
/// Median and spread of observed / predicted over the contexts that adaptive moved between the
/// nodes.
[[nodiscard]] std::string forecast_line(const TransferLog& log,
                                        const std::vector<std::uint64_t>& tasks);

/// The transfers of the adaptive policy as they go into result.json.
struct JsonTransfer {
  std::string rate;
  TransferRow row;
};
[[nodiscard]] std::string result_json(const std::vector<RateResult>& rates,
                                      const std::vector<JsonTransfer>& transfers);

/// "50 Mbit/s" for 6,250,000.
[[nodiscard]] std::string rate_name(std::uint64_t rate_bytes_per_s);

}  // namespace kvrail::demo
