// Small integer arithmetic with the edge cases decided: powers of two, alignment, sums that would
// overflow.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kvrail/base/assert.h"

namespace kvrail {

/// What two threads must keep between variables that each of them writes. x86-64 and common arm64
/// cores.
inline constexpr std::size_t kCacheLineBytes = 64;

[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t value) noexcept {
  return std::has_single_bit(value);
}

/// The least power of two >= value; 1 for 0. The value must be at most 2^63.
[[nodiscard]] constexpr std::uint64_t next_power_of_two(std::uint64_t value) noexcept {
  KVRAIL_ASSERT(value <= (std::uint64_t{1} << 63));
  return std::bit_ceil(value);
}

/// floor(log2(value)); the value must not be 0.
[[nodiscard]] constexpr unsigned log2_floor(std::uint64_t value) noexcept {
  KVRAIL_ASSERT(value != 0);
  return 63U - static_cast<unsigned>(std::countl_zero(value));
}

/// Index of the lowest set bit, 64 when there is none.
[[nodiscard]] constexpr unsigned find_first_set(std::uint64_t value) noexcept {
  return static_cast<unsigned>(std::countr_zero(value));
}

/// Index of the highest set bit, 64 when there is none.
[[nodiscard]] constexpr unsigned find_last_set(std::uint64_t value) noexcept {
  return value == 0 ? 64U : log2_floor(value);
}

/// ceil(a / b) without the overflow of (a + b - 1) / b; b must not be 0.
[[nodiscard]] constexpr std::uint64_t div_ceil(std::uint64_t a, std::uint64_t b) noexcept {
  KVRAIL_ASSERT(b != 0);
  return a / b + (a % b != 0 ? 1 : 0);
}

/// `value` rounded down to a multiple of `alignment`, a power of two.
[[nodiscard]] constexpr std::uint64_t align_down(std::uint64_t value,
                                                 std::uint64_t alignment) noexcept {
  KVRAIL_ASSERT(is_power_of_two(alignment));
  return value & ~(alignment - 1);
}

/// `value` rounded up to a multiple of `alignment`, a power of two; nothing if that exceeds 64
/// bits.
[[nodiscard]] constexpr std::optional<std::uint64_t> align_up(std::uint64_t value,
                                                              std::uint64_t alignment) noexcept {
  KVRAIL_ASSERT(is_power_of_two(alignment));
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(value, alignment - 1, &sum)) {
    return std::nullopt;
  }
  return sum & ~(alignment - 1);
}

[[nodiscard]] constexpr bool is_aligned(std::uint64_t value, std::uint64_t alignment) noexcept {
  KVRAIL_ASSERT(is_power_of_two(alignment));
  return (value & (alignment - 1)) == 0;
}

}  // namespace kvrail
