// A hierarchical timing wheel of intrusive nodes (Varghese and Lauck, "Hashed and Hierarchical Timing
// Wheels", 1987). The near wheel has a slot for each tick of the present block of 256 ticks; what is due in
// a later block waits on the far wheel, a slot for each block, and comes near when its block begins. So a
// node is looked at once a minute at most while it waits, however many wait with it. Arm, cancel and expiry
// are O(1), and an advance over an idle stretch visits each slot at most once. A node expires at the tick
// after it is due: so no slot is walked twice within a tick.
//
// Thread: owner. Invariants: an armed node is on exactly the list of its slot; the near wheel holds only
// nodes of the present block.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/time.h"

namespace kvrail::scheduler {

struct TimerNode {
  TimerNode* timer_prev = nullptr;
  TimerNode* timer_next = nullptr;
  std::uint64_t due_tick = 0;  // at which it expires
  std::uint32_t timer_slot = 0;
  bool armed = false;
};

class TimerWheel {
 public:
  static constexpr std::uint32_t kSlots = 256;  // of either wheel
  static constexpr unsigned kTickShift = 20;    // about 1 ms: a tenth of a slice
  static constexpr TimeNs kTickNs = TimeNs{1} << kTickShift;

  // A time that has passed expires at the next tick.
  void arm(TimerNode& node, TimeNs due_ns) noexcept;
  void cancel(TimerNode& node) noexcept;
  [[nodiscard]] std::uint32_t armed_count() const noexcept { return armed_; }

  // Calls expired(node) for each node due before the present tick began, already disarmed; it may arm
  // it again.
  template <class Expired>
  void advance(TimeNs now_ns, Expired&& expired) noexcept {
    const std::uint64_t target = tick_of(now_ns);
    if (target <= reached_) return;
    reached_ = target;
    if (armed_ > 0) {
      drain_near(at_ + 1, std::min(target, last_tick_of(block_of(at_))), expired);
      const std::uint64_t last = block_of(target);
      // Each slot of the far wheel once; blocks left out had their nodes in the same slots.
      const std::uint64_t first = last - std::min<std::uint64_t>(last - block_of(at_), kSlots) + 1;
      for (std::uint64_t block = first; block <= last; ++block) {
        at_ = block * kSlots;
        bring_near(block, expired);
        drain_near(at_, std::min(target, last_tick_of(block)), expired);
      }
    }
    at_ = target;
  }

 private:
  [[nodiscard]] static std::uint64_t tick_of(TimeNs ns) noexcept {
    return static_cast<std::uint64_t>(std::max<TimeNs>(ns, 0)) >> kTickShift;
  }
  [[nodiscard]] static std::uint64_t block_of(std::uint64_t tick) noexcept { return tick / kSlots; }
  [[nodiscard]] static std::uint64_t last_tick_of(std::uint64_t block) noexcept {
    return block * kSlots + kSlots - 1;
  }
  void place(TimerNode& node) noexcept;
  void link(TimerNode& node, std::uint32_t slot) noexcept;
  // All nodes of a slot, linked by timer_next; the slot is empty then.
  [[nodiscard]] TimerNode* take(std::uint32_t slot) noexcept;

  template <class Expired>
  void expire(TimerNode& node, Expired& expired) noexcept {
    node.armed = false;
    node.timer_prev = node.timer_next = nullptr;
    --armed_;
    expired(node);
  }

  template <class Expired>
  void drain_near(std::uint64_t first, std::uint64_t last, Expired& expired) noexcept {
    for (std::uint64_t tick = first; tick <= last; ++tick) {
      const auto slot = static_cast<std::uint32_t>(tick % kSlots);
      if ((near_[slot / 64] >> (slot % 64) & 1U) == 0) continue;
      for (TimerNode* node = take(slot); node != nullptr;) {
        TimerNode* const next = node->timer_next;
        expire(*node, expired);
        node = next;
      }
    }
  }

  template <class Expired>
  void bring_near(std::uint64_t block, Expired& expired) noexcept {
    for (TimerNode* node = take(kSlots + static_cast<std::uint32_t>(block % kSlots)); node != nullptr;) {
      TimerNode* const next = node->timer_next;
      if (block_of(node->due_tick) < block) {  // of a block that was left out
        expire(*node, expired);
      } else {
        place(*node);
      }
      node = next;
    }
  }

  std::array<TimerNode*, 2 * kSlots> heads_{};     // near, then far
  std::array<std::uint64_t, kSlots / 64> near_{};  // bit of each near slot that holds a node
  std::uint64_t at_ = 0;       // ticks up to this one are drained; within an advance, its place
  std::uint64_t reached_ = 0;  // what is armed expires after this tick
  std::uint32_t armed_ = 0;
};

}  // namespace kvrail::scheduler
