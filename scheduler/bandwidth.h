// What a lane delivers, estimated from the completions of its chunks alone.
//
// Each completion gives a delivery-rate sample: bytes delivered between the chunk's post and its
// completion, over the longer of the sending and the acknowledging interval. The time a chunk waits
// before it is posted never enters. A sample is *limited* when something other than the lane may
// have set its rate: the flow had nothing ready, the lane had been idle, or the window was still
// growing; it can only raise the estimates. See docs/scheduling.md, "Estimates".
#pragma once

#include <array>
#include <cstdint>

#include "kvrail/base/time.h"

namespace kvrail::scheduler {

// Largest value over the last `window` rounds, from three candidates instead of a history: the
// best, and the best of what came after it, twice.
class WindowedMax {
 public:
  static constexpr std::uint64_t kRounds = 10;
  void reset(std::uint64_t value, std::uint64_t round) noexcept;
  void update(std::uint64_t value, std::uint64_t round) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept { return slots_[0].value; }

 private:
  struct Slot {
    std::uint64_t value = 0;
    std::uint64_t round = 0;
  };
  std::array<Slot, 3> slots_{};
};

// Harmonic mean of the last five samples over (1 + their largest relative prediction error).
class PlanningRate {
 public:
  static constexpr std::size_t kSamples = 5;
  void reset(std::uint64_t rate) noexcept;  // a belief, not a sample
  void update(std::uint64_t rate) noexcept;
  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] bool is_belief() const noexcept { return count_ == 0; }
  [[nodiscard]] std::uint64_t harmonic_mean() const noexcept;  // not of a belief

 private:
  // 2^60 / rate, so that the mean is one division: a rate is at least kLeastRate.
  std::array<std::uint64_t, kSamples> inverses_{};
  std::array<std::uint64_t, kSamples> errors_ppm_{};
  std::uint64_t inverse_sum_ = 0;
  std::size_t count_ = 0, next_ = 0;
  std::uint64_t value_ = 1;
};

// Taken when a chunk is posted, given back when it is done.
struct PostMark {
  std::uint64_t delivered = 0;  // by the lane, when this chunk was posted
  TimeNs delivered_ns = 0;      // when the latest of these arrived
  TimeNs first_post_ns = 0;     // post time of that latest one: start of the sending interval
  TimeNs posted_ns = 0;
  std::uint64_t in_flight = 0;  // with this chunk
  std::uint32_t bytes = 0;
  bool limited = false;         // by the flow, or the lane had been idle
  bool window_growing = false;  // the in-flight window was below what the estimates ask for
  bool alone = false;           // nothing else was in flight
  bool done = false;
};

class BandwidthEstimator {
 public:
  static constexpr TimeNs kLeastWindowNs = 10 * kSecondNs;
  static constexpr std::uint64_t kLeastRate = 1000;  // bytes/s
  static constexpr std::uint64_t kMostRate = 1'000'000'000'000;
  // What a planning sample spans of busy lane, whichever is reached first. A round of a slow lane
  // is a millisecond or two of a few small chunks, and one late acknowledgement would halve it.
  static constexpr TimeNs kPlanningSpanNs = 10 * kMillisecondNs;
  static constexpr std::uint64_t kPlanningSpanBytes = 1U << 20;
  // A limited sample of less may be the burst that a token bucket lets pass at once.
  static constexpr std::uint64_t kSureBytes = 64 * 1024;
  // Between what small and large chunks take when they travel alone: more than a poller's rhythm.
  static constexpr TimeNs kSureDifferenceNs = 2 * kMillisecondNs;
  static constexpr std::uint32_t kSureAlone = 4;
  static constexpr std::uint32_t kPassedOver = 64;
  static constexpr TimeNs kTryShare = 64;
  static constexpr std::uint32_t kMostDoublings = 3;
  // A lane is slower when it was for this long; a pause of the machine is shorter, or bunches up.
  static constexpr TimeNs kSlowSpanNs = 4 * kMillisecondNs;

  void start(std::uint64_t rate_hint, TimeNs now_ns) noexcept;

  void post(PostMark& mark, TimeNs now_ns, std::uint32_t bytes, std::uint64_t in_flight_before,
            bool window_growing) noexcept;
  // The lane has room and got nothing to send until now.
  void app_limited(std::uint64_t in_flight) noexcept { limited_until_ = delivered_ + in_flight; }
  // Returns true when the estimates were thrown away because the lane became slower.
  bool done(const PostMark& mark, TimeNs posted_ns, TimeNs completed_ns) noexcept;

  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_.value(); }
  [[nodiscard]] std::uint64_t planning() const noexcept { return planning_.value(); }
  // The planning rate for a choice of medium. A choice that never falls on the lane measures nothing,
  // so each kPassedOver in a row that nothing came of double what is believed, up to eight times: at
  // last one goes there and finds out. Only one whose `bytes` take, by what was measured, at most 1/64 of the time
  // since the last arrival: so being wrong costs no more than that.
  [[nodiscard]] std::uint64_t rate_for_choice(std::uint64_t bytes, TimeNs now_ns) noexcept;
  // Least post-to-completion time less the chunk's own sending time; -1 when not yet known.
  [[nodiscard]] TimeNs round_trip() const noexcept { return round_trip_ns_; }
  // The least was last confirmed by a chunk that was alone on the lane at this time.
  [[nodiscard]] TimeNs confirmed_ns() const noexcept { return confirmed_ns_; }
  void forget_round_trip() noexcept;

 private:
  struct Least {
    TimeNs total_ns = -1;
    std::uint32_t bytes = 0;
    bool alone = false;
    std::uint32_t alone_count = 0;
  };
  [[nodiscard]] bool note_sizes() noexcept;
  void note_least(const PostMark& mark, TimeNs total_ns, TimeNs completed_ns) noexcept;
  void refresh_round_trip() noexcept;
  // Bytes that arrived, and the time since the arrival before.
  struct Span {
    std::uint64_t bytes = 0;
    TimeNs ns = 0;
    void add(const Span& more) noexcept {
      bytes += more.bytes;
      ns += more.ns;
    }
  };
  [[nodiscard]] bool is_queued(const PostMark& mark, TimeNs total_ns) const noexcept;
  [[nodiscard]] static std::uint64_t rate_of(const Span& span) noexcept;
  void plan(const Span& arrived) noexcept;
  [[nodiscard]] bool note_slow(std::uint64_t rate, const PostMark& mark, const Span& arrived,
                               TimeNs completed_ns) noexcept;
  [[nodiscard]] bool note_pair(const PostMark& mark, TimeNs completed_ns) noexcept;
  void restart_at(std::uint64_t rate) noexcept;

  WindowedMax capacity_;
  PlanningRate planning_;
  std::uint64_t delivered_ = 0;
  TimeNs delivered_ns_ = 0;
  TimeNs first_post_ns_ = 0;
  std::uint64_t limited_until_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t round_end_ = 0;      // a chunk posted after this many were delivered ends the round
  std::uint64_t planned_round_ = 0;  // that last gave a sample to planning_
  Span planned_;                     // of the next planning sample, so far
  bool held_back_ = false;           // the last one, for being far under the mean
  std::uint32_t passed_over_ = 0;    // choices since the last arrival
  // By size octave (under 4 KiB .. 256 KiB and more): the sending time of a chunk is taken off only
  // when read, with the capacity known by then; a low first guess of it must not stick.
  std::array<Least, 8> least_{};
  TimeNs round_trip_ns_ = -1;
  TimeNs confirmed_ns_ = 0;
  bool slow_ = false;  // a slow sample was seen, no better one since
  TimeNs slow_seen_ns_ = 0;
  Span slow_span_;  // what arrived since
  // Spacing of completions of chunks posted together: the only sign of a slower lane on one that
  // carries nothing but small transfers.
  static constexpr std::size_t kPairs = 5;
  std::array<std::uint64_t, kPairs> pair_rates_{};
  std::size_t pairs_ = 0;
  TimeNs last_posted_ns_ = -1, last_completed_ns_ = -1;
};

}  // namespace kvrail::scheduler
