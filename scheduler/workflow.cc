#include "scheduler/workflow.h"

#include <algorithm>

#include "scheduler/exp_table.h"

namespace kvrail::scheduler {

WorkflowGraph::Fault WorkflowGraph::assign(std::span<const WorkflowStep> steps, std::span<const WorkflowEdge> edges) noexcept {
  if (steps.empty()) return Fault::no_steps;
  if (steps.size() > kMostSteps || edges.size() > kMostEdges) return Fault::too_many;
  for (const WorkflowStep& step : steps) {
    if (step.duration_ns < 0 || step.duration_ns > kMostDurationNs) return Fault::bad_duration;
  }
  for (const WorkflowEdge& edge : edges) {
    if (edge.from >= steps.size() || edge.to >= steps.size()) return Fault::bad_step;
  }
  WorkflowGraph made;
  made.step_count_ = static_cast<std::uint32_t>(steps.size());
  made.edge_count_ = static_cast<std::uint32_t>(edges.size());
  std::copy(steps.begin(), steps.end(), made.steps_.begin());
  std::copy(edges.begin(), edges.end(), made.edges_.begin());
  made.timed_ = std::any_of(steps.begin(), steps.end(), [](const WorkflowStep& step) { return step.duration_ns > 0; });
  std::array<std::uint8_t, kMostSteps> sorted{};
  if (!made.order(sorted)) return Fault::loop;
  made.measure({sorted.data(), made.step_count_});
  *this = made;
  return Fault::none;
}

// Steps, predecessors first (Kahn). False: some lead in a circle.
bool WorkflowGraph::order(std::array<std::uint8_t, kMostSteps>& sorted) const noexcept {
  std::array<std::uint32_t, kMostSteps> inputs{};
  for (std::uint32_t e = 0; e < edge_count_; ++e) ++inputs[edges_[e].to];
  std::uint32_t count = 0;
  for (std::uint32_t step = 0; step < step_count_; ++step) {
    if (inputs[step] == 0) sorted[count++] = static_cast<std::uint8_t>(step);
  }
  for (std::uint32_t at = 0; at < count; ++at) {
    for (std::uint32_t e = 0; e < edge_count_; ++e) {
      if (edges_[e].from == sorted[at] && --inputs[edges_[e].to] == 0) sorted[count++] = edges_[e].to;
    }
  }
  return count == step_count_;
}

void WorkflowGraph::measure(std::span<const std::uint8_t> sorted) noexcept {
  for (const std::uint8_t step : sorted) {
    for (std::uint32_t e = 0; e < edge_count_; ++e) {
      if (edges_[e].from == step) head_[edges_[e].to] = std::max(head_[edges_[e].to], head_[step] + cost(step));
    }
  }
  for (auto it = sorted.rbegin(); it != sorted.rend(); ++it) {
    const std::uint8_t step = *it;
    TimeNs behind = 0;
    for (std::uint32_t e = 0; e < edge_count_; ++e) {
      if (edges_[e].from != step) continue;
      const std::uint8_t to = edges_[e].to;
      const std::uint32_t hops = hops_[to] + 1;
      if (tail_[to] > behind || (tail_[to] == behind && hops > hops_[step])) {
        behind = tail_[to];
        hops_[step] = hops;
      }
    }
    tail_[step] = cost(step) + behind;
    length_ = std::max(length_, head_[step] + tail_[step]);
  }
}

HandOver WorkflowGraph::hand_over(std::uint64_t from, std::uint64_t to) const noexcept {
  HandOver found;
  TimeNs longest = -1;
  for (std::uint32_t e = 0; e < edge_count_; ++e) {
    const WorkflowEdge edge = edges_[e];
    if (steps_[edge.from].agent != from || steps_[edge.to].agent != to) continue;
    const TimeNs way = head_[edge.from] + cost(edge.from) + tail_[edge.to];
    // Of as long ones the first, which has the most behind it.
    if (way < longest || (way == longest && tail_[edge.to] < found.after_ns)) continue;
    longest = way;
    found.known = true;
    found.after_ns = tail_[edge.to];
    found.hops = hops_[edge.to] + 1;
  }
  if (!found.known) return found;
  // length_ > 0: a way through an edge has a step of time, or no step's time is known and each counts.
  if (length_ > 0) {
    const std::uint64_t share = mul_div(static_cast<std::uint64_t>(longest), 1000, static_cast<std::uint64_t>(length_));
    found.criticality_milli = static_cast<std::uint32_t>(std::max<std::uint64_t>(share, 1));
  }
  if (!timed_) found.after_ns = 0;
  return found;
}

TimeNs share_of_deadline(const HandOver& hand_over, TimeNs deadline_ns, TimeNs now_ns) noexcept {
  const TimeNs spare = deadline_ns - now_ns - hand_over.after_ns;
  return now_ns + std::max(spare / static_cast<TimeNs>(std::max<std::uint32_t>(hand_over.hops, 1)), kMillisecondNs);
}

}  // namespace kvrail::scheduler
