// What waits to be sent on a lane: frames as copied bytes, chunks as references. Fixed capacity, taken at construction.
//
// Thread: owner.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/status.h"
#include "kvrail/base/time.h"
#include "transport/ack_queue.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::tcp {

/// A bounded first-in, first-out queue. Counters run freely and are masked on access.
template <class T>
class FixedQueue {
 public:
  explicit FixedQueue(std::uint32_t capacity)
      : mask_(capacity - 1), slots_(std::make_unique<T[]>(capacity)) {
    KVRAIL_ASSERT(is_power_of_two(capacity));
  }
  [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
  [[nodiscard]] bool full() const noexcept { return tail_ - head_ > mask_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return tail_ - head_; }
  [[nodiscard]] T& front() noexcept { return at(0); }
  [[nodiscard]] T& back() noexcept { return at(size() - 1); }
  [[nodiscard]] T& at(std::uint32_t i) noexcept {
    KVRAIL_ASSERT(i < size());
    return slots_[(head_ + i) & mask_];
  }
  void push(const T& value) noexcept {
    KVRAIL_ASSERT(!full());
    slots_[tail_++ & mask_] = value;
  }
  void pop() noexcept {
    KVRAIL_ASSERT(!empty());
    ++head_;
  }
  void clear() noexcept { head_ = tail_; }

 private:
  std::uint32_t mask_;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  std::unique_ptr<T[]> slots_;
};

/// Frames in one byte ring, each with room for its header in front. A header is written when the
/// frame's place in the stream is decided (commit), because it carries the sequence number.
class FrameRing {
 public:
  FrameRing(std::uint32_t capacity_bytes, std::uint32_t capacity_frames)
      : mask_(capacity_bytes - 1),
        bytes_(std::make_unique<std::byte[]>(capacity_bytes)),
        waiting_(capacity_frames) {
    KVRAIL_ASSERT(is_power_of_two(capacity_bytes));
  }

  [[nodiscard]] std::uint64_t uncommitted_bytes() const noexcept { return tail_ - committed_; }
  [[nodiscard]] bool empty() const noexcept { return tail_ == head_; }
  [[nodiscard]] std::uint64_t head() const noexcept { return head_; }

  /// False if there is no room. `header` needs no sequence yet.
  [[nodiscard]] bool try_push(const wire::FrameHeader& header,
                              std::span<const std::byte> payload) noexcept {
    const std::uint64_t size = wire::kFrameHeaderBytes + payload.size();
    if (waiting_.full() || tail_ - head_ + size > mask_ + std::uint64_t{1}) {
      return false;
    }
    copy_in(tail_ + wire::kFrameHeaderBytes, payload);
    waiting_.push(header);
    tail_ += size;
    return true;
  }

  /// Gives every waiting frame the next sequence number; returns how many bytes are now ready.
  std::uint64_t commit(std::uint32_t& sequence) noexcept {
    const std::uint64_t before = committed_;
    while (!waiting_.empty()) {
      wire::FrameHeader& header = waiting_.front();
      header.sequence = sequence++;
      std::array<std::byte, wire::kFrameHeaderBytes> raw;
      wire::encode_header(header, raw);
      copy_in(committed_, raw);
      committed_ += wire::kFrameHeaderBytes + header.payload_bytes;
      waiting_.pop();
    }
    KVRAIL_ASSERT(committed_ == tail_);
    return committed_ - before;
  }

  /// The contiguous bytes from stream position `at`, at most `most`.
  [[nodiscard]] iovec view(std::uint64_t at, std::uint64_t most) noexcept {
    const std::uint64_t index = at & mask_;
    const std::uint64_t to_end = mask_ + std::uint64_t{1} - index;
    return {bytes_.get() + index, static_cast<std::size_t>(most < to_end ? most : to_end)};
  }
  /// The first `count` committed bytes were sent.
  void release(std::uint64_t count) noexcept {
    KVRAIL_ASSERT(count <= committed_ - head_);
    head_ += count;
  }
  void clear() noexcept {
    head_ = committed_ = tail_ = 0;
    waiting_.clear();
  }

 private:
  void copy_in(std::uint64_t at, std::span<const std::byte> from) noexcept {
    while (!from.empty()) {
      const iovec part = view(at, from.size());
      std::memcpy(part.iov_base, from.data(), part.iov_len);
      at += part.iov_len;
      from = from.subspan(part.iov_len);
    }
  }

  std::uint64_t mask_;
  std::unique_ptr<std::byte[]> bytes_;
  FixedQueue<wire::FrameHeader> waiting_;
  std::uint64_t head_ = 0;       // sent up to here
  std::uint64_t committed_ = 0;  // headers written up to here
  std::uint64_t tail_ = 0;
};

struct OutChunk {
  ChunkPost post;
  std::span<const std::uint64_t> digests;  // of the units it completes
  std::array<std::byte, wire::kFrameHeaderBytes> header{};
  std::uint32_t wire_bytes = 0;
  TimeNs posted_ns = 0;
  TimeNs completed_ns = 0;
  Code outcome = Code::ok;
};

/// The chunks of one class, in post order, from post to completion event.
/// Invariant: done <= acked, done <= sent, acked <= started, sent <= started <= posted.
/// A chunk is done (its memory is the caller's again) when it is acknowledged and no send in flight
/// names it: a peer that acknowledges early can't make us give memory back too soon.
class ChunkRing {
 public:
  explicit ChunkRing(std::uint32_t capacity)
      : mask_(capacity - 1), slots_(std::make_unique<OutChunk[]>(capacity)) {
    KVRAIL_ASSERT(is_power_of_two(capacity));
  }
  [[nodiscard]] bool full() const noexcept { return posted_ - done_ > mask_; }
  [[nodiscard]] bool empty() const noexcept { return posted_ == done_; }
  [[nodiscard]] bool has_unstarted() const noexcept { return started_ != posted_; }
  [[nodiscard]] bool has_done() const noexcept { return done_ < sent_ && done_ < acked_; }
  [[nodiscard]] OutChunk& at(std::uint64_t number) noexcept {
    KVRAIL_ASSERT(number >= done_ && number < posted_);
    return slots_[number & mask_];
  }
  [[nodiscard]] OutChunk& post() noexcept {
    KVRAIL_ASSERT(!full());
    return slots_[posted_++ & mask_];
  }
  [[nodiscard]] std::uint64_t start() noexcept {
    KVRAIL_ASSERT(has_unstarted());
    return started_++;
  }
  void mark_sent() noexcept {
    KVRAIL_ASSERT(sent_ < started_);
    ++sent_;
  }
  /// False if no correct peer would say this.
  [[nodiscard]] bool acknowledge(std::uint64_t first, std::uint32_t count, Code code,
                                 TimeNs now_ns) noexcept {
    if (first != acked_ || count > started_ - acked_) {
      return false;
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      OutChunk& chunk = at(acked_++);
      chunk.outcome = code;
      chunk.completed_ns = now_ns;
    }
    return true;
  }
  /// The oldest chunk; valid until the next post().
  [[nodiscard]] OutChunk& retire() noexcept {
    KVRAIL_ASSERT(!empty());
    OutChunk& chunk = slots_[done_ & mask_];
    ++done_;
    return chunk;
  }
  /// Acknowledged, whatever else happens to the lane.
  [[nodiscard]] bool front_is_acked() const noexcept { return done_ < acked_; }
  void clear() noexcept { posted_ = started_ = sent_ = acked_ = done_ = 0; }

 private:
  std::uint64_t mask_;
  std::unique_ptr<OutChunk[]> slots_;
  std::uint64_t posted_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t acked_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace kvrail::transport::tcp
