#include "scheduler/urgency.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "kvrail/base/bits.h"
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

// Eighths of an octave are narrower than a level, so at most one threshold lies within: the level at the
// start of each eighth, and one comparison, make a search unnecessary.
constexpr std::size_t kEighths = 8 * 30;  // up to 2^30, more than kMostUrgencyMilli
constexpr auto kLevelAt = [] {
  std::array<std::uint8_t, kEighths> table{};
  for (std::size_t i = 0; i < kEighths; ++i) {
    const std::uint64_t start = (8 + i % 8) << (i / 8) >> 3;
    std::uint8_t level = 0;
    while (level + 1U < kLevels && kThresholds[level + 1U] <= start) ++level;
    table[i] = level;
  }
  return table;
}();
static_assert(kMostUrgencyMilli < std::uint64_t{1} << 30);

constexpr std::int64_t kMostExponentQ32 = 40 * kOneQ32;

}  // namespace

std::uint32_t base_for_size(std::uint32_t base_milli, TimeNs sending_ns, TimeNs slice_ns) noexcept {
  KVRAIL_ASSERT(slice_ns > 0);
  if (sending_ns <= slice_ns) return base_milli;
  const std::int64_t ratio = log2_q32(static_cast<std::uint64_t>(sending_ns)) - log2_q32(static_cast<std::uint64_t>(slice_ns));
  return static_cast<std::uint32_t>(scaled_exp2(base_milli, -ratio / 2));
}

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
  if (now_ns <= law.start_ns) return std::min(law.base_milli + kAlphaMilli, kMostUrgencyMilli);
  const auto delay = static_cast<std::uint64_t>(now_ns - law.start_ns);
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
  if (milli < 8) return 0;  // an octave has no eighths there
  milli = std::min(milli, kMostUrgencyMilli);
  const unsigned octave = log2_floor(milli);
  const std::size_t eighth = 8 * octave + (milli >> (octave - 3) & 7);
  const std::uint32_t level = kLevelAt[eighth];
  return level + (level + 1 < kLevels && milli >= kThresholds[level + 1] ? 1 : 0);
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
