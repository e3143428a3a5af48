// The chunks of one class of a lane, in post order, from post to completion event.
//
// Thread: owner.
// Invariant: done <= local <= written <= posted. A chunk is numbered once the peer has been told of
// it; the peer acknowledges numbered chunks in order. A chunk is done (its memory is the caller's
// again) when no WRITE of it is under way and the peer has acknowledged it, or refused its lease.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/status.h"
#include "kvrail/base/time.h"
#include "transport/transport.h"

namespace kvrail::transport::verbs {

inline constexpr std::uint32_t kNoBounce = UINT32_MAX;

struct OutChunk {
  enum class Stage : std::uint8_t { waiting, writing, written };
  ChunkPost post;
  std::span<const std::uint64_t> digests;  // of the units it completes
  Stage stage = Stage::waiting;
  bool numbered = false;
  bool acked = false;
  bool holds_lease = false;   // counted in the peer's lease until its WRITEs are done
  bool stopped = false;       // no more WRITEs: its lease is gone, or it does not fit in it
  std::uint32_t written = 0;  // bytes posted
  std::uint32_t bounce = kNoBounce;
  std::uint64_t last_work = 0;  // number of its last WRITE; 0: none
  std::uint64_t number = 0;     // once numbered
  TimeNs posted_ns = 0;
  TimeNs completed_ns = 0;
  Code outcome = Code::ok;
};

class ChunkRing {
 public:
  explicit ChunkRing(std::uint32_t capacity)
      : mask_(capacity - 1), slots_(std::make_unique<OutChunk[]>(capacity)) {
    KVRAIL_ASSERT(is_power_of_two(capacity));
  }
  [[nodiscard]] bool full() const noexcept { return posted_ - done_ > mask_; }
  [[nodiscard]] bool empty() const noexcept { return posted_ == done_; }
  [[nodiscard]] OutChunk& post() noexcept {
    KVRAIL_ASSERT(!full());
    return slots_[posted_++ & mask_] = OutChunk{};
  }
  /// The oldest chunk that is not wholly written.
  [[nodiscard]] bool has_unwritten() const noexcept { return written_ != posted_; }
  [[nodiscard]] OutChunk& unwritten() noexcept { return at(written_); }
  void mark_written() noexcept { ++written_; }
  /// The peer is about to hear of the oldest unwritten chunk.
  void number() noexcept {
    unwritten().numbered = true;
    unwritten().number = numbered_++;
  }
  [[nodiscard]] std::uint64_t unacked() const noexcept { return numbered_ - acked_; }
  /// False if no correct peer would say this.
  /// `digests`: of the chunks that are not acknowledged; lowered by what is.
  [[nodiscard]] bool acknowledge(std::uint64_t first, std::uint32_t count, Code code, TimeNs now_ns,
                                 std::uint32_t& digests) noexcept {
    if (first != acked_ || count > numbered_ - acked_) return false;
    for (std::uint32_t left = count; left > 0; ++ack_at_) {
      KVRAIL_ASSERT(ack_at_ < posted_);
      OutChunk& chunk = at(ack_at_);
      if (!chunk.numbered) continue;
      chunk.acked = true;
      digests -= static_cast<std::uint32_t>(chunk.digests.size());
      chunk.outcome = code;
      chunk.completed_ns = now_ns;
      --left;
    }
    acked_ += count;
    return true;
  }
  /// The oldest chunk whose WRITEs may still be under way, if work up to `completed` is done with
  /// it.
  [[nodiscard]] OutChunk* next_local(std::uint64_t completed) noexcept {
    if (local_ == written_ || at(local_).last_work > completed) return nullptr;
    return &at(local_++);
  }
  [[nodiscard]] bool has_done() noexcept {
    return done_ != local_ && (at(done_).acked || !at(done_).numbered);
  }
  /// The oldest chunk, whatever its state; valid until the next post().
  [[nodiscard]] OutChunk& retire() noexcept {
    KVRAIL_ASSERT(!empty());
    OutChunk& chunk = at(done_);
    ++done_;
    if (ack_at_ < done_) ack_at_ = done_;
    return chunk;
  }
  /// Chunks that were begun and not retired, to give back what they hold when the lane ends.
  template <class F>
  void for_each(F&& f) noexcept {
    for (std::uint64_t i = done_; i != posted_; ++i) f(at(i));
  }
  void clear() noexcept { posted_ = written_ = local_ = done_ = numbered_ = acked_ = ack_at_ = 0; }

 private:
  [[nodiscard]] OutChunk& at(std::uint64_t i) noexcept { return slots_[i & mask_]; }

  std::uint64_t mask_;
  std::unique_ptr<OutChunk[]> slots_;
  std::uint64_t posted_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t local_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t numbered_ = 0;
  std::uint64_t acked_ = 0;   // of the numbered ones
  std::uint64_t ack_at_ = 0;  // position from which the next acknowledged one is looked for
};

}  // namespace kvrail::transport::verbs
