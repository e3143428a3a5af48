#include "scheduler/urgency.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

constexpr auto kThresholds = [] {
  std::array<std::uint64_t, kLevels> table{};
  double value = 1000.0;
  for (std::uint64_t& threshold : table) {
    threshold = static_cast<std::uint64_t>(value + 0.5);
    value *= 1.15;
  }
  return table;
}();
static_assert(kThresholds[0] == 1000 && kThresholds[1] == 1150);

constexpr std::int64_t kMostExponentQ32 = 40 * kOneQ32;

}  // namespace

UrgencyLaw make_law(std::uint32_t base_milli, TimeNs start_ns, TimeNs deadline_ns,
                    TimeNs sending_ns) noexcept {
  UrgencyLaw law{base_milli, start_ns, kDefaultTauNs};
  if (deadline_ns == 0) return law;
  const TimeNs slack =
      deadline_ns > start_ns ? deadline_ns - start_ns - std::max<TimeNs>(sending_ns, 0) : 0;
  const auto horizon = static_cast<std::uint64_t>(std::max(slack, kLeastHorizonNs));
  // A base that is already high aims at four times its own start instead.
  const std::uint64_t target = std::max(kNoSlackUrgencyMilli, 4 * (law.base_milli + kAlphaMilli));
  const std::int64_t exponent = ln_ratio_q32(target - law.base_milli, kAlphaMilli);
  const std::uint64_t tau =
      mul_div(horizon, static_cast<std::uint64_t>(kOneQ32), static_cast<std::uint64_t>(exponent));
  law.tau_ns = static_cast<TimeNs>(std::max<std::uint64_t>(tau, 1));
  return law;
}

std::uint64_t urgency_at(const UrgencyLaw& law, TimeNs now_ns) noexcept {
  const auto delay = static_cast<std::uint64_t>(std::max<TimeNs>(now_ns - law.start_ns, 0));
  const std::uint64_t x =
      mul_div(delay, static_cast<std::uint64_t>(kOneQ32), static_cast<std::uint64_t>(law.tau_ns));
  const std::int64_t clamped = static_cast<std::int64_t>(
      std::min<std::uint64_t>(x, static_cast<std::uint64_t>(kMostExponentQ32)));
  const std::uint64_t waited = scaled_exp(kAlphaMilli, clamped);
  return std::min(law.base_milli + std::min(waited, kMostUrgencyMilli), kMostUrgencyMilli);
}

std::uint64_t level_threshold_milli(std::uint32_t level) noexcept {
  KVRAIL_ASSERT(level < kLevels);
  return kThresholds[level];
}

std::uint32_t level_of_urgency(std::uint64_t milli) noexcept {
  const auto above = std::upper_bound(kThresholds.begin(), kThresholds.end(), milli);
  const auto count = static_cast<std::uint32_t>(above - kThresholds.begin());
  return count == 0 ? 0 : count - 1;
}

TimeNs crossing_ns(const UrgencyLaw& law, std::uint32_t level) noexcept {
  const std::uint64_t threshold = level_threshold_milli(level);
  if (threshold <= law.base_milli + kAlphaMilli) return law.start_ns;
  const std::int64_t exponent = ln_ratio_q32(threshold - law.base_milli, kAlphaMilli);
  const std::uint64_t delay =
      mul_div(static_cast<std::uint64_t>(law.tau_ns), static_cast<std::uint64_t>(exponent),
              static_cast<std::uint64_t>(kOneQ32));
  if (delay >= static_cast<std::uint64_t>(kNever)) return kNever;
  return add_saturating(law.start_ns, static_cast<TimeNs>(delay) + 1);  // rounded up
}

}  // namespace kvrail::scheduler
