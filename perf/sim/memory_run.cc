#include "perf/sim/memory_run.h"

#include <algorithm>

#include "kvrail/base/prng.h"
#include "perf/sim/memory_world.h"
#include "perf/sim/workload.h"
#include "scheduler/exp_table.h"

namespace kvrail::simulation {
namespace {

// Who takes part: all that nobody leads to, and whom a hand-over reaches that is not left out.
void draw_way(const AgentGraph& graph, double skip, Prng& prng, MemoryTask& task) {
  std::vector<bool> led_to(graph.agents.size(), false);
  for (const auto& [from, to] : graph.edges) led_to[to] = true;
  for (std::size_t i = 0; i < led_to.size(); ++i) task.takes_part.push_back(!led_to[i]);
  task.taken.assign(graph.edges.size(), false);
  // In the order of those that hand over: edges go from smaller to larger numbers.
  for (std::uint32_t from = 0; from < graph.agents.size(); ++from) {
    for (std::size_t i = 0; i < graph.edges.size(); ++i) {
      if (graph.edges[i].first != from) continue;
      const bool left_out = prng.uniform01() < skip;
      if (!task.takes_part[from] || left_out) continue;
      task.taken[i] = true;
      task.takes_part[graph.edges[i].second] = true;
    }
  }
}

std::uint64_t bytes_per_token(const ModelClass& model) {
  return std::uint64_t{2} * model.layers * model.kv_heads * model.head_dim * sizeof(std::uint16_t);
}

// As int4, alone on its lane.
TimeNs transfer_ns(const Scenario& scenario, std::uint64_t bytes) {
  const double ratio = scenario.profile.media[static_cast<std::size_t>(Medium::int4)].ratio;
  return scenario.cluster.round_trip_ns +
         scheduler::sending_ns(static_cast<std::uint64_t>(static_cast<double>(bytes) / ratio), scenario.cluster.link_bytes_per_s);
}

}  // namespace

MemoryLoad draw_memory_load(const Scenario& scenario, const std::vector<AgentGraph>& graphs, std::uint64_t seed) {
  MemoryLoad load;
  const Prng root = Prng(seed).split("memory");
  Prng sizes = root.split("sizes"), ways = root.split("ways"), times = root.split("times");
  const std::string_view name = scenario.models.front();
  const ModelClass& model =
      *find(scenario.model_classes, name.starts_with("foreign:") ? name.substr(std::string_view("foreign:").size()) : name);
  const std::uint64_t per_token = bytes_per_token(model);
  for (const AgentGraph& graph : graphs) {
    load.first_agent.push_back(load.agents);
    load.agents += static_cast<std::uint32_t>(graph.agents.size());
  }
  for (std::uint32_t session = 0; session < scenario.memory.sessions; ++session) {
    const std::size_t graph = session % graphs.size();
    for (std::uint32_t agent = 0; agent < load.agents; ++agent) {
      const bool own = agent >= load.first_agent[graph] && agent < load.first_agent[graph] + graphs[graph].agents.size();
      load.context_bytes.push_back(own ? draw_context_tokens(scenario.traffic, sizes) * per_token : 0);
    }
  }
  for (std::uint32_t i = 0; i < scenario.memory.tasks; ++i) {
    MemoryTask task;
    task.session = i % scenario.memory.sessions;
    task.graph = static_cast<std::uint32_t>(task.session % graphs.size());
    task.pause_ns = static_cast<TimeNs>(times.exponential(scenario.memory.pause_s) * 1e9);
    const AgentGraph& graph = graphs[task.graph];
    draw_way(graph, scenario.memory.skip, ways, task);
    for (std::size_t k = 0; k < graph.agents.size(); ++k)
      task.think_ns.push_back(static_cast<TimeNs>(times.exponential(scenario.think_s) * 1e9));
    for (std::size_t k = 0; k < graph.edges.size(); ++k)
      task.transfer_ns.push_back(transfer_ns(scenario, draw_context_tokens(scenario.traffic, sizes) * per_token));
    load.tasks.push_back(std::move(task));
  }
  return load;
}

MemoryFigures run_memory(const Scenario& scenario, const std::vector<AgentGraph>& graphs, std::uint64_t seed,
                         bool prefetch) {
  const MemoryLoad load = draw_memory_load(scenario, graphs, seed);
  return MemoryWorld(scenario, graphs, load, prefetch).run();
}

std::optional<MemoryReport> compare_memory(const Scenario& scenario, const std::vector<AgentGraph>& graphs,
                                           std::uint64_t seed) {
  if (scenario.memory.fraction <= 0 || graphs.empty()) return std::nullopt;
  return MemoryReport{run_memory(scenario, graphs, seed, false), run_memory(scenario, graphs, seed, true)};
}

}  // namespace kvrail::simulation
