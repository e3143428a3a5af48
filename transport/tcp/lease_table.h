// The receive memory that peers may write into, by slot; and who is writing right now.
//
// Thread: owner.
// Invariant: memory of a lease is named to the kernel only between add_writer() and
// remove_writer(); a withdrawn lease is given back (next_withdrawn) only when it has no writers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvrail/base/assert.h"
#include "transport/payload_ops.h"
#include "transport/transport.h"

namespace kvrail::transport::tcp {

class LeaseTable {
 public:
  explicit LeaseTable(std::uint32_t capacity)
      : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

  void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept {
    KVRAIL_ASSERT(lease.slot < capacity_);
    Slot& slot = slots_[lease.slot];
    KVRAIL_ASSERT_MSG(slot.state == State::unused, "a lease slot is exposed twice");
    KVRAIL_ASSERT(slot.writers == 0);
    slot = Slot{State::exposed, lease.generation, 0, kNone, peer, sink};
  }

  void withdraw(LeaseId lease) noexcept {
    KVRAIL_ASSERT(lease.slot < capacity_);
    Slot& slot = slots_[lease.slot];
    KVRAIL_ASSERT_MSG(slot.state == State::exposed && slot.generation == lease.generation,
                      "only an exposed lease can be withdrawn, once");
    slot.state = State::withdrawing;
    give_back_if_quiet(lease.slot);
  }

  /// The sink that `peer` may write into under this name, or nullptr.
  [[nodiscard]] const Payload* find(LeaseId lease, NodeId peer) const noexcept {
    if (lease.slot >= capacity_) {
      return nullptr;
    }
    const Slot& slot = slots_[lease.slot];
    const bool fits = slot.state == State::exposed && slot.generation == lease.generation &&
                      slot.peer == peer;
    return fits ? &slot.sink : nullptr;
  }

  void add_writer(std::uint32_t slot) noexcept {
    KVRAIL_ASSERT(slots_[slot].state == State::exposed);
    ++slots_[slot].writers;
  }
  void remove_writer(std::uint32_t slot) noexcept {
    KVRAIL_ASSERT(slots_[slot].writers > 0);
    --slots_[slot].writers;
    give_back_if_quiet(slot);
  }

  [[nodiscard]] bool has_withdrawn() const noexcept { return head_ != kNone; }
  /// A withdrawn lease that nothing can write into any more; its slot may be exposed again.
  [[nodiscard]] std::optional<LeaseId> next_withdrawn() noexcept {
    if (head_ == kNone) {
      return std::nullopt;
    }
    const std::uint32_t index = head_;
    Slot& slot = slots_[index];
    head_ = slot.next;
    tail_ = head_ == kNone ? kNone : tail_;
    slot.state = State::unused;
    slot.sink = Payload{};
    return LeaseId{index, slot.generation};
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  enum class State : std::uint8_t { unused, exposed, withdrawing };
  struct Slot {
    State state = State::unused;
    std::uint32_t generation = 0;
    std::uint32_t writers = 0;
    std::uint32_t next = kNone;
    NodeId peer = 0;
    Payload sink;
  };

  void give_back_if_quiet(std::uint32_t index) noexcept {
    Slot& slot = slots_[index];
    if (slot.state != State::withdrawing || slot.writers != 0) {
      return;
    }
    slot.next = kNone;
    (tail_ == kNone ? head_ : slots_[tail_].next) = index;
    tail_ = index;
  }

  std::uint32_t capacity_;
  std::unique_ptr<Slot[]> slots_;
  std::uint32_t head_ = kNone;  // withdrawn and quiet, not yet reported
  std::uint32_t tail_ = kNone;
};

}  // namespace kvrail::transport::tcp
