// The two fp8 formats of a Layout to float, exactly: OCP's 8-bit formats (OFP8), not the IEEE-like
// or "fnuz" relatives. Every code's value is a float, so nothing is rounded; a NaN becomes the
// quiet NaN of its sign. The media that quantise take no fp8: it is sent as it is, by full or
// lossless.
//
//   fp8_e4m3  E4M3 (elsewhere "e4m3fn"): bias 7, no Inf, NaN is 0x7f and 0xff, greatest 448
//   fp8_e5m2  E5M2: bias 15, Inf and NaN as in IEEE 754, greatest finite 57344; the upper byte of
//   fp16
#pragma once

#include <bit>
#include <cstdint>

#include "codec/float_convert.h"

namespace kvrail::codec {

inline constexpr std::uint32_t kQuietNan = 0x7fc00000U;

[[nodiscard]] inline float e4m3_to_float(std::uint8_t code) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | kQuietNan);
  // The bits in their places, then 2^120 between the biases; the product is exact, subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

[[nodiscard]] inline float e5m2_to_float(std::uint8_t code) noexcept {
  if ((code & 0x7fU) > 0x7cU)
    return std::bit_cast<float>(static_cast<std::uint32_t>(code & 0x80U) << 24 | kQuietNan);
  return fp16_to_float(static_cast<std::uint16_t>(code << 8));
}

}  // namespace kvrail::codec
