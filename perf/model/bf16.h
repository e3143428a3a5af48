// bfloat16 by hand: the upper half of a float32, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace kvrail::model {

[[nodiscard]] constexpr float from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// NaN stays a quiet NaN: plain rounding would carry some NaN patterns over to infinity or zero.
[[nodiscard]] constexpr std::uint16_t to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace kvrail::model
