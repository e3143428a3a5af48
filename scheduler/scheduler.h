// The order of bytes: which flow's next chunk goes on which lane, and when. Pure: no clock, thread,
// system call, nor allocation after construction; the same code under the daemon and in simulation.
//
// A Flow is the bytes of one transfer bound for one lane. 64 geometric urgency levels, a
// find-first- set picks the highest non-empty one, deficit round robin with weights inside it; a
// timer wheel lifts flows as their waiting makes urgency = base + alpha*exp(beta*delay) cross a
// level. Posted, unacknowledged bytes per lane stay under the in-flight bound (design: BDP + 2
// chunks).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/handle.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::scheduler {

struct FlowTag;
using FlowHandle = Handle<FlowTag>;
using LaneIndex = std::uint32_t;  // small dense index that the engine gives its lanes
struct BudgetTag;
using BudgetHandle = Handle<BudgetTag>;  // a reservation as its lane's order serves it

// `bytes` each period, periods starting `offset_ns` after its multiples of the node's clock. The arbiter admits it, the
// order serves it.
struct ReservationSpec {
  LaneIndex lane = 0;
  TimeNs period_ns = 0;
  TimeNs offset_ns = 0;
  std::uint64_t bytes = 0;
};

struct FlowSpec {
  LaneIndex lane = 0;
  std::uint64_t cookie = 0;  // the engine's name for it, given back in actions
  std::uint64_t total_bytes = 0;
  std::uint64_t ready_bytes = 0;    // already encoded; raised by set_ready
  std::uint64_t start_offset = 0;   // resume from a cursor
  std::uint32_t weight = 2;         // role_i + role_j
  std::uint32_t base_milli = 2000;  // urgency base, thousandths
  TimeNs submitted_ns = 0;
  TimeNs deadline_ns = 0;   // absolute, 0 = none
  bool critical = false;    // always overtakes
  bool background = false;  // lowest, but >= 5 % of a lane
  std::uint8_t suspensions = 0;  // that it has had: on another lane, before its lane was lost
  BudgetHandle budget;      // of this lane, or none: its bytes go before all else while the budget lasts
};

struct PostAction {
  FlowHandle flow;
  std::uint64_t cookie = 0;
  LaneIndex lane = 0;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool critical = false;  // overtakes within the lane: of a critical flow, or reserved
  bool reserved = false;  // paid by the flow's budget
};

struct BudgetCounts {
  std::uint64_t served_bytes = 0;  // that went before all else
  std::uint64_t exhausted = 0;     // times that a budget was used up before its period was over
};

struct SchedulerOptions {
  std::uint32_t max_lanes = 64;
  std::uint32_t max_flows = 8192;
  std::uint32_t max_budgets = 256;
  TimeNs slice_ns = 10'000'000;
  std::uint32_t min_chunk_bytes = 4096;
  std::uint32_t max_chunk_bytes = 256 * 1024;
  std::uint64_t initial_rate_bytes_per_s = 125'000'000;
  // Bytes in flight may always cover this time on top of the round trip. It adds nothing up to
  // 0.5 GB/s at 1 ms, where two chunks cover that anyway; on faster lanes it buys throughput under
  // irregular polling with latency for critical traffic.
  TimeNs least_window_ns = 0;
  // A flow of which less than this has been posted makes way for one that is far more urgent on another lane of the same
  // interface, so many times at most. 0: never.
  std::uint32_t suspend_below_ppm = 400'000;
  std::uint8_t most_suspensions = 3;
};

struct LaneEstimate {
  std::uint64_t capacity_bytes_per_s = 0;  // windowed max of delivery-rate samples
  std::uint64_t planning_bytes_per_s = 0;  // harmonic mean of 5 / (1 + max error)
  TimeNs round_trip_ns = 0;                // least post-to-completion less the chunk's own sending
  std::uint64_t in_flight_bytes = 0, in_flight_limit_bytes = 0;
  std::uint64_t queued_bytes = 0;  // ready or not, of all flows on the lane
  std::uint32_t chunk_bytes = 0;
};

class Recorder;  // record.h

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;
  ~Scheduler();

  // From here on events and outcomes are recorded; before the first event. nullptr: not any more.
  void record(Recorder* recorder) noexcept;

  // shares: its bytes go through the interface of this node, as those of the other lanes that do.
  void lane_up(LaneIndex lane, std::uint64_t rate_hint_bytes_per_s, TimeNs now_ns, bool shares = true) noexcept;
  void lane_down(LaneIndex lane) noexcept;  // its flows must have been removed

  // Reservations of a lane, at most kMostBudgets each; they end with it. Closing one leaves its flows as ordinary ones.
  static constexpr std::uint32_t kMostBudgets = 32;
  [[nodiscard]] BudgetHandle open_budget(const ReservationSpec& spec, TimeNs now_ns) noexcept;  // invalid: full
  void close_budget(BudgetHandle budget) noexcept;
  [[nodiscard]] BudgetCounts budget(BudgetHandle budget) const noexcept;

  [[nodiscard]] FlowHandle add_flow(const FlowSpec& spec, TimeNs now_ns) noexcept;  // invalid: full
  void set_ready(FlowHandle flow, std::uint64_t ready_bytes, TimeNs now_ns) noexcept;
  // In-flight chunks of a removed flow still complete through chunk_done.
  void remove_flow(FlowHandle flow) noexcept;

  // Fills `actions` with what may be posted now, in order; every action counts as posted. The
  // engine that could not post one (transport full) gives it and the later ones of the same lane
  // back with unpost(), last first; other lanes' actions are not concerned.
  [[nodiscard]] std::size_t step(TimeNs now_ns, std::span<PostAction> actions) noexcept;
  void unpost(const PostAction& action) noexcept;
  // The chunk ended. ok: it was acknowledged, and the sample feeds the estimator.
  void chunk_done(LaneIndex lane, std::uint32_t bytes, TimeNs posted_ns, TimeNs completed_ns,
                  bool ok, TimeNs now_ns) noexcept;

  [[nodiscard]] LaneEstimate estimate(LaneIndex lane) const noexcept;
  // The planning rate, higher where many choices in a row have put nothing on the lane and `bytes`, the least
  // that a try would move (least_kv_bytes), are few enough for one.
  [[nodiscard]] std::uint64_t rate_for_choice(LaneIndex lane, std::uint64_t bytes, TimeNs now_ns) noexcept;
  // Backlog that a new flow of this urgency would wait behind, in ns at the planning rate.
  [[nodiscard]] TimeNs backlog_ns(LaneIndex lane, bool critical) const noexcept;
  [[nodiscard]] TimeNs next_timer_ns() const noexcept;  // INT64_MAX when nothing waits for time
  // For `explain`: the flow's level (0..63) and urgency in thousandths now.
  [[nodiscard]] std::uint32_t level_of(FlowHandle flow) const noexcept;
  [[nodiscard]] std::uint64_t urgency_milli(FlowHandle flow, TimeNs now_ns) const noexcept;
  [[nodiscard]] std::uint8_t suspensions_of(FlowHandle flow) const noexcept;
  [[nodiscard]] std::uint64_t suspensions() const noexcept;  // of all flows ever

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvrail::scheduler
