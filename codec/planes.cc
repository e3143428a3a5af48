// Nested int8 planes. See planes.h for the format. The arithmetic is elementwise float with a fixed
// order, compiled without contraction, so vector and scalar builds give the same bits.
#include "codec/planes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "codec/float_convert.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

constexpr std::uint32_t kMinGroup = 64;
constexpr std::uint32_t kMaxSegmentValues = 16384;  // one row on the stack: 64 KiB of floats

// How one (layer, K|V) of `tokens` rows is cut: segments of whole rows, each cut into groups.
struct Shape {
  std::uint32_t row_values = 0;
  std::uint32_t rows_per_segment = 1;    // > 1 only where a row has fewer than kMinGroup values
  std::uint32_t groups_per_segment = 1;  // of a whole segment
  std::uint32_t rotation = 0;            // Hadamard order on K: largest power of two in head_dim

  explicit Shape(const Layout& layout) noexcept
      : row_values(layout.kv_heads * layout.head_dim),
        rows_per_segment(row_values >= kMinGroup ? 1 : (kMinGroup + row_values - 1) / row_values),
        groups_per_segment(std::max(1U, row_values / kMinGroup)),
        rotation(layout.head_dim & (~layout.head_dim + 1)) {}

  [[nodiscard]] std::uint64_t groups(std::uint32_t tokens) const noexcept {
    const std::uint64_t segments = (std::uint64_t{tokens} + rows_per_segment - 1) / rows_per_segment;
    return segments * groups_per_segment;
  }
  // Values of group `index` in a segment of `values`: as equal as can be, larger ones first.
  [[nodiscard]] std::uint32_t group_values(std::uint32_t values, std::uint32_t index) const noexcept {
    return values / groups_per_segment + (index < values % groups_per_segment ? 1U : 0U);
  }
};

using Segment = std::array<float, kMaxSegmentValues>;
using Codes = std::array<std::uint8_t, kMaxSegmentValues>;

void load(Dtype dtype, const std::byte* from, std::uint32_t count, float* out) noexcept {
  std::uint16_t bits = 0;
  if (dtype == Dtype::fp32) {
    std::memcpy(out, from, std::size_t{count} * 4);
  } else if (dtype == Dtype::bf16) {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memcpy(&bits, from + std::size_t{i} * 2, 2);
      out[i] = bf16_to_float(bits);
    }
  } else {
    for (std::uint32_t i = 0; i < count; ++i) {
      std::memcpy(&bits, from + std::size_t{i} * 2, 2);
      out[i] = fp16_to_float(bits);
    }
  }
}

void store(Dtype dtype, const float* from, std::uint32_t count, std::byte* out) noexcept {
  std::uint16_t bits = 0;
  if (dtype == Dtype::fp32) {
    std::memcpy(out, from, std::size_t{count} * 4);
  } else if (dtype == Dtype::bf16) {
    for (std::uint32_t i = 0; i < count; ++i) {
      bits = float_to_bf16(from[i]);
      std::memcpy(out + std::size_t{i} * 2, &bits, 2);
    }
  } else {
    for (std::uint32_t i = 0; i < count; ++i) {
      bits = float_to_fp16(from[i]);
      std::memcpy(out + std::size_t{i} * 2, &bits, 2);
    }
  }
}

// In-place orthonormal Walsh-Hadamard transform of each run of `order` values; it is its own inverse.
void rotate(float* values, std::uint32_t count, std::uint32_t order) noexcept {
  const float scale = 1.0F / std::sqrt(static_cast<float>(order));
  for (std::uint32_t base = 0; base < count; base += order) {
    float* run = values + base;
    for (std::uint32_t half = 1; half < order; half *= 2) {
      for (std::uint32_t block = 0; block < order; block += 2 * half) {
        for (std::uint32_t i = block; i < block + half; ++i) {
          const float a = run[i];
          const float b = run[i + half];
          run[i] = a + b;
          run[i + half] = a - b;
        }
      }
    }
    for (std::uint32_t i = 0; i < order; ++i) run[i] *= scale;
  }
}

struct Tally {
  double noise = 0;
  double energy = 0;
  bool non_finite = false;
};

// The step as it is stored. Rounding may make it a little small; the clamp of codes covers that.
// Magnitudes are compared as integers: the order is the same for floats of one sign, Inf and NaN
// come out on top, and the loop needs no ordering of NaN, so it vectorises.
std::uint16_t step_of(const float* values, std::uint32_t count, Tally& tally) noexcept {
  std::int32_t largest_bits = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    largest_bits = std::max(largest_bits, static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffU));
  }
  if (largest_bits >= 0x7f800000) {
    tally.non_finite = true;
    return 0;
  }
  std::array<float, 8> partial{};  // eight sums in a fixed order: the same bits at any vector width
  for (std::uint32_t i = 0; i + 8 <= count; i += 8) {
    for (std::uint32_t lane = 0; lane < 8; ++lane) partial[lane] += values[i + lane] * values[i + lane];
  }
  const float largest = std::bit_cast<float>(largest_bits);
  const std::uint16_t step = float_to_bf16(largest * (1.0F / 128.0F));
  const double width = static_cast<double>(bf16_to_float(step));
  tally.noise += width * width / 12.0 * count;
  for (const float sum : partial) tally.energy += static_cast<double>(sum);
  return step;
}

// Signed codes -128..127, biased by 128 so that the nibbles are plain bits.
void quantise(const float* values, std::uint32_t count, float step, std::uint8_t* codes) noexcept {
  if (!(step > 0)) {
    std::memset(codes, 128, count);
    return;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const float ratio = values[i] / step;  // |ratio| <= 128 and a rounding: the conversion is safe
    const auto cut = static_cast<std::int32_t>(ratio);
    const std::int32_t floor = cut - (ratio < static_cast<float>(cut) ? 1 : 0);
    codes[i] = static_cast<std::uint8_t>(std::clamp(floor, -128, 127) + 128);
  }
}

// Two codes to a byte of each plane; count is even because head_dim is a multiple of 8.
void pack(const std::uint8_t* codes, std::uint32_t count, std::byte* high, std::byte* low) noexcept {
  for (std::uint32_t i = 0; i < count / 2; ++i) {
    const std::uint8_t a = codes[2 * i];
    const std::uint8_t b = codes[2 * i + 1];
    high[i] = static_cast<std::byte>((a >> 4) | (b & 0xf0U));
    low[i] = static_cast<std::byte>((a & 0x0fU) | static_cast<std::uint8_t>(b << 4));
  }
}

// `low` null: the middle of the sixteen values that share the high nibble.
void unpack(const std::byte* high, const std::byte* low, std::uint32_t count, std::uint8_t* codes) noexcept {
  for (std::uint32_t i = 0; i < count / 2; ++i) {
    const auto h = static_cast<std::uint8_t>(high[i]);
    const auto l = low == nullptr ? std::uint8_t{0x88} : static_cast<std::uint8_t>(low[i]);
    codes[2 * i] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(h << 4) | (l & 0x0fU));
    codes[2 * i + 1] = static_cast<std::uint8_t>((h & 0xf0U) | (l >> 4));
  }
}

void dequantise(const std::uint8_t* codes, std::uint32_t count, float step, float bias, float* values) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    values[i] = (static_cast<float>(static_cast<std::int32_t>(codes[i]) - 128) + bias) * step;
  }
}

// Where one (layer, K|V) half lies, as byte offsets: its scales and high nibbles in plane 0, its low
// nibbles in plane 1.
struct Half {
  std::uint64_t scales = 0;
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

Half half_of(const Shape& shape, std::uint32_t tokens, std::uint32_t layer, std::uint32_t kv) noexcept {
  const std::uint64_t scale_bytes = shape.groups(tokens) * 2;
  const std::uint64_t nibble_bytes = std::uint64_t{tokens} * shape.row_values / 2;
  const std::uint64_t begin = layer * 2 * (scale_bytes + nibble_bytes);
  return {begin + kv * scale_bytes, begin + 2 * scale_bytes + kv * nibble_bytes, (layer * 2 + kv) * nibble_bytes};
}

}  // namespace

Result<void> can_encode(const Layout& layout) {
  const std::uint64_t row_values = std::uint64_t{layout.kv_heads} * layout.head_dim;
  if (layout.dtype != Dtype::bf16 && layout.dtype != Dtype::fp16 && layout.dtype != Dtype::fp32) {
    return Error{{Code::unsupported, Scope::transfer, static_cast<std::int32_t>(layout.dtype)},
                 "int8 encodes bf16, fp16 and fp32; this layout is sent by full or tokens"};
  }
  if (layout.head_dim % 8 != 0) {
    return Error{{Code::unsupported, Scope::transfer, static_cast<std::int32_t>(layout.head_dim)},
                 "int8 needs a head_dim that is a multiple of 8; this layout is sent by full or tokens"};
  }
  if (row_values > kMaxSegmentValues) {
    return Error{{Code::unsupported, Scope::transfer, static_cast<std::int32_t>(row_values)},
                 "int8 takes at most " + std::to_string(kMaxSegmentValues) + " values per token and layer"};
  }
  return {};
}

PlaneSizes plane_sizes(const Layout& layout, std::uint32_t tokens) noexcept {
  const Shape shape(layout);
  const std::uint64_t halves = std::uint64_t{layout.layers} * 2;
  const std::uint64_t nibble_bytes = halves * tokens * shape.row_values / 2;
  return {halves * shape.groups(tokens) * 2 + nibble_bytes, nibble_bytes};
}

CodecReport encode_int8(const Layout& layout, std::uint32_t tokens, std::span<const std::byte> slot,
                        std::uint32_t layer_begin, std::uint32_t layer_end, std::span<std::byte> plane0,
                        std::span<std::byte> plane1) noexcept {
  const Shape shape(layout);
  const PlaneSizes sizes = plane_sizes(layout, tokens);
  KVRAIL_ASSERT(plane0.size() == sizes.plane0_bytes && plane1.size() == sizes.plane1_bytes);
  KVRAIL_ASSERT(layer_begin <= layer_end && layer_end <= layout.layers && slot.size() >= layout.block_bytes());
  Segment segment;
  Codes codes;
  Tally tally;
  for (std::uint32_t half = layer_begin * 2; half < layer_end * 2; ++half) {
    Half at_half = half_of(shape, tokens, half / 2, half % 2);
    for (std::uint32_t row = 0; row < tokens; row += shape.rows_per_segment) {
      const std::uint32_t rows = std::min(shape.rows_per_segment, tokens - row);
      const std::uint32_t count = rows * shape.row_values;
      load(layout.dtype, slot.data() + layout.row_offset(half / 2, half % 2, row), count, segment.data());
      if (half % 2 == 0) rotate(segment.data(), count, shape.rotation);
      const float* at = segment.data();
      for (std::uint32_t g = 0; g < shape.groups_per_segment; ++g, at_half.scales += 2) {
        const std::uint32_t in_group = shape.group_values(count, g);
        const std::uint16_t step = step_of(at, in_group, tally);
        std::memcpy(plane0.data() + at_half.scales, &step, 2);
        quantise(at, in_group, bf16_to_float(step), codes.data() + (at - segment.data()));
        at += in_group;
      }
      pack(codes.data(), count, plane0.data() + at_half.high, plane1.data() + at_half.low);
      at_half.high += count / 2;
      at_half.low += count / 2;
    }
  }
  CodecReport report;
  report.has_non_finite = tally.non_finite;
  report.nmse = tally.energy > 0 ? tally.noise / tally.energy : 0;
  report.epsilon_ppm = static_cast<std::uint32_t>(std::min(report.nmse, 1.0) * 1e6 + 0.5);
  return report;
}

void decode_int8(const Layout& layout, std::uint32_t tokens, std::span<const std::byte> plane0,
                 std::span<const std::byte> plane1, std::uint32_t layer_begin, std::uint32_t layer_end,
                 std::span<std::byte> slot) noexcept {
  const Shape shape(layout);
  const PlaneSizes sizes = plane_sizes(layout, tokens);
  KVRAIL_ASSERT(plane0.size() == sizes.plane0_bytes);
  KVRAIL_ASSERT(plane1.empty() || plane1.size() == sizes.plane1_bytes);
  KVRAIL_ASSERT(layer_begin <= layer_end && layer_end <= layout.layers && slot.size() >= layout.block_bytes());
  const float bias = plane1.empty() ? 0.0F : 0.5F;
  Segment segment;
  Codes codes;
  for (std::uint32_t half = layer_begin * 2; half < layer_end * 2; ++half) {
    Half at_half = half_of(shape, tokens, half / 2, half % 2);
    for (std::uint32_t row = 0; row < tokens; row += shape.rows_per_segment) {
      const std::uint32_t rows = std::min(shape.rows_per_segment, tokens - row);
      const std::uint32_t count = rows * shape.row_values;
      unpack(plane0.data() + at_half.high, plane1.empty() ? nullptr : plane1.data() + at_half.low, count, codes.data());
      at_half.high += count / 2;
      at_half.low += count / 2;
      std::uint32_t at = 0;
      for (std::uint32_t g = 0; g < shape.groups_per_segment; ++g, at_half.scales += 2) {
        const std::uint32_t in_group = shape.group_values(count, g);
        std::uint16_t bits = 0;
        std::memcpy(&bits, plane0.data() + at_half.scales, 2);
        dequantise(codes.data() + at, in_group, bf16_to_float(bits), bias, segment.data() + at);
        at += in_group;
      }
      if (half % 2 == 0) rotate(segment.data(), count, shape.rotation);
      // A foreign stream may carry any step, Inf and NaN too: what is stored stays finite.
      for (std::uint32_t i = 0; i < count; ++i) {
        const bool finite = (std::bit_cast<std::uint32_t>(segment[i]) & 0x7f800000U) != 0x7f800000U;
        segment[i] = finite ? segment[i] : 0.0F;
      }
      store(layout.dtype, segment.data(), count, slot.data() + layout.row_offset(half / 2, half % 2, row));
    }
  }
}

}  // namespace kvrail::codec
