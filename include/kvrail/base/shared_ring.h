// A single-producer, single-consumer ring of fixed-size records in memory that two processes share
// and of which one side does not trust the other. Engine and agent each hold one end of two such
// rings.
//
// Threads    one thread owns the RingProducer, one the RingConsumer; usually in different processes.
//            Neither handle may be used by two threads.
// State      tail (shared)   records published so far, written by the producer only
//            head (shared)   records taken so far, written by the consumer only
//            parked (shared) not 0 while the consumer sleeps or is about to: a bit per kind of record
//                            that is to wake it; set by the consumer, taken back to 0 by whoever ends
//                            the sleep
//            tail_, head_    each side's own index, private. It is never read back from shared memory,
//                            so the other side can't move it
//            cached_*        the peer's index when last looked at: saves a cache miss per record
// Invariant  0 <= tail - head <= capacity in 64-bit arithmetic. Slots [head, tail) are the consumer's,
//            all others the producer's. A peer's index that breaks this, or runs backwards, turns the
//            handle's state() to `corrupt` for good; no slot outside the ring is ever touched, since
//            every slot number is masked with a private mask.
// Edges      P1 tail store(release or stronger) -> C1 tail load(acquire): record bytes before the index
//            C2 head store(release) -> P2 head load(acquire): a slot is copied out before it is reused
//            P3/C3 no lost wake-up: publish() stores tail, then loads parked; prepare_park() stores
//            parked, then loads tail; all four are seq_cst, so in their single order at least one side
//            sees the other's store. With anything weaker this run sleeps for ever:
//              1. consumer loads tail: empty          (its parked store still in the store buffer)
//              2. producer stores tail, loads parked: 0, so no signal
//              3. consumer's parked store lands; it sleeps on a ring that holds a record.
// Relaxed    the parked store of cancel_park(): it only saves the producer a needless signal.
// Wrap       indices are free-running 64-bit counts: at 1 GHz they wrap after 584 years, and the
//            differences would stay right even then. The capacity is a power of two, so masking is
//            continuous at the wrap.
//
// Speed: publish() is a full barrier. Push what a duty cycle has, then publish once. Whose records fill
// lines of their own has the next slot's on their way by then, so that the next push need not wait for them.
//
// Trust: a record is copied out once, then the compiler may not look at shared memory again (see
// RingSlots::read); validate the copy, never the slot. What a hostile peer can do is to send wrong
// records, send none, and ask for needless signals. It could also shrink the file behind the
// mapping, so map only sealed memfds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"

namespace kvrail {

/// Processors fetch lines in pairs, so two lines that different cores write must not be neighbours.
inline constexpr std::size_t kRingLineBytes = 2 * kCacheLineBytes;

enum class RingState : std::uint8_t {
  ok = 0,
  /// The peer wrote an index that no correct peer writes. The ring is dead: close the connection.
  corrupt = 1,
};

/// Kinds of records as bits, for a consumer that sleeps through some of them.
inline constexpr std::uint32_t kWakeAny = ~std::uint32_t{0};

/// What lies at the start of the shared memory; the slots follow. No capacity and no magic in here:
/// both sides agree on those over the control socket, and what is not in shared memory can't be
/// changed under us.
struct RingMemory {
  alignas(kRingLineBytes) std::atomic<std::uint64_t> tail;
  alignas(kRingLineBytes) std::atomic<std::uint64_t> head;
  /// On a line of its own: the producer reads it at each publish, the consumer writes it only to
  /// sleep.
  alignas(kRingLineBytes) std::atomic<std::uint32_t> parked;

  /// Bytes for a ring of `capacity` records of `record_bytes` each.
  [[nodiscard]] static constexpr std::size_t required_bytes(std::uint32_t capacity,
                                                            std::size_t record_bytes) noexcept {
    return sizeof(RingMemory) + static_cast<std::size_t>(capacity) * record_bytes;
  }

  /// Makes an empty ring in `memory`; called once, by its creator, before either handle is made.
  static void create(std::span<std::byte> memory, std::uint64_t first_index = 0) noexcept {
    KVRAIL_ASSERT(memory.size() >= sizeof(RingMemory));
    KVRAIL_ASSERT(is_aligned(reinterpret_cast<std::uintptr_t>(memory.data()), kRingLineBytes));
    auto* ring = ::new (memory.data()) RingMemory;
    // Relaxed: the memory is handed to the other side later, over a socket or a thread's start.
    ring->tail.store(first_index, std::memory_order_relaxed);
    ring->head.store(first_index, std::memory_order_relaxed);
    ring->parked.store(0, std::memory_order_relaxed);
  }
};

static_assert(sizeof(RingMemory) == 3 * kRingLineBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "a lock can't be shared with a stranger");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

namespace detail {

inline void prefetch_write(const std::byte* at) noexcept {
#if defined(__x86_64__)
  // __builtin_prefetch() gives this only where the build may use it; processors without it skip it.
  asm volatile("prefetchw %0" : : "m"(*at));
#else
  __builtin_prefetch(at, 1);
#endif
}

/// What both ends check and compute alike.
template <class Record>
class RingSlots {
  static_assert(std::is_trivially_copyable_v<Record>, "records cross address spaces as bytes");
  static_assert(alignof(Record) <= kCacheLineBytes);

 public:
  RingSlots(std::span<std::byte> memory, std::uint32_t capacity) noexcept
      : ring_(std::launder(reinterpret_cast<RingMemory*>(memory.data()))),
        slots_(memory.data() + sizeof(RingMemory)),
        capacity_(capacity) {
    KVRAIL_ASSERT_MSG(is_power_of_two(capacity), "slot numbers are masked");
    KVRAIL_ASSERT(memory.size() >= RingMemory::required_bytes(capacity, sizeof(Record)));
    KVRAIL_ASSERT(is_aligned(reinterpret_cast<std::uintptr_t>(memory.data()), kRingLineBytes));
  }

  [[nodiscard]] RingMemory& ring() const noexcept { return *ring_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

  void write(std::uint64_t index, const Record& record) const noexcept {
    std::memcpy(slot(index), &record, sizeof(Record));
  }
  /// Begins to fetch the lines of a slot that is to be written: the consumer had them last. Only where a
  /// record has lines of its own; else it would take away the one that the consumer is about to read.
  void fetch_to_write(std::uint64_t index) const noexcept {
    if constexpr (sizeof(Record) % kCacheLineBytes == 0) {
      for (std::size_t at = 0; at < sizeof(Record); at += kCacheLineBytes) prefetch_write(slot(index) + at);
    }
  }
  /// The one copy. The empty asm ends what the compiler may know of shared memory: without it, it
  /// could read a field again after the caller has validated it.
  void read(std::uint64_t index, Record& record) const noexcept {
    std::memcpy(&record, slot(index), sizeof(Record));
    asm volatile("" ::: "memory");
  }

 private:
  [[nodiscard]] std::byte* slot(std::uint64_t index) const noexcept {
    return slots_ + static_cast<std::size_t>(index & (capacity_ - 1U)) * sizeof(Record);
  }

  RingMemory* ring_;
  std::byte* slots_;
  std::uint32_t capacity_;
};

}  // namespace detail

/// The writing end. Records become visible together at publish().
template <class Record>
class alignas(kRingLineBytes) RingProducer {
 public:
  /// `memory` holds a ring made by RingMemory::create() with the same first index, and outlives the
  /// handle.
  RingProducer(std::span<std::byte> memory, std::uint32_t capacity,
               std::uint64_t first_index = 0) noexcept
      : slots_(memory, capacity),
        tail_(first_index),
        published_(first_index),
        cached_head_(first_index) {}

  RingProducer(const RingProducer&) = delete;
  RingProducer& operator=(const RingProducer&) = delete;

  [[nodiscard]] static constexpr std::size_t required_bytes(std::uint32_t capacity) noexcept {
    return RingMemory::required_bytes(capacity, sizeof(Record));
  }

  [[nodiscard]] RingState state() const noexcept { return state_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return slots_.capacity(); }
  /// Records written but not yet published.
  [[nodiscard]] std::uint32_t staged() const noexcept {
    return static_cast<std::uint32_t>(tail_ - published_);
  }

  /// Writes one record into the next slot. False when the ring is full, or corrupt.
  [[nodiscard]] bool try_push(const Record& record) noexcept {
    if (tail_ - cached_head_ == capacity() && !refresh_head()) [[unlikely]] {
      return false;
    }
    KVRAIL_ASSERT(tail_ - cached_head_ < capacity());
    slots_.write(tail_, record);
    ++tail_;
    return true;
  }

  /// Whether the next try_push() will succeed; looks at the peer's index only when that is in doubt.
  [[nodiscard]] bool has_room() noexcept { return tail_ - cached_head_ < capacity() || refresh_head(); }

  /// How many try_push() calls are sure to succeed now; 0 when corrupt.
  [[nodiscard]] std::uint32_t free_slots() noexcept {
    return refresh_head() ? static_cast<std::uint32_t>(capacity() - (tail_ - cached_head_)) : 0;
  }

  /// Makes all staged records visible. True: the consumer sleeps and waits for records of one of the
  /// `kinds`, and the caller must signal its eventfd.
  [[nodiscard]] bool publish(std::uint32_t kinds = kWakeAny) noexcept {
    if (tail_ == published_) {
      return false;
    }
    published_ = tail_;
    // P1 -> C1, P3 -> C3 (seq_cst against the load below, see Edges).
    slots_.ring().tail.store(tail_, std::memory_order_seq_cst);
    slots_.fetch_to_write(tail_);
    if ((slots_.ring().parked.load(std::memory_order_seq_cst) & kinds) == 0) [[likely]] {  // P3 <- C3
      return false;
    }
    // One signal per sleep: whoever takes the flag gives it. seq_cst only to stay in the order
    // above.
    return slots_.ring().parked.exchange(0, std::memory_order_seq_cst) != 0;
  }

  /// publish() for a consumer that never parks; saves the store-load barrier.
  void publish_no_wake() noexcept {
    published_ = tail_;
    slots_.ring().tail.store(tail_, std::memory_order_release);  // P1 -> C1
  }

 private:
  /// False when the ring is full or corrupt.
  bool refresh_head() noexcept {
    if (state_ != RingState::ok) {
      return false;
    }
    const std::uint64_t head = slots_.ring().head.load(std::memory_order_acquire);  // P2 <- C2
    // Sound: head lies in [cached head, published tail]. A peer can't have taken what it couldn't
    // see.
    if (head - cached_head_ > published_ - cached_head_) [[unlikely]] {
      state_ = RingState::corrupt;
      cached_head_ = tail_ - capacity();  // Full for good, so try_push() needs no check of its own.
      return false;
    }
    cached_head_ = head;
    return tail_ - cached_head_ < capacity();
  }

  detail::RingSlots<Record> slots_;
  std::uint64_t tail_;
  std::uint64_t published_;
  std::uint64_t cached_head_;
  RingState state_ = RingState::ok;
};

/// The reading end.
template <class Record>
class alignas(kRingLineBytes) RingConsumer {
 public:
  /// See RingProducer.
  RingConsumer(std::span<std::byte> memory, std::uint32_t capacity,
               std::uint64_t first_index = 0) noexcept
      : slots_(memory, capacity), head_(first_index), cached_tail_(first_index) {}

  RingConsumer(const RingConsumer&) = delete;
  RingConsumer& operator=(const RingConsumer&) = delete;

  [[nodiscard]] static constexpr std::size_t required_bytes(std::uint32_t capacity) noexcept {
    return RingMemory::required_bytes(capacity, sizeof(Record));
  }

  [[nodiscard]] RingState state() const noexcept { return state_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return slots_.capacity(); }

  /// Copies the next record out and frees its slot. False when the ring is empty, or corrupt.
  [[nodiscard]] bool try_pop(Record& record) noexcept {
    if (head_ == cached_tail_ && !refresh_tail(std::memory_order_acquire)) {
      return false;
    }
    slots_.read(head_, record);
    ++head_;
    slots_.ring().head.store(head_, std::memory_order_release);  // C2 -> P2
    return true;
  }

  /// Copies up to out.size() records out and frees their slots together. Returns how many.
  [[nodiscard]] std::size_t pop_batch(std::span<Record> out) noexcept {
    if (cached_tail_ - head_ < out.size()) {
      refresh_tail(std::memory_order_acquire);
    }
    if (state_ != RingState::ok) [[unlikely]] {
      return 0;
    }
    const std::uint64_t available = cached_tail_ - head_;
    KVRAIL_ASSERT(available <= capacity());
    const std::size_t count =
        available < out.size() ? static_cast<std::size_t>(available) : out.size();
    for (std::size_t i = 0; i < count; ++i) {
      slots_.read(head_ + i, out[i]);
    }
    if (count != 0) {
      head_ += count;
      slots_.ring().head.store(head_, std::memory_order_release);  // C2 -> P2
    }
    return count;
  }

  /// Whether a record can be taken now; looks at the peer's index only when none is known.
  [[nodiscard]] bool has_next() noexcept {
    return head_ != cached_tail_ || refresh_tail(std::memory_order_acquire);
  }

  /// Records that can be taken now; 0 when corrupt.
  [[nodiscard]] std::uint32_t available() noexcept {
    refresh_tail(std::memory_order_acquire);
    return state_ == RingState::ok ? static_cast<std::uint32_t>(cached_tail_ - head_) : 0;
  }

  /// Announces that the owner is about to sleep on its eventfd, until a record of one of the `kinds`
  /// comes. True: it may, their next publish() signals it. False: there is a record to take, of
  /// whatever kind (or the ring is corrupt), and nothing was announced.
  [[nodiscard]] bool prepare_park(std::uint32_t kinds = kWakeAny) noexcept {
    if (state_ != RingState::ok) {
      return false;
    }
    KVRAIL_ASSERT(kinds != 0);
    slots_.ring().parked.store(kinds, std::memory_order_seq_cst);  // C3 -> P3
    if (refresh_tail(std::memory_order_seq_cst) || state_ != RingState::ok) {
      cancel_park();
      return false;
    }
    return true;
  }

  /// Ends what prepare_park() began, after the sleep or instead of it. A signal may already be
  /// under way, so the eventfd has to be drained when it fires, and firing for nothing is normal.
  void cancel_park() noexcept { slots_.ring().parked.store(0, std::memory_order_relaxed); }

 private:
  /// C1 <- P1. True when there is something to take.
  bool refresh_tail(std::memory_order order) noexcept {
    if (state_ != RingState::ok) {
      return false;
    }
    const std::uint64_t tail = slots_.ring().tail.load(order);  // C1 <- P1, C3 <- P3 when seq_cst
    const std::uint64_t known = cached_tail_ - head_;
    const std::uint64_t now = tail - head_;
    if (now > capacity() || now < known) [[unlikely]] {
      state_ = RingState::corrupt;
      cached_tail_ = head_;  // Empty for good, so try_pop() needs no check of its own.
      return false;
    }
    cached_tail_ = tail;
    return now != 0;
  }

  detail::RingSlots<Record> slots_;
  std::uint64_t head_;
  std::uint64_t cached_tail_;
  RingState state_ = RingState::ok;
};

}  // namespace kvrail
