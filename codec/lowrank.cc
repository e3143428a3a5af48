#include "codec/lowrank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "codec/bit_stream.h"
#include "codec/hash.h"
#include "codec/rows.h"
#include "codec/simd/lowrank_kernels.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"

namespace kvrail::codec {

// 2^(index / 16 - 64). The sixteenths are written down, so that no library rounds them its way.
float theta_of(std::uint16_t index) noexcept {
  constexpr float kSixteenths[16] = {1.0F,          1.0442737824F, 1.0905077327F, 1.1387886347F,
                                     1.1892071150F, 1.2418578120F, 1.2968395547F, 1.3542555469F,
                                     1.4142135624F, 1.4768261460F, 1.5422108254F, 1.6104903319F,
                                     1.6817928305F, 1.7562521604F, 1.8340080864F, 1.9152065614F};
  return std::ldexp(kSixteenths[index % 16], index / 16 - 64);
}

namespace {

using simd::kSumLanes;
using simd::kTileRows;

// Magnitudes beyond this could overflow a sum of squares; it is also the bits' order.
constexpr std::uint32_t kMostMagnitudeBits = std::bit_cast<std::uint32_t>(0x1p50F);

// Bits of one component: as many as gain at least θ.
std::uint32_t bits_of(const float* gains, float theta) noexcept {
  std::uint32_t bits = 0;
  while (bits < kMaxComponentBits && gains[bits] >= theta) ++bits;
  return bits;
}

std::uint64_t row_bits(const Basis& basis, std::uint32_t layer, Side side, float theta) noexcept {
  std::uint64_t bits = 0;
  for (std::uint32_t s = 0; s < basis.shape().segments(); ++s) {
    const float* gains = basis.segment(layer, side, s).gains;
    for (std::uint32_t c = 0; c < basis.shape().components; ++c, gains += kMaxComponentBits)
      bits += bits_of(gains, theta);
  }
  return bits;
}

std::uint64_t side_bytes(const Basis& basis, std::uint32_t layer, Side side, float theta,
                         std::uint32_t tokens) noexcept {
  return div_ceil(row_bits(basis, layer, side, theta) * tokens, 8);
}

double sum_of(const float (&lanes)[kSumLanes]) noexcept {
  double sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// Squares of a side: of its values, of those without the mean, and what the codes took of the
// latter.
struct Sums {
  double energy = 0, centred = 0, explained = 0;
  [[nodiscard]] double nmse() const noexcept {
    const double error = std::max(centred - explained, 0.0);
    return error == 0 ? 0.0 : error / std::max(energy, 1e-300);
  }
};

std::uint32_t epsilon_ppm(const Sums& k, const Sums& v) noexcept {
  const double mean = 0.5 * (std::min(k.nmse(), 1.0) + std::min(v.nmse(), 1.0));
  return std::max(1U, static_cast<std::uint32_t>(mean * 1e6 + 0.5));
}

// Parts of the scratch, each at alignment 64.
class Carver {
 public:
  explicit Carver(std::byte* at) noexcept : at_(at) {}
  template <class T>
  T* take(std::size_t count) noexcept {
    std::byte* const here = at_ == nullptr ? nullptr : at_ + used_;
    used_ += div_ceil(count * sizeof(T), 64) * 64;
    return reinterpret_cast<T*>(here);
  }
  [[nodiscard]] std::size_t used() const noexcept { return used_; }

 private:
  std::byte* at_;
  std::size_t used_ = 0;
};

}  // namespace

// Working memory of a call, and the passes over one side of the run.
struct LowRank::Work {
  const Basis& basis;
  std::uint32_t layer;
  std::size_t row_values, value_stride, component_stride, segments;
  // A tile of rows: as they are; a segment of them without its mean; its components; all codes.
  float *rows, *segment_rows, *components;
  std::int32_t* codes;
  // The quantisers of a row's components, and which of each segment have bits.
  float *inverse, *step, *half;
  std::uint32_t *active, *bits, *active_count;
  std::size_t used;

  Work(const Basis& of, std::uint32_t of_layer, std::byte* scratch) noexcept
      : basis(of),
        layer(of_layer),
        row_values(std::size_t{of.shape().kv_heads} * of.shape().head_dim),
        value_stride(of.value_stride()),
        component_stride(of.component_stride()),
        segments(of.shape().segments()) {
    Carver carver(scratch);
    const std::size_t row_components = segments * component_stride;
    rows = carver.take<float>(kTileRows * row_values);
    segment_rows = carver.take<float>(kTileRows * value_stride);
    components = carver.take<float>(kTileRows * component_stride);
    codes = carver.take<std::int32_t>(kTileRows * row_components);
    inverse = carver.take<float>(row_components);
    step = carver.take<float>(row_components);
    half = carver.take<float>(row_components);
    active = carver.take<std::uint32_t>(row_components);
    bits = carver.take<std::uint32_t>(row_components);
    active_count = carver.take<std::uint32_t>(segments);
    used = carver.used();
  }

  void plan(Side side, float theta) noexcept;
  Sums encode_tile(Side side, std::size_t count, BitWriter& out) noexcept;
  void decode_tile(Side side, std::size_t count, BitReader& in) noexcept;
  bool encode_side(Side side, const LowRank& codec, const RunShape& shape,
                   std::span<const std::byte> in, std::byte* out, Sums& sums) noexcept;
  void decode_side(Side side, const LowRank& codec, const RunShape& shape,
                   std::span<const std::byte> in, std::span<std::byte> out) noexcept;

 private:
  [[nodiscard]] std::size_t columns(std::size_t segment) const noexcept {
    const std::uint32_t count = active_count[segment];
    if (count == 0) return 0;
    return div_ceil(active[segment * component_stride + count - 1] + 1, kBasisLanes) * kBasisLanes;
  }
};

void LowRank::Work::plan(Side side, float theta) noexcept {
  const std::uint32_t components_of_segment = basis.shape().components;
  for (std::size_t s = 0; s < segments; ++s) {
    const Basis::Segment of = basis.segment(layer, side, static_cast<std::uint32_t>(s));
    const std::size_t from = s * component_stride;
    std::uint32_t count = 0;
    for (std::uint32_t c = 0; c < component_stride; ++c) {
      const std::size_t table = std::size_t{c} * kMaxComponentBits;
      const std::uint32_t b = c < components_of_segment ? bits_of(of.gains + table, theta) : 0;
      step[from + c] = b == 0 ? 0.0F : of.steps[table + b - 1];
      inverse[from + c] = b == 0 ? 0.0F : 1.0F / step[from + c];
      half[from + c] = b == 0 ? 0.0F : static_cast<float>(1U << (b - 1));
      if (b == 0) continue;
      active[from + count] = c;
      bits[from + count] = b;
      ++count;
    }
    active_count[s] = count;
  }
}

Sums LowRank::Work::encode_tile(Side side, std::size_t count, BitWriter& out) noexcept {
  float energy[kSumLanes] = {}, centred[kSumLanes] = {}, explained[kSumLanes] = {};
  const std::size_t values = basis.shape().segment_values();
  for (std::size_t s = 0; s < segments; ++s) {
    const Basis::Segment of = basis.segment(layer, side, static_cast<std::uint32_t>(s));
    std::fill_n(segment_rows, kTileRows * value_stride, 0.0F);
    for (std::size_t t = 0; t < count; ++t) {
      float* const row = segment_rows + t * value_stride;
      std::memcpy(row, rows + t * row_values + s * values, 4 * values);
      simd::centre(row, of.mean, value_stride, row, energy, centred);
    }
    simd::mix_rows({segment_rows, value_stride, nullptr, values, of.forward, component_stride,
                    nullptr, components, component_stride, columns(s)});
    const std::size_t from = s * component_stride;
    for (std::size_t t = 0; t < count; ++t) {
      simd::quantise({components + t * component_stride, inverse + from, step + from, half + from,
                      codes + t * segments * component_stride + from, columns(s)},
                     explained);
    }
  }
  for (std::size_t t = 0; t < count; ++t) {
    const std::int32_t* row = codes + t * segments * component_stride;
    for (std::size_t s = 0; s < segments; ++s, row += component_stride) {
      const std::size_t from = s * component_stride;
      for (std::size_t i = from; i < from + active_count[s]; ++i)
        out.put(static_cast<std::uint32_t>(row[active[i]]), bits[i]);
    }
  }
  return {sum_of(energy), sum_of(centred), sum_of(explained)};
}

void LowRank::Work::decode_tile(Side side, std::size_t count, BitReader& in) noexcept {
  const std::size_t values = basis.shape().segment_values();
  // Codes come row by row, the product goes segment by segment: components wait in `codes`.
  auto* const decoded = reinterpret_cast<float*>(codes);
  const std::size_t row_components = segments * component_stride;
  for (std::size_t t = 0; t < count; ++t) {
    float* const row = decoded + t * row_components;
    for (std::size_t s = 0; s < segments; ++s) {
      const std::size_t from = s * component_stride;
      for (std::size_t i = from; i < from + active_count[s]; ++i) {
        const std::size_t c = from + active[i];
        row[i] = (static_cast<float>(in.get(bits[i])) - half[c] + 0.5F) * step[c];
      }
    }
  }
  for (std::size_t s = 0; s < segments; ++s) {
    const Basis::Segment of = basis.segment(layer, side, static_cast<std::uint32_t>(s));
    const std::size_t from = s * component_stride;
    simd::mix_rows({decoded + from, row_components, active + from, active_count[s], of.backward,
                    value_stride, of.mean, segment_rows, value_stride, value_stride});
    for (std::size_t t = 0; t < count; ++t)
      std::memcpy(rows + t * row_values + s * values, segment_rows + t * value_stride, 4 * values);
  }
}

bool LowRank::Work::encode_side(Side side, const LowRank& codec, const RunShape& shape,
                                std::span<const std::byte> in, std::byte* out,
                                Sums& sums) noexcept {
  const bool turned = side == Side::k && !basis.frequencies().empty();
  RopeAngles angles(turned ? basis.frequencies() : std::span<const double>{},
                    codec.first_position_);
  plan(side, theta_of(codec.theta_));
  BitWriter writer(out);
  for (std::size_t first = 0; first < shape.tokens; first += kTileRows) {
    const std::size_t count = std::min<std::size_t>(kTileRows, shape.tokens - first);
    for (std::size_t t = 0; t < count; ++t) {
      float* const row = rows + t * row_values;
      const std::byte* const from = in.data() + (first + t) * shape.row_bytes();
      if (load_row(shape.dtype, from, row_values, row) >= kMostMagnitudeBits) return false;
      if (!turned) continue;
      undo_rope(angles, basis.shape().rope.pairing, shape.head_dim, {row, row_values});
      angles.advance();
    }
    const Sums tile = encode_tile(side, count, writer);
    sums.energy += tile.energy;
    sums.centred += tile.centred;
    sums.explained += tile.explained;
  }
  writer.finish();
  return true;
}

void LowRank::Work::decode_side(Side side, const LowRank& codec, const RunShape& shape,
                                std::span<const std::byte> in, std::span<std::byte> out) noexcept {
  const bool turned = side == Side::k && !basis.frequencies().empty();
  RopeAngles angles(turned ? basis.frequencies() : std::span<const double>{},
                    codec.first_position_);
  plan(side, theta_of(codec.theta_));
  BitReader reader(in);
  std::fill_n(codes, kTileRows * segments * component_stride, 0);
  for (std::size_t first = 0; first < shape.tokens; first += kTileRows) {
    const std::size_t count = std::min<std::size_t>(kTileRows, shape.tokens - first);
    decode_tile(side, count, reader);
    for (std::size_t t = 0; t < count; ++t) {
      float* const row = rows + t * row_values;
      if (turned) {
        redo_rope(angles, basis.shape().rope.pairing, shape.head_dim, {row, row_values});
        angles.advance();
      }
      store_row(shape.dtype, row, row_values, out.data() + (first + t) * shape.row_bytes());
    }
  }
}

std::uint64_t lowrank_bytes(const Basis& basis, std::uint32_t layer, std::uint16_t theta,
                            std::uint32_t tokens) noexcept {
  if (tokens == 0) return 0;
  const float value = theta_of(theta);
  return kLowRankHeaderBytes + side_bytes(basis, layer, Side::k, value, tokens) +
         side_bytes(basis, layer, Side::v, value, tokens);
}

std::uint16_t theta_for_rate(const Basis& basis, double bits_per_value,
                             std::uint32_t tokens) noexcept {
  const BasisShape& s = basis.shape();
  const double values = 2.0 * s.layers * tokens * s.kv_heads * s.head_dim;
  const double most = bits_per_value * values / 8.0;
  const auto fits = [&](std::uint32_t theta) {
    double bytes = 0;
    for (std::uint32_t layer = 0; layer < s.layers; ++layer)
      bytes += static_cast<double>(
          lowrank_bytes(basis, layer, static_cast<std::uint16_t>(theta), tokens));
    return bytes <= most;
  };
  std::uint32_t low = 0;
  std::uint32_t high = kMaxTheta;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (fits(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<std::uint16_t>(low);
}

std::optional<LowRankHeader> lowrank_header(std::span<const std::byte> encoded) noexcept {
  if (encoded.size() < kLowRankHeaderBytes) return std::nullopt;
  const std::byte* const at = encoded.data();
  LowRankHeader header;
  header.basis = {load_le64(at), load_le64(at + 8)};
  header.theta = load_le16(at + 16);
  header.layer = load_le16(at + 18);
  header.first_position = load_le32(at + 20);
  if (header.theta > kMaxTheta || header.first_position > kMaxLowRankPosition) return std::nullopt;
  return header;
}

LowRank::LowRank(const Basis& basis, std::uint32_t layer, std::uint32_t first_position,
                 std::uint16_t theta) noexcept
    : basis_(&basis), layer_(layer), first_position_(first_position), theta_(theta) {
  KVRAIL_ASSERT(layer < basis.shape().layers && first_position <= kMaxLowRankPosition &&
                theta <= kMaxTheta);
}

bool LowRank::takes(const RunShape& shape) const noexcept {
  const BasisShape& of = basis_->shape();
  return shape.kv_heads == of.kv_heads && shape.head_dim == of.head_dim && dtype_bytes(shape.dtype) >= 2;
}

Error LowRank::refusal(const RunShape& shape) const {
  const BasisShape& of = basis_->shape();
  if (shape.kv_heads != of.kv_heads || shape.head_dim != of.head_dim)
    return Error{{Code::unsupported},
                 "lowrank: its basis is for rows of " + std::to_string(of.kv_heads) + " x " +
                     std::to_string(of.head_dim) +
                     " values; calibrate one for this model, or use int4 or int8"};
  return Error{{Code::unsupported}, "lowrank: takes bf16, fp16 and fp32; send fp8 as full"};
}

std::uint64_t LowRank::bound(const RunShape& shape, std::size_t) const noexcept {
  return lowrank_bytes(*basis_, layer_, theta_, shape.tokens);
}

std::size_t LowRank::scratch_bytes(const RunShape&) const noexcept {
  return Work(*basis_, layer_, nullptr).used;
}

Status LowRank::do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                          std::span<std::byte> scratch, Meta& meta) const noexcept {
  KVRAIL_ASSERT(shape.row_values() ==
                std::uint64_t{basis_->shape().kv_heads} * basis_->shape().head_dim);
  if (shape.tokens > kMaxLowRankPosition - first_position_) return Status{Code::unsupported};
  Work work(*basis_, layer_, scratch.data());
  const std::uint64_t k_bytes =
      side_bytes(*basis_, layer_, Side::k, theta_of(theta_), shape.tokens);
  const std::uint64_t bytes = bound(shape, 0);
  std::byte* const body = out[0].data() + kLowRankHeaderBytes;
  Sums k, v;
  if (!work.encode_side(Side::k, *this, shape, in.k, body, k) ||
      !work.encode_side(Side::v, *this, shape, in.v, body + k_bytes, v))
    return Status{Code::unsupported};
  std::byte* const header = out[0].data();
  store_le64(header, basis_->id().low);
  store_le64(header + 8, basis_->id().high);
  store_le16(header + 16, theta_);
  store_le16(header + 18, static_cast<std::uint16_t>(layer_));
  store_le32(header + 20, first_position_);
  store_le64(header + 24, digest({body, bytes - kLowRankHeaderBytes}));
  meta.bytes[0] = bytes;
  meta.epsilon_ppm[0] = epsilon_ppm(k, v);
  return {};
}

Status LowRank::do_decode(const RunShape& shape, const Meta&, const Planes& in,
                          const MutableRun& out, std::span<std::byte> scratch) const noexcept {
  const std::optional<LowRankHeader> header = lowrank_header(in[0]);
  if (!header) return Status{Code::corrupt};
  if (header->basis != basis_->id()) return Status{Code::layout_mismatch};
  if (header->theta != theta_ || header->layer != layer_ ||
      header->first_position != first_position_ || in[0].size() != bound(shape, 0) ||
      shape.tokens > kMaxLowRankPosition - first_position_)
    return Status{Code::corrupt};
  const std::span<const std::byte> body = in[0].subspan(kLowRankHeaderBytes);
  if (load_le64(in[0].data() + 24) != digest(body)) return Status{Code::corrupt};
  Work work(*basis_, layer_, scratch.data());
  const std::uint64_t k_bytes =
      side_bytes(*basis_, layer_, Side::k, theta_of(theta_), shape.tokens);
  work.decode_side(Side::k, *this, shape, body.first(k_bytes), out.k);
  work.decode_side(Side::v, *this, shape, body.subspan(k_bytes), out.v);
  return {};
}

}  // namespace kvrail::codec
