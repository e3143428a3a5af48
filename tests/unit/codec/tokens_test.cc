#include <doctest/doctest.h>

#include <vector>

#include "codec/tokens.h"
#include "kvrail/base/prng.h"

namespace kvrail::codec {
namespace {

TEST_CASE("tokens / varints round trip for ids of every length") {
  Prng prng(7);
  std::vector<TokenId> ids{0, 1, 127, 128, 16383, 16384, 0xffffffffU};
  for (int i = 0; i < 1000; ++i) ids.push_back(static_cast<TokenId>(prng.next_u64() >> (32 + i % 32)));
  std::vector<std::byte> bytes(varint_bytes(ids));
  CHECK(encode_tokens(ids, bytes) == bytes.size());
  std::vector<TokenId> back(ids.size());
  const auto read = decode_tokens(bytes, back);
  REQUIRE(read.ok());
  CHECK(read.value() == bytes.size());
  CHECK(back == ids);
}

TEST_CASE("tokens / malformed varints are refused: cut, over 32 bits, padded") {
  std::vector<TokenId> out(1);
  const auto decode = [&](std::vector<std::uint8_t> bytes) {
    return decode_tokens(std::as_bytes(std::span(bytes)), out).ok();
  };
  CHECK_FALSE(decode({}));
  CHECK_FALSE(decode({0x80}));
  CHECK_FALSE(decode({0xff, 0xff, 0xff, 0xff, 0x1f}));
  CHECK_FALSE(decode({0xff, 0xff, 0xff, 0xff, 0xff}));
  CHECK_FALSE(decode({0x81, 0x00}));
  CHECK(decode({0xff, 0xff, 0xff, 0xff, 0x0f}));
}

}  // namespace
}  // namespace kvrail::codec
