// The figures of one run of one policy.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "perf/sim/result.h"
#include "perf/sim/scenario.h"
#include "perf/sim/workload.h"

namespace kvrail::simulation {

struct Figures {
  std::string policy;
  double mean_ms = 0, p50_ms = 0, p99_ms = 0;  // of tasks where there are such, else of contexts
  std::array<double, 101> quantiles_ms{};      // of the same, by hundredths
  std::optional<double> critical_p99_ms;       // nothing: no critical transfers
  std::uint64_t bytes = 0;
  double recompute_s = 0;
  double fidelity = 1;         // mean λ of contexts
  double jain = 1;             // of agents with one model: the least among the models
  double slo = 1;              // share of contexts in time
  double jitter = 1;           // p99 / p50
  double per_second = 0;       // contexts
  double lane_utilisation = 0, gpu_utilisation = 0;  // of the busiest
  double queue_ms = 0, worst_agent_queue_ms = 0;     // mean, of all and of the agent with the longest
  std::uint64_t flaps = 0, decisions = 0, laters = 0;
  std::uint32_t reservations_refused = 0;
  std::array<std::uint64_t, kMediumCount> chosen{};
  std::uint64_t trace_hash = 0;
  double chunk_ms = 0;
};

[[nodiscard]] Figures make_figures(const Scenario& scenario, const Workload& workload, const RunResult& result,
                                   std::string policy);
// The value that `share` of them don't exceed; 0 of none. Reorders.
[[nodiscard]] double percentile(std::vector<double>& values, double share);
// (Σx)² / (n Σx²); 1 of none.
[[nodiscard]] double jain_index(const std::vector<double>& values);

}  // namespace kvrail::simulation
