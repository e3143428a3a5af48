// The decoder's own promises: the same bits however the tokens are cut, KV in and out, refusals.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "perf/model/bf16.h"
#include "tests/unit/model/model_fixture.h"

namespace kvrail::model {
namespace {

struct Example {
  std::vector<Fact> facts;
  std::vector<TokenId> document;
  std::vector<TokenId> question;

  explicit Example(std::size_t count, std::uint64_t seed = 5) {
    facts = FactSource(recall_world(), seed).draw(count);
    document = recall_world().document(facts);
    const auto words = recall_world().question(facts[count / 2]);
    question.assign(words.begin(), words.end());
  }
};

std::vector<float> copied(std::span<const float> values) {
  return {values.begin(), values.end()};
}

float greatest_difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  float greatest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    greatest = std::max(greatest, std::abs(a[i] - b[i]));
  }
  return greatest;
}

TEST_CASE("session / one token at a time gives the bits of the whole document at once") {
  const Example example(37);
  Session whole(recall_model(), 300);
  Session single(recall_model(), 300);
  REQUIRE(whole.append(example.document).ok());
  for (const TokenId token : example.document) {
    REQUIRE(single.append(std::span(&token, 1)).ok());
  }
  CHECK(copied(whole.logits()) == copied(single.logits()));
  for (std::uint32_t layer = 0; layer < recall_model().shape().layers; ++layer) {
    CHECK(copied(whole.key(layer)) == copied(single.key(layer)));
    CHECK(copied(whole.key_before_rope(layer)) == copied(single.key_before_rope(layer)));
    CHECK(copied(whole.value(layer)) == copied(single.value(layer)));
  }
}

TEST_CASE("session / queries that are tapped name their rows, however the tokens were cut") {
  const Example example(20);
  const ModelShape& shape = recall_model().shape();
  // [layer][row][head][dim]
  const auto tapped = [&](std::size_t step) {
    Session session(recall_model(), 100);
    std::vector<float> all(shape.layers * example.document.size() * shape.query_width());
    session.tap_queries([&](std::uint32_t layer, std::uint32_t row, std::span<const float> tile) {
      const std::size_t at = layer * example.document.size() + row;
      std::copy(tile.begin(), tile.end(),
                all.begin() + static_cast<std::ptrdiff_t>(at * shape.query_width()));
    });
    const std::span<const TokenId> tokens = example.document;
    for (std::size_t first = 0; first < tokens.size(); first += step) {
      REQUIRE(session.append(tokens.subspan(first, std::min(step, tokens.size() - first))).ok());
    }
    return all;
  };
  const std::vector<float> whole = tapped(example.document.size());
  CHECK(whole == tapped(7));
  CHECK(std::none_of(whole.begin(), whole.end(), [](float value) { return value == 0.0F; }));
}

TEST_CASE("session / the capacity changes no bit") {
  const Example example(20);
  Session small(recall_model(), static_cast<std::uint32_t>(example.document.size()));
  Session large(recall_model(), 1024);
  REQUIRE(small.append(example.document).ok());
  REQUIRE(large.append(example.document).ok());
  CHECK(copied(small.logits()) == copied(large.logits()));
}

TEST_CASE("session / continuing from imported fp32 KV is bit-equal to continuing from one's own") {
  const Example example(48);
  for (const std::uint32_t block_tokens : {16U, 64U, 256U}) {
    const Layout layout = recall_model().layout(block_tokens, Dtype::fp32);
    Session computed(recall_model(), 256);
    Session received(recall_model(), 256);
    REQUIRE(computed.append(example.document).ok());
    import_all(received, layout, exported(computed, layout), computed.length());
    CHECK(received.length() == computed.length());
    CHECK(received.logits().empty());
    REQUIRE(computed.append(example.question).ok());
    REQUIRE(received.append(example.question).ok());
    CHECK(copied(computed.logits()) == copied(received.logits()));
    CHECK(copied(computed.key(0)) == copied(received.key(0)));
    CHECK(greatest_difference(computed.key_before_rope(1), received.key_before_rope(1)) < 1e-4F);
  }
}

TEST_CASE("session / continuing from bf16 KV is close, and its export gives the same bytes again") {
  const Example example(48);
  const Layout layout = recall_model().layout(64, Dtype::bf16);
  Session computed(recall_model(), 256);
  Session received(recall_model(), 256);
  REQUIRE(computed.append(example.document).ok());
  const std::vector<std::byte> blocks = exported(computed, layout);
  import_all(received, layout, blocks, computed.length());
  CHECK(exported(received, layout) == blocks);
  REQUIRE(computed.append(example.question).ok());
  REQUIRE(received.append(example.question).ok());
  const float difference = greatest_difference(computed.logits(), received.logits());
  MESSAGE("greatest logit difference from bf16 KV: ", difference);
  CHECK(difference > 0);
  CHECK(difference < 0.5F);
  CHECK(computed.greedy() == received.greedy());
}

TEST_CASE("session / rows of a tail block arrive one part after the other") {
  const Example example(15);  // 61 tokens: one partial block of 64
  const Layout layout = recall_model().layout(64, Dtype::fp32);
  Session computed(recall_model(), 128);
  Session received(recall_model(), 128);
  REQUIRE(computed.append(example.document).ok());
  std::vector<std::byte> slot(layout.block_bytes());
  for (const auto& [first, count] : {std::pair{0U, 40U}, std::pair{40U, 21U}}) {
    REQUIRE(computed.export_kv(layout, first, count, slot).ok());
    REQUIRE(received.import_kv(layout, first, count, slot).ok());
  }
  REQUIRE(computed.append(example.question).ok());
  REQUIRE(received.append(example.question).ok());
  CHECK(copied(computed.logits()) == copied(received.logits()));
}

TEST_CASE("session / a window keeps the positions its rows were computed at") {
  const Example example(40);
  const Layout layout = recall_model().layout(16, Dtype::fp32);
  Session computed(recall_model(), 256);
  REQUIRE(computed.append(example.document).ok());
  std::vector<std::byte> slot(layout.block_bytes());
  Session window(recall_model(), 64);
  // The start mark, then tokens 129 to 160: the last eight facts.
  REQUIRE(computed.export_kv(layout, 0, 1, slot).ok());
  REQUIRE(window.import_kv(layout, 0, 1, slot).ok());
  for (const std::uint32_t first : {129U, 145U}) {
    REQUIRE(computed.export_kv(layout, first, 16, slot).ok());
    REQUIRE(window.import_kv(layout, window.length(), 16, slot, first).ok());
  }
  CHECK(window.length() == 33);
  CHECK(window.next_position() == computed.next_position());
  std::size_t right = 0;
  for (const Fact& fact : std::span(example.facts).last(8)) {
    right += ask(window, recall_world(), fact)->right(fact) ? 1 : 0;
  }
  CHECK(right >= 7);
}

TEST_CASE("session / truncate goes back to an earlier state exactly") {
  const Example example(30);
  Session session(recall_model(), 256);
  Session fresh(recall_model(), 256);
  REQUIRE(session.append(example.document).ok());
  REQUIRE(session.append(example.question).ok());
  session.truncate(static_cast<std::uint32_t>(example.document.size()));
  CHECK(session.logits().empty());
  REQUIRE(session.append(example.question).ok());
  REQUIRE(fresh.append(example.document).ok());
  REQUIRE(fresh.append(example.question).ok());
  CHECK(copied(session.logits()) == copied(fresh.logits()));
}

TEST_CASE("session / a foreign layout, a gap, too many rows and too small a slot are refused") {
  const Layout layout = recall_model().layout(64, Dtype::bf16);
  std::vector<std::byte> slot(layout.block_bytes());
  Session session(recall_model(), 100);
  Layout foreign = layout;
  foreign.model_id.low ^= 1;
  CHECK(session.import_kv(foreign, 0, 1, slot).status().code == Code::layout_mismatch);
  foreign = layout;
  foreign.rope_base = 500000.0F;
  CHECK(session.import_kv(foreign, 0, 1, slot).status().code == Code::layout_mismatch);
  foreign = layout;
  foreign.dtype = Dtype::fp16;
  CHECK(session.import_kv(foreign, 0, 1, slot).status().code == Code::layout_mismatch);
  CHECK(session.import_kv(layout, 1, 1, slot).status().code == Code::invalid_argument);
  CHECK(session.import_kv(layout, 0, 65, slot).status().code == Code::invalid_argument);
  CHECK(session.import_kv(layout, 0, 1, std::span(slot).first(10)).status().code ==
        Code::invalid_argument);
  REQUIRE(session.import_kv(layout, 0, 64, slot).ok());
  CHECK(session.import_kv(layout, 64, 37, slot).status().code == Code::too_large);
  CHECK(session.import_kv(layout, 64, 8, slot, 2045).status().code == Code::too_large);
  CHECK(session.export_kv(layout, 60, 5, slot).status().code == Code::invalid_argument);
  CHECK(session.length() == 64);
}

TEST_CASE("session / NaN and Inf in a block are refused before anything changes") {
  const Example example(15);
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp32}) {
    const Layout layout = recall_model().layout(64, dtype);
    Session session(recall_model(), 128);
    REQUIRE(session.append(example.document).ok());
    std::vector<std::byte> blocks = exported(session, layout);
    const std::vector<float> before = copied(session.key(0));
    const auto bits = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
    const std::uint64_t at = layout.row_offset(2, 1, 60) + layout.row_bytes() - dtype_bytes(dtype);
    const std::uint32_t value = dtype == Dtype::bf16 ? bits >> 16 : bits;
    std::memcpy(blocks.data() + at, &value, dtype_bytes(dtype));
    CHECK(session.import_kv(layout, 0, 61, blocks).status().code == Code::corrupt);
    CHECK(copied(session.key(0)) == before);
    CHECK_FALSE(session.logits().empty());
    CHECK(session.import_kv(layout, 0, 60, blocks).ok());  // The bad row is not among these.
  }
}

TEST_CASE("session / KV whose values overflow the arithmetic gives an error, not an answer") {
  const Layout layout = recall_model().layout(16, Dtype::fp32);
  std::vector<float> huge(layout.block_bytes() / sizeof(float), 3e38F);
  Session session(recall_model(), 64);
  REQUIRE(session.import_kv(layout, 0, 16, std::as_bytes(std::span(huge))).ok());
  const TokenId token = recall_world().question_mark;
  CHECK(session.append(std::span(&token, 1)).status().code == Code::corrupt);
  CHECK(session.length() == 16);
  CHECK(session.logits().empty());
}

TEST_CASE("session / unknown tokens and a full session are refused without a change") {
  Session session(recall_model(), 10);
  const std::vector<TokenId> unknown{1, recall_model().shape().vocabulary};
  CHECK(session.append(unknown).status().code == Code::invalid_argument);
  const std::vector<TokenId> many(11, 1);
  CHECK(session.append(many).status().code == Code::too_large);
  CHECK(session.length() == 0);
  CHECK(session.append(std::span(many).first(10)).ok());
  CHECK(session.length() == 10);
}

TEST_CASE("bf16 / every value that bf16 has survives, others go to the nearest, ties to even") {
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = from_bf16(bits);
    if (std::isnan(value)) {
      CHECK(std::isnan(from_bf16(to_bf16(value))));
    } else if (to_bf16(value) != bits) {
      FAIL("bf16 pattern ", i, " became ", to_bf16(value));
    }
  }
  CHECK(to_bf16(std::bit_cast<float>(0x3F808000U)) == 0x3F80);  // A tie, down to even.
  CHECK(to_bf16(std::bit_cast<float>(0x3F818000U)) == 0x3F82);  // A tie, up to even.
  CHECK(to_bf16(std::bit_cast<float>(0x3F808001U)) == 0x3F81);
  CHECK(to_bf16(std::numeric_limits<float>::max()) == 0x7F80);
  CHECK(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(0x7F800001U)))));
}

}  // namespace
}  // namespace kvrail::model
