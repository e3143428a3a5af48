// What a lane's peer has told of its leases: the segments that our WRITEs go to, in pages of a pool
// that all lanes share.
//
// Thread: owner.
// Invariant: a lease that the peer withdrew keeps its segments until the last WRITE for it is done.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/assert.h"
#include "transport/transport.h"
#include "transport/verbs/envelope.h"

namespace kvrail::transport::verbs {

inline constexpr std::uint32_t kNoPage = UINT32_MAX;
inline constexpr std::uint32_t kPageSegments = 32;

struct SegmentPage {
  std::array<Segment, kPageSegments> segments{};
  std::array<std::uint64_t, kPageSegments> starts{};  // stream offset of each
  std::uint32_t used = 0;
  std::uint32_t next = kNoPage;
};

class SegmentPool {
 public:
  explicit SegmentPool(std::uint32_t pages);
  [[nodiscard]] std::uint32_t take() noexcept;  // kNoPage: none is free
  void give(std::uint32_t page) noexcept;
  [[nodiscard]] SegmentPage& at(std::uint32_t page) noexcept { return pages_[page]; }
  [[nodiscard]] std::uint32_t free_pages() const noexcept { return free_; }
  [[nodiscard]] std::uint32_t pages() const noexcept { return count_; }

 private:
  std::unique_ptr<SegmentPage[]> pages_;
  std::uint32_t count_;
  std::uint32_t free_;
  std::uint32_t first_free_ = 0;
};

class PeerLeases {
 public:
  enum class State : std::uint8_t { unknown, arriving, told, withdrawn };
  enum class Arrival : std::uint8_t { taken, no_room, malformed };

  PeerLeases(SegmentPool& pool, std::uint32_t slots);
  ~PeerLeases() { clear(); }
  PeerLeases(const PeerLeases&) = delete;
  PeerLeases& operator=(const PeerLeases&) = delete;

  [[nodiscard]] Arrival on_lease(const LeaseHead& head, std::span<const std::byte> body) noexcept;
  /// True: `released` is to be said now. False: later, by the finish() that returns true.
  [[nodiscard]] bool on_withdrawn(LeaseId lease) noexcept;

  [[nodiscard]] State state_of(LeaseId lease) const noexcept;
  [[nodiscard]] std::uint64_t total_bytes(LeaseId lease) const noexcept {
    return slots_[lease.slot].total;
  }
  /// A chunk for it is about to be written; the lease is told.
  void begin(LeaseId lease) noexcept { ++slots_[lease.slot].in_use; }
  /// Its WRITEs are done. True: the lease was withdrawn and this was the last: say `released`.
  [[nodiscard]] bool finish(LeaseId lease) noexcept;

  struct Place {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint64_t bytes = 0;  // contiguous from there
  };
  /// Where stream offset `offset` (< total) of a told lease lies, for a WRITE on that queue pair.
  [[nodiscard]] Place locate(LeaseId lease, std::uint64_t offset, std::size_t pair) noexcept;
  /// The lane is gone.
  void clear() noexcept;

 private:
  struct Slot {
    State state = State::unknown;
    std::uint32_t generation = 0;
    std::uint32_t in_use = 0;
    std::uint64_t total = 0;
    std::uint64_t arrived = 0;
    std::uint32_t head = kNoPage;
    std::uint32_t tail = kNoPage;
    std::uint32_t near_page = kNoPage;  // where the last look-up ended
  };
  void forget(Slot& slot) noexcept;
  [[nodiscard]] Arrival add_segments(Slot& slot, const LeaseHead& head,
                                     std::span<const std::byte> body) noexcept;

  SegmentPool& pool_;
  std::uint32_t count_;
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace kvrail::transport::verbs
