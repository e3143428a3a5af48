#include "codec/simd/planes.h"

#include <algorithm>
#include <cstring>

// What AVX-512's later extensions add is of no use here, and every instruction set takes its time
// to compile.
#undef HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/simd/planes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "codec/simd/planes_tile-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrail::codec::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void encode(const Side& side, const std::byte* rows, const SidePlanes& planes, Tally& tally) {
  float buffer[4 * kTile];
  plain::encode(side, rows, planes, buffer, tally);
}
bool decode(const Side& side, const SideView& planes, std::byte* rows) {
  float buffer[4 * kTile];
  return plain::decode(side, planes, buffer, rows);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using FourFloats = hn::FixedTag<float, 4>;
using FourInts = hn::FixedTag<std::int32_t, 4>;
constexpr std::size_t kBatch = 4;  // tiles whose steps are found together
// Tiles that are rotated side by side, so that additions need not wait for each other.
constexpr std::size_t kInFlight = kLanes == 16 ? 4 : 1;
constexpr std::size_t kSums = 16 / kLanes;
constexpr std::size_t kHalfTile = kVectors / 2;

// ---- encode ------------------------------------------------------------------------------------

// Partial sums, in the order that Tally tells.
struct Sums {
  F squares[kSums];
  hn::Vec<FourFloats> steps;
  hn::Vec<FourInts> largest;  // bit patterns

  HWY_INLINE void clear() {
    for (F& sum : squares) sum = hn::Zero(kF);
    steps = hn::Zero(FourFloats());
  }
  HWY_INLINE void flush(double scale, Tally& tally) {
    HWY_ALIGN float lanes[16];
    for (std::size_t i = 0; i < kSums; ++i) hn::Store(squares[i], kF, lanes + i * kLanes);
    double energy = 0;
    for (const float lane : lanes) energy += static_cast<double>(lane);
    tally.energy += energy * scale * scale;
    hn::Store(steps, FourFloats(), lanes);
    for (std::size_t i = 0; i < 4; ++i) tally.squared_steps += static_cast<double>(lanes[i]);
    clear();
  }
};

template <class D, class V>
HWY_INLINE hn::Vec<FourInts> max_of_blocks(D d, V v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return max_of_blocks(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The greatest lane of each of four vectors.
HWY_INLINE hn::Vec<FourInts> max_of_each(const std::int32_t (*maxima)[16]) {
  const auto a = hn::Load(kI, maxima[0]);
  const auto b = hn::Load(kI, maxima[1]);
  const auto c = hn::Load(kI, maxima[2]);
  const auto d = hn::Load(kI, maxima[3]);
  const hn::Repartition<std::uint64_t, Ints> wide;
  const auto ab =
      hn::BitCast(wide, hn::Max(hn::InterleaveLower(kI, a, b), hn::InterleaveUpper(kI, a, b)));
  const auto cd =
      hn::BitCast(wide, hn::Max(hn::InterleaveLower(kI, c, d), hn::InterleaveUpper(kI, c, d)));
  return max_of_blocks(kI, hn::Max(hn::BitCast(kI, hn::InterleaveLower(wide, ab, cd)),
                                   hn::BitCast(kI, hn::InterleaveUpper(wide, ab, cd))));
}

// Four steps, and what values are multiplied by, from the largest magnitudes.
HWY_INLINE void find_steps(hn::Vec<FourInts> largest, float scale, Sums& sums,
                           std::uint16_t* stored, float* inverses) {
  const FourFloats f;
  const FourInts i;
  const hn::RebindToUnsigned<FourFloats> u;
  const auto scaled = hn::Mul(hn::BitCast(f, largest), hn::Set(f, scale / 128.0F));
  const auto raised =
      hn::And(hn::Add(hn::BitCast(u, scaled), hn::Set(u, 0x10200U)), hn::Set(u, 0xffff0000U));
  const auto some = hn::RebindMask(f, hn::Gt(largest, hn::Zero(i)));
  const auto step = hn::Max(hn::BitCast(f, raised), hn::Set(f, 0x1p-126F));
  const auto kept = hn::IfThenElseZero(some, step);
  hn::Store(hn::IfThenElseZero(some, hn::Div(hn::Set(f, scale), step)), f, inverses);
  const auto high = hn::BitCast(i, hn::ShiftRight<16>(hn::BitCast(u, kept)));
  hn::StoreU(hn::DemoteTo(hn::Rebind<std::uint16_t, FourInts>(), high),
             hn::Rebind<std::uint16_t, FourInts>(), stored);
  sums.largest = hn::Max(sums.largest, largest);
  sums.steps = hn::Add(
      sums.steps, hn::Mul(hn::Mul(kept, kept), hn::Set(f, static_cast<float>(kTile / kOctet))));
}

// 2N codes with 8 bits behind the point, in the order of the values.
HWY_INLINE W fixed_point(const float* vectors, F inverse) {
  const F offset = hn::Set(kF, 0x1p15F + 128.0F);
  const F even = hn::Add(hn::Mul(hn::Load(kF, vectors), inverse), offset);
  const F odd = hn::Add(hn::Mul(hn::Load(kF, vectors + kLanes), inverse), offset);
  return hn::OddEven(hn::BitCast(kW, hn::ShiftLeft<16>(hn::BitCast(kB, odd))),
                     hn::BitCast(kW, even));
}
HWY_INLINE void store_bytes(W words, std::byte* at) {
  const hn::Rebind<std::uint8_t, Words> bytes;
  const hn::RebindToSigned<Words> s;
  hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(s, words)), bytes,
             reinterpret_cast<std::uint8_t*>(at));
}
template <bool kLow>
HWY_INLINE void quantise(const float* tile, float inverse, std::byte* high, std::byte* low) {
  const F factor = hn::Set(kF, inverse);
  const W upper = hn::Set(kW, std::uint16_t{0xf0});
  [[maybe_unused]] const W lower = hn::Set(kW, std::uint16_t{0x0f});
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kHalfTile; i += 2) {
    const W a = fixed_point(tile + i * kLanes, factor);
    const W b = fixed_point(tile + (i + kHalfTile) * kLanes, factor);
    store_bytes(hn::OrAnd(hn::ShiftRight<12>(a), hn::ShiftRight<8>(b), upper), high + i * kLanes);
    if constexpr (kLow) {
      store_bytes(hn::OrAnd(hn::And(hn::ShiftRight<8>(a), lower), hn::ShiftRight<4>(b), upper),
                  low + i * kLanes);
    }
  }
}

// Loads and rotates kTiles tiles, leaves them in `tiles` and their greatest magnitudes in `maxima`.
template <Dtype kType, std::size_t kTiles>
HWY_INLINE void prepare(const std::byte* rows, std::uint32_t order, float* tiles,
                        std::int32_t (*maxima)[16], Sums& sums) {
  F v[kTiles * kVectors];
  HWY_UNROLL(32)
  for (std::size_t i = 0; i < kTiles * kVectors; i += 2)
    Rows<kType>::load(rows + i * kLanes * dtype_bytes(kType), v[i], v[i + 1]);
  rotate<kTiles * kVectors>(v, order);
  const auto magnitude = hn::Set(kI, 0x7fffffff);
  for (std::size_t t = 0; t < kTiles; ++t) {
    auto largest = hn::Zero(kI);
    HWY_UNROLL(32)
    for (std::size_t i = t * kVectors; i < (t + 1) * kVectors; ++i) {
      largest = hn::Max(largest, hn::And(hn::BitCast(kI, v[i]), magnitude));
      F& sum = sums.squares[i / 2 % kSums];
      sum = hn::Add(sum, hn::Mul(v[i], v[i]));
      hn::Store(v[i], kF, tiles + i * kLanes);
    }
    hn::Store(largest, kI, maxima[t]);
  }
}

// Tiles of a batch between their rotation and their quantisation.
struct Batch {
  HWY_ALIGN float tiles[kBatch * kTile];
  HWY_ALIGN float inverses[kBatch];
  std::size_t count = 0;
};

template <bool kLow>
HWY_INLINE void quantise_batch(const Batch& batch, SidePlanes& at) {
  for (std::size_t g = 0; g < batch.count; ++g) {
    quantise<kLow>(batch.tiles + g * kTile, batch.inverses[g], at.high, at.low);
    at.high += kTile / 2;
    if constexpr (kLow) at.low += kTile / 2;
  }
}

// A batch is quantised only after the next one has been rotated, which hides the time that its
// steps take to be known.
template <Dtype kType, std::size_t kTiles, std::size_t kStep, bool kLow>
HWY_INLINE void encode_as(const Side& side, const std::byte* rows, SidePlanes at, Tally& tally,
                          std::uint32_t order) {
  HWY_ALIGN std::int32_t maxima[kBatch][16] = {};
  Batch batches[2];
  const std::uint64_t groups = side.segments * (side.segment_values / kTile);
  const float scale = rotation_scale(order);
  Sums sums;
  sums.clear();
  sums.largest = hn::Zero(FourInts());
  for (std::uint64_t group = 0; group < groups; group += kBatch) {
    Batch& batch = batches[group / kBatch % 2];
    batch.count = std::min<std::uint64_t>(kBatch, groups - group);
    std::size_t g = 0;
    for (; g + kStep <= batch.count; g += kStep) {
      prepare<kType, kStep>(rows, order, batch.tiles + g * kTile, maxima + g, sums);
      rows += kStep * kTile * dtype_bytes(kType);
    }
    for (; g < batch.count; g += kTiles) {
      prepare<kType, kTiles>(rows, order, batch.tiles + g * kTile, maxima + g, sums);
      rows += kTiles * kTile * dtype_bytes(kType);
    }
    for (; g < kBatch; ++g) hn::Store(hn::Zero(kI), kI, maxima[g]);
    std::uint16_t steps[kBatch];
    find_steps(max_of_each(maxima), scale, sums, steps, batch.inverses);
    if (batch.count == kBatch) {
      std::memcpy(at.scales, steps, sizeof steps);  // of fixed size: no call, which would spill
    } else {
      for (std::size_t i = 0; i < batch.count; ++i) std::memcpy(at.scales + 2 * i, steps + i, 2);
    }
    at.scales += 2 * batch.count;
    quantise_batch<kLow>(batches[(group / kBatch + 1) % 2], at);
    if ((group + kBatch) % kFlushGroups == 0) sums.flush(static_cast<double>(scale), tally);
  }
  if (groups > 0) quantise_batch<kLow>(batches[(groups - 1) / kBatch % 2], at);
  sums.flush(static_cast<double>(scale), tally);
  HWY_ALIGN std::int32_t largest[4];
  hn::Store(sums.largest, FourInts(), largest);
  for (const std::int32_t bits : largest) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    tally.refused = tally.refused || !(value * scale < kTooLarge);
  }
}

// ---- decode ------------------------------------------------------------------------------------

// Words with codes in their upper bytes, to floats.
HWY_INLINE void to_floats(W codes, F middle, F step, F& even, F& odd) {
  const B exponent = hn::Set(kB, 0x47000000U);  // of 2^15, where bit 8 is worth 1
  const F e = hn::BitCast(kF, hn::OddEven(hn::BitCast(kW, exponent), codes));
  const F o = hn::BitCast(kF, hn::Or(hn::ShiftRight<16>(hn::BitCast(kB, codes)), exponent));
  even = hn::Mul(hn::Sub(e, middle), step);
  odd = hn::Mul(hn::Sub(o, middle), step);
}

template <bool kLow>
HWY_INLINE void dequantise(const std::byte* high, const std::byte* low, float step,
                           F* HWY_RESTRICT v) {
  const hn::Rebind<std::uint8_t, Words> bytes;
  const F factor = hn::Set(kF, step);
  const F middle = hn::Set(kF, 0x1p15F + (kLow ? 127.5F : 128.0F));
  const W top = hn::Set(kW, std::uint16_t{0xf000});
  const W next = hn::Set(kW, std::uint16_t{0x0f00});
  const W half = hn::Set(kW, std::uint16_t{0x0800});
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < kHalfTile; i += 2) {
    const W h = hn::PromoteTo(
        kW, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(high + i * kLanes)));
    W a = hn::ShiftLeft<12>(h);
    W b = hn::And(hn::ShiftLeft<8>(h), top);
    if constexpr (kLow) {
      const W l = hn::PromoteTo(
          kW, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(low + i * kLanes)));
      a = hn::OrAnd(a, hn::ShiftLeft<8>(l), next);
      b = hn::OrAnd(b, hn::ShiftLeft<4>(l), next);
    } else {
      a = hn::Or(a, half);
      b = hn::Or(b, half);
    }
    to_floats(a, middle, factor, v[i], v[i + 1]);
    to_floats(b, middle, factor, v[i + kHalfTile], v[i + kHalfTile + 1]);
  }
}

template <Dtype kType, std::size_t kTiles, bool kLow>
HWY_INLINE void decode_some(SideView& at, std::byte*& rows, float scale, std::uint32_t order,
                            bool& legal) {
  F v[kTiles * kVectors];
  HWY_UNROLL(4)
  for (std::size_t t = 0; t < kTiles; ++t) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at.scales, 2);
    const bool good = legal_step(bits);
    legal = legal && good;
    const std::uint32_t wide = good ? std::uint32_t{bits} << 16 : 0;
    float step = 0;
    std::memcpy(&step, &wide, 4);
    dequantise<kLow>(at.high, at.low, step * scale, v + t * kVectors);
    at.scales += 2;
    at.high += kTile / 2;
    if constexpr (kLow) at.low += kTile / 2;
  }
  rotate<kTiles * kVectors>(v, order);
  HWY_UNROLL(32)
  for (std::size_t i = 0; i < kTiles * kVectors; i += 2)
    Rows<kType>::store(v[i], v[i + 1], rows + i * kLanes * dtype_bytes(kType));
  rows += kTiles * kTile * dtype_bytes(kType);
}

template <Dtype kType, std::size_t kTiles, std::size_t kStep, bool kLow>
HWY_INLINE bool decode_as(const Side& side, SideView at, std::byte* rows, std::uint32_t order) {
  const std::uint64_t groups = side.segments * (side.segment_values / kTile);
  const float scale = rotation_scale(order);
  bool legal = true;
  std::uint64_t group = 0;
  for (; group + kStep <= groups; group += kStep)
    decode_some<kType, kStep, kLow>(at, rows, scale, order, legal);
  for (; group < groups; group += kTiles)
    decode_some<kType, kTiles, kLow>(at, rows, scale, order, legal);
  return legal;
}

// ---- one instance for each type and form of rotation; bf16 has more of them ---------------------

template <Dtype kType, bool kLow>
void encode_type(const Side& side, const std::byte* rows, const SidePlanes& at, Tally& tally) {
  constexpr std::size_t kTwo = std::max<std::size_t>(2, kInFlight);
  const std::uint32_t order = side.rotation;
  if (order == 128) return encode_as<kType, 2, kTwo, kLow>(side, rows, at, tally, 128);
  if (order == 256) return encode_as<kType, 4, 4, kLow>(side, rows, at, tally, 256);
  if constexpr (kType == Dtype::bf16) {
    if (order == 1) return encode_as<kType, 1, 1, kLow>(side, rows, at, tally, 1);
    if (order == 64) return encode_as<kType, 1, kInFlight, kLow>(side, rows, at, tally, 64);
  }
  encode_as<kType, 1, 1, kLow>(side, rows, at, tally, order);
}
template <Dtype kType, bool kLow>
bool decode_type(const Side& side, const SideView& planes, std::byte* rows) {
  constexpr std::size_t kTwo = std::max<std::size_t>(2, kInFlight);
  const std::uint32_t order = side.rotation;
  if (order == 128) return decode_as<kType, 2, kTwo, kLow>(side, planes, rows, 128);
  if (order == 256) return decode_as<kType, 4, 4, kLow>(side, planes, rows, 256);
  if constexpr (kType == Dtype::bf16) {
    if (order == 1) return decode_as<kType, 1, 1, kLow>(side, planes, rows, 1);
    if (order == 64) return decode_as<kType, 1, kInFlight, kLow>(side, planes, rows, 64);
  }
  return decode_as<kType, 1, 1, kLow>(side, planes, rows, order);
}

template <bool kLow>
void encode_planes(const Side& side, const std::byte* rows, const SidePlanes& at, Tally& tally) {
  if (side.dtype == Dtype::bf16) return encode_type<Dtype::bf16, kLow>(side, rows, at, tally);
  if (side.dtype == Dtype::fp16) return encode_type<Dtype::fp16, kLow>(side, rows, at, tally);
  encode_type<Dtype::fp32, kLow>(side, rows, at, tally);
}
void encode(const Side& side, const std::byte* rows, const SidePlanes& planes, Tally& tally) {
  if (planes.low == nullptr) return encode_planes<false>(side, rows, planes, tally);
  encode_planes<true>(side, rows, planes, tally);
}
template <bool kLow>
bool decode_planes(const Side& side, const SideView& planes, std::byte* rows) {
  if (side.dtype == Dtype::bf16) return decode_type<Dtype::bf16, kLow>(side, planes, rows);
  if (side.dtype == Dtype::fp16) return decode_type<Dtype::fp16, kLow>(side, planes, rows);
  return decode_type<Dtype::fp32, kLow>(side, planes, rows);
}
bool decode(const Side& side, const SideView& planes, std::byte* rows) {
  return planes.low == nullptr ? decode_planes<false>(side, planes, rows)
                               : decode_planes<true>(side, planes, rows);
}

#endif

}  // namespace kvrail::codec::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrail::codec::simd {
namespace {

HWY_EXPORT(encode);
HWY_EXPORT(decode);

// Tiles are coded alike wherever a segment ends: pieces as long as the rotation needs, so that the
// plain code needs little memory.
Side in_tiles(const Side& side) noexcept {
  const std::uint32_t values = std::max(kTile, side.rotation);
  return {side.dtype, side.rotation, values, side.segments * side.segment_values / values};
}

}  // namespace

void encode_tiles(const Side& side, const std::byte* rows, const SidePlanes& planes,
                  Tally& tally) noexcept {
  HWY_DYNAMIC_DISPATCH(encode)(in_tiles(side), rows, planes, tally);
}
bool decode_tiles(const Side& side, const SideView& planes, std::byte* rows) noexcept {
  return HWY_DYNAMIC_DISPATCH(decode)(in_tiles(side), planes, rows);
}

}  // namespace kvrail::codec::simd
#endif
