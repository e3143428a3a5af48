// The receive memory that peers may write into, by slot, and which lanes were told of it.
//
// Thread: owner.
// Invariant: a withdrawn lease is given back only when each lane that was told of it has confirmed
// that no WRITE is under way, or has lost its queue pairs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvrail/base/assert.h"
#include "transport/payload_ops.h"
#include "transport/transport.h"

namespace kvrail::transport::verbs {

class OwnLeases {
 public:
  struct Slot {
    enum class State : std::uint8_t { unused, exposed, withdrawing };
    State state = State::unused;
    bool reachable = true;  // false: its memory could not be registered
    std::uint32_t generation = 0;
    std::uint32_t next = kNone;
    NodeId peer = 0;
    std::uint64_t told = 0;  // a bit for each lane
    Payload sink;
  };

  explicit OwnLeases(std::uint32_t capacity)
      : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

  void expose(LeaseId lease, NodeId peer, const Payload& sink, bool reachable) noexcept {
    KVRAIL_ASSERT(lease.slot < capacity_);
    Slot& slot = slots_[lease.slot];
    KVRAIL_ASSERT_MSG(slot.state == Slot::State::unused, "a lease slot is exposed twice");
    slot = Slot{Slot::State::exposed, reachable, lease.generation, kNone, peer, 0, sink};
  }
  /// Returns the lanes that must confirm.
  std::uint64_t withdraw(LeaseId lease) noexcept {
    KVRAIL_ASSERT(lease.slot < capacity_);
    Slot& slot = slots_[lease.slot];
    KVRAIL_ASSERT_MSG(slot.state == Slot::State::exposed && slot.generation == lease.generation,
                      "only an exposed lease can be withdrawn, once");
    slot.state = Slot::State::withdrawing;
    give_back_if_quiet(lease.slot);
    return slot.told;
  }
  /// The exposed lease under this name that `peer` may write into, or nullptr.
  [[nodiscard]] Slot* find(LeaseId lease, NodeId peer) noexcept {
    if (lease.slot >= capacity_) return nullptr;
    Slot& slot = slots_[lease.slot];
    const bool fits = slot.state == Slot::State::exposed && slot.generation == lease.generation &&
                      slot.peer == peer;
    return fits ? &slot : nullptr;
  }
  /// Whether that slot's lease is withdrawn and this lane has not confirmed it.
  [[nodiscard]] bool is_withdrawing(std::uint32_t slot, std::uint64_t lane_bit) const noexcept {
    return slots_[slot].state == Slot::State::withdrawing && (slots_[slot].told & lane_bit) != 0;
  }
  /// Likewise, of the lease of that name.
  [[nodiscard]] bool owes(LeaseId lease, std::uint64_t lane_bit) const noexcept {
    return lease.slot < capacity_ && slots_[lease.slot].generation == lease.generation &&
           is_withdrawing(lease.slot, lane_bit);
  }
  /// False: this lane owes no confirmation of that lease.
  [[nodiscard]] bool confirm(LeaseId lease, std::uint64_t lane_bit) noexcept {
    if (!owes(lease, lane_bit)) return false;
    Slot& slot = slots_[lease.slot];
    slot.told &= ~lane_bit;
    give_back_if_quiet(lease.slot);
    return true;
  }
  /// The lane's queue pairs are destroyed: nothing can be written through it any more.
  void forget_lane(std::uint64_t lane_bit) noexcept {
    for (std::uint32_t i = 0; i < capacity_; ++i) {
      Slot& slot = slots_[i];
      if ((slot.told & lane_bit) == 0) continue;
      slot.told &= ~lane_bit;
      if (slot.state == Slot::State::withdrawing) give_back_if_quiet(i);
    }
  }
  [[nodiscard]] bool has_withdrawn() const noexcept { return head_ != kNone; }
  /// A withdrawn lease that nothing can write into any more; its slot may be exposed again.
  [[nodiscard]] std::optional<LeaseId> next_withdrawn() noexcept {
    if (head_ == kNone) return std::nullopt;
    const std::uint32_t index = head_;
    Slot& slot = slots_[index];
    head_ = slot.next;
    if (head_ == kNone) tail_ = kNone;
    slot.state = Slot::State::unused;
    slot.sink = Payload{};
    return LeaseId{index, slot.generation};
  }
  [[nodiscard]] Slot& at(std::uint32_t slot) noexcept { return slots_[slot]; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  void give_back_if_quiet(std::uint32_t index) noexcept {
    Slot& slot = slots_[index];
    if (slot.told != 0) return;
    slot.next = kNone;
    (tail_ == kNone ? head_ : slots_[tail_].next) = index;
    tail_ = index;
  }

  std::uint32_t capacity_;
  std::unique_ptr<Slot[]> slots_;
  std::uint32_t head_ = kNone;  // withdrawn and quiet, not yet reported
  std::uint32_t tail_ = kNone;
};

}  // namespace kvrail::transport::verbs
