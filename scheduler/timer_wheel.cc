#include "scheduler/timer_wheel.h"

namespace kvrail::scheduler {

void TimerWheel::link(TimerNode& node, std::uint32_t slot) noexcept {
  node.timer_slot = slot;
  node.timer_prev = nullptr;
  node.timer_next = heads_[slot];
  if (node.timer_next != nullptr) node.timer_next->timer_prev = &node;
  heads_[slot] = &node;
  occupied_[slot / 64] |= std::uint64_t{1} << (slot % 64);
}

void TimerWheel::arm(TimerNode& node, TimeNs due_ns) noexcept {
  KVRAIL_ASSERT(!node.armed);
  node.armed = true;
  node.due_ns = due_ns;
  const std::uint64_t tick = std::max(tick_of(due_ns - 1), tick_) + 1;
  link(node, static_cast<std::uint32_t>(tick % kSlots));
  ++armed_;
}

void TimerWheel::cancel(TimerNode& node) noexcept {
  if (!node.armed) return;
  const std::uint32_t slot = node.timer_slot;
  if (node.timer_prev != nullptr) {
    node.timer_prev->timer_next = node.timer_next;
  } else {
    KVRAIL_ASSERT(heads_[slot] == &node);
    heads_[slot] = node.timer_next;
    if (node.timer_next == nullptr) occupied_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
  }
  if (node.timer_next != nullptr) node.timer_next->timer_prev = node.timer_prev;
  node.timer_prev = node.timer_next = nullptr;
  node.armed = false;
  KVRAIL_ASSERT(armed_ > 0);
  --armed_;
}

}  // namespace kvrail::scheduler
