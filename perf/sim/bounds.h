// What decisions could reach at best, on cases small enough to search.
#pragma once

#include <optional>

#include "perf/sim/scenario.h"
#include "perf/sim/workload.h"

namespace kvrail::simulation {

inline constexpr std::size_t kMostContexts = 8;   // of a small case
inline constexpr std::size_t kMostOpaque = 400;   // that overtake them

struct Bounds {
  double best_choice_ms = 0, clairvoyant_ms = 0;  // mean latency of contexts
};

// best_choice: at each arrival the medium with the least sum of latencies of all present transfers, by true rates and
// queues, as if nobody came any more; a lane sends what is shortest first, which is then the best order; token ids
// compute in turn. clairvoyant: all media of all transfers are tried, with all arrivals known; lanes and GPUs serve
// what has least left, at any time. That relaxes the order on GPUs, and receive memory has no end: a lower bound.
// Nothing where the case is not small, is made of tasks, or may be split.
[[nodiscard]] std::optional<Bounds> find_bounds(const Scenario& scenario, const Workload& workload);

}  // namespace kvrail::simulation
