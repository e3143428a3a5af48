// topk and window: what is chosen, the bytes of positions and masks, and what strangers may send.
#include "codec/sparse.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/unit/codec/runs.h"

using namespace kvrail;
using namespace kvrail::codec;

namespace {

using Positions = std::vector<std::uint32_t>;
using Bytes = std::vector<std::byte>;

Positions copy(std::span<const std::uint32_t> positions) {
  return {positions.begin(), positions.end()};
}

Positions topk(const std::vector<float>& importance, std::uint32_t keep, std::uint32_t sinks,
               std::uint32_t recent) {
  Positions memory(importance.size());
  return copy(choose_topk(importance, keep, sinks, recent, memory));
}

Positions window(std::uint32_t tokens, std::uint32_t n, std::uint32_t sinks) {
  Positions memory(std::min(tokens, n + sinks));
  return copy(choose_window(tokens, n, sinks, memory));
}

Bytes bytes_of(std::initializer_list<unsigned> values) {
  Bytes bytes;
  for (const unsigned value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Bytes encoded(const Positions& positions, std::uint32_t total) {
  Bytes out(positions_bytes(positions));
  CHECK(encode_positions(positions, total, out) == out.size());
  return out;
}

// What a decoder says, with a place more than the total so that the total is what limits.
Result<Positions> decoded(std::span<const std::byte> in, std::uint32_t total) {
  Positions memory(std::size_t{total} + 1);
  auto positions = decode_positions(in, total, memory);
  if (!positions.ok()) return std::move(positions).error();
  return copy(*positions);
}

void refused(const Bytes& in, std::uint32_t total, const std::string& why) {
  const auto result = decoded(in, total);
  REQUIRE_FALSE(result.ok());
  CHECK(result.status().code == Code::protocol_error);
  CAPTURE(result.error().message);
  CHECK(result.error().message.find(why) != std::string::npos);
}

}  // namespace

TEST_CASE("topk / sinks, the newest, and of the others those that matter most") {
  const std::vector<float> importance{0, 0, 5, 1, 9, 7, 3, 0, 0, 0};
  CHECK(topk(importance, 5, 1, 2) == Positions{0, 4, 5, 8, 9});
  CHECK(topk(importance, 3, 0, 0) == Positions{2, 4, 5});
  CHECK(topk(importance, 10, 4, 4) == Positions{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(topk(importance, 99, 4, 4).size() == 10);
  CHECK(topk(importance, 0, 4, 4).empty());
  CHECK(topk({}, 5, 4, 4).empty());
  // Too little room: the recent go first, then the sinks.
  CHECK(topk(importance, 5, 4, 4) == Positions{0, 1, 2, 3, 9});
  CHECK(topk(importance, 3, 4, 4) == Positions{0, 1, 2});
}

TEST_CASE("topk / equal importance takes the lower position; NaN is below minus infinity") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(topk({1, 1, 1, 1}, 2, 0, 0) == Positions{0, 1});
  CHECK(topk({-0.0F, 0.0F, -0.0F}, 1, 0, 0) == Positions{0});
  CHECK(topk({nan, -inf, nan, -3, inf}, 3, 0, 0) == Positions{1, 3, 4});
  CHECK(topk({nan, -nan, nan, nan}, 2, 0, 0) == Positions{0, 1});
}

TEST_CASE("topk / properties over drawn importance") {
  Prng random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> importance(random.uniform(200));
    for (float& value : importance) value = static_cast<float>(random.uniform(20)) - 10.0F;
    const auto tokens = static_cast<std::uint32_t>(importance.size());
    const auto keep = static_cast<std::uint32_t>(random.uniform(220));
    const auto sinks = static_cast<std::uint32_t>(random.uniform(8));
    const auto recent = static_cast<std::uint32_t>(random.uniform(80));
    const Positions kept = topk(importance, keep, sinks, recent);
    REQUIRE(kept.size() == std::min(keep, tokens));
    REQUIRE(std::adjacent_find(kept.begin(), kept.end(), std::greater_equal<>()) == kept.end());
    REQUIRE((kept.empty() || kept.back() < tokens));
    if (keep >= sinks + recent) {
      for (std::uint32_t i = 0; i < std::min(sinks, tokens); ++i)
        REQUIRE(std::binary_search(kept.begin(), kept.end(), i));
      for (std::uint32_t i = tokens - std::min(recent, tokens); i < tokens; ++i)
        REQUIRE(std::binary_search(kept.begin(), kept.end(), i));
    }
    // None that was left out ranks before one that was chosen for its importance.
    const auto forced = [&](std::uint32_t i) { return i < sinks || i + recent >= tokens; };
    float least_kept = 100, most_left = -100;
    for (std::uint32_t i = 0; i < tokens; ++i) {
      const bool in = std::binary_search(kept.begin(), kept.end(), i);
      if (in && !forced(i)) least_kept = std::min(least_kept, importance[i]);
      if (!in && !forced(i)) most_left = std::max(most_left, importance[i]);
    }
    REQUIRE(least_kept >= most_left);
  }
}

TEST_CASE("window / the newest and the sinks") {
  CHECK(window(10, 3, 2) == Positions{0, 1, 7, 8, 9});
  CHECK(window(4, 3, 2) == Positions{0, 1, 2, 3});
  CHECK(window(2, 3, 2) == Positions{0, 1});
  CHECK(window(10, 0, 1) == Positions{0});
  CHECK(window(0, 3, 2).empty());
}

TEST_CASE("positions / golden bytes") {
  CHECK(encoded({}, 0) == bytes_of({0}));
  CHECK(encoded({0}, 1) == bytes_of({1, 0}));
  CHECK(encoded({0, 1, 2, 3, 300, 301, 20'000}, 20'001) ==
        bytes_of({7, 0, 0, 0, 0, 0xA8, 0x02, 0, 0xF2, 0x99, 0x01}));
  CHECK(encoded({0xFFFF'FFFE}, 0xFFFF'FFFF) == bytes_of({1, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F}));
  Positions many(200);
  std::iota(many.begin(), many.end(), 0U);
  CHECK(encoded(many, 200).size() == 202);
}

TEST_CASE("positions / there and back") {
  Prng random(9);
  for (int round = 0; round < 200; ++round) {
    const auto total = static_cast<std::uint32_t>(1 + random.uniform(3'000));
    Positions positions;
    const auto one_in = 1 + random.uniform(40);
    for (std::uint32_t i = 0; i < total; ++i) {
      if (random.uniform(one_in) == 0) positions.push_back(i);
    }
    const auto back = decoded(encoded(positions, total), total);
    REQUIRE(back.ok());
    REQUIRE(*back == positions);
  }
}

TEST_CASE("positions / of a stranger: cut, longer, descending, beyond the total, too many") {
  const Bytes good = encoded({0, 5, 6, 900}, 1'000);
  REQUIRE(decoded(good, 1'000).ok());
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes)
    refused(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)), 1'000,
            "input ends inside a number");
  Bytes longer = good;
  longer.push_back(std::byte{0});
  refused(longer, 1'000, "more bytes than they need");
  refused(good, 900, "beyond the last of 900 tokens");
  // A gap that would wrap 32 bits to a lower position.
  refused(bytes_of({2, 5, 0xFD, 0xFF, 0xFF, 0xFF, 0x0F}), 10, "not ascending");
  refused(bytes_of({2, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F}), 0xFFFF, "not ascending");
  refused(bytes_of({3, 0, 0, 0}), 2, "3 of them, but there are 2 tokens");
  refused(bytes_of({1, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F}), 10, "number over 32 bits");
  refused(bytes_of({1, 0x80, 0x00}), 10, "number is padded");
  refused(bytes_of({1, 0}), 0, "there are 0 tokens");
  Positions little(1);
  CHECK_FALSE(decode_positions(good, 1'000, little).ok());
}

TEST_CASE("gather / rows of several runs become one compact run") {
  const RunShape shape{Dtype::bf16, 2, 8, 64};
  const codec_test::Run a = codec_test::random_run(shape, 1), b = codec_test::random_run(shape, 2);
  const Positions kept{0, 1, 2, 62, 63, 64, 70, 71, 127};
  CHECK(count_within(kept, 0, 64) == 5);
  CHECK(count_within(kept, 64, 64) == 4);
  CHECK(count_within(kept, 3, 59) == 0);
  CHECK(count_within(kept, 0xFFFF'FFFF, 0xFFFF'FFFF) == 0);
  RunShape compact = shape;
  compact.tokens = 9;
  Bytes k(compact.side_bytes()), v(compact.side_bytes());
  const std::size_t split = 5 * shape.row_bytes();
  CHECK(gather_rows(shape, a.view(), 0, kept, {k, v}) == 5);
  CHECK(gather_rows(shape, b.view(), 64, kept,
                    {std::span(k).subspan(split), std::span(v).subspan(split)}) == 4);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const codec_test::Run& from = kept[i] < 64 ? a : b;
    const std::size_t at = kept[i] % 64 * shape.row_bytes(), to = i * shape.row_bytes();
    CHECK(std::memcmp(k.data() + to, from.view().k.data() + at, shape.row_bytes()) == 0);
    CHECK(std::memcmp(v.data() + to, from.view().v.data() + at, shape.row_bytes()) == 0);
  }
}

TEST_CASE("mask of a head / golden bytes, there and back, and of a stranger") {
  const Positions kept{0, 3, 8, 9};
  Bytes mask(mask_bytes(10), std::byte{0xFF});
  encode_mask(kept, 10, mask);
  CHECK(mask == bytes_of({0x09, 0x03}));
  Positions memory(10);
  const auto back = decode_mask(mask, 10, memory);
  REQUIRE(back.ok());
  CHECK(copy(*back) == kept);
  const auto refuse = [&](const Bytes& in, std::size_t places, const std::string& why) {
    Positions room(places);
    const auto result = decode_mask(in, 10, room);
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().message.find(why) != std::string::npos);
  };
  refuse(bytes_of({0x09}), 10, "not the 2 bytes");
  refuse(bytes_of({0x09, 0x03, 0}), 10, "not the 2 bytes");
  refuse({}, 10, "not the 2 bytes");
  refuse(bytes_of({0x09, 0x07}), 10, "behind the last token");
  refuse(bytes_of({0x09, 0x03}), 3, "more than the 3 tokens sent");
  refuse(bytes_of({0, 0}), 10, "no token");
}

TEST_CASE("topk / in steps of any size the same tokens are chosen") {
  Prng prng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> importance(prng.uniform(300));
    for (float& value : importance) {
      const std::uint64_t kind = prng.uniform(8);
      value = kind == 0   ? std::numeric_limits<float>::quiet_NaN()
              : kind == 1 ? -std::numeric_limits<float>::infinity()
              : kind < 5  ? static_cast<float>(prng.uniform(4)) - 1
                          : static_cast<float>(prng.uniform(1 << 20)) / 3 - 1e5F;
    }
    const auto tokens = static_cast<std::uint32_t>(importance.size());
    const auto keep = static_cast<std::uint32_t>(prng.uniform(tokens + 3));
    const auto sinks = static_cast<std::uint32_t>(prng.uniform(6));
    const auto recent = static_cast<std::uint32_t>(prng.uniform(80));
    TopkChoice choice(tokens, keep, sinks, recent);
    Positions memory(tokens);
    std::uint64_t steps = 0;
    for (bool done = false; !done; ++steps) {
      std::uint64_t budget = 1 + prng.uniform(100);
      done = choice.step(importance, memory, budget);
      REQUIRE(steps < 3000);
    }
    CHECK(copy(choice.kept(memory)) == topk(importance, keep, sinks, recent));
  }
}
