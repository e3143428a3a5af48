#include "codec/rope.h"

#include <cmath>
#include <string>

#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

constexpr std::uint32_t kAnchorEvery = 64;

struct SinCos {
  double sin, cos;
};

// fdlibm's kernels on [-π/4, π/4]: products and sums only, so IEEE arithmetic fixes every bit.
double sin_kernel(double r) noexcept {
  const double z = r * r;
  const double tail = 8.33333333332248946124e-03 +
                      z * (-1.98412698298579493134e-04 +
                           z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 +
                                                                  z * 1.58969099521155010221e-10)));
  return r + z * r * (-1.66666666666666324348e-01 + z * tail);
}

double cos_kernel(double r) noexcept {
  const double z = r * r;
  const double tail =
      4.16666666666666019037e-02 +
      z * (-1.38888888888741095749e-03 +
           z * (2.48015872894767294178e-05 +
                z * (-2.75573143513906633035e-07 +
                     z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))));
  return 1.0 - (0.5 * z - z * z * tail);
}

// For 0 <= angle < 2^26.
SinCos sin_cos(double angle) noexcept {
  // π/2 in two parts; the first has 33 bits, so its product with a small whole number is exact.
  constexpr double kHalfPi = 1.57079632673412561417e+00;
  constexpr double kHalfPiRest = 6.07710050650619224932e-11;
  constexpr double kTwoOverPi = 6.36619772367581382433e-01;
  const auto quarter = static_cast<std::int64_t>(angle * kTwoOverPi + 0.5);
  const auto turns = static_cast<double>(quarter);
  const double r = (angle - turns * kHalfPi) - turns * kHalfPiRest;
  const double s = sin_kernel(r);
  const double c = cos_kernel(r);
  switch (quarter & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

Error refused(std::string text) {
  return Error{{Code::invalid_argument}, std::string("RoPE: ").append(text)};
}

// even' = even cos - odd sin, odd' = even sin + odd cos; `sign` -1 turns back.
void turn(const RopeAngles& angles, RopePairing pairing, std::uint32_t head_dim,
          std::span<float> row, float sign) noexcept {
  const std::size_t pairs = angles.cos().size();
  const float* const cos = angles.cos().data();
  const float* const sin = angles.sin().data();
  const bool interleaved = pairing == RopePairing::interleaved;
  for (std::size_t head = 0; head + head_dim <= row.size(); head += head_dim) {
    float* const values = row.data() + head;
    if (interleaved) {
      for (std::size_t i = 0; i < pairs; ++i) {
        const float even = values[2 * i];
        const float odd = values[2 * i + 1];
        values[2 * i] = even * cos[i] - odd * (sign * sin[i]);
        values[2 * i + 1] = even * (sign * sin[i]) + odd * cos[i];
      }
    } else {
      for (std::size_t i = 0; i < pairs; ++i) {
        const float even = values[i];
        const float odd = values[i + pairs];
        values[i] = even * cos[i] - odd * (sign * sin[i]);
        values[i + pairs] = even * (sign * sin[i]) + odd * cos[i];
      }
    }
  }
}

}  // namespace

Result<void> validate(const RopeRule& rule, std::uint32_t head_dim) {
  if (rule.rotary_dims > head_dim || rule.rotary_dims % 2 != 0 ||
      rule.rotary_dims / 2 > kMaxRopePairs)
    return refused(std::to_string(rule.rotary_dims) +
                   " rotary dims; allowed are even numbers up to the head_dim of " +
                   std::to_string(head_dim));
  if (rule.pairing != RopePairing::interleaved && rule.pairing != RopePairing::half_split)
    return refused("unknown pairing; allowed are interleaved (0) and half_split (1)");
  if (!(rule.base >= 1.0F && rule.base <= 1e15F))
    return refused("the base must be a number from 1 to 1e15");
  if (!(rule.scale >= 0.5F && rule.scale <= 1e6F))
    return refused("the scale must be a number from 0.5 to 1e6");
  return {};
}

void rope_frequencies(const RopeRule& rule, std::span<double> out) noexcept {
  KVRAIL_ASSERT(out.size() == rule.rotary_dims / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / rule.rotary_dims;
    out[i] = std::pow(double{rule.base}, exponent) / rule.scale;
  }
}

RopeAngles::RopeAngles(std::span<const double> frequencies, std::uint32_t first_position) noexcept
    : frequencies_(frequencies.data()), pairs_(frequencies.size()), position_(first_position) {
  KVRAIL_ASSERT(pairs_ <= kMaxRopePairs && first_position < (1U << 24));
  for (std::size_t i = 0; i < pairs_; ++i) {
    const SinCos one = sin_cos(frequencies_[i]);
    step_cos_[i] = one.cos;
    step_sin_[i] = one.sin;
  }
  position_ = first_position / kAnchorEvery * kAnchorEvery;
  anchor();
  while (position_ < first_position) {
    ++position_;
    step();
  }
  round();
}

void RopeAngles::advance() noexcept {
  ++position_;
  if (position_ % kAnchorEvery == 0) {
    anchor();
  } else {
    step();
  }
  round();
}

void RopeAngles::anchor() noexcept {
  for (std::size_t i = 0; i < pairs_; ++i) {
    const SinCos here = sin_cos(static_cast<double>(position_) * frequencies_[i]);
    exact_cos_[i] = here.cos;
    exact_sin_[i] = here.sin;
  }
}

void RopeAngles::step() noexcept {
  for (std::size_t i = 0; i < pairs_; ++i) {
    const double cos = exact_cos_[i] * step_cos_[i] - exact_sin_[i] * step_sin_[i];
    exact_sin_[i] = exact_sin_[i] * step_cos_[i] + exact_cos_[i] * step_sin_[i];
    exact_cos_[i] = cos;
  }
}

void RopeAngles::round() noexcept {
  for (std::size_t i = 0; i < pairs_; ++i) {
    cos_[i] = static_cast<float>(exact_cos_[i]);
    sin_[i] = static_cast<float>(exact_sin_[i]);
  }
}

void redo_rope(const RopeAngles& angles, RopePairing pairing, std::uint32_t head_dim,
               std::span<float> row) noexcept {
  turn(angles, pairing, head_dim, row, 1.0F);
}

void undo_rope(const RopeAngles& angles, RopePairing pairing, std::uint32_t head_dim,
               std::span<float> row) noexcept {
  turn(angles, pairing, head_dim, row, -1.0F);
}

}  // namespace kvrail::codec
