// A workflow as its tasks go through it: steps of agents, and which step hands over to which. From it comes how much
// each hand-over may be late before the task is (slack), and so how critical it is, and its share of the task's deadline.
// The critical path method (Kelley and Walker, 1959); the deadline is shared by equal slack (Kao and Garcia-Molina,
// "Deadline Assignment in a Distributed Soft Real-Time System", 1993).
//
// Thread: owner. Fixed memory, integers only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvrail/base/time.h"

namespace kvrail::scheduler {

struct WorkflowStep {
  std::uint64_t agent = 0;  // key of its name
  TimeNs duration_ns = 0;   // from its last input to what it hands over; 0: not known
};

struct WorkflowEdge {
  std::uint8_t from = 0, to = 0;  // indices of steps
};

// What one agent's hand-over to another means for the task. Between the same two agents the tightest one counts.
struct HandOver {
  // The longest way through it over the longest one of all: 1000 on the critical path.
  std::uint32_t criticality_milli = 1000;
  TimeNs after_ns = 0;     // what the agents have to do behind it, along the longest way
  std::uint32_t hops = 1;  // hand-overs along that way, this one too
  bool known = false;      // false: the workflow has none between these two
};

class WorkflowGraph {
 public:
  static constexpr std::uint32_t kMostSteps = 64;
  static constexpr std::uint32_t kMostEdges = 256;
  static constexpr TimeNs kMostDurationNs = 24 * 3600 * kSecondNs;

  enum class Fault : std::uint8_t { none, no_steps, too_many, bad_step, bad_duration, loop };

  // Keeps what it was where there is a fault. An agent may have several steps.
  Fault assign(std::span<const WorkflowStep> steps, std::span<const WorkflowEdge> edges) noexcept;

  [[nodiscard]] std::uint32_t step_count() const noexcept { return step_count_; }
  [[nodiscard]] TimeNs length_ns() const noexcept { return length_; }  // of the longest way; in hand-overs where no step's time is known
  [[nodiscard]] HandOver hand_over(std::uint64_t from, std::uint64_t to) const noexcept;

 private:
  [[nodiscard]] bool order(std::array<std::uint8_t, kMostSteps>& sorted) const noexcept;
  void measure(std::span<const std::uint8_t> sorted) noexcept;
  [[nodiscard]] TimeNs cost(std::uint32_t step) const noexcept { return timed_ ? steps_[step].duration_ns : 1; }

  std::uint32_t step_count_ = 0, edge_count_ = 0;
  std::array<WorkflowStep, kMostSteps> steps_{};
  std::array<WorkflowEdge, kMostEdges> edges_{};
  std::array<TimeNs, kMostSteps> head_{}, tail_{};  // longest way to the step's beginning; from it to the end, itself too
  std::array<std::uint32_t, kMostSteps> hops_{};    // hand-overs behind it along that way
  TimeNs length_ = 0;
  bool timed_ = false;  // some step's time is known
};

// When a hand-over should be there, so that each of those behind it has as much time to spare: what is left until the
// deadline but for the agents' work, over the hand-overs. Not before a millisecond from now.
[[nodiscard]] TimeNs share_of_deadline(const HandOver& hand_over, TimeNs deadline_ns, TimeNs now_ns) noexcept;

}  // namespace kvrail::scheduler
