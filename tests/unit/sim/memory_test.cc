// Bounded memory of agents' contexts: what is waited for, with prefetch and without.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "perf/sim/memory_run.h"
#include "perf/sim/memory_world.h"

using namespace kvrail;
using namespace kvrail::simulation;

namespace {

Scenario scenario_of(double fraction, std::uint32_t sessions) {
  Scenario scenario;
  scenario.think_s = 1;
  scenario.memory.fraction = fraction;
  scenario.memory.sessions = sessions;
  scenario.memory.tasks = 40 * sessions;
  scenario.memory.skip = 0;
  scenario.memory.pause_s = 30;
  return scenario;
}
AgentGraph chain(std::uint32_t agents) {
  AgentGraph graph;
  for (std::uint32_t i = 0; i < agents; ++i) {
    graph.agents.push_back("agent " + std::to_string(i));
    if (i > 0) graph.edges.emplace_back(i - 1, i);
  }
  return graph;
}

}  // namespace

TEST_CASE("bounded memory / with room for all, each context is waited for once, for its bytes over the rate") {
  const Scenario scenario = scenario_of(1, 1);
  const std::vector<AgentGraph> graphs{chain(3)};
  const MemoryLoad load = draw_memory_load(scenario, graphs, 1);
  REQUIRE(load.context_bytes.size() == 3);
  const std::uint64_t bytes = std::accumulate(load.context_bytes.begin(), load.context_bytes.end(), std::uint64_t{0});
  const MemoryFigures figures = run_memory(scenario, graphs, 1, false);
  CHECK(figures.turns == 120);
  CHECK(figures.waited == 3);
  CHECK(figures.restored_bytes == bytes);
  CHECK(figures.prefetched_bytes == 0);
  // One task at a time, so nothing waits behind anything else.
  const double all_ms = static_cast<double>(bytes) / static_cast<double>(scenario.memory.restore_bytes_per_s) * 1e3;
  CHECK(figures.restore_exposed_ms * 120 == doctest::Approx(all_ms).epsilon(1e-6));
  CHECK(run_memory(scenario, graphs, 1, true).restored_bytes == bytes);
}

TEST_CASE("bounded memory / prefetch hides most of what a chain of agents waits, and moves little for nothing") {
  Scenario scenario = scenario_of(0.25, 8);
  const std::vector<AgentGraph> graphs{chain(6)};
  const auto report = compare_memory(scenario, graphs, 1);
  REQUIRE(report.has_value());
  CHECK(report->off.turns == report->on.turns);
  CHECK(report->on.waited < report->off.waited);
  CHECK(report->restore_hidden() > 0.5);
  CHECK(report->on.prefetch_wasted < 0.5);
  CHECK(report->on.task_mean_ms < report->off.task_mean_ms);
}

TEST_CASE("bounded memory / every turn is taken, however little memory there is and however slow its way back") {
  for (const double fraction : {0.001, 0.1, 0.5}) {
    for (const double skip : {0.0, 0.5, 1.0}) {
      CAPTURE(fraction);
      CAPTURE(skip);
      Scenario scenario = scenario_of(fraction, 5);
      scenario.memory.skip = skip;
      scenario.memory.restore_bytes_per_s = 50'000'000;
      scenario.cluster.receiver_nodes = 3;
      AgentGraph fan = chain(2);
      fan.agents.insert(fan.agents.end(), {"a", "b", "c"});
      fan.edges = {{0, 1}, {0, 2}, {0, 3}, {1, 4}, {2, 4}, {3, 4}};
      const std::vector<AgentGraph> graphs{chain(4), fan};
      const MemoryLoad load = draw_memory_load(scenario, graphs, 7);
      std::uint64_t turns = 0;
      for (const MemoryTask& task : load.tasks)
        turns += static_cast<std::uint64_t>(std::count(task.takes_part.begin(), task.takes_part.end(), true));
      for (const bool prefetch : {false, true}) CHECK(run_memory(scenario, graphs, 7, prefetch).turns == turns);
    }
  }
}

TEST_CASE("bounded memory / one seed, one result") {
  const Scenario scenario = scenario_of(0.25, 6);
  const std::vector<AgentGraph> graphs{chain(4), chain(3)};
  const MemoryFigures a = run_memory(scenario, graphs, 3, true), b = run_memory(scenario, graphs, 3, true);
  CHECK(a.restore_exposed_ms == b.restore_exposed_ms);
  CHECK(a.prefetched_bytes == b.prefetched_bytes);
  CHECK(run_memory(scenario, graphs, 4, true).restore_exposed_ms != a.restore_exposed_ms);
}

TEST_CASE("bounded memory / without a bound or without graphs there is nothing to tell") {
  CHECK_FALSE(compare_memory(scenario_of(0, 2), {chain(2)}, 1).has_value());
  CHECK_FALSE(compare_memory(scenario_of(0.5, 2), {}, 1).has_value());
  CHECK(parse_scenario("[memory]\nfraction = 0.5\n", "x").error().message.find("there are no graphs") != std::string::npos);
  CHECK_FALSE(parse_scenario("tasks = 1\ngraphs = [\"g\"]\n[memory]\nfraction = 1.5\n", "x").ok());
  CHECK_FALSE(parse_scenario("tasks = 1\ngraphs = [\"g\"]\n[memory]\nfraction = 0.5\nrestore = \"0 Gbit/s\"\n", "x").ok());
  CHECK_FALSE(parse_scenario("[memory]\nunknown = 1\n", "x").ok());
}
