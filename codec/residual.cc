#include "codec/residual.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvrail::codec {
namespace {

constexpr std::uint32_t kRaw = 0;
constexpr std::uint32_t kCoded = 1;
constexpr std::uint32_t kEscape = 24;  // so many zeros, then the residual as it is
constexpr std::uint32_t kResidualBits = 16;
constexpr std::size_t kWord = 8;  // bytes that bits are read and written by

// Bit patterns in the order of their values: -0 is -1, +0 is 0.
std::int32_t ordered(std::uint32_t bits) noexcept {
  const auto value = static_cast<std::int16_t>(bits);
  return value ^ ((value >> 15) & 0x7fff);
}
std::uint16_t pattern_of(std::int32_t order) noexcept {
  const auto value = static_cast<std::int16_t>(order);
  return static_cast<std::uint16_t>(value ^ ((value >> 15) & 0x7fff));
}
// 0, -1, 1, -2, ... to 0, 1, 2, 3, ...: modulo 2^16, so that every residual has a place.
std::uint32_t folded(std::int32_t residual) noexcept {
  const auto value = static_cast<std::int16_t>(residual);
  return static_cast<std::uint16_t>((value << 1) ^ (value >> 15));
}
std::int32_t unfolded(std::uint32_t value) noexcept {
  return static_cast<std::int32_t>(value >> 1) ^ -static_cast<std::int32_t>(value & 1U);
}

std::uint32_t load16(const std::byte* at) noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, 2);
  return bits;
}

// How many times the step is as wide as the distance of neighbours at the approximation's exponent,
// as a power of two.
class Context {
 public:
  Context(Dtype dtype, std::uint32_t step_bits) noexcept
      : base_(static_cast<std::int32_t>(step_bits >> 7) + (dtype == Dtype::bf16 ? 7 : -102) +
              static_cast<std::int32_t>(kNoContexts)),
        shift_(dtype == Dtype::bf16 ? 7 : 10),
        mask_(dtype == Dtype::bf16 ? 0xffU : 0x1fU) {}
  /// kNoContexts + the context, if it were not clamped to 0..15: in 0..2 * kNoContexts.
  [[nodiscard]] std::uint32_t of(std::uint32_t approximation) const noexcept {
    const auto exponent = static_cast<std::int32_t>((approximation >> shift_) & mask_);
    return static_cast<std::uint32_t>(base_ - std::max(exponent, 1));
  }
  [[nodiscard]] static std::uint32_t clamped(std::uint32_t unclamped) noexcept {
    return std::clamp(unclamped, kNoContexts, kNoContexts + 15U) - kNoContexts;
  }
  static constexpr std::uint32_t kNoContexts = 512;

 private:
  std::int32_t base_;
  std::uint32_t shift_, mask_;
};

// Calls `each(first value, count, step)` for every group of a side.
template <class Each>
void for_groups(const ResidualSide& side, const Each& each) noexcept {
  const std::byte* scales = side.scales;
  for (std::uint64_t begin = 0; begin < side.values; begin += side.segment_values) {
    const auto count = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(side.segment_values, side.values - begin));
    std::uint64_t at = begin;
    for (std::uint32_t g = 0; g < PlaneShape::groups_of(count); ++g, scales += 2) {
      const std::uint32_t in_group = PlaneShape::group_values(count, g);
      each(at, in_group, load16(scales));
      at += in_group;
    }
  }
}

using Parameters = std::array<std::uint8_t, kResidualContexts>;

// The parameter of every unclamped context: a look-up instead of a clamp for each value.
class ParameterTable {
 public:
  explicit ParameterTable(const Parameters& parameters) noexcept {
    for (std::uint32_t i = 0; i < table_.size(); ++i) table_[i] = parameters[Context::clamped(i)];
  }
  [[nodiscard]] std::uint32_t operator[](std::uint32_t unclamped) const noexcept {
    return table_[unclamped];
  }

 private:
  std::array<std::uint8_t, 2 * Context::kNoContexts + 1> table_;
};

// How many residuals of each width, by context, from every group of a short side and every eighth
// of a long one. Two tables take turns, so that one increment need not wait for the one before.
constexpr std::uint64_t kSampledFrom = 256 * kTile;  // values of a long side
using Widths = std::array<std::array<std::uint32_t, kResidualBits + 1>, kResidualContexts>;

Widths count_widths(const ResidualSide& side, const std::byte* exact,
                    const std::byte* approximation) noexcept {
  std::array<Widths, 2> counts{};
  const std::uint64_t stride = side.values < kSampledFrom ? 1 : 8;
  std::uint64_t group = 0;
  for_groups(side, [&](std::uint64_t begin, std::uint32_t count, std::uint32_t step) {
    if (group++ % stride != 0) return;
    const Context context(side.dtype, step);
    for (std::uint64_t i = begin; i < begin + count; ++i) {
      const std::uint32_t near = load16(approximation + 2 * i);
      const std::uint32_t z = folded(ordered(load16(exact + 2 * i)) - ordered(near));
      ++counts[i % 2][Context::clamped(context.of(near))]
              [static_cast<std::size_t>(std::bit_width(z))];
    }
  });
  for (std::size_t c = 0; c < kResidualContexts; ++c) {
    for (std::size_t w = 0; w <= kResidualBits; ++w) counts[0][c][w] += counts[1][c][w];
  }
  return counts[0];
}

// Bits that residuals of these widths take with parameter k; in the middle of a width on average.
double cost_of(const std::array<std::uint32_t, kResidualBits + 1>& widths,
               std::uint32_t k) noexcept {
  double bits = 0;
  for (std::uint32_t w = 0; w <= kResidualBits; ++w) {
    const double unary = w <= k ? 0.0 : 0.75 * static_cast<double>(1U << (w - k)) - 0.5;
    bits += widths[w] * std::min(1.0 + k + unary, double{kEscape + kResidualBits});
  }
  return bits;
}

Parameters best_parameters(const Widths& widths) noexcept {
  Parameters best{};
  for (std::size_t c = 0; c < kResidualContexts; ++c) {
    double least = cost_of(widths[c], 0);
    for (std::uint32_t k = 1; k < kResidualBits; ++k) {
      const double cost = cost_of(widths[c], k);
      if (cost >= least) continue;
      least = cost;
      best[c] = static_cast<std::uint8_t>(k);
    }
  }
  return best;
}

// Bits from the lowest of each byte on. Stops, and says so, where a word might not fit.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) noexcept : out_(out) {}
  /// At most 57 bits.
  void put(std::uint64_t code, std::uint32_t bits) noexcept {
    word_ |= code << used_;
    used_ += bits;
    if (at_ + kWord > out_.size()) {
      full_ = true;
      return;
    }
    std::memcpy(out_.data() + at_, &word_, kWord);
    at_ += used_ / 8;
    word_ >>= used_ & ~7U;
    used_ %= 8;
  }
  [[nodiscard]] bool full() const noexcept { return full_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return at_ + (used_ > 0 ? 1 : 0); }

 private:
  std::span<std::byte> out_;
  std::uint64_t word_ = 0;
  std::uint64_t at_ = 0;
  std::uint32_t used_ = 0;
  bool full_ = false;
};

// Beyond the end there are only zeros.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}
  [[nodiscard]] std::uint32_t rice(std::uint32_t k) noexcept {
    const std::uint64_t word = peek() >> (bit_ % 8);
    const auto zeros = static_cast<std::uint32_t>(std::countr_zero(word | 1ULL << kEscape));
    if (zeros >= kEscape) {
      bit_ += kEscape + kResidualBits;
      return static_cast<std::uint32_t>(word >> kEscape) & 0xffffU;
    }
    bit_ += zeros + 1 + k;
    const auto rest = static_cast<std::uint32_t>(word >> (zeros + 1)) & ((1U << k) - 1U);
    return zeros << k | rest;
  }
  /// Whether all bytes were used and no more.
  [[nodiscard]] bool done() const noexcept { return (bit_ + 7) / 8 == in_.size(); }

 private:
  std::uint64_t peek() const noexcept {
    const std::uint64_t at = bit_ / 8;
    std::uint64_t word = 0;
    if (at + kWord <= in_.size()) {
      std::memcpy(&word, in_.data() + at, kWord);
    } else if (at < in_.size()) {
      std::memcpy(&word, in_.data() + at, in_.size() - at);
    }
    return word;
  }
  std::span<const std::byte> in_;
  std::uint64_t bit_ = 0;
};

void write_side(const ResidualSide& side, const ParameterTable& parameters, const std::byte* exact,
                const std::byte* approximation, Writer& writer) noexcept {
  for_groups(side, [&](std::uint64_t begin, std::uint32_t count, std::uint32_t step) {
    const Context context(side.dtype, step);
    Writer local = writer;  // in registers: bytes that are written might be the writer's own
    for (std::uint64_t i = begin; i < begin + count && !local.full(); ++i) {
      const std::uint32_t near = load16(approximation + 2 * i);
      const std::uint32_t z = folded(ordered(load16(exact + 2 * i)) - ordered(near));
      const std::uint32_t k = parameters[context.of(near)];
      const std::uint32_t zeros = z >> k;
      if (zeros < kEscape) {
        const std::uint64_t rest = z & ((1U << k) - 1U);
        local.put((rest << 1 | 1U) << zeros, zeros + 1 + k);
      } else {
        local.put(std::uint64_t{z} << kEscape, kEscape + kResidualBits);
      }
    }
    writer = local;
  });
}

void put_parameters(const Parameters& parameters, std::byte* out) noexcept {
  for (std::size_t c = 0; c < kResidualContexts; c += 2)
    out[c / 2] = static_cast<std::byte>(parameters[c] | parameters[c + 1] << 4);
}
Parameters parameters_at(const std::byte* in) noexcept {
  Parameters parameters{};
  for (std::size_t c = 0; c < kResidualContexts; ++c) {
    const auto byte = static_cast<std::uint32_t>(in[c / 2]);
    parameters[c] = static_cast<std::uint8_t>(c % 2 == 0 ? byte & 15U : byte >> 4);
  }
  return parameters;
}

void mend(std::byte* at, std::uint32_t z) noexcept {
  const std::uint16_t bits = pattern_of(ordered(load16(at)) + unfolded(z));
  std::memcpy(at, &bits, 2);
}

}  // namespace

std::uint64_t encode_residual(const std::array<ResidualSide, 2>& sides,
                              const std::array<std::span<const std::byte>, 2>& exact,
                              const std::array<std::span<const std::byte>, 2>& approximation,
                              std::span<std::byte> out) noexcept {
  std::uint64_t used = kResidualHeader;
  bool full = out.size() <= kResidualHeader;
  for (std::size_t kv = 0; kv < 2 && !full; ++kv) {
    const std::byte* const from = exact[kv].data();
    const std::byte* const near = approximation[kv].data();
    const Parameters parameters = best_parameters(count_widths(sides[kv], from, near));
    Writer writer(out.subspan(used));
    write_side(sides[kv], ParameterTable(parameters), from, near, writer);
    full = writer.full();
    if (full) break;
    put_parameters(parameters, out.data() + 1 + kv * kResidualContexts / 2);
    const std::uint64_t bytes = writer.bytes();
    if (kv == 0) std::memcpy(out.data() + 1 + kResidualContexts, &bytes, 8);
    used += bytes;
  }
  out[0] = static_cast<std::byte>(full ? kRaw : kCoded);
  if (!full) return used;
  std::memcpy(out.data() + 1, exact[0].data(), exact[0].size());
  std::memcpy(out.data() + 1 + exact[0].size(), exact[1].data(), exact[1].size());
  return 1 + exact[0].size() + exact[1].size();
}

// K and V by turns: their streams don't wait for each other.
bool decode_residual(const std::array<ResidualSide, 2>& sides, std::span<const std::byte> plane,
                     const std::array<std::span<std::byte>, 2>& rows) noexcept {
  const std::uint64_t side_bytes = rows[0].size();
  if (plane.empty()) return false;
  if (plane[0] == std::byte{kRaw}) {
    if (plane.size() != 1 + 2 * side_bytes) return false;
    std::memcpy(rows[0].data(), plane.data() + 1, side_bytes);
    std::memcpy(rows[1].data(), plane.data() + 1 + side_bytes, side_bytes);
    return true;
  }
  if (plane[0] != std::byte{kCoded} || plane.size() < kResidualHeader) return false;
  std::uint64_t k_bytes = 0;
  std::memcpy(&k_bytes, plane.data() + 1 + kResidualContexts, 8);
  const std::span<const std::byte> streams = plane.subspan(kResidualHeader);
  if (k_bytes > streams.size()) return false;
  Reader k_reader(streams.first(k_bytes));
  Reader v_reader(streams.subspan(k_bytes));
  const ParameterTable k_parameters(parameters_at(plane.data() + 1));
  const ParameterTable v_parameters(parameters_at(plane.data() + 1 + kResidualContexts / 2));
  const std::byte* v_scales = sides[1].scales;
  for_groups(sides[0], [&](std::uint64_t begin, std::uint32_t count, std::uint32_t step) {
    const Context k_context(sides[0].dtype, step);
    const Context v_context(sides[1].dtype, load16(v_scales));
    v_scales += 2;
    Reader k_local = k_reader;  // in registers: bytes that are written might be the readers' own
    Reader v_local = v_reader;
    for (std::uint64_t i = begin; i < begin + count; ++i) {
      std::byte* const k_at = rows[0].data() + 2 * i;
      std::byte* const v_at = rows[1].data() + 2 * i;
      mend(k_at, k_local.rice(k_parameters[k_context.of(load16(k_at))]));
      mend(v_at, v_local.rice(v_parameters[v_context.of(load16(v_at))]));
    }
    k_reader = k_local;
    v_reader = v_local;
  });
  return k_reader.done() && v_reader.done();
}

}  // namespace kvrail::codec
