#include "scheduler/in_flight.h"

#include <algorithm>

#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {

// ---- PostRing ----

PostRing::PostRing(std::uint32_t capacity)
    : capacity_(capacity), marks_(std::make_unique<PostMark[]>(capacity)) {
  KVRAIL_ASSERT(is_power_of_two(capacity));
}

PostMark& PostRing::push() noexcept {
  KVRAIL_ASSERT(!full());
  return at(tail_++);
}

void PostRing::pop_newest(std::uint32_t bytes) noexcept {
  KVRAIL_ASSERT(!empty());
  const PostMark& newest = at(tail_ - 1);
  KVRAIL_ASSERT_MSG(!newest.done && newest.bytes == bytes, "chunks are given back last first");
  --tail_;
}

PostMark* PostRing::find(std::uint32_t bytes) noexcept {
  for (std::uint32_t i = head_; i != tail_; ++i) {
    PostMark& mark = at(i);
    if (!mark.done && mark.bytes == bytes) return &mark;
  }
  return nullptr;
}

void PostRing::finish(PostMark& mark) noexcept {
  mark.done = true;
  while (head_ != tail_ && at(head_).done) ++head_;
}

// ---- InFlightWindow ----

std::uint32_t chunk_bytes_for(std::uint64_t rate_bytes_per_s, const ChunkBounds& bounds) noexcept {
  const std::uint64_t ideal =
      std::clamp<std::uint64_t>(rate_bytes_per_s / 2000, bounds.least, bounds.most);
  const std::uint64_t below = std::bit_floor(ideal);
  const std::uint64_t nearest = ideal - below < 2 * below - ideal ? below : 2 * below;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(nearest, bounds.least, bounds.most));
}

InFlightWindow::InFlightWindow(const ChunkBounds& bounds)
    : bounds_(bounds), bulk_ring_(kMostBulkChunks), critical_ring_(kMostCriticalChunks) {
  KVRAIL_ASSERT(is_power_of_two(bounds.least) && is_power_of_two(bounds.most) &&
                bounds.least <= bounds.most);
}

void InFlightWindow::start(std::uint64_t rate_hint, TimeNs now_ns) noexcept {
  bandwidth_.start(rate_hint, now_ns);
  bulk_ring_.clear();
  critical_ring_.clear();
  bulk_ = critical_ = 0;
  grown_to_ = 0;
  confirming_ = false;
  refresh();
}

void InFlightWindow::refresh() noexcept {
  if (refreshed_capacity_ == bandwidth_.capacity() &&
      refreshed_round_trip_ns_ == bandwidth_.round_trip())
    return;
  refreshed_capacity_ = bandwidth_.capacity();
  refreshed_round_trip_ns_ = bandwidth_.round_trip();
  chunk_bytes_ = chunk_bytes_for(bandwidth_.capacity(), bounds_);
  const TimeNs distance_ns = std::max<TimeNs>(bandwidth_.round_trip(), 0);
  const auto bytes_in = [this](TimeNs ns) {
    return mul_div(bandwidth_.capacity(), static_cast<std::uint64_t>(ns), 1'000'000'000);
  };
  wanted_ = std::max(bytes_in(distance_ns) + 2 * std::uint64_t{chunk_bytes_},
                     bytes_in(distance_ns + bounds_.least_window_ns));
}

std::uint64_t InFlightWindow::limit() const noexcept {
  const std::uint64_t least = 2 * std::uint64_t{chunk_bytes_};
  return std::max(least, std::min(wanted_, grown_to_));
}

bool InFlightWindow::may_post_bulk(std::uint32_t bytes) const noexcept {
  if (bulk_ring_.full()) return false;
  // While confirming, one chunk at a time; critical traffic must not hold it up for ever.
  if (confirming_) return bulk_ == 0;
  return in_flight() == 0 || in_flight() + bytes <= limit();
}

bool InFlightWindow::may_post_critical(std::uint32_t bytes) const noexcept {
  if (critical_ring_.full()) return false;
  if (critical_ == 0 || critical_ + bytes <= 2 * std::uint64_t{chunk_bytes_}) return true;
  return in_flight() + bytes <= limit();
}

void InFlightWindow::tick(TimeNs now_ns) noexcept {
  // While confirming, the lane drains and then carries one chunk.
  if (!confirming_ && in_flight() > 0 &&
      now_ns - bandwidth_.confirmed_ns() > BandwidthEstimator::kLeastWindowNs) {
    confirming_ = true;
  }
}

void InFlightWindow::post(TimeNs now_ns, std::uint32_t bytes, bool critical) noexcept {
  const bool growing = limit() < wanted_;
  PostMark& mark = (critical ? critical_ring_ : bulk_ring_).push();
  bandwidth_.post(mark, now_ns, bytes, in_flight(), growing);
  mark.alone = mark.alone || (confirming_ && !critical);
  (critical ? critical_ : bulk_) += bytes;
}

void InFlightWindow::unpost(std::uint32_t bytes, bool critical) noexcept {
  (critical ? critical_ring_ : bulk_ring_).pop_newest(bytes);
  std::uint64_t& held = critical ? critical_ : bulk_;
  KVRAIL_ASSERT(held >= bytes);
  held -= bytes;
}

void InFlightWindow::done(std::uint32_t bytes, TimeNs posted_ns, TimeNs completed_ns,
                          bool ok) noexcept {
  // A completion does not name its class. Of two records of one size the one posted nearer to the
  // given time is meant; a mistake would only swap two equal sums for a moment.
  PostMark* bulk = bulk_ring_.find(bytes);
  PostMark* const critical = critical_ring_.find(bytes);
  KVRAIL_ASSERT_MSG(bulk != nullptr || critical != nullptr,
                    "a completion of a chunk that was never posted");
  const auto distance = [posted_ns](const PostMark& mark) {
    return mark.posted_ns > posted_ns ? mark.posted_ns - posted_ns : posted_ns - mark.posted_ns;
  };
  if (bulk != nullptr && critical != nullptr && distance(*critical) < distance(*bulk))
    bulk = nullptr;
  const PostMark& mark = bulk != nullptr ? *bulk : *critical;  // stays readable when finished
  std::uint64_t& held = bulk != nullptr ? bulk_ : critical_;
  KVRAIL_ASSERT(held >= bytes);
  held -= bytes;
  if (bulk != nullptr) {
    bulk_ring_.finish(*bulk);
  } else {
    critical_ring_.finish(*critical);
  }
  if (!ok) return;
  const TimeNs confirmed_before = bandwidth_.confirmed_ns();
  if (bandwidth_.done(mark, posted_ns, completed_ns)) {
    grown_to_ = 0;
    confirming_ = in_flight() > 0;
  } else {
    if (bandwidth_.confirmed_ns() != confirmed_before) confirming_ = false;
    grown_to_ = std::max(grown_to_, 2 * mark.in_flight);
  }
  refresh();
}

}  // namespace kvrail::scheduler
