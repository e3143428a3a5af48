// Any bytes as a Layout and as planes: refused with a line, or every size that follows from it is
// finite and every decode stays inside its memory.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "codec/codec.h"
#include "codec/hash.h"
#include "kvrail/base/assert.h"
#include "tests/fuzz/memory.h"
#include "tests/fuzz/seeds.h"

using namespace kvrail;

namespace {

constexpr std::uint64_t kMostBytes = 1 << 20;   // of a block that is decoded here

std::uint32_t take(const std::uint8_t*& data, std::size_t& size) {
  std::uint32_t value = 0;
  const std::size_t count = std::min<std::size_t>(size, 4);
  if (count > 0) std::memcpy(&value, data, count);
  data += count;
  size -= count;
  return value;
}

// Small values most of the time, any value some of the time.
std::uint32_t field(const std::uint8_t*& data, std::size_t& size, std::uint32_t most) {
  const std::uint32_t value = take(data, size);
  return value % 8 == 0 ? value : value / 8 % (most + 1);
}

// Any bytes as both planes of a layer; their lengths are right, which codec_fuzz does not insist on.
void decode(const Layout& layout, std::uint32_t tokens, const std::uint8_t* data, std::size_t size) {
  const codec::Codec& codec = *codec::codec_for(Medium::int8);
  const codec::RunShape shape = codec::run_shape(layout, tokens);
  const test::Memory plane0(codec.bound(shape, 0)), plane1(codec.bound(shape, 1));
  for (std::size_t i = 0; size > 0 && i < plane0.bytes.size(); ++i)
    plane0.bytes[i] = static_cast<std::byte>(data[i % size]);
  for (std::size_t i = 0; size > 0 && i < plane1.bytes.size(); ++i)
    plane1.bytes[i] = static_cast<std::byte>(data[(i * 7) % size]);
  const test::Memory k(shape.side_bytes()), v(shape.side_bytes()), scratch(codec.scratch_bytes(shape));
  codec::Meta meta;
  meta.medium = Medium::int8;
  meta.planes = 2;
  meta.bytes = {plane0.bytes.size(), plane1.bytes.size(), 0};
  const Status status =
      codec.decode(shape, meta, {plane0.bytes, plane1.bytes}, {k.bytes, v.bytes}, scratch.bytes).status;
  KVRAIL_ASSERT(status.ok() || status.code == Code::corrupt);
  // What was decoded can be encoded again: nothing in it is Inf or NaN, unless rotating overflows.
  const Status again =
      codec.encode(shape, {k.bytes, v.bytes}, {plane0.bytes, plane1.bytes}, scratch.bytes, meta).status;
  KVRAIL_ASSERT(again.ok() || again.code == Code::unsupported);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Layout layout;
  layout.layers = field(data, size, 8);
  layout.kv_heads = field(data, size, 8);
  layout.head_dim = field(data, size, 64) & ~7U;
  layout.block_tokens = field(data, size, 4) * 16;
  layout.dtype = static_cast<Dtype>(field(data, size, 5));
  const std::uint32_t bits = take(data, size);
  std::memcpy(&layout.rope_base, &bits, 4);
  const std::uint32_t tokens = take(data, size);
  if (const auto valid = codec::validate(layout); !valid.ok()) {
    KVRAIL_ASSERT(!valid.error().message.empty());
    return 0;
  }
  KVRAIL_ASSERT(layout.block_bytes() > 0 && layout.block_bytes() <= std::uint64_t{1} << 42);
  KVRAIL_ASSERT(codec::fingerprint(layout) == codec::fingerprint(layout));
  if (!codec::codec_for(Medium::int8)->can_encode(codec::run_shape(layout, 1)).ok() || layout.block_bytes() > kMostBytes) return 0;
  decode(layout, tokens % layout.block_tokens + 1, data, size);
  return 0;
}

std::vector<kvrail::test::FuzzInput> kvrail::test::fuzz_seeds() {
  struct Shape {
    std::uint32_t layers, heads, dim, tokens, dtype;
    float rope;
  };
  constexpr Shape kShapes[] = {
      {1, 1, 8, 16, 1, 10'000.0F},  {2, 2, 64, 64, 1, 10'000.0F}, {4, 2, 32, 16, 2, 500'000.0F}, {8, 8, 64, 64, 3, 1e6F},
      {1, 1, 16, 16, 4, 10'000.0F}, {3, 5, 40, 48, 5, 10'000.0F}, {1, 1, 0, 16, 1, 10'000.0F},   {0, 0, 0, 0, 0, 0.0F},
      {2, 1, 64, 32, 1, -1.0F},
  };
  std::vector<FuzzInput> seeds;
  for (const Shape& shape : kShapes) {
    FuzzInput input;
    const auto put = [&input](std::uint32_t word) {
      for (int shift = 0; shift < 32; shift += 8) input.push_back(static_cast<std::uint8_t>(word >> shift));
    };
    // As field() reads small values: below the bound, in eighths, the rest of eight not 0.
    for (const std::uint32_t value : {shape.layers, shape.heads, shape.dim, shape.tokens / 16, shape.dtype}) put(value * 8 + 1);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &shape.rope, sizeof(bits));
    put(bits);
    put(shape.tokens / 2);
    for (std::uint32_t i = 0; i < 64; ++i) input.push_back(static_cast<std::uint8_t>(i * 37 + shape.layers));
    seeds.push_back(input);
  }
  // Absurd values, taken as they are where they are multiples of eight.
  for (std::uint32_t place = 0; place < 5; ++place) {
    FuzzInput input = seeds[1];
    for (std::uint32_t i = 0; i < 4; ++i) input[place * 4 + i] = i == 0 ? 0xf8 : 0xff;
    seeds.push_back(input);
  }
  return seeds;
}
