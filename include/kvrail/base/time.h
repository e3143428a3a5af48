// Time as one signed integer of nanoseconds, and the Clock seam through which everything reads it,
// so that tests and the simulator decide what time it is.
#pragma once

#include <time.h>

#include <cstdint>

#include "kvrail/base/assert.h"

namespace kvrail {

/// Nanoseconds, either since an arbitrary start (a point) or between two points (a duration). 292
/// years fit.
using TimeNs = std::int64_t;

inline constexpr TimeNs kMicrosecondNs = 1'000;
inline constexpr TimeNs kMillisecondNs = 1'000'000;
inline constexpr TimeNs kSecondNs = 1'000'000'000;
/// "No deadline": later than every point that a clock returns.
inline constexpr TimeNs kNever = INT64_MAX;

class Clock {
 public:
  virtual ~Clock() = default;
  /// Never decreases.
  [[nodiscard]] virtual TimeNs now_ns() const noexcept = 0;
};

/// CLOCK_MONOTONIC. Any thread.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimeNs now_ns() const noexcept override {
    timespec now{};
    const int rc = ::clock_gettime(CLOCK_MONOTONIC, &now);
    KVRAIL_ASSERT(rc == 0);
    return static_cast<TimeNs>(now.tv_sec) * kSecondNs + now.tv_nsec;
  }
};

/// Time that moves only when told to. One thread: whoever drives the test or the simulation.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(TimeNs start_ns = 0) noexcept : now_ns_(start_ns) {}
  [[nodiscard]] TimeNs now_ns() const noexcept override { return now_ns_; }

  void advance(TimeNs by_ns) noexcept {
    KVRAIL_ASSERT(by_ns >= 0);
    KVRAIL_ASSERT(now_ns_ <= kNever - by_ns);
    now_ns_ += by_ns;
  }
  void set(TimeNs to_ns) noexcept {
    KVRAIL_ASSERT_MSG(to_ns >= now_ns_, "time never runs backwards");
    now_ns_ = to_ns;
  }

 private:
  TimeNs now_ns_;
};

/// a + b, stopping at kNever: a deadline far in the future must not wrap into the past.
[[nodiscard]] constexpr TimeNs add_saturating(TimeNs a, TimeNs b) noexcept {
  TimeNs sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return b > 0 ? kNever : INT64_MIN;
  }
  return sum;
}

}  // namespace kvrail
