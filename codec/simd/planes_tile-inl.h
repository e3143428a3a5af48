// A tile of 64 values in vectors, for planes.cc: rows in and out, and the rotation. Included once
// for every target. Loads put even and odd values into vectors of their own, as a 16-bit type in a
// 32-bit lane gives them for a shift or a mask; vector 2j holds the even ones of the 2N values from
// 2Nj on, vector 2j+1 the odd ones. Bit 0 of an index then tells vectors apart, the next ones
// lanes, and the highest vectors again; the rotation takes the bits in this order.
#if defined(KVRAIL_CODEC_SIMD_PLANES_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRAIL_CODEC_SIMD_PLANES_TILE_INL_H
#undef KVRAIL_CODEC_SIMD_PLANES_TILE_INL_H
#else
#define KVRAIL_CODEC_SIMD_PLANES_TILE_INL_H
#endif

#include "codec/planes_shape.h"
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvrail::codec::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = HWY_CAPPED(float, 16);
using Ints = hn::RebindToSigned<Floats>;
using Bits = hn::RebindToUnsigned<Floats>;
using Words = hn::Repartition<std::uint16_t, Floats>;
using F = hn::Vec<Floats>;
using B = hn::Vec<Bits>;
using W = hn::Vec<Words>;
constexpr Floats kF;
constexpr Ints kI;
constexpr Bits kB;
constexpr Words kW;
constexpr std::size_t kLanes = hn::MaxLanes(kF);
constexpr std::size_t kVectors = kTile / kLanes;  // of a tile
constexpr std::size_t kPair = 2 * kLanes;         // values of vectors 2j and 2j+1

HWY_INLINE W load_words(const void* at) {
  return hn::BitCast(
      kW, hn::LoadU(hn::Repartition<std::uint8_t, Floats>(), static_cast<const std::uint8_t*>(at)));
}
HWY_INLINE void store_words(W words, void* at) {
  const hn::Repartition<std::uint8_t, Floats> bytes;
  hn::StoreU(hn::BitCast(bytes, words), bytes, static_cast<std::uint8_t*>(at));
}

template <Dtype kType>
struct Rows;

template <>
struct Rows<Dtype::bf16> {
  static HWY_INLINE void load(const std::byte* at, F& even, F& odd) {
    const B pairs = hn::BitCast(kB, load_words(at));
    even = hn::BitCast(kF, hn::ShiftLeft<16>(pairs));
    odd = hn::BitCast(kF, hn::And(pairs, hn::Set(kB, 0xffff0000U)));
  }
  static HWY_INLINE void store(F even, F odd, std::byte* at) {
    const B half = hn::Set(kB, 0x8000U);
    const B low = hn::ShiftRight<16>(hn::Add(hn::BitCast(kB, even), half));
    const B high = hn::Add(hn::BitCast(kB, odd), half);
    store_words(hn::OddEven(hn::BitCast(kW, high), hn::BitCast(kW, low)), at);
  }
};

template <>
struct Rows<Dtype::fp16> {
  // As float_convert.h does it.
  static HWY_INLINE F widen(B half) {
    const B magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(kB, 0x7fffU)));
    const B sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(kB, 0x8000U)));
    const B scaled = hn::BitCast(kB, hn::Mul(hn::BitCast(kF, magnitude), hn::Set(kF, 0x1p112F)));
    const auto special = hn::Gt(hn::BitCast(kI, magnitude), hn::Set(kI, 0x0f7fffff));
    const B infinite = hn::Or(magnitude, hn::Set(kB, 0x7f800000U));
    return hn::BitCast(kF,
                       hn::Or(hn::IfThenElse(hn::RebindMask(kB, special), infinite, scaled), sign));
  }
  static HWY_INLINE B narrow(F value) {
    const B bits = hn::BitCast(kB, value);
    const B sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(kB, 0x8000U));
    const auto magnitude = hn::Min(hn::BitCast(kI, hn::And(bits, hn::Set(kB, 0x7fffffffU))),
                                   hn::Set(kI, 0x477fe000));  // 65504
    const B tie = hn::And(hn::ShiftRight<13>(hn::BitCast(kB, magnitude)), hn::Set(kB, 1U));
    const B normal = hn::ShiftRight<13>(
        hn::Sub(hn::Add(hn::BitCast(kB, magnitude), hn::Add(tie, hn::Set(kB, 0xfffU))),
                hn::Set(kB, 0x38000000U)));
    const F moved = hn::Add(hn::BitCast(kF, magnitude), hn::Set(kF, 0.5F));
    const B subnormal = hn::Sub(hn::BitCast(kB, moved), hn::Set(kB, 0x3f000000U));
    const auto small = hn::RebindMask(kB, hn::Lt(magnitude, hn::Set(kI, 0x38800000)));
    return hn::Or(hn::IfThenElse(small, subnormal, normal), sign);
  }
  static HWY_INLINE void load(const std::byte* at, F& even, F& odd) {
    const B pairs = hn::BitCast(kB, load_words(at));
    even = widen(hn::And(pairs, hn::Set(kB, 0xffffU)));
    odd = widen(hn::ShiftRight<16>(pairs));
  }
  static HWY_INLINE void store(F even, F odd, std::byte* at) {
    store_words(hn::BitCast(kW, hn::Or(narrow(even), hn::ShiftLeft<16>(narrow(odd)))), at);
  }
};

template <>
struct Rows<Dtype::fp32> {
  static HWY_INLINE void load(const std::byte* at, F& even, F& odd) {
    const F low = hn::BitCast(kF, load_words(at));
    const F high = hn::BitCast(kF, load_words(at + kLanes * 4));
    even = hn::ConcatEven(kF, high, low);
    odd = hn::ConcatOdd(kF, high, low);
  }
  static HWY_INLINE void store(F even, F odd, std::byte* at) {
    HWY_ALIGN float pairs[kPair];
    hn::StoreInterleaved2(even, odd, kF, pairs);
    store_words(hn::BitCast(kW, hn::Load(kF, pairs)), at);
    store_words(hn::BitCast(kW, hn::Load(kF, pairs + kLanes)), at + kLanes * 4);
  }
};

// a + b where the bit is 0, a - b where it is 1: the sum of the other lane and of this one with its
// sign turned.
template <std::size_t kDistance>
HWY_INLINE F swap_lanes(F v) {
  if constexpr (kDistance == 1) return hn::Shuffle2301(v);
  if constexpr (kDistance == 2) return hn::Shuffle1032(v);
  if constexpr (kDistance == 4 && kLanes >= 8) return hn::SwapAdjacentBlocks(v);
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kDistance == 8 && kLanes >= 16) return hn::ConcatLowerUpper(kF, v, v);
#endif
  return v;
}
template <std::size_t kDistance>
HWY_INLINE F lane_signs() {
  HWY_ALIGN static constexpr float kSigns[4][16] = {
      {0, -0.F, 0, -0.F, 0, -0.F, 0, -0.F, 0, -0.F, 0, -0.F, 0, -0.F, 0, -0.F},
      {0, 0, -0.F, -0.F, 0, 0, -0.F, -0.F, 0, 0, -0.F, -0.F, 0, 0, -0.F, -0.F},
      {0, 0, 0, 0, -0.F, -0.F, -0.F, -0.F, 0, 0, 0, 0, -0.F, -0.F, -0.F, -0.F},
      {0, 0, 0, 0, 0, 0, 0, 0, -0.F, -0.F, -0.F, -0.F, -0.F, -0.F, -0.F, -0.F}};
  constexpr std::size_t kRow = kDistance == 1 ? 0 : kDistance == 2 ? 1 : kDistance == 4 ? 2 : 3;
  return hn::Load(kF, kSigns[kRow]);
}
template <std::size_t kDistance, std::size_t kCount>
HWY_INLINE void rotate_lanes(F* HWY_RESTRICT v, std::uint32_t order) {
  if constexpr (kDistance < kLanes) {
    if (order <= 2 * kDistance) return;
    const F signs = lane_signs<kDistance>();
    HWY_UNROLL(32)
    for (std::size_t i = 0; i < kCount; ++i)
      v[i] = hn::Add(swap_lanes<kDistance>(v[i]), hn::Xor(v[i], signs));
  }
}
template <std::size_t kDistance, std::size_t kCount>
HWY_INLINE void rotate_vectors(F* HWY_RESTRICT v, std::uint32_t order) {
  if constexpr (kDistance < kCount) {
    if (order <= kDistance * kLanes) return;
    HWY_UNROLL(32)
    for (std::size_t i = 0; i < kCount; ++i) {
      if ((i & kDistance) != 0) continue;
      const F a = v[i];
      const F b = v[i + kDistance];
      v[i] = hn::Add(a, b);
      v[i + kDistance] = hn::Sub(a, b);
    }
    rotate_vectors<2 * kDistance, kCount>(v, order);
  }
}

// Walsh-Hadamard, unscaled, of every `order` of the values in kCount vectors.
template <std::size_t kCount>
HWY_INLINE void rotate(F* HWY_RESTRICT v, std::uint32_t order) {
  if (order <= 1) return;
  HWY_UNROLL(32)
  for (std::size_t i = 0; i < kCount; i += 2) {
    const F a = v[i];
    const F b = v[i + 1];
    v[i] = hn::Add(a, b);
    v[i + 1] = hn::Sub(a, b);
  }
  rotate_lanes<1, kCount>(v, order);
  rotate_lanes<2, kCount>(v, order);
  rotate_lanes<4, kCount>(v, order);
  rotate_lanes<8, kCount>(v, order);
  rotate_vectors<2, kCount>(v, order);
}

}  // namespace kvrail::codec::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRAIL_CODEC_SIMD_PLANES_TILE_INL_H
