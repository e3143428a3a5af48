// How much of a lane's traffic may be posted and unfinished: BDP + 2 chunks, BDP = capacity x
// (least post-to-completion time less the chunk's own sending time). See docs/scheduling.md, "In
// flight".
//
// The window doubles per round at most while it grows, so that a wrong first guess of a slow lane
// costs a few chunks of queue, not megabytes. The least time is confirmed each 10 s by one chunk
// that travels alone: a lane that is never empty would count its own queue as distance.
// Invariant: bulk + critical bytes are the sums over the records that are not done.
#pragma once

#include <cstdint>
#include <memory>

#include "kvrail/base/time.h"
#include "scheduler/bandwidth.h"

namespace kvrail::scheduler {

// Records of posted chunks in the order of posting. A transport completes a class nearly in order,
// so looking for one from the front ends at once.
class PostRing {
 public:
  explicit PostRing(std::uint32_t capacity);  // a power of two
  [[nodiscard]] bool full() const noexcept { return tail_ - head_ == capacity_; }
  [[nodiscard]] bool empty() const noexcept { return tail_ == head_; }
  [[nodiscard]] PostMark& push() noexcept;  // to be filled in
  // Takes back the newest; its bytes must match.
  void pop_newest(std::uint32_t bytes) noexcept;
  // The oldest that is not done and has this many bytes; nullptr when there is none.
  [[nodiscard]] PostMark* find(std::uint32_t bytes) noexcept;
  void finish(PostMark& mark) noexcept;
  void clear() noexcept { head_ = tail_ = 0; }

 private:
  [[nodiscard]] PostMark& at(std::uint32_t i) noexcept { return marks_[i & (capacity_ - 1)]; }
  std::uint32_t capacity_;
  std::uint32_t head_ = 0, tail_ = 0;  // free running
  std::unique_ptr<PostMark[]> marks_;
};

struct ChunkBounds {
  std::uint32_t least = 4096;
  std::uint32_t most = 256 * 1024;
  TimeNs least_window_ns = 0;  // SchedulerOptions::least_window_ns
};
// The nearest power of two of rate x 0.5 ms, within the bounds.
[[nodiscard]] std::uint32_t chunk_bytes_for(std::uint64_t rate_bytes_per_s,
                                            const ChunkBounds& bounds) noexcept;

class InFlightWindow {
 public:
  static constexpr std::uint32_t kMostBulkChunks = 512;
  static constexpr std::uint32_t kMostCriticalChunks = 128;

  explicit InFlightWindow(const ChunkBounds& bounds);
  void start(std::uint64_t rate_hint, TimeNs now_ns) noexcept;

  [[nodiscard]] bool may_post_bulk(std::uint32_t bytes) const noexcept;
  // Critical chunks may exceed the bulk bound by two chunks of their own.
  [[nodiscard]] bool may_post_critical(std::uint32_t bytes) const noexcept;
  // True when a chunk more could go out now: a lane that has nothing for it is limited by its
  // flows.
  [[nodiscard]] bool has_room() const noexcept { return may_post_bulk(chunk_bytes_); }
  void note_app_limited() noexcept { bandwidth_.app_limited(in_flight()); }
  // Called before posting: starts the confirmation of the least time when it is due.
  void tick(TimeNs now_ns) noexcept;

  void post(TimeNs now_ns, std::uint32_t bytes, bool critical) noexcept;
  void unpost(std::uint32_t bytes, bool critical) noexcept;
  void done(std::uint32_t bytes, TimeNs posted_ns, TimeNs completed_ns, bool ok) noexcept;

  [[nodiscard]] std::uint64_t in_flight() const noexcept { return bulk_ + critical_; }
  [[nodiscard]] std::uint64_t limit() const noexcept;
  [[nodiscard]] std::uint32_t chunk_bytes() const noexcept { return chunk_bytes_; }
  [[nodiscard]] const BandwidthEstimator& bandwidth() const noexcept { return bandwidth_; }
  [[nodiscard]] std::uint64_t rate_for_choice(std::uint64_t bytes, TimeNs now_ns) noexcept {
    return bandwidth_.rate_for_choice(bytes, now_ns);
  }

 private:
  void refresh() noexcept;

  ChunkBounds bounds_;
  BandwidthEstimator bandwidth_;
  PostRing bulk_ring_;
  PostRing critical_ring_;
  std::uint64_t bulk_ = 0;
  std::uint64_t critical_ = 0;
  std::uint32_t chunk_bytes_ = 0;
  std::uint64_t wanted_ = 0;    // BDP + 2 chunks, or the least window where that is more
  std::uint64_t grown_to_ = 0;  // twice the most that was in flight and came back
  bool confirming_ = false;
  std::uint64_t refreshed_capacity_ = 0;  // that the figures above were made from
  TimeNs refreshed_round_trip_ns_ = -2;
};

}  // namespace kvrail::scheduler
