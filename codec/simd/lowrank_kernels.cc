#include "codec/simd/lowrank_kernels.h"

// Every instruction set that the compiler knows, that without vectors included.
#define HWY_COMPILE_ALL_ATTAINABLE
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/simd/lowrank_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvrail::codec::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kSumLanes>;
using Vector = hn::Vec<Floats>;

// Two vectors of columns for four rows: eight sums under way hide the latency of an addition.
HWY_ATTR void MixPair(const Mix& m, std::size_t column) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  Vector a0 = m.init != nullptr ? hn::LoadU(d, m.init + column) : hn::Zero(d);
  Vector b0 = m.init != nullptr ? hn::LoadU(d, m.init + column + lanes) : hn::Zero(d);
  Vector a1 = a0, a2 = a0, a3 = a0;
  Vector b1 = b0, b2 = b0, b3 = b0;
  const float* const x0 = m.coefficients;
  const float* const x1 = x0 + m.coefficient_stride;
  const float* const x2 = x1 + m.coefficient_stride;
  const float* const x3 = x2 + m.coefficient_stride;
  for (std::size_t k = 0; k < m.count; ++k) {
    const std::size_t row = m.rows != nullptr ? m.rows[k] : k;
    const float* const from = m.matrix + row * m.matrix_stride + column;
    const Vector a = hn::LoadU(d, from);
    const Vector b = hn::LoadU(d, from + lanes);
    const Vector c0 = hn::Set(d, x0[k]), c1 = hn::Set(d, x1[k]);
    const Vector c2 = hn::Set(d, x2[k]), c3 = hn::Set(d, x3[k]);
    a0 = hn::Add(a0, hn::Mul(c0, a));
    b0 = hn::Add(b0, hn::Mul(c0, b));
    a1 = hn::Add(a1, hn::Mul(c1, a));
    b1 = hn::Add(b1, hn::Mul(c1, b));
    a2 = hn::Add(a2, hn::Mul(c2, a));
    b2 = hn::Add(b2, hn::Mul(c2, b));
    a3 = hn::Add(a3, hn::Mul(c3, a));
    b3 = hn::Add(b3, hn::Mul(c3, b));
  }
  float* out = m.out + column;
  hn::StoreU(a0, d, out);
  hn::StoreU(b0, d, out + lanes);
  hn::StoreU(a1, d, out += m.out_stride);
  hn::StoreU(b1, d, out + lanes);
  hn::StoreU(a2, d, out += m.out_stride);
  hn::StoreU(b2, d, out + lanes);
  hn::StoreU(a3, d, out += m.out_stride);
  hn::StoreU(b3, d, out + lanes);
}

// What is left where the columns are no multiple of two vectors: 16 columns of AVX-512.
HWY_ATTR void MixOne(const Mix& m, std::size_t column) {
  const Floats d;
  for (std::size_t t = 0; t < kTileRows; ++t) {
    Vector sum = m.init != nullptr ? hn::LoadU(d, m.init + column) : hn::Zero(d);
    const float* const x = m.coefficients + t * m.coefficient_stride;
    for (std::size_t k = 0; k < m.count; ++k) {
      const std::size_t row = m.rows != nullptr ? m.rows[k] : k;
      const Vector a = hn::LoadU(d, m.matrix + row * m.matrix_stride + column);
      sum = hn::Add(sum, hn::Mul(hn::Set(d, x[k]), a));
    }
    hn::StoreU(sum, d, m.out + t * m.out_stride + column);
  }
}

HWY_ATTR void MixRows(const Mix& m) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t column = 0;
  for (; column + 2 * lanes <= m.columns; column += 2 * lanes) MixPair(m, column);
  for (; column < m.columns; column += lanes) MixOne(m, column);
}

HWY_ATTR void QuantiseRow(const Quantise& q, float* explained) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  const Vector one = hn::Set(d, 1.0F);
  const Vector middle = hn::Set(d, 0.5F);
  for (std::size_t c = 0; c < q.columns; c += hn::Lanes(d)) {
    const Vector y = hn::LoadU(d, q.y + c);
    const Vector half = hn::LoadU(d, q.half + c);
    Vector level = hn::Floor(hn::Mul(y, hn::LoadU(d, q.inverse + c)));
    level = hn::Min(hn::Max(level, hn::Neg(half)), hn::Sub(half, one));
    const Vector decoded = hn::Mul(hn::Add(level, middle), hn::LoadU(d, q.step + c));
    const Vector error = hn::Sub(y, decoded);
    float* const sum = explained + c % kSumLanes;
    const Vector saved = hn::Sub(hn::Mul(y, y), hn::Mul(error, error));
    hn::StoreU(hn::Add(hn::LoadU(d, sum), saved), d, sum);
    hn::StoreU(hn::ConvertTo(di, hn::Add(level, half)), di, q.codes + c);
  }
}

HWY_ATTR void Centre(const float* x, const float* mean, std::size_t count, float* out,
                     float* energy, float* centred) {
  const Floats d;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const Vector value = hn::LoadU(d, x + i);
    const Vector z = hn::Sub(value, hn::LoadU(d, mean + i));
    float* const e = energy + i % kSumLanes;
    float* const c = centred + i % kSumLanes;
    hn::StoreU(hn::Add(hn::LoadU(d, e), hn::Mul(value, value)), d, e);
    hn::StoreU(hn::Add(hn::LoadU(d, c), hn::Mul(z, z)), d, c);
    hn::StoreU(z, d, out + i);
  }
}

}  // namespace kvrail::codec::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrail::codec::simd {

HWY_EXPORT(MixRows);
HWY_EXPORT(QuantiseRow);
HWY_EXPORT(Centre);

void mix_rows(const Mix& mix) noexcept {
  HWY_DYNAMIC_DISPATCH(MixRows)(mix);
}
void quantise(const Quantise& of, float* explained) noexcept {
  HWY_DYNAMIC_DISPATCH(QuantiseRow)(of, explained);
}
void centre(const float* x, const float* mean, std::size_t count, float* out, float* energy,
            float* centred) noexcept {
  HWY_DYNAMIC_DISPATCH(Centre)(x, mean, count, out, energy, centred);
}

}  // namespace kvrail::codec::simd
#endif
