// One flow as the scheduler keeps it, and the fixed table that holds them. Slots never move, so
// lists link flows by pointer.
#pragma once

#include <cstdint>

#include "kvrail/base/handle.h"
#include "scheduler/scheduler.h"
#include "scheduler/timer_wheel.h"
#include "scheduler/urgency.h"

namespace kvrail::scheduler {

// A higher class overtakes the lower ones; background has its floor (background_share.h).
enum class FlowClass : std::uint8_t { background = 0, ordinary = 1, critical = 2 };
inline constexpr std::size_t kClasses = 3;

struct Flow : TimerNode {
  // Written out, so that a new flow's members are set and the whole of it is not zeroed first: gcc does
  // that by `rep stos`, which takes as long as all else that add_flow() does.
  Flow() noexcept {}  // NOLINT(modernize-use-equals-default)

  UrgencyLaw law;
  // From here on what a decision touches, in two cache lines.
  Flow* ring_prev = nullptr;
  Flow* ring_next = nullptr;
  std::int64_t deficit = 0;  // bytes left of its turn; below 0: overdrawn
  FlowHandle self;
  std::uint64_t cookie = 0;
  std::uint64_t total = 0;
  std::uint64_t ready = 0;
  std::uint64_t cursor = 0;  // the next byte to post
  LaneIndex lane = 0;
  std::uint32_t weight = 1;
  std::uint32_t level = 0;
  FlowClass flow_class = FlowClass::ordinary;
  bool listed = false;  // in the ring of its level: it has bytes that may be posted
  bool in_turn = false;
  bool suspended = false;  // while a lane beside its own has something far more urgent
  std::uint8_t suspensions = 0;
  // Of flows that a reservation pays for: their place among those of it that have something to post.
  BudgetHandle budget;
  Flow* budget_prev = nullptr;
  Flow* budget_next = nullptr;
};

using FlowTable = SlotTable<Flow, FlowTag>;

}  // namespace kvrail::scheduler
