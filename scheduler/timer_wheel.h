// A hashed timing wheel of intrusive nodes: arm, cancel and expiry are O(1), and an advance over an
// idle stretch visits each slot at most once, skipping the empty ones by a bitmap. A node expires at
// the tick after it is due: so no slot is walked twice within a tick, however many nodes wait there.
//
// Thread: owner. Invariant: an armed node is on exactly the list of its slot.
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
  TimeNs due_ns = 0;
  std::uint32_t timer_slot = 0;
  bool armed = false;
};

class TimerWheel {
 public:
  static constexpr std::uint32_t kSlots = 256;
  static constexpr unsigned kTickShift = 20;  // about 1 ms: a tenth of a slice
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
    if (armed_ == 0 || target <= tick_) {
      tick_ = std::max(tick_, target);
      return;
    }
    const std::uint64_t visits = std::min<std::uint64_t>(target - tick_, kSlots);
    const std::uint64_t first = target + 1 - visits;
    tick_ = target;
    for (std::uint64_t tick = first; tick <= target; ++tick) {
      const auto slot = static_cast<std::uint32_t>(tick % kSlots);
      if ((occupied_[slot / 64] >> (slot % 64) & 1U) == 0) continue;
      drain_slot(slot, now_ns, expired);
    }
  }

 private:
  [[nodiscard]] static std::uint64_t tick_of(TimeNs ns) noexcept {
    return static_cast<std::uint64_t>(std::max<TimeNs>(ns, 0)) >> kTickShift;
  }
  void link(TimerNode& node, std::uint32_t slot) noexcept;

  template <class Expired>
  void drain_slot(std::uint32_t slot, TimeNs now_ns, Expired&& expired) noexcept {
    // Taken off as a whole first, so that nodes armed again meanwhile are not met twice.
    TimerNode* node = heads_[slot];
    heads_[slot] = nullptr;
    occupied_[slot / 64] &= ~(std::uint64_t{1} << (slot % 64));
    while (node != nullptr) {
      TimerNode* const next = node->timer_next;
      if (node->due_ns > now_ns) {  // in a later turn of the wheel
        link(*node, slot);
      } else {
        node->armed = false;
        node->timer_prev = node->timer_next = nullptr;
        --armed_;
        expired(*node);
      }
      node = next;
    }
  }

  std::array<TimerNode*, kSlots> heads_{};
  std::array<std::uint64_t, kSlots / 64> occupied_{};
  std::uint64_t tick_ = 0;
  std::uint32_t armed_ = 0;
};

}  // namespace kvrail::scheduler
