#include "codec/simd/lossless_kernels.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/simd/lossless_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvrail::codec::window::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

std::size_t encode_chunk(const std::uint8_t* words, std::uint8_t base, std::size_t most,
                         const ChunkOut& out) {
  return encode_plain(words, kChunkValues, base, most, out);
}
bool decode_chunk(const ChunkIn& in, std::uint8_t base, std::uint8_t* words) {
  return decode_plain(in, kChunkValues, base, words);
}
std::uint8_t greatest_in_chunk(const std::uint8_t* words) {
  return greatest_plain(words, kChunkValues);
}
void split_chunk(const std::uint8_t* values, std::uint8_t* upper, std::uint8_t* lower) {
  split_plain(values, kChunkValues, upper, lower);
}
void join_chunk(const std::uint8_t* upper, const std::uint8_t* lower, std::uint8_t* values) {
  join_plain(upper, lower, kChunkValues, values);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using D8 = hn::CappedTag<std::uint8_t, 64>;
using D16 = hn::Repartition<std::uint16_t, D8>;
using V8 = hn::Vec<D8>;

// Taking so many exponents one by one, in vain, costs more than counting them first.
constexpr std::size_t kWorthCounting = 64;

// Calls visit(i) for each code byte in which a code is kEscape, in order. They are rare: what
// counts is how fast a vector without one is passed.
template <class Visit>
HWY_INLINE bool each_escape(const std::uint8_t* codes, Visit visit) {
  const D8 d;
  const V8 escape_low = hn::Set(d, kEscape);
  const V8 escape_high = hn::Set(d, kEscape << 4);
  for (std::size_t j = 0; j < kChunkHalf; j += hn::Lanes(d)) {
    const V8 pair = hn::LoadU(d, codes + j);
    const auto found = hn::Or(hn::Eq(hn::And(pair, escape_low), escape_low),
                              hn::Eq(hn::And(pair, escape_high), escape_high));
    if (HWY_LIKELY(hn::AllFalse(d, found))) continue;
    std::uint64_t bits = 0;
    hn::StoreMaskBits(d, found, reinterpret_cast<std::uint8_t*>(&bits));
    for (; bits != 0; bits &= bits - 1) {
      if (!visit(j + static_cast<std::size_t>(std::countr_zero(bits)))) return false;
    }
  }
  return true;
}

std::size_t count_escapes(const std::uint8_t* codes) {
  const D8 d;
  const V8 escape_low = hn::Set(d, kEscape);
  const V8 escape_high = hn::Set(d, kEscape << 4);
  std::size_t count = 0;
  for (std::size_t j = 0; j < kChunkHalf; j += hn::Lanes(d)) {
    const V8 pair = hn::LoadU(d, codes + j);
    count += hn::CountTrue(d, hn::Eq(hn::And(pair, escape_low), escape_low)) +
             hn::CountTrue(d, hn::Eq(hn::And(pair, escape_high), escape_high));
  }
  return count;
}

// Codes and signs of the words at `words`; a code is at most kEscape.
HWY_INLINE V8 encode_vector(const std::uint8_t* words, V8 base, std::uint8_t* signs) {
  const D8 d;
  V8 low, high;
  hn::LoadInterleaved2(d, words, low, high);
  const V8 exponent = hn::Or(hn::Add(high, high), hn::ShiftRight<7>(low));
  hn::StoreU(hn::OrAnd(hn::And(low, hn::Set(d, 0x7f)), high, hn::Set(d, 0x80)), d, signs);
  // Below the base the difference wraps to 15 or more, since the base is at most kMostBase.
  return hn::Min(hn::Sub(exponent, base), hn::Set(d, kEscape));
}

std::size_t encode_chunk(const std::uint8_t* words, std::uint8_t base, std::size_t most,
                         const ChunkOut& out) {
  const D8 d;
  const D16 d16;
  const V8 bases = hn::Set(d, base);
  // Bytes may alias anything: what is not copied here would be loaded again after every store.
  std::uint8_t* const codes = out.codes;
  std::uint8_t* const signs = out.signs;
  for (std::size_t j = 0; j < kChunkHalf; j += hn::Lanes(d)) {
    const V8 lower = encode_vector(words + 2 * j, bases, signs + j);
    const V8 upper = encode_vector(words + 2 * (kChunkHalf + j), bases, signs + kChunkHalf + j);
    // No bit leaves its byte: codes have four.
    const V8 shifted = hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(d16, upper)));
    hn::StoreU(hn::Or(lower, shifted), d, codes + j);
  }
  if (most > kWorthCounting && count_escapes(codes) > most) return kTooMany;
  std::size_t count = 0;
  const auto take = [&](std::size_t value) {
    if (count == most) return false;
    out.escapes[count++] = exponent_of(words + 2 * value);
    return true;
  };
  const bool fits = each_escape(codes, [&](std::size_t i) {
    return ((codes[i] & 15) != kEscape || take(i)) &&
           (codes[i] >> 4 != kEscape || take(kChunkHalf + i));
  });
  return fits ? count : kTooMany;
}

HWY_INLINE void decode_vector(V8 exponent, const std::uint8_t* signs, std::uint8_t* words) {
  const D8 d;
  const V8 sign = hn::LoadU(d, signs);
  const V8 low = hn::OrAnd(hn::ShiftLeft<7>(exponent), sign, hn::Set(d, 0x7f));
  const V8 high = hn::OrAnd(hn::ShiftRight<1>(exponent), sign, hn::Set(d, 0x80));
  hn::StoreInterleaved2(low, high, d, words);
}

bool decode_chunk(const ChunkIn& in, std::uint8_t base, std::uint8_t* words) {
  const D8 d;
  const V8 bases = hn::Set(d, base);
  const std::uint8_t* const codes = in.codes;
  const std::uint8_t* const signs = in.signs;
  for (std::size_t j = 0; j < kChunkHalf; j += hn::Lanes(d)) {
    const V8 pair = hn::LoadU(d, codes + j);
    decode_vector(hn::Add(hn::And(pair, hn::Set(d, 15)), bases), signs + j, words + 2 * j);
    decode_vector(hn::Add(hn::ShiftRight<4>(pair), bases), signs + kChunkHalf + j,
                  words + 2 * (kChunkHalf + j));
  }
  std::size_t count = 0;
  const auto put = [&](std::size_t value) {
    if (count == in.escape_count) return false;
    const std::uint8_t exponent = in.escapes[count++];
    const std::uint8_t sign = signs[value];
    words[2 * value] = static_cast<std::uint8_t>((exponent << 7 & 0x80) | (sign & 0x7f));
    words[2 * value + 1] = static_cast<std::uint8_t>((sign & 0x80) | exponent >> 1);
    return true;
  };
  const bool fits = each_escape(codes, [&](std::size_t i) {
    return ((codes[i] & 15) != kEscape || put(i)) &&
           (codes[i] >> 4 != kEscape || put(kChunkHalf + i));
  });
  return fits && count == in.escape_count;
}

std::uint8_t greatest_in_chunk(const std::uint8_t* words) {
  const D8 d;
  const D16 d16;
  const auto no_sign = hn::Set(d16, 0x7fff);
  auto greatest = hn::Zero(d16);
  for (std::size_t j = 0; j < kChunkValues; j += hn::Lanes(d16)) {
    const auto word = hn::BitCast(d16, hn::LoadU(d, words + 2 * j));
    greatest = hn::Max(greatest, hn::And(word, no_sign));
  }
  return static_cast<std::uint8_t>(hn::GetLane(hn::MaxOfLanes(d16, greatest)) >> 7);
}

void split_chunk(const std::uint8_t* values, std::uint8_t* upper, std::uint8_t* lower) {
  const D8 d;
  const D16 d16;
  for (std::size_t j = 0; j < kChunkValues; j += hn::Lanes(d16)) {
    const auto a = hn::BitCast(d16, hn::LoadU(d, values + 4 * j));
    const auto b = hn::BitCast(d16, hn::LoadU(d, values + 4 * j + hn::Lanes(d)));
    hn::StoreU(hn::BitCast(d, hn::ConcatOdd(d16, b, a)), d, upper + 2 * j);
    hn::StoreU(hn::BitCast(d, hn::ConcatEven(d16, b, a)), d, lower + 2 * j);
  }
}

void join_chunk(const std::uint8_t* upper, const std::uint8_t* lower, std::uint8_t* values) {
  const D8 d;
  const D16 d16;
  for (std::size_t j = 0; j < kChunkValues; j += hn::Lanes(d16)) {
    const auto low = hn::BitCast(d16, hn::LoadU(d, lower + 2 * j));
    const auto high = hn::BitCast(d16, hn::LoadU(d, upper + 2 * j));
    // As 16-bit lanes at any alignment: the store is unaligned.
    hn::StoreInterleaved2(low, high, d16, reinterpret_cast<std::uint16_t*>(values + 4 * j));
  }
}

#endif

}  // namespace
}  // namespace kvrail::codec::window::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrail::codec::window {

HWY_EXPORT(encode_chunk);
HWY_EXPORT(decode_chunk);
HWY_EXPORT(greatest_in_chunk);
HWY_EXPORT(split_chunk);
HWY_EXPORT(join_chunk);

std::size_t encode(const std::uint8_t* words, std::size_t values, std::uint8_t base,
                   std::size_t most, const ChunkOut& out) noexcept {
  return values == kChunkValues ? HWY_DYNAMIC_DISPATCH(encode_chunk)(words, base, most, out)
                                : encode_plain(words, values, base, most, out);
}
bool decode(const ChunkIn& in, std::size_t values, std::uint8_t base,
            std::uint8_t* words) noexcept {
  return values == kChunkValues ? HWY_DYNAMIC_DISPATCH(decode_chunk)(in, base, words)
                                : decode_plain(in, values, base, words);
}
std::uint8_t greatest_exponent(const std::uint8_t* words, std::size_t values) noexcept {
  return values == kChunkValues ? HWY_DYNAMIC_DISPATCH(greatest_in_chunk)(words)
                                : greatest_plain(words, values);
}
void split(const std::uint8_t* in, std::size_t values, std::uint8_t* upper,
           std::uint8_t* lower) noexcept {
  if (values == kChunkValues) return HWY_DYNAMIC_DISPATCH(split_chunk)(in, upper, lower);
  split_plain(in, values, upper, lower);
}
void join(const std::uint8_t* upper, const std::uint8_t* lower, std::size_t values,
          std::uint8_t* out) noexcept {
  if (values == kChunkValues) return HWY_DYNAMIC_DISPATCH(join_chunk)(upper, lower, out);
  join_plain(upper, lower, values, out);
}

}  // namespace kvrail::codec::window
#endif
