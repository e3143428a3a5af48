#include "codec/planes_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "codec/float_convert.h"
#include "codec/simd/planes.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

// K or V: its whole segments, and the shorter one at the end, if there is one.
struct Parts {
  Side whole, rest;
  std::uint64_t whole_bytes = 0;  // of rows
  std::uint64_t whole_scales = 0;
  std::uint64_t whole_nibbles = 0;

  Parts(const PlaneShape& cut, Dtype dtype, std::uint32_t tokens, bool rotated) noexcept {
    const std::uint32_t order = rotated ? cut.rotation : 1;
    const std::uint32_t segments = tokens / cut.segment_rows;
    const std::uint32_t rest_values = tokens % cut.segment_rows * cut.row_values;
    whole = {dtype, order, cut.segment_values(), segments};
    rest = {dtype, order, rest_values, rest_values > 0 ? 1U : 0U};
    const std::uint64_t values = segments * std::uint64_t{cut.segment_values()};
    whole_bytes = values * dtype_bytes(dtype);
    whole_scales = 2 * segments * std::uint64_t{PlaneShape::groups_of(cut.segment_values())};
    whole_nibbles = values / 2;
  }
};

// Where K (0) and V (1) lie in the planes.
template <class Planes, class Byte>
Planes side_planes(const PlaneShape& cut, std::uint32_t tokens, std::size_t kv,
                   std::span<Byte> plane0, std::span<Byte> plane1) noexcept {
  const std::uint64_t scales = cut.scale_bytes(tokens);
  const std::uint64_t nibbles = cut.nibble_bytes(tokens);
  return {plane0.data() + kv * scales, plane0.data() + 2 * scales + kv * nibbles,
          plane1.empty() ? nullptr : plane1.data() + kv * nibbles};
}
template <class Planes>
Planes after(const Planes& planes, const Parts& parts) noexcept {
  return {planes.scales + parts.whole_scales, planes.high + parts.whole_nibbles,
          planes.low == nullptr ? nullptr : planes.low + parts.whole_nibbles};
}

double value_at(Dtype dtype, const std::byte* row, std::uint64_t index) noexcept {
  float value = 0;
  std::uint16_t bits = 0;
  if (dtype == Dtype::fp32) {
    std::memcpy(&value, row + index * 4, 4);
    return static_cast<double>(value);
  }
  std::memcpy(&bits, row + index * 2, 2);
  return static_cast<double>(dtype == Dtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits));
}

// Float sums of squares hold for values of about 10^-14 to 10^18. For others, which no model makes,
// the sums are taken again in double precision.
bool in_range(const Tally& tally) noexcept {
  return tally.energy > 1e-27 && tally.energy < 1e36 && tally.squared_steps > 1e-33;
}
void sum_again(const PlaneShape& cut, const RunShape& shape, std::span<const std::byte> rows,
               const std::byte* scales, Tally& tally) noexcept {
  tally.energy = tally.squared_steps = 0;
  for (std::uint64_t i = 0; i < shape.side_values(); ++i) {
    const double value = value_at(shape.dtype, rows.data(), i);
    tally.energy += value * value;
  }
  const double octets = static_cast<double>(shape.side_values()) / kOctet /
                        static_cast<double>(cut.groups(shape.tokens));
  for (std::uint64_t group = 0; group < cut.groups(shape.tokens); ++group) {
    const double step = value_at(Dtype::bf16, scales, group);
    tally.squared_steps += step * step * octets;
  }
}

}  // namespace

RunPlaneBytes run_plane_bytes(const PlaneShape& cut, std::uint32_t tokens) noexcept {
  const std::uint64_t nibbles = 2 * cut.nibble_bytes(tokens);
  return {2 * cut.scale_bytes(tokens) + nibbles, nibbles};
}

std::uint32_t plane_buffer_floats(const PlaneShape& cut) noexcept {
  return cut.tiled() && cut.segment_rows == 1 ? 0 : cut.segment_values();
}

std::uint32_t epsilon_of(double nmse) noexcept {
  return static_cast<std::uint32_t>(std::clamp(std::ceil(nmse * 1e6), 1.0, 1e6));
}

RunTally encode_planes(const PlaneRun& run, const RunView& in, std::span<std::byte> plane0,
                       std::span<std::byte> plane1) {
  const RunShape& shape = run.shape;
  const PlaneShape cut(shape.kv_heads, shape.head_dim);
  RunTally result;
  for (std::size_t kv = 0; kv < 2; ++kv) {
    const std::span<const std::byte> rows = kv == 0 ? in.k : in.v;
    const Parts parts(cut, shape.dtype, shape.tokens, kv == 0 || run.rotate_v);
    const auto planes = side_planes<SidePlanes>(cut, shape.tokens, kv, plane0, plane1);
    Tally tally;
    if (cut.tiled()) {
      simd::encode_tiles(parts.whole, rows.data(), planes, tally);
    } else {
      plain::encode(parts.whole, rows.data(), planes, run.buffer, tally);
    }
    if (parts.rest.segments > 0) {
      plain::encode(parts.rest, rows.data() + parts.whole_bytes, after(planes, parts), run.buffer,
                    tally);
    }
    if (tally.refused) {
      result.refused = true;
      continue;  // its sums may be Inf
    }
    if (!in_range(tally)) sum_again(cut, shape, rows, planes.scales, tally);
    result.noise += tally.squared_steps * (kOctet / 12.0);
    result.energy += tally.energy;
  }
  return result;
}

bool decode_planes(const PlaneRun& run, std::span<const std::byte> plane0,
                   std::span<const std::byte> plane1, const MutableRun& out) {
  const RunShape& shape = run.shape;
  const PlaneShape cut(shape.kv_heads, shape.head_dim);
  bool legal = true;
  for (std::size_t kv = 0; kv < 2; ++kv) {
    const std::span<std::byte> rows = kv == 0 ? out.k : out.v;
    const Parts parts(cut, shape.dtype, shape.tokens, kv == 0 || run.rotate_v);
    const auto planes = side_planes<SideView>(cut, shape.tokens, kv, plane0, plane1);
    if (cut.tiled()) {
      legal = simd::decode_tiles(parts.whole, planes, rows.data()) && legal;
    } else {
      legal = plain::decode(parts.whole, planes, run.buffer, rows.data()) && legal;
    }
    if (parts.rest.segments > 0) {
      legal = plain::decode(parts.rest, after(planes, parts), run.buffer,
                            rows.data() + parts.whole_bytes) &&
              legal;
    }
  }
  return legal;
}

}  // namespace kvrail::codec
