// Conversions between the storage types of KV and float, by bit operations only, so that every
// compiler and ISA gives the same bits. Rounding is to nearest, ties to even; a value beyond the
// largest finite one is clamped to it (a decoder must never make an Inf out of finite input).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace kvrail::codec {

[[nodiscard]] inline float bf16_to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Finite input only.
[[nodiscard]] inline std::uint16_t float_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 15;
  const std::uint32_t rounded = ((bits & 0x7fffffffU) + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>(sign | (rounded > 0x7f7fU ? 0x7f7fU : rounded));
}

[[nodiscard]] inline float fp16_to_float(std::uint16_t bits) noexcept {
  // Scaling by 2^112 moves the half exponent into place and normalises subnormals in one multiply;
  // it is exact. Inf and NaN then need their exponent set by hand.
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  std::uint32_t out = std::bit_cast<std::uint32_t>(scaled);
  if ((bits & 0x7c00U) == 0x7c00U) out = magnitude | 0x7f800000U;
  return std::bit_cast<float>(out | static_cast<std::uint32_t>(bits & 0x8000U) << 16);
}

// Finite input only.
[[nodiscard]] inline std::uint16_t float_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31 << 15;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7bffU);  // above 65504
  if (magnitude < 0x38800000U) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves its bits, rounded, in the mantissa.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace kvrail::codec
