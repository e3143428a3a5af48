// How K or V of a run is cut for the planes (docs/codecs.md, "int4, int8, exact"): into segments of
// whole rows, each segment into groups that share a step.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvrail/types.h"

namespace kvrail::codec {

inline constexpr std::uint32_t kTile = 64;  // least values of a group, where there are as many
inline constexpr std::uint32_t kOctet = 8;  // groups and rows are multiples of it

/// Steps that an encoder can write, as bf16: 0, or 2^-126 to a little over 2^110. Values that need
/// a larger one are refused, so that no sum of a rotation overflows.
inline constexpr std::uint16_t kMinStepBits = 0x0080;
inline constexpr std::uint16_t kMaxStepBits = 0x7681;
/// Encoders refuse a group whose largest value, rotated, is not below this: its step would be
/// larger.
inline constexpr float kTooLarge = 0x1p117F;
[[nodiscard]] constexpr bool legal_step(std::uint16_t bits) noexcept {
  return bits == 0 || (bits >= kMinStepBits && bits <= kMaxStepBits);
}

struct PlaneShape {
  std::uint32_t row_values = 0;
  std::uint32_t segment_rows = 1;  // > 1 only where a row has fewer than kTile values
  std::uint32_t rotation = 1;      // Hadamard order: the largest power of two in head_dim

  PlaneShape(std::uint32_t kv_heads, std::uint32_t head_dim) noexcept
      : row_values(kv_heads * head_dim),
        segment_rows(row_values >= kTile ? 1 : (kTile + row_values - 1) / row_values),
        rotation(head_dim & (~head_dim + 1)) {}

  [[nodiscard]] std::uint32_t segment_values() const noexcept { return segment_rows * row_values; }
  /// Of a segment of so many values: as many as have kTile values.
  [[nodiscard]] static std::uint32_t groups_of(std::uint64_t values) noexcept {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, values / kTile));
  }
  /// Values of group `index` of such a segment: octets as equal as can be, larger groups first.
  [[nodiscard]] static std::uint32_t group_values(std::uint32_t values,
                                                  std::uint32_t index) noexcept {
    const std::uint32_t octets = values / kOctet;
    const std::uint32_t groups = groups_of(values);
    return (octets / groups + (index < octets % groups ? 1U : 0U)) * kOctet;
  }
  /// Of K or of V alone; the last segment may have fewer rows than the others.
  [[nodiscard]] std::uint64_t groups(std::uint32_t tokens) const noexcept {
    const std::uint32_t rest = tokens % segment_rows * row_values;
    return std::uint64_t{tokens / segment_rows} * groups_of(segment_values()) +
           (rest > 0 ? groups_of(rest) : 0);
  }
  [[nodiscard]] std::uint64_t scale_bytes(std::uint32_t tokens) const noexcept {
    return 2 * groups(tokens);
  }
  [[nodiscard]] std::uint64_t nibble_bytes(std::uint32_t tokens) const noexcept {
    return std::uint64_t{tokens} * row_values / 2;
  }
  /// Whole segments that are made of tiles and rotate inside four of them: what the SIMD kernels
  /// take.
  [[nodiscard]] bool tiled() const noexcept {
    return segment_values() % kTile == 0 && rotation <= 4 * kTile;
  }
};

}  // namespace kvrail::codec
