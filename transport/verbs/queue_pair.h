// One queue pair as a sender sees it: how much of its send queue is used, and the work requests of
// one doorbell.
//
// Thread: owner.
// Invariant: the last request of a doorbell is signalled, unless all are SENDs, few and small since the
// last that was: a completion for each would cost and, parked, wake for nothing. Completions of a
// reliable queue pair come in order; so one tells that everything up to its number is done.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/assert.h"

namespace kvrail::transport::verbs {

inline constexpr std::uint32_t kMaxSge = 16;

/// What a work request id tells, in 64 bits.
struct WorkId {
  enum class Kind : std::uint8_t { send = 0, receive = 1 };
  std::uint32_t lane = 0;        // < 2^8
  std::uint32_t generation = 0;  // its low 16 bits
  std::uint32_t stream = 0;      // 0 or 1
  Kind kind = Kind::send;
  std::uint32_t number = 0;  // low 32 bits: of a send counted from 1, of a receive from 0

  [[nodiscard]] std::uint64_t pack() const noexcept {
    return (std::uint64_t{lane} << 56) | (std::uint64_t{generation & 0xffffu} << 40) |
           (std::uint64_t{stream} << 33) | (std::uint64_t{static_cast<std::uint8_t>(kind)} << 32) |
           number;
  }
  [[nodiscard]] static WorkId unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word >> 56),
            static_cast<std::uint32_t>(word >> 40) & 0xffffu,
            static_cast<std::uint32_t>(word >> 33) & 1u, static_cast<Kind>((word >> 32) & 1u),
            static_cast<std::uint32_t>(word)};
  }
};

struct SendQueue {
  ibv_qp* pair = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t aside = 0;  // of them, for bindings and invalidations of windows alone
  std::uint32_t most_sge = 1;
  std::uint32_t most_inline = 0;
  std::uint64_t posted = 0;
  std::uint64_t completed = 0;
  std::uint32_t quiet_requests = 0;  // posted since the last signalled one
  std::uint64_t quiet_bytes = 0;

  /// Takes the low 32 bits of a completed send's number. False: it was complete before, or was
  /// never posted; nothing changes.
  [[nodiscard]] bool complete(std::uint32_t number) noexcept {
    const std::uint64_t done =
        completed + static_cast<std::uint32_t>(number - static_cast<std::uint32_t>(completed));
    if (done == completed || done > posted) return false;
    completed = done;
    return true;
  }
};

class Doorbell {
 public:
  static constexpr std::uint32_t kMost = 32;

  /// Begins a doorbell on `queue`; the one before was rung.
  void aim(SendQueue& queue, WorkId id) noexcept {
    KVRAIL_ASSERT(count_ == 0);
    queue_ = &queue;
    id_ = id;
  }
  /// Whether one more request fits now, ringing if that is what makes room. False also after a
  /// failure of posting, which failure() tells.
  [[nodiscard]] bool has_room() noexcept {
    if (count_ == kMost && !ring()) return false;
    return failure_ == 0 &&
           queue_->posted + count_ - queue_->completed < queue_->depth - queue_->aside;
  }
  /// Likewise for `count` requests that may use the slots set aside.
  [[nodiscard]] bool has_room_aside(std::uint32_t count) noexcept {
    if (count_ + count > kMost && !ring()) return false;
    return failure_ == 0 && queue_->posted + count_ + count - queue_->completed <= queue_->depth;
  }
  /// The next request with its gather list, both empty; has_room() was asked. It has number last().
  [[nodiscard]] ibv_send_wr& add() noexcept {
    ibv_send_wr& request = requests_[count_];
    request = ibv_send_wr{};
    request.sg_list = parts_[count_].data();
    ++count_;
    return request;
  }
  [[nodiscard]] std::span<ibv_sge> parts(const ibv_send_wr& request) noexcept {
    return parts_[static_cast<std::size_t>(&request - requests_.data())];
  }
  /// The number of the last request added or posted.
  [[nodiscard]] std::uint64_t last() const noexcept { return queue_->posted + count_; }
  /// Posts what was added. False: posting failed, the lane is lost.
  bool ring() noexcept;
  /// The next ring() is signalled, whatever it posts.
  void want_completion() noexcept { wanted_ = true; }
  [[nodiscard]] int failure() const noexcept { return failure_; }
  void reset() noexcept {
    count_ = 0;
    failure_ = 0;
    wanted_ = false;
  }

 private:
  [[nodiscard]] bool may_be_quiet() noexcept;

  SendQueue* queue_ = nullptr;
  WorkId id_;
  std::uint32_t count_ = 0;
  int failure_ = 0;
  bool wanted_ = false;
  std::array<ibv_send_wr, kMost> requests_{};
  std::array<std::array<ibv_sge, kMaxSge>, kMost> parts_{};
};

}  // namespace kvrail::transport::verbs
