#include "codec/planes_plain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "codec/float_convert.h"
#include "codec/planes_shape.h"

namespace kvrail::codec {

float rotation_scale(std::uint32_t order) noexcept {
  return 1.0F / std::sqrt(static_cast<float>(order));
}

namespace plain {
namespace {

// Adding it to v in [0, 256) leaves v in the low 16 bits, 8 of them behind the point.
constexpr float kFixedPoint = 0x1p15F;

void load(Dtype dtype, const std::byte* from, std::uint32_t count, float* out) noexcept {
  std::uint16_t bits = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (dtype == Dtype::fp32) {
      std::memcpy(out + i, from + std::size_t{i} * 4, 4);
      continue;
    }
    std::memcpy(&bits, from + std::size_t{i} * 2, 2);
    out[i] = dtype == Dtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
  }
}

// To nearest; halves away from zero in bf16 (one addition in SIMD), to even in fp16.
void store(Dtype dtype, const float* from, std::uint32_t count, std::byte* out) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (dtype == Dtype::fp32) {
      std::memcpy(out + std::size_t{i} * 4, from + i, 4);
      continue;
    }
    const std::uint16_t bits =
        dtype == Dtype::bf16
            ? static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(from[i]) + 0x8000U) >> 16)
            : float_to_fp16(from[i]);
    std::memcpy(out + std::size_t{i} * 2, &bits, 2);
  }
}

// Walsh-Hadamard, unscaled, of every `order` values.
void rotate(float* values, std::uint32_t count, std::uint32_t order) noexcept {
  for (std::uint32_t base = 0; base < count; base += order) {
    for (std::uint32_t half = 1; half < order; half *= 2) {
      for (std::uint32_t block = base; block < base + order; block += 2 * half) {
        for (std::uint32_t i = block; i < block + half; ++i) {
          const float a = values[i];
          const float b = values[i + half];
          values[i] = a + b;
          values[i + half] = a - b;
        }
      }
    }
  }
}

class Sums {
 public:
  void add(const float* values, std::uint32_t count, float step) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) squares_[i % 32 / 2] += values[i] * values[i];
    steps_[group_ % 4] += step * step * (static_cast<float>(count) / kOctet);
    if (++group_ % kFlushGroups == 0) flush();
  }
  void flush() noexcept {
    for (float& sum : squares_) energy += static_cast<double>(std::exchange(sum, 0.0F));
    for (float& sum : steps_) squared_steps += static_cast<double>(std::exchange(sum, 0.0F));
  }
  double energy = 0;
  double squared_steps = 0;

 private:
  std::array<float, 16> squares_{};
  std::array<float, 4> steps_{};
  std::uint32_t group_ = 0;
};

// The greatest magnitude by bit patterns: they order like floats of one sign, and NaN and Inf come
// out on top.
std::uint32_t largest_bits(const float* values, std::uint32_t count) noexcept {
  std::uint32_t largest = 0;
  for (std::uint32_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU);
  return largest;
}

// A bf16 that is more than 1/128 of the largest value by 2^-15 or more, so that no code needs a
// clamp.
float step_of(float largest, float scale) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(largest * (scale / 128.0F)) + 0x10200U;
  return std::max(std::bit_cast<float>(bits & 0xffff0000U), 0x1p-126F);
}

std::uint8_t quantise(float value, float inverse) noexcept {
  const float fixed = value * inverse + (kFixedPoint + 128.0F);
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(fixed) >> 8);
}

// Value i of a group of n shares a byte with value i + 32 in a tile, i + 4 in an octet after it.
struct Place {
  std::uint32_t byte = 0;
  bool upper = false;
};
Place place_of(std::uint32_t index, std::uint32_t count) noexcept {
  const std::uint32_t tiled = count >= kTile ? kTile : 0;
  if (index < tiled) return {index % 32, index >= 32};
  const std::uint32_t rest = index - tiled;
  return {tiled / 2 + rest / kOctet * 4 + rest % 4, rest % kOctet >= 4};
}

void put_nibble(std::byte* plane, const Place& place, std::uint32_t nibble) noexcept {
  if (place.upper) {
    plane[place.byte] |= static_cast<std::byte>(nibble << 4);
  } else {
    plane[place.byte] = static_cast<std::byte>(nibble);
  }
}
std::uint32_t nibble_of(const std::byte* plane, const Place& place) noexcept {
  const auto byte = static_cast<std::uint32_t>(plane[place.byte]);
  return place.upper ? byte >> 4 : byte & 15U;
}

}  // namespace

void encode(const Side& side, const std::byte* rows, const SidePlanes& planes, float* buffer,
            Tally& tally) noexcept {
  const float scale = rotation_scale(side.rotation);
  SidePlanes at = planes;
  Sums sums;
  for (std::uint64_t segment = 0; segment < side.segments; ++segment) {
    load(side.dtype, rows, side.segment_values, buffer);
    rows += std::size_t{side.segment_values} * dtype_bytes(side.dtype);
    rotate(buffer, side.segment_values, side.rotation);
    const float* values = buffer;
    for (std::uint32_t g = 0; g < PlaneShape::groups_of(side.segment_values); ++g) {
      const std::uint32_t count = PlaneShape::group_values(side.segment_values, g);
      const auto largest = std::bit_cast<float>(largest_bits(values, count));
      tally.refused = tally.refused || !(largest * scale < kTooLarge);
      const float step = largest == 0 ? 0.0F : step_of(largest, scale);
      const float inverse = largest == 0 ? 0.0F : scale / step;
      const auto stored = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(step) >> 16);
      std::memcpy(at.scales, &stored, 2);
      sums.add(values, count, step);
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint8_t code = quantise(values[i], inverse);
        put_nibble(at.high, place_of(i, count), code >> 4U);
        if (at.low != nullptr) put_nibble(at.low, place_of(i, count), code & 15U);
      }
      values += count;
      at = {at.scales + 2, at.high + count / 2, at.low == nullptr ? nullptr : at.low + count / 2};
    }
  }
  sums.flush();
  tally.energy += sums.energy * static_cast<double>(scale) * static_cast<double>(scale);
  tally.squared_steps += sums.squared_steps;
}

bool decode(const Side& side, const SideView& planes, float* buffer, std::byte* rows) noexcept {
  const float scale = rotation_scale(side.rotation);
  const float middle = planes.low == nullptr ? 128.0F : 127.5F;
  SideView at = planes;
  bool legal = true;
  for (std::uint64_t segment = 0; segment < side.segments; ++segment) {
    float* values = buffer;
    for (std::uint32_t g = 0; g < PlaneShape::groups_of(side.segment_values); ++g) {
      const std::uint32_t count = PlaneShape::group_values(side.segment_values, g);
      std::uint16_t bits = 0;
      std::memcpy(&bits, at.scales, 2);
      const bool good = legal_step(bits);
      legal = legal && good;
      const float step = (good ? bf16_to_float(bits) : 0.0F) * scale;
      for (std::uint32_t i = 0; i < count; ++i) {
        const Place place = place_of(i, count);
        const std::uint32_t low = at.low == nullptr ? 8U : nibble_of(at.low, place);
        const auto code = static_cast<float>(nibble_of(at.high, place) << 4 | low);
        values[i] = (code - middle) * step;
      }
      values += count;
      at = {at.scales + 2, at.high + count / 2, at.low == nullptr ? nullptr : at.low + count / 2};
    }
    rotate(buffer, side.segment_values, side.rotation);
    store(side.dtype, buffer, side.segment_values, rows);
    rows += std::size_t{side.segment_values} * dtype_bytes(side.dtype);
  }
  return legal;
}

}  // namespace plain
}  // namespace kvrail::codec
