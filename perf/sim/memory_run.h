// Agents whose contexts do not all fit in memory: what they wait for their restores, with and without prefetch. A model beside the
// cluster of world.h: tasks walk through the same graphs, but transfers take their time alone on a lane, so that what is seen is
// the memory's doing. Evictions, prefetches and predictions are the scheduler library's (value.h, prefetch.h, transitions.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/config/agent_graph.h"
#include "perf/sim/scenario.h"

namespace kvrail::simulation {

using engine::AgentGraph;

struct MemoryFigures {
  double task_mean_ms = 0;
  double restore_exposed_ms = 0;  // what an agent waits for its context, in the mean of all turns
  double prefetch_wasted = 0;     // share of the prefetched bytes that nobody used
  std::uint64_t turns = 0;
  std::uint64_t waited = 0;       // turns that did not find their context
  std::uint64_t restored_bytes = 0, prefetched_bytes = 0;
  std::uint64_t late = 0;         // prefetches that were still on their way when they were needed
};
struct MemoryReport {
  MemoryFigures off, on;
  // The share of the wait without prefetch that is gone with it.
  [[nodiscard]] double restore_hidden() const {
    return off.restore_exposed_ms > 0 ? 1 - on.restore_exposed_ms / off.restore_exposed_ms : 0;
  }
};

[[nodiscard]] MemoryFigures run_memory(const Scenario& scenario, const std::vector<AgentGraph>& graphs, std::uint64_t seed,
                                       bool prefetch);
// Nothing: the scenario bounds no memory, or has no graphs.
[[nodiscard]] std::optional<MemoryReport> compare_memory(const Scenario& scenario, const std::vector<AgentGraph>& graphs,
                                                         std::uint64_t seed);

}  // namespace kvrail::simulation
