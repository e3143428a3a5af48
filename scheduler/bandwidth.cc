#include "scheduler/bandwidth.h"

#include <algorithm>

#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kPpm = 1'000'000;
constexpr std::uint64_t kNsPerS = 1'000'000'000;
// Below this no clock read once per duty cycle measures a rate.
constexpr TimeNs kLeastIntervalNs = 1000;
constexpr std::uint64_t kUnit = std::uint64_t{1} << 60;  // of inverse rates
static_assert(PlanningRate::kSamples <= 8, "their inverses and counts add up within 64 bits");

std::uint64_t clamp_rate(std::uint64_t rate) noexcept {
  return std::clamp(rate, BandwidthEstimator::kLeastRate, BandwidthEstimator::kMostRate);
}
bool is_slow(std::uint64_t rate, std::uint64_t capacity) noexcept {
  return rate * 10 < capacity * 7;
}
std::size_t octave_of(std::uint32_t bytes) noexcept {
  const unsigned log2 = log2_floor(std::max<std::uint32_t>(bytes, 1));
  return log2 < 12 ? 0 : std::min<std::size_t>(log2 - 11, 7);
}

}  // namespace

// ---- WindowedMax ----

void WindowedMax::reset(std::uint64_t value, std::uint64_t round) noexcept {
  slots_.fill(Slot{value, round});
}

void WindowedMax::update(std::uint64_t value, std::uint64_t round) noexcept {
  if (value >= slots_[0].value || round - slots_[2].round > kRounds) {
    reset(value, round);
    return;
  }
  if (value >= slots_[1].value) {
    slots_[1] = slots_[2] = Slot{value, round};
  } else if (value >= slots_[2].value) {
    slots_[2] = Slot{value, round};
  }
  // When the best leaves the window the runners-up move forward; while it stays, the runners-up
  // are renewed each quarter of the window so that they are recent when needed.
  if (round - slots_[0].round > kRounds) {
    slots_[0] = slots_[1];
    slots_[1] = slots_[2];
    slots_[2] = Slot{value, round};
    if (round - slots_[0].round > kRounds) {
      slots_[0] = slots_[1];
      slots_[1] = slots_[2];
    }
  } else if (slots_[1].round == slots_[0].round && round - slots_[1].round > kRounds / 4) {
    slots_[1] = slots_[2] = Slot{value, round};
  } else if (slots_[2].round == slots_[1].round && round - slots_[2].round > kRounds / 2) {
    slots_[2] = Slot{value, round};
  }
}

// ---- PlanningRate ----

void PlanningRate::reset(std::uint64_t rate) noexcept {
  count_ = next_ = 0;
  inverse_sum_ = 0;
  inverses_.fill(0);
  value_ = rate;
}

std::uint64_t PlanningRate::harmonic_mean() const noexcept {
  return kUnit * count_ / inverse_sum_;
}

void PlanningRate::update(std::uint64_t rate) noexcept {
  rate = clamp_rate(rate);
  // The belief before the first sample is no prediction to be held against the lane.
  std::uint64_t error_ppm = 0;
  if (count_ > 0) {
    const std::uint64_t predicted = harmonic_mean();
    error_ppm = mul_div(predicted > rate ? predicted - rate : rate - predicted, kPpm, rate);
  }
  const std::uint64_t inverse = kUnit / rate;
  inverse_sum_ += inverse - inverses_[next_];
  inverses_[next_] = inverse;
  errors_ppm_[next_] = error_ppm;
  next_ = next_ + 1 == kSamples ? 0 : next_ + 1;
  count_ = std::min(count_ + 1, kSamples);
  const auto most = *std::max_element(errors_ppm_.begin(),
                                      errors_ppm_.begin() + static_cast<std::ptrdiff_t>(count_));
  value_ = clamp_rate(mul_div(harmonic_mean(), kPpm, kPpm + most));
}

// ---- BandwidthEstimator ----

void BandwidthEstimator::start(std::uint64_t rate_hint, TimeNs now_ns) noexcept {
  *this = BandwidthEstimator{};
  capacity_.reset(clamp_rate(rate_hint), 0);
  planning_.reset(clamp_rate(rate_hint));
  delivered_ns_ = first_post_ns_ = confirmed_ns_ = now_ns;
}

void BandwidthEstimator::post(PostMark& mark, TimeNs now_ns, std::uint32_t bytes,
                              std::uint64_t in_flight_before, bool window_growing) noexcept {
  if (in_flight_before == 0) {
    // After a pause both intervals start anew. What is posted until the first completion measures
    // the start, not the lane.
    first_post_ns_ = delivered_ns_ = std::max(now_ns, delivered_ns_);
    limited_until_ = delivered_;
  }
  mark.delivered = delivered_;
  mark.delivered_ns = delivered_ns_;
  mark.first_post_ns = first_post_ns_;
  mark.posted_ns = now_ns;
  mark.in_flight = in_flight_before + bytes;
  mark.bytes = bytes;
  mark.limited = delivered_ <= limited_until_;
  mark.window_growing = window_growing;
  mark.alone = in_flight_before == 0;
  mark.done = false;
}

bool BandwidthEstimator::done(const PostMark& mark, TimeNs posted_ns,
                              TimeNs completed_ns) noexcept {
  passed_over_ = 0;
  delivered_ += mark.bytes;
  const Span arrived{mark.bytes, std::max<TimeNs>(completed_ns - delivered_ns_, 0)};
  delivered_ns_ = std::max(delivered_ns_, completed_ns);
  first_post_ns_ = std::max(first_post_ns_, mark.posted_ns);
  const TimeNs total_ns = std::max<TimeNs>(completed_ns - posted_ns, 0);
  if (mark.delivered >= round_end_) {
    ++round_;
    round_end_ = delivered_;
  }
  note_least(mark, total_ns, completed_ns);

  // Acknowledgements that come bunched make the interval between them too short, so the capacity,
  // a maximum, takes the longer one; the other uses stay below the capacity anyway.
  const TimeNs acknowledging = completed_ns - mark.delivered_ns;
  const TimeNs longer = std::max(acknowledging, mark.posted_ns - mark.first_post_ns);
  if (acknowledging < kLeastIntervalNs) return false;
  const std::uint64_t delivered = delivered_ - mark.delivered;
  const std::uint64_t sure_rate = rate_of({delivered, longer});
  const std::uint64_t rate =
      longer == acknowledging ? sure_rate : rate_of({delivered, acknowledging});
  const bool limited = mark.limited || (mark.window_growing && !is_queued(mark, total_ns));

  if (limited ? note_pair(mark, completed_ns) || (mark.alone && note_sizes())
              : note_slow(rate, mark, arrived, completed_ns))
    return true;
  if (!limited) pairs_ = 0;
  const std::uint64_t capacity_before = capacity();
  const bool sure = !limited || delivered >= kSureBytes;
  if (!limited || (sure && sure_rate > capacity_before)) capacity_.update(sure_rate, round_);
  if (!limited) {
    plan(arrived);
  } else if (sure && std::min(rate, capacity()) > planning() && planned_round_ != round_) {
    planned_round_ = round_;
    planning_.update(std::min(rate, capacity()));
  }
  if (capacity() != capacity_before) refresh_round_trip();
  return false;
}

// A growing window limits the rate only while chunks return without queueing behind each other.
bool BandwidthEstimator::is_queued(const PostMark& mark, TimeNs total_ns) const noexcept {
  const TimeNs unqueued_ns =
      std::max<TimeNs>(round_trip_ns_, 0) + sending_ns(mark.bytes, capacity());
  return total_ns / 5 >= unqueued_ns / 4;
}

std::uint64_t BandwidthEstimator::rate_for_choice(std::uint64_t bytes, TimeNs now_ns) noexcept {
  const bool affordable = sending_ns(bytes, planning()) <= (now_ns - delivered_ns_) / kTryShare;
  const std::uint32_t doublings = affordable ? std::min(passed_over_ / kPassedOver, kMostDoublings) : 0;
  ++passed_over_;
  return clamp_rate(planning() << doublings);
}

std::uint64_t BandwidthEstimator::rate_of(const Span& span) noexcept {
  const auto ns = static_cast<std::uint64_t>(std::max(span.ns, kLeastIntervalNs));
  return clamp_rate(mul_div(span.bytes, kNsPerS, ns));
}

// Gathers what arrived while the lane was busy, over pauses, until it is enough for a sample. Until
// the first sample what has been gathered is the best guess, from the second round on.
void BandwidthEstimator::plan(const Span& arrived) noexcept {
  planned_.add(arrived);
  if (planned_round_ == round_ || planned_.ns < kLeastIntervalNs) return;
  const std::uint64_t rate = std::min(rate_of(planned_), capacity());
  // Far over the mean, and no burst: the lane has become faster, and what is old holds it back.
  if (!planning_.is_belief() && planned_.bytes >= kSureBytes &&
      rate / 2 > planning_.harmonic_mean()) {
    planning_.reset(rate);
  }
  const bool enough = planned_.ns >= kPlanningSpanNs || planned_.bytes >= kPlanningSpanBytes;
  if (!enough && !planning_.is_belief()) return;
  planned_round_ = round_;
  if (!enough) return planning_.reset(rate);
  planned_ = Span{};
  // Far under the mean, once: a pause of the machine or of TCP's timer, and no rate. A lane that is so
  // slow shows it again.
  held_back_ = !held_back_ && !planning_.is_belief() && rate < planning_.harmonic_mean() / 2;
  if (!held_back_) planning_.update(rate);
}

void BandwidthEstimator::note_least(const PostMark& mark, TimeNs total_ns,
                                    TimeNs completed_ns) noexcept {
  if (mark.alone) {
    if (completed_ns - confirmed_ns_ > kLeastWindowNs) forget_round_trip();
    confirmed_ns_ = completed_ns;
  }
  // Nothing known: only a chunk that was alone may tell, all others queued behind something.
  if (!mark.alone && round_trip_ns_ < 0) return;
  Least& least = least_[octave_of(mark.bytes)];
  if (mark.alone) ++least.alone_count;
  const bool first_alone = mark.alone && !least.alone;
  const bool lesser = least.total_ns < 0 || total_ns < least.total_ns;
  if (!lesser && !first_alone) return;
  if (lesser) {
    least.total_ns = total_ns;
    least.bytes = mark.bytes;
  }
  least.alone = least.alone || mark.alone;
  refresh_round_trip();
}

void BandwidthEstimator::refresh_round_trip() noexcept {
  // Of the sizes that travelled alone the largest counts: a small critical message may take a
  // quicker way than the bulk that the window is for.
  round_trip_ns_ = -1;
  for (std::size_t i = least_.size(); i-- > 0;) {
    const Least& least = least_[i];
    if (!least.alone) continue;
    round_trip_ns_ = std::max<TimeNs>(least.total_ns - sending_ns(least.bytes, capacity()), 0);
    return;
  }
}

void BandwidthEstimator::forget_round_trip() noexcept {
  least_.fill(Least{});
  round_trip_ns_ = -1;
}

// Slow samples without a better one between them, the last posted after the first was seen: what a
// pause of the machine delays was in flight together and counts once.
bool BandwidthEstimator::note_slow(std::uint64_t rate, const PostMark& mark, const Span& arrived,
                                   TimeNs completed_ns) noexcept {
  if (!is_slow(rate, capacity())) {
    slow_ = false;
    return false;
  }
  if (!slow_) {
    slow_ = true;
    slow_seen_ns_ = completed_ns;
    slow_span_ = Span{};
    return false;
  }
  slow_span_.add(arrived);
  if (mark.posted_ns < slow_seen_ns_ || slow_span_.ns < kSlowSpanNs) return false;
  const std::uint64_t slower = rate_of(slow_span_);
  if (!is_slow(slower, capacity())) return false;
  restart_at(slower);
  return true;
}

bool BandwidthEstimator::note_pair(const PostMark& mark, TimeNs completed_ns) noexcept {
  const bool together = last_posted_ns_ == mark.posted_ns && !mark.alone;
  const TimeNs spacing = completed_ns - last_completed_ns_;
  last_posted_ns_ = mark.posted_ns;
  last_completed_ns_ = completed_ns;
  // Short tails say more about the poller's rhythm than about the lane.
  if (!together || mark.bytes < 16 * 1024) return false;
  pair_rates_[pairs_++] =
      spacing < kLeastIntervalNs
          ? kMostRate
          : clamp_rate(mul_div(mark.bytes, kNsPerS, static_cast<std::uint64_t>(spacing)));
  if (pairs_ < kPairs) return false;
  pairs_ = 0;
  std::array<std::uint64_t, kPairs> sorted = pair_rates_;
  std::nth_element(sorted.begin(), sorted.begin() + kPairs / 2, sorted.end());
  const std::uint64_t median = sorted[kPairs / 2];
  if (!is_slow(median, capacity())) return false;
  restart_at(median);
  return true;
}

// What larger chunks take longer than smaller ones, both alone and at their best, is the lane's rate,
// where nothing else tells it: transfers of one chunk each.
bool BandwidthEstimator::note_sizes() noexcept {
  const auto sure = [](const Least& least) { return least.alone_count >= kSureAlone; };
  const auto small = std::find_if(least_.begin(), least_.end(), sure);
  const auto large = std::find_if(least_.rbegin(), least_.rend(), sure);
  if (small == least_.end() || large->bytes <= small->bytes) return false;
  const TimeNs difference = large->total_ns - small->total_ns;
  if (difference < kSureDifferenceNs) return false;
  const std::uint64_t rate = rate_of({large->bytes - small->bytes, difference});
  if (!is_slow(rate, capacity())) return false;
  restart_at(rate);
  return true;
}

void BandwidthEstimator::restart_at(std::uint64_t rate) noexcept {
  capacity_.reset(rate, round_);
  planning_.reset(rate);
  planned_round_ = round_;
  planned_ = Span{};
  held_back_ = false;
  slow_ = false;
  pairs_ = 0;
  // Times measured at the old rate would give a round trip that is too short.
  forget_round_trip();
}

}  // namespace kvrail::scheduler
