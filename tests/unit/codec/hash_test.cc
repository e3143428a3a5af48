#include "codec/hash.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvrail::codec {
namespace {

Layout small() {
  Layout layout;
  layout.model_id = hash_of("model-a");
  layout.layers = 3;
  layout.kv_heads = 2;
  layout.head_dim = 64;
  return layout;
}

TEST_CASE("fingerprint / every single field of a layout changes it") {
  const Layout base = small();
  std::vector<Layout> others(9, base);
  others[0].model_id.low ^= 1;
  others[1].model_id.high ^= 1;
  others[2].layers = 4;
  others[3].kv_heads = 4;
  others[4].head_dim = 32;
  others[5].block_tokens = 32;
  others[6].dtype = Dtype::fp16;
  others[7].rope_base = 500000.0F;
  others[8].rope_scale = 2.0F;
  for (const Layout& other : others) CHECK_FALSE(fingerprint(other) == fingerprint(base));
  CHECK(fingerprint(small()) == fingerprint(base));
}

TEST_CASE("validate / refuses each field out of range and names it") {
  CHECK(validate(small()).ok());
  Layout bad = small();
  bad.layers = 1025;
  CHECK(validate(bad).error().message.find("layers") != std::string::npos);
  bad = small();
  bad.block_tokens = 65;
  CHECK(validate(bad).error().message.find("block_tokens is 65") != std::string::npos);
  bad = small();
  bad.head_dim = 577;
  CHECK_FALSE(validate(bad).ok());
  bad = small();
  bad.layers = bad.kv_heads = bad.head_dim = 1;
  bad.block_tokens = 16;
  CHECK(validate(bad).error().message.find("64, allowed is 128 or more") != std::string::npos);
  bad.block_tokens = 32;
  CHECK(validate(bad).ok());
  bad.layers = 513;
  CHECK(validate(bad).error().message.find("513, allowed is 1 to 512") != std::string::npos);
  bad.head_dim = 8;
  CHECK(validate(bad).ok());
  bad = small();
  bad.kv_heads = 0;
  CHECK_FALSE(validate(bad).ok());
  bad = small();
  bad.dtype = static_cast<Dtype>(9);
  CHECK_FALSE(validate(bad).ok());
  bad = small();
  bad.rope_base = std::numeric_limits<float>::quiet_NaN();
  CHECK_FALSE(validate(bad).ok());
}

TEST_CASE("chain / tenant, layout, parent and every token take part") {
  const Layout layout = small();
  const std::vector<TokenId> tokens{1, 2, 3, 4};
  const Hash128 root = root_hash("red", layout);
  CHECK_FALSE(root == root_hash("blue", layout));
  CHECK_FALSE(root == root_hash("re", layout));
  const Hash128 block = chain(root, tokens);
  CHECK(block == chain(root, tokens));
  CHECK_FALSE(block == chain(block, tokens));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    auto changed = tokens;
    changed[i] += 1;
    CHECK_FALSE(chain(root, changed) == block);
  }
  CHECK_FALSE(chain(root, std::span(tokens).first(3)) == block);
}

TEST_CASE("digests / are XXH3-64, whatever computes them, and a seed changes them") {
  const std::vector<std::byte> bytes(3000, std::byte{7});
  for (const std::size_t size : {0U, 1U, 16U, 128U, 240U, 241U, 1024U, 3000U}) {
    const std::span<const std::byte> unit = std::span(bytes).first(size);
    CHECK(digest(unit) == XXH3_64bits(unit.data(), unit.size()));
    CHECK(digest(unit, 5) == XXH3_64bits_withSeed(unit.data(), unit.size(), 5));
    CHECK(digest(unit, 0) == digest(unit));
    CHECK(digest(unit, 5) != digest(unit));
  }
}

TEST_CASE("digests / one per unit, the last unit short, any flipped bit is seen") {
  std::vector<std::byte> piece(kDigestUnitBytes * 2 + 5);
  for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<std::uint64_t> before(3);
  digests(piece, before);
  CHECK(before[2] == digest(std::span(piece).last(5)));
  for (const std::size_t at : {std::size_t{0}, std::size_t{kDigestUnitBytes}, piece.size() - 1}) {
    piece[at] ^= std::byte{4};
    std::vector<std::uint64_t> after(3);
    digests(piece, after);
    CHECK(after[at / kDigestUnitBytes] != before[at / kDigestUnitBytes]);
    piece[at] ^= std::byte{4};
  }
}

}  // namespace
}  // namespace kvrail::codec
