// What the scheduler holds, and the inner steps of a decision. scheduler.cc is the interface over
// it.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kvrail/base/assert.h"
#include "scheduler/budget.h"
#include "scheduler/exp_table.h"
#include "scheduler/flow_table.h"
#include "scheduler/in_flight.h"
#include "scheduler/levels.h"
#include "scheduler/scheduler.h"
#include "scheduler/timer_wheel.h"

namespace kvrail::scheduler {

// Chunks that one lane takes before the next lane gets its turn within a step.
inline constexpr std::uint32_t kLaneBurst = 8;
// So many levels more are at least four times the urgency, since 1.15^10 = 4.05.
inline constexpr std::uint32_t kSuspendingLevels = 10;
// What any urgency counts for at most there, and what critical bytes do: that of a flow whose slack is used up (28). So
// nobody makes way any more who has waited until base + e^t is 1.15^14 = 7.08: less than 2 s, whatever comes.
inline constexpr std::uint32_t kMostSuspendingLevel = 23;

struct Lane {
  explicit Lane(const ChunkBounds& bounds) : window(bounds) {}

  [[nodiscard]] LevelSet& level_set(FlowClass flow_class) noexcept {
    return classes[static_cast<std::size_t>(flow_class)];
  }
  [[nodiscard]] std::uint64_t& queued(FlowClass flow_class) noexcept {
    return queued_bytes[static_cast<std::size_t>(flow_class)];
  }
  [[nodiscard]] bool idle() const noexcept {
    return std::all_of(classes.begin(), classes.end(),
                       [](const LevelSet& set) { return set.empty(); });
  }

  bool up = false;
  bool shares = true;
  std::uint32_t flows = 0;
  InFlightWindow window;
  std::array<LevelSet, kClasses> classes;
  std::array<std::uint64_t, kClasses> queued_bytes{};
  std::uint64_t background_owed = 0;  // in 1/19 bytes
  Budget* budgets = nullptr;          // of its reservations, oldest first
  std::uint32_t reserved_flows = 0;   // listed ones that a budget pays for
  std::uint64_t planned_rate = 0;
  std::uint64_t turn_cap_bytes = 0;  // a slice at the planned rate
};

struct Scheduler::State {
  explicit State(const SchedulerOptions& given);
  Recorder* recorder = nullptr;

  [[nodiscard]] Lane& lane_of(LaneIndex index) noexcept {
    KVRAIL_ASSERT(index < lanes.size());
    return *lanes[index];
  }
  [[nodiscard]] Flow& flow_of(FlowHandle handle) noexcept {
    Flow* const flow = flows.get(handle);
    KVRAIL_ASSERT_MSG(flow != nullptr, "a stale flow handle");
    return *flow;
  }
  void set_busy(LaneIndex index, bool value) noexcept {
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    std::uint64_t& word = busy[index / 64];
    word = value ? word | bit : word & ~bit;
  }

  [[nodiscard]] bool postable(const Flow& flow) const noexcept;
  void refresh_turn_cap(Lane& lane) const noexcept {
    if (lane.planned_rate == lane.window.bandwidth().planning()) return;
    lane.planned_rate = lane.window.bandwidth().planning();
    lane.turn_cap_bytes =
        mul_div(lane.planned_rate, static_cast<std::uint64_t>(options.slice_ns), 1'000'000'000);
  }
  void give_turn(LaneIndex lane) noexcept {
    turn_lane = lane;
    turn_left = kLaneBurst;
  }
  void list(Flow& flow) noexcept;
  void list_if_postable(Flow& flow) noexcept;
  void unlist(Flow& flow) noexcept;
  void arm_crossing(Flow& flow, TimeNs now_ns) noexcept;
  void promote(Flow& flow, TimeNs now_ns) noexcept;
  [[nodiscard]] std::uint32_t next_length(const Flow& flow, std::uint32_t chunk) const noexcept;
  struct Next {
    Flow* flow = nullptr;
    Budget* paid_by = nullptr;
  };
  // The most urgent that waits on other lanes through the same interface: looked for once in a lane's turn, when it is
  // first asked for. kUnknown before.
  static constexpr std::uint32_t kUnknown = ~std::uint32_t{0};
  [[nodiscard]] std::uint32_t top_level_beside(const Lane& lane) const noexcept;
  [[nodiscard]] bool makes_way(const Lane& lane, Flow& flow, std::uint32_t& beside) noexcept;
  [[nodiscard]] Next next_flow(Lane& lane, TimeNs now_ns, std::uint32_t& beside) noexcept;
  void post(Lane& lane, const Next& next, TimeNs now_ns, PostAction& action) noexcept;
  [[nodiscard]] std::size_t fill_lane(LaneIndex index, TimeNs now_ns,
                                      std::span<PostAction> actions) noexcept;
  [[nodiscard]] LaneIndex next_busy(LaneIndex from) const noexcept;

  SchedulerOptions options;
  FlowTable flows;
  BudgetTable budgets;
  TimerWheel wheel;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::uint64_t> busy;  // lanes with something to post
  LaneIndex turn_lane = 0;          // whose turn it is
  std::uint32_t turn_left = kLaneBurst;
  std::uint64_t suspensions = 0;
};

}  // namespace kvrail::scheduler
