// Slack, criticality and the sharing of a deadline, against cases worked out by hand, and against all ways of random graphs.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/workflow.h"

namespace kvrail::scheduler {
namespace {

using Fault = WorkflowGraph::Fault;
constexpr TimeNs kMs = kMillisecondNs;

// Lead (2) hands parts to A (3) and B (10), both to the critic (1), and it to the report (4): ways of 10 and 17 ms.
WorkflowGraph research() {
  const std::array<WorkflowStep, 5> steps{{{1, 2 * kMs}, {2, 3 * kMs}, {3, 10 * kMs}, {4, 1 * kMs}, {5, 4 * kMs}}};
  const std::array<WorkflowEdge, 5> edges{{{0, 1}, {0, 2}, {1, 3}, {2, 3}, {3, 4}}};
  WorkflowGraph graph;
  REQUIRE(graph.assign(steps, edges) == Fault::none);
  return graph;
}

TEST_CASE("workflow / criticality is the longest way through a hand-over over the longest of all") {
  const WorkflowGraph graph = research();
  CHECK(graph.length_ns() == 17 * kMs);
  const HandOver slow = graph.hand_over(1, 3), fast = graph.hand_over(1, 2), last = graph.hand_over(4, 5);
  CHECK(slow.criticality_milli == 1000);
  CHECK(slow.after_ns == 15 * kMs);  // 10 + 1 + 4
  CHECK(slow.hops == 3);
  CHECK(fast.criticality_milli == 588);  // 10 / 17
  CHECK(fast.after_ns == 8 * kMs);
  CHECK(fast.hops == 3);
  CHECK(last.criticality_milli == 1000);
  CHECK(last.after_ns == 4 * kMs);
  CHECK(last.hops == 1);
}

TEST_CASE("workflow / what it does not know is critical and has all the time there is") {
  const HandOver unknown = research().hand_over(5, 1);
  CHECK_FALSE(unknown.known);
  CHECK(unknown.criticality_milli == 1000);
  CHECK(share_of_deadline(unknown, 80 * kMs, 30 * kMs) == 80 * kMs);
  CHECK_FALSE(WorkflowGraph().hand_over(1, 2).known);
}

TEST_CASE("workflow / the deadline less the agents' work is shared by the hand-overs that are left") {
  const WorkflowGraph graph = research();
  // 45 ms left at 5: 15 of work behind it, 30 to spare for three hand-overs.
  CHECK(share_of_deadline(graph.hand_over(1, 3), 50 * kMs, 5 * kMs) == 15 * kMs);
  CHECK(share_of_deadline(graph.hand_over(1, 2), 50 * kMs, 5 * kMs) == 5 * kMs + 37 * kMs / 3);
  CHECK(share_of_deadline(graph.hand_over(4, 5), 50 * kMs, 5 * kMs) == 46 * kMs);
  // Late already: as soon as may be.
  CHECK(share_of_deadline(graph.hand_over(1, 3), 12 * kMs, 5 * kMs) == 6 * kMs);
}

TEST_CASE("workflow / without times the hand-overs count") {
  const std::array<WorkflowStep, 4> steps{{{1, 0}, {2, 0}, {3, 0}, {4, 0}}};
  const std::array<WorkflowEdge, 4> edges{{{0, 1}, {1, 2}, {2, 3}, {0, 3}}};
  WorkflowGraph graph;
  REQUIRE(graph.assign(steps, edges) == Fault::none);
  CHECK(graph.hand_over(1, 2).criticality_milli == 1000);
  CHECK(graph.hand_over(1, 4).criticality_milli == 500);
  CHECK(graph.hand_over(1, 2).hops == 3);
  CHECK(graph.hand_over(1, 2).after_ns == 0);
  CHECK(share_of_deadline(graph.hand_over(1, 2), 30 * kMs, 0) == 10 * kMs);
}

TEST_CASE("workflow / of several hand-overs between two agents the tightest counts") {
  // Writer, reviewer, writer again, reviewer again: one way.
  const std::array<WorkflowStep, 4> steps{{{1, 5 * kMs}, {2, kMs}, {1, 2 * kMs}, {2, kMs}}};
  const std::array<WorkflowEdge, 3> edges{{{0, 1}, {1, 2}, {2, 3}}};
  WorkflowGraph graph;
  REQUIRE(graph.assign(steps, edges) == Fault::none);
  CHECK(graph.hand_over(1, 2).hops == 3);
  CHECK(graph.hand_over(1, 2).after_ns == 4 * kMs);
  CHECK(graph.hand_over(2, 1).hops == 2);
}

TEST_CASE("workflow / what makes no sense is refused and changes nothing") {
  WorkflowGraph graph = research();
  const std::array<WorkflowStep, 2> two{{{1, 1}, {2, 1}}};
  const std::array<WorkflowEdge, 2> circle{{{0, 1}, {1, 0}}};
  const std::array<WorkflowEdge, 1> self{{{1, 1}}}, beyond{{{0, 2}}};
  CHECK(graph.assign({}, {}) == Fault::no_steps);
  CHECK(graph.assign(two, circle) == Fault::loop);
  CHECK(graph.assign(two, self) == Fault::loop);
  CHECK(graph.assign(two, beyond) == Fault::bad_step);
  const std::array<WorkflowStep, 1> negative{{{1, -1}}};
  CHECK(graph.assign(negative, {}) == Fault::bad_duration);
  const std::vector<WorkflowStep> many(WorkflowGraph::kMostSteps + 1);
  CHECK(graph.assign(many, {}) == Fault::too_many);
  const std::vector<WorkflowEdge> edges(WorkflowGraph::kMostEdges + 1, WorkflowEdge{0, 1});
  CHECK(graph.assign(two, edges) == Fault::too_many);
  CHECK(graph.hand_over(1, 3).hops == 3);
}

// Random graphs: the longest way through each edge by walking all of them.
TEST_CASE("workflow / random graphs: the same as all ways walked") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Prng prng(seed);
    const auto count = static_cast<std::uint32_t>(2 + prng.uniform(8));
    std::vector<WorkflowStep> steps;
    for (std::uint32_t i = 0; i < count; ++i) steps.push_back({i, static_cast<TimeNs>(1 + prng.uniform(20)) * kMs});
    std::vector<WorkflowEdge> edges;
    for (std::uint8_t from = 0; from < count; ++from) {
      for (auto to = static_cast<std::uint8_t>(from + 1); to < count; ++to) {
        if (prng.uniform(3) == 0) edges.push_back({from, to});
      }
    }
    WorkflowGraph graph;
    REQUIRE(graph.assign(steps, edges) == Fault::none);
    const std::function<TimeNs(std::uint8_t, bool)> longest = [&](std::uint8_t at, bool forward) {
      TimeNs behind = 0;
      for (const WorkflowEdge& edge : edges) {
        if ((forward ? edge.from : edge.to) == at) behind = std::max(behind, longest(forward ? edge.to : edge.from, forward));
      }
      return steps[at].duration_ns + behind;
    };
    TimeNs whole = 0;
    for (std::uint8_t at = 0; at < count; ++at) whole = std::max(whole, longest(at, true));
    REQUIRE(graph.length_ns() == whole);
    for (const WorkflowEdge& edge : edges) {
      const TimeNs way = longest(edge.from, false) + longest(edge.to, true);
      const HandOver hand_over = graph.hand_over(edge.from, edge.to);
      CHECK(hand_over.after_ns == longest(edge.to, true));
      CHECK(hand_over.criticality_milli == static_cast<std::uint32_t>(way * 1000 / whole));
    }
  }
}

}  // namespace
}  // namespace kvrail::scheduler
