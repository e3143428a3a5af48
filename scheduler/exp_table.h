// Integer exponentials and logarithms, so that a replay of the same events is equal bit by bit on
// every machine: libm differs in the last bit between versions. Fixed point with 32 fraction bits
// (Q32), tables of 256 steps, linear in between; relative error under 4e-6.
#pragma once

#include <cstdint>
#include <limits>

#include "kvrail/base/assert.h"

namespace kvrail::scheduler {

__extension__ using Wide = unsigned __int128;

inline constexpr std::int64_t kOneQ32 = std::int64_t{1} << 32;
inline constexpr std::int64_t kLn2Q32 = 2'977'044'472;    // ln 2
inline constexpr std::int64_t kLog2eQ32 = 6'196'328'019;  // 1 / ln 2
inline constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

// a * b / c without overflow on the way; the largest value where the answer does not fit.
[[nodiscard]] inline std::uint64_t mul_div(std::uint64_t a, std::uint64_t b,
                                           std::uint64_t c) noexcept {
  KVRAIL_ASSERT(c != 0);
  std::uint64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product / c;
  const Wide wide = Wide{a} * b / c;
  return wide > kLargest ? kLargest : static_cast<std::uint64_t>(wide);
}

// bytes at a rate, in ns; saturates at the largest TimeNs.
[[nodiscard]] inline std::int64_t sending_ns(std::uint64_t bytes,
                                             std::uint64_t bytes_per_s) noexcept {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (bytes == 0) return 0;
  if (bytes_per_s == 0) return static_cast<std::int64_t>(kMost);
  const std::uint64_t ns = mul_div(bytes, 1'000'000'000, bytes_per_s);
  return static_cast<std::int64_t>(ns < kMost ? ns : kMost);
}

// log2(value) in Q32; the value must not be 0.
[[nodiscard]] std::int64_t log2_q32(std::uint64_t value) noexcept;

// ln(a / b) in Q32; neither may be 0.
[[nodiscard]] std::int64_t ln_ratio_q32(std::uint64_t a, std::uint64_t b) noexcept;

// scale * 2^x with x in Q32, rounded down; saturates at the largest value.
[[nodiscard]] std::uint64_t scaled_exp2(std::uint64_t scale, std::int64_t x_q32) noexcept;

// scale * e^x with x in Q32. The exponent is clamped to [-40, 40].
[[nodiscard]] std::uint64_t scaled_exp(std::uint64_t scale, std::int64_t x_q32) noexcept;

}  // namespace kvrail::scheduler
