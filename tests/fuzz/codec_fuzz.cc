// Planes from a stranger, for every medium that codec_for() knows: refused, or decoded within
// bounds to the same bytes each time. Input: medium, dtype, head dim, KV heads, tokens, how; then
// by `how`
//   even  the planes' bytes as they are
//   odd   patches (place u16, byte) and cuts of the planes of a run that was encoded here
// With the second bit of `how` a plane of lossless gets its checksum made right, or nothing would
// get past it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "codec/lossless.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/prng.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/seeds.h"

using namespace kvrail;
using kvrail::codec::Codec;
using kvrail::codec::RunShape;
using kvrail::test::Bytes;
using kvrail::test::Memory;

namespace {

constexpr std::array kMedia{Medium::full, Medium::lossless, Medium::int4, Medium::int8,
                            Medium::exact};
constexpr std::array<std::uint32_t, 12> kHeadDims{1,   8,   63,  64,  80,  96,
                                                  112, 127, 128, 192, 256, 576};
constexpr std::uint64_t kMostBytes = 1 << 17;  // of a run

using Planes = std::array<std::vector<std::byte>, codec::kMaxPlanes>;

struct Case {
  const Codec& codec;
  RunShape shape;
  std::uint8_t how;
  Planes planes;
  codec::Meta meta;
  std::vector<std::byte> original;  // what planes that nobody touched decode to; empty: not known
};

// Twice over different memory: what is written may depend on the planes alone, and must be all.
codec::Report decode(const Case& c, std::vector<std::byte>& out) {
  codec::Planes in;
  for (std::size_t plane = 0; plane < c.codec.planes(); ++plane) in[plane] = c.planes[plane];
  codec::Report report;
  for (const std::byte poison : {std::byte{0x5a}, std::byte{0xa5}}) {
    const Memory k(c.shape.side_bytes(), poison);
    const Memory v(c.shape.side_bytes(), poison);
    const Memory scratch(c.codec.scratch_bytes(c.shape), poison);
    report = c.codec.decode(c.shape, c.meta, in, {k.bytes, v.bytes}, scratch.bytes);
    std::vector<std::byte> now(k.bytes.begin(), k.bytes.end());
    now.insert(now.end(), v.bytes.begin(), v.bytes.end());
    KVRAIL_ASSERT(poison == std::byte{0x5a} || now == out);
    out = std::move(now);
  }
  KVRAIL_ASSERT(report.status.ok() || report.status.code == Code::corrupt);
  return report;
}

void foreign(Case& c, Bytes& input) {
  c.meta.medium = c.codec.medium();
  c.meta.planes = static_cast<std::uint8_t>(1 + input.u8() % c.codec.planes());
  for (std::size_t plane = 0; plane < c.meta.planes; ++plane) {
    const std::uint64_t bound = c.codec.bound(c.shape, plane);
    const std::uint64_t size = input.one_in(2) ? bound : input.number(255);
    c.planes[plane].resize(std::min(size, bound + 1));
    input.take(c.planes[plane]);
  }
}

// False: this codec does not take such values.
bool encode(Case& c, std::uint64_t seed) {
  c.original.resize(c.shape.raw_bytes());
  Prng prng(seed);
  const std::uint32_t width = dtype_bytes(c.shape.dtype);
  for (std::size_t i = 0; i < c.original.size(); ++i) {
    // The last byte of a value holds sign and exponent: ordinary ones, so that the lossy codecs
    // take them.
    const bool exponent = i % width == width - 1;
    c.original[i] = static_cast<std::byte>(
        exponent ? (prng.uniform(2) << 7 | (0x3c + prng.uniform(4))) : prng.uniform(256));
  }
  const std::span<const std::byte> all(c.original);
  std::vector<std::unique_ptr<Memory>> room;
  codec::MutablePlanes out;
  for (std::size_t plane = 0; plane < c.codec.planes(); ++plane) {
    room.push_back(std::make_unique<Memory>(c.codec.bound(c.shape, plane)));
    out[plane] = room[plane]->bytes;
  }
  const Memory scratch(c.codec.scratch_bytes(c.shape));
  const codec::RunView in{all.first(c.shape.side_bytes()), all.subspan(c.shape.side_bytes())};
  const codec::Report report = c.codec.encode(c.shape, in, out, scratch.bytes, c.meta);
  if (!report.status.ok()) {
    KVRAIL_ASSERT(report.status.code == Code::unsupported);
    return false;
  }
  for (std::size_t plane = 0; plane < c.meta.planes; ++plane) {
    const std::span<const std::byte> used = out[plane].first(c.meta.bytes[plane]);
    c.planes[plane].assign(used.begin(), used.end());
  }
  return true;
}

// Whether anything differs from what was encoded.
bool damage(Case& c, Bytes& input) {
  const Planes before = c.planes;
  c.meta.planes = static_cast<std::uint8_t>(1 + input.u8() % c.codec.planes());
  const bool cut = input.one_in(4);
  while (!input.empty()) {
    std::vector<std::byte>& plane = c.planes[input.u8() % c.meta.planes];
    std::size_t at = input.u8();
    at = at << 8 | input.u8();
    // Headers and tables come first, and are where lies matter: half of the places are there.
    if (!plane.empty())
      plane[at % (at % 2 == 0 ? plane.size() : std::min<std::size_t>(plane.size(), 96))] =
          static_cast<std::byte>(input.u8());
    if (cut) plane.resize(plane.size() * (input.u8() + 1U) / 256);
  }
  return c.planes != before;
}

void run(Case& c, Bytes& input) {
  bool touched = true;
  if (c.how % 2 == 0) {
    foreign(c, input);
  } else {
    if (!encode(c, input.u8())) return;
    touched = damage(c, input);
  }
  const bool sealed = (c.how & 2) != 0 && c.codec.medium() == Medium::lossless &&
                      c.planes[0].size() >= codec::kLosslessHeaderBytes;
  if (sealed) codec::seal_lossless(c.shape, c.planes[0]);
  for (std::size_t plane = 0; plane < c.meta.planes; ++plane)
    c.meta.bytes[plane] = c.planes[plane].size();
  std::vector<std::byte> out;
  const codec::Report report = decode(c, out);
  const bool whole = !c.original.empty() && c.meta.planes == c.codec.planes();
  if (!touched) KVRAIL_ASSERT(report.status.ok());
  // Exact media give the bytes that were encoded; lossless says when it cannot.
  const bool exact = c.codec.medium() != Medium::int4 && c.codec.medium() != Medium::int8;
  if (whole && exact && !touched)
    KVRAIL_ASSERT(c.meta.epsilon_ppm[c.meta.planes - 1U] != 0 || out == c.original);
  if (c.codec.medium() == Medium::lossless && touched && !sealed)
    KVRAIL_ASSERT(!report.status.ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes input(data, size);
  const Codec* const codec = codec::codec_for(kMedia[input.u8() % kMedia.size()]);
  RunShape shape;
  shape.dtype = static_cast<Dtype>(1 + input.u8() % 5);
  shape.head_dim = kHeadDims[input.u8() % kHeadDims.size()];
  shape.kv_heads = 1 + input.u8() % 4U;
  shape.tokens = 1 + input.u8() % 40U;
  const std::uint8_t how = input.u8();
  if (codec == nullptr || shape.raw_bytes() > kMostBytes || !codec->can_encode(shape).ok())
    return 0;
  Case c{*codec, shape, how, {}, {}, {}};
  run(c, input);
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  std::vector<FuzzInput> seeds;
  for (std::uint8_t medium = 0; medium < kMedia.size(); ++medium) {
    for (std::uint8_t dtype = 0; dtype < 4; ++dtype) {
      constexpr std::uint8_t dim = 8;  // 128
      // Untouched; patched; patched, sealed and cut; bytes of nobody.
      seeds.push_back({medium, dtype, dim, 1, 16, 1, dtype, 0xff});
      seeds.push_back({medium, dtype, dim, 1, 16, 1, dtype, 1, 0, 0, 0, 9, 0, 1, 0, 77, 0x55});
      seeds.push_back(
          {medium, dtype, dim, 1, 16, 3, dtype, 1, 3, 0, 0, 11, 4, 200, 0, 1, 21, 0x77, 255});
      FuzzInput foreign{medium, dtype, dim, 0, 3, 2, 1, 1};
      for (std::uint8_t i = 0; i < 120; ++i) foreign.push_back(static_cast<std::uint8_t>(i * 29));
      seeds.push_back(foreign);
    }
  }
  return seeds;
}
