#include <doctest/doctest.h>

#include <cmath>

#include "kvrail/base/prng.h"
#include "scheduler/exp_table.h"
#include "scheduler/urgency.h"

using namespace kvrail;
using namespace kvrail::scheduler;

TEST_CASE("exp table / logarithm and exponential agree with the real ones") {
  Prng prng(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t value = prng.next_u64() >> prng.uniform(63) | 1;
    const double log2 = static_cast<double>(log2_q32(value)) / 4294967296.0;
    CHECK(std::abs(log2 - std::log2(static_cast<double>(value))) < 4e-6);

    const double x = prng.uniform01() * 40.0 - 10.0;
    const auto x_q32 = static_cast<std::int64_t>(x * 4294967296.0);
    const double got = static_cast<double>(scaled_exp(1'000'000'000, x_q32));
    const double want = 1e9 * std::exp(x);
    if (want < 1.8e19 && want > 1e6) CHECK(std::abs(got / want - 1.0) < 1e-5);
  }
}

TEST_CASE("exp table / the edges saturate instead of wrapping") {
  CHECK(log2_q32(1) == 0);
  CHECK(log2_q32(std::uint64_t{1} << 63) == std::int64_t{63} << 32);
  CHECK(scaled_exp2(0, 5) == 0);
  CHECK(scaled_exp2(1, 0) == 1);
  CHECK(scaled_exp2(1, std::int64_t{63} << 32) == std::uint64_t{1} << 63);
  CHECK(scaled_exp2(1, std::int64_t{64} << 32) == kLargest);
  CHECK(scaled_exp2(kLargest, kOneQ32) == kLargest);
  CHECK(scaled_exp2(kLargest, 0) == kLargest);
  CHECK(scaled_exp2(kLargest, std::int64_t{-97} << 32) == 0);
  CHECK(scaled_exp2(8, std::int64_t{-3} << 32) == 1);
  CHECK(scaled_exp(1000, 100 * kOneQ32) == scaled_exp(1000, 40 * kOneQ32));
  CHECK(mul_div(kLargest, kLargest, kLargest) == kLargest);
  CHECK(mul_div(kLargest, 2, 1) == kLargest);
  CHECK(mul_div(kLargest, 10, 20) == kLargest / 2);
  CHECK(sending_ns(0, 0) == 0);
  CHECK(sending_ns(1, 0) == kNever);
  CHECK(sending_ns(125, 125'000'000) == 1000);
}

TEST_CASE("urgency / grows with waiting from base plus one") {
  const UrgencyLaw law = make_law(2000, 100, 0, 0);
  CHECK(urgency_at(law, 100) == 3000);
  CHECK(urgency_at(law, 0) == 3000);  // a clock that is behind changes nothing
  CHECK(std::abs(static_cast<double>(urgency_at(law, 100 + kSecondNs)) -
                 (2000 + 1000 * std::exp(1.0))) < 2);
  CHECK(urgency_at(law, kNever) == kMostUrgencyMilli);
}

TEST_CASE("urgency / a deadline is met with the urgency of no slack") {
  // 50 ms to go of which 10 ms is sending: 40 ms of slack.
  const UrgencyLaw law = make_law(3000, 0, 50 * kMillisecondNs, 10 * kMillisecondNs);
  const double at = static_cast<double>(urgency_at(law, 40 * kMillisecondNs));
  CHECK(std::abs(at / static_cast<double>(kNoSlackUrgencyMilli) - 1.0) < 1e-3);
  CHECK(urgency_at(law, 10 * kMillisecondNs) < kNoSlackUrgencyMilli / 2);
  // One that can no longer be met is as urgent within the least horizon.
  const UrgencyLaw late = make_law(3000, 0, 5 * kMillisecondNs, 10 * kMillisecondNs);
  CHECK(urgency_at(late, kLeastHorizonNs + 1000) > kNoSlackUrgencyMilli * 99 / 100);
}

TEST_CASE("urgency / levels are geometric and crossings hit them") {
  CHECK(level_of_urgency(0) == 0);
  CHECK(level_of_urgency(1000) == 0);
  CHECK(level_of_urgency(kMostUrgencyMilli) == kLevels - 1);
  for (std::uint32_t k = 1; k < kLevels; ++k) {
    for (std::uint64_t milli = level_threshold_milli(k - 1); milli < level_threshold_milli(k); milli += 1 + milli / 997) {
      REQUIRE(level_of_urgency(milli) == k - 1);
    }
    CHECK(level_of_urgency(level_threshold_milli(k)) == k);
    CHECK(level_of_urgency(level_threshold_milli(k) - 1) == k - 1);
    const double ratio = static_cast<double>(level_threshold_milli(k)) /
                         static_cast<double>(level_threshold_milli(k - 1));
    CHECK(std::abs(ratio - 1.15) < 0.001);
  }
  const UrgencyLaw law = make_law(2000, 77, 0, 0);
  for (std::uint32_t k = level_of_urgency(urgency_at(law, 77)) + 1; k < kLevels; ++k) {
    const TimeNs crossing = crossing_ns(law, k);
    REQUIRE(crossing > 77);
    CHECK(level_of_urgency(urgency_at(law, crossing + kMillisecondNs)) >= k);
    CHECK(level_of_urgency(urgency_at(law, crossing - kMillisecondNs)) < k);
  }
}
