#include "scheduler/timer_wheel.h"

#include <utility>

namespace kvrail::scheduler {

void TimerWheel::link(TimerNode& node, std::uint32_t slot) noexcept {
  node.timer_slot = slot;
  node.timer_prev = nullptr;
  node.timer_next = heads_[slot];
  if (node.timer_next != nullptr) node.timer_next->timer_prev = &node;
  heads_[slot] = &node;
  if (slot < kSlots) near_[slot / 64] |= std::uint64_t{1} << (slot % 64);
}

TimerNode* TimerWheel::take(std::uint32_t slot) noexcept {
  if (slot < kSlots) near_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
  return std::exchange(heads_[slot], nullptr);
}

void TimerWheel::place(TimerNode& node) noexcept {
  const std::uint64_t block = block_of(node.due_tick);
  const std::uint64_t slot = block == block_of(at_) ? node.due_tick % kSlots : kSlots + block % kSlots;
  link(node, static_cast<std::uint32_t>(slot));
}

void TimerWheel::arm(TimerNode& node, TimeNs due_ns) noexcept {
  KVRAIL_ASSERT(!node.armed);
  node.armed = true;
  node.due_tick = std::max(tick_of(due_ns - 1), reached_) + 1;
  place(node);
  ++armed_;
}

void TimerWheel::cancel(TimerNode& node) noexcept {
  if (!node.armed) return;
  if (node.timer_prev != nullptr) {
    node.timer_prev->timer_next = node.timer_next;
  } else {
    KVRAIL_ASSERT(heads_[node.timer_slot] == &node);
    heads_[node.timer_slot] = node.timer_next;
    if (node.timer_next == nullptr) static_cast<void>(take(node.timer_slot));
  }
  if (node.timer_next != nullptr) node.timer_next->timer_prev = node.timer_prev;
  node.timer_prev = node.timer_next = nullptr;
  node.armed = false;
  KVRAIL_ASSERT(armed_ > 0);
  --armed_;
}

}  // namespace kvrail::scheduler
