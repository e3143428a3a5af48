// How pressing a flow is: urgency(t) = base + alpha * exp(beta * (t - start)), alpha = 1, in
// thousandths, and the 64 geometric levels (ratio 1.15) that urgency is sorted into.
// See docs/scheduling.md, "Order".
#pragma once

#include <cstdint>

#include "kvrail/base/time.h"

namespace kvrail::scheduler {

inline constexpr std::uint32_t kLevels = 64;
inline constexpr std::uint64_t kAlphaMilli = 1000;
inline constexpr TimeNs kDefaultTauNs = kSecondNs;  // beta = 1/s without a deadline
inline constexpr TimeNs kLeastHorizonNs = kMillisecondNs;
// The urgency that a flow with a deadline has reached when its slack is used up: four times that of
// a fresh flow between two coordinators, so that it may then preempt any fresh ordinary flow.
inline constexpr std::uint64_t kNoSlackUrgencyMilli = 4 * (6000 + kAlphaMilli);
inline constexpr std::uint64_t kMostUrgencyMilli = 1'000'000'000;

struct UrgencyLaw {
  std::uint64_t base_milli = 0;
  TimeNs start_ns = 0;
  TimeNs tau_ns = kDefaultTauNs;  // 1 / beta
};

// What a flow's base is worth when its bytes take so long: the more of the lane a flow wants, the later it begins, by
// the square root of what it takes over `slice_ns`. Sending short ones first makes the mean wait short (Smith's
// rule); the root, because large ones wait for it.
[[nodiscard]] std::uint32_t base_for_size(std::uint32_t base_milli, TimeNs sending_ns, TimeNs slice_ns) noexcept;

// deadline_ns is absolute, 0 for none; sending_ns is what the flow's bytes take at the planning
// rate, so slack = deadline - start - sending.
[[nodiscard]] UrgencyLaw make_law(std::uint32_t base_milli, TimeNs start_ns, TimeNs deadline_ns,
                                  TimeNs sending_ns) noexcept;
[[nodiscard]] std::uint64_t urgency_at(const UrgencyLaw& law, TimeNs now_ns) noexcept;

// Least urgency of a level; level 0 also takes what is below.
[[nodiscard]] std::uint64_t level_threshold_milli(std::uint32_t level) noexcept;
[[nodiscard]] std::uint32_t level_of_urgency(std::uint64_t milli) noexcept;
// When the law reaches the level; kNever if that is beyond the clamped exponent.
[[nodiscard]] TimeNs crossing_ns(const UrgencyLaw& law, std::uint32_t level) noexcept;

}  // namespace kvrail::scheduler
