// topk and window: which rows arrive, at which positions, coded how, and what is never made of them.
#include <algorithm>
#include <cstring>

#include "codec/sparse.h"
#include "kvrail/base/byte_order.h"
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

std::vector<float> weights(std::size_t count) {
  Prng prng(count);
  std::vector<float> out(count);
  for (float& value : out) value = static_cast<float>(prng.uniform(1000));
  return out;
}

std::vector<std::uint32_t> chosen(std::size_t tokens, std::uint32_t percent) {
  const auto keep = static_cast<std::uint32_t>(std::max<std::size_t>(tokens * percent / 100, 1));
  std::vector<std::uint32_t> memory(tokens);
  const auto kept = codec::choose_topk(weights(tokens), keep, codec::kSinks, codec::kRecent, memory);
  return {kept.begin(), kept.end()};
}

Status give_importance(TestAgent& agent, std::string_view context, std::size_t tokens) {
  return agent.host().node->set_importance(agent.handle, name_of(context), 0, 0, weights(tokens));
}

AgentEvent sent(World& world, TestAgent& from, TicketId ticket) {
  AgentEvent event;
  REQUIRE(from.last_status == Status{});
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, event, ticket); }));
  return event;
}

constexpr SendOptions kTopk{.medium = Medium::topk};
constexpr SendOptions kWindow{.medium = Medium::window};

// The receiver has a delivery of topk with just these rows.
Received arrived(Pair& pair, std::uint64_t seed, std::size_t tokens, std::uint32_t percent, float most_error = 0) {
  const AgentEvent event = pair.delivered();
  CHECK(event.medium == Medium::topk);
  Received got = read_delivery(*pair.b, event);
  CHECK(got.header.medium == Medium::topk);
  CHECK(got.tokens == TestAgent::tokens_of(seed, tokens));
  CHECK(got.positions == chosen(tokens, percent));
  std::size_t rows = 0;
  for (const ManifestBlock& block : got.blocks) {
    CHECK(block.position == got.positions[rows]);
    rows += block.tokens;
  }
  CHECK(rows == got.positions.size());
  CHECK(largest_error(*pair.b, got, seed) <= most_error);
  CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
  return got;
}

}  // namespace

TEST_CASE("core / medium topk / the rows that matter arrive bit for bit, with their positions") {
  for (const bool integrity : {true, false}) {
    for (const std::uint64_t budget : {512ULL * 1024, 64ULL * 1024}) {
      NodeOptions options = World::small_options(1, 1);
      options.integrity = integrity;
      options.work_bytes_per_cycle = budget;
      options.work_blocks_per_cycle = budget == 64 * 1024 ? 1 : 1024;
      Pair pair(options);
      for (const std::size_t tokens : {1U, 3U, 16U, 33U, 200U, 333U, 1000U}) {
        const std::string context = std::string("doc").append(std::to_string(tokens));
        REQUIRE(pair.sender->commit(context, tokens, tokens).ok());
        REQUIRE(give_importance(*pair.sender, context, tokens).ok());
        const AgentEvent event = pair.send(context, kTopk);
        CHECK(event.status == Status{});
        CHECK(event.medium == Medium::topk);
        const std::size_t kept = chosen(tokens, 50).size();
        CHECK(event.missing_blocks == (kept + 15) / 16);
        CHECK(event.bytes == kept * small_layout().token_bytes() + positions_room(kept, tokens));
        arrived(pair, tokens, tokens, 50);
        CHECK(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
      }
      pair.finish();
    }
  }
}

TEST_CASE("core / medium topk and window / their rows may be coded, and arrive within that code's error") {
  for (const Medium values : {Medium::lossless, Medium::int8, Medium::int4}) {
    NodeOptions options = World::small_options(1, 1);
    options.sparse_values = values;
    options.topk_percent = 40;
    options.window_tokens = 100;
    Pair pair(options);
    REQUIRE(pair.sender->commit("doc", 7, 333).ok());
    REQUIRE(give_importance(*pair.sender, "doc", 333).ok());
    const float most_error = values == Medium::lossless ? 0 : values == Medium::int8 ? 0.1F : 1.0F;
    const AgentEvent topk = pair.send("doc", kTopk);
    CHECK(topk.status == Status{});
    CHECK(topk.bytes < 133 * small_layout().token_bytes() * 95 / 100);
    const Received some = arrived(pair, 7, 333, 40, most_error);
    if (values != Medium::lossless) CHECK(largest_error(*pair.b, some, 7) > 0);
    const AgentEvent window = pair.send("doc", kWindow);
    CHECK(window.status == Status{});
    CHECK(window.bytes < 7 * small_layout().block_bytes() * 95 / 100);
    const AgentEvent event = pair.delivered();
    CHECK(event.medium == Medium::window);
    const Received last = read_delivery(*pair.b, event);
    CHECK(last.positions.empty());
    CHECK(last.blocks.front().position == 0);
    CHECK(last.blocks.back().position == 320);
    CHECK(largest_error(*pair.b, last, 7) <= most_error);
    // Nothing of either is found by hash: all blocks move.
    CHECK(pair.send("doc", {.medium = Medium::full}).missing_blocks == 21);
    pair.exact(7, 333);
    pair.finish();
  }
}

TEST_CASE("core / medium topk / rows that cannot be coded go as they are") {
  NodeOptions options = World::small_options(1, 1);
  options.sparse_values = Medium::int8;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 8, 64).ok());
  const Extent slots = pair.sender->contexts["doc"].extent;
  std::byte* slot = pair.a->node->store().arena(slots.arena)->base() + slots.offset;
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(slot, &nan, 2);  // of token 0, a sink
  REQUIRE(give_importance(*pair.sender, "doc", 64).ok());
  const AgentEvent event = pair.send("doc", kTopk);
  CHECK(event.status == Status{});
  CHECK(event.bytes == 32 * small_layout().token_bytes() + positions_room(32, 64));
  const AgentEvent got = pair.delivered();
  CHECK(read_delivery(*pair.b, got).positions == chosen(64, 50));
  pair.finish();
}

TEST_CASE("core / medium topk / what arrived is terminal: no base, sent on as token ids, or on this node as it is") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 200).ok());
  REQUIRE(give_importance(*pair.sender, "doc", 200).ok());
  REQUIRE(pair.send("doc", kTopk).status == Status{});
  const AgentEvent first = pair.delivered();
  TestAgent third(*pair.a, "third");
  AgentInfo info = TestAgent::base_info();
  info.accepted = mask_of(Medium::tokens) | mask_of(Medium::full);
  TestAgent plain(*pair.b, "plain", info);
  TestAgent same(*pair.b, "same");
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("third")); }));
  for (const Medium wish : {Medium::automatic, Medium::full, Medium::topk}) {
    const AgentEvent event = sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"third"}, {.medium = wish}));
    if (wish == Medium::automatic) {
      CHECK(event.status == Status{});
      CHECK(event.medium == Medium::tokens);
    } else {
      CHECK_FALSE(event.status.ok());
    }
  }
  CHECK(sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"same"})).medium == Medium::topk);
  // Some tokens stand for no whole medium, and not for what loses less.
  info.accepted = mask_of(Medium::topk) | mask_of(Medium::full);
  TestAgent rows(*pair.b, "rows", info);
  CHECK(sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"rows"})).medium == Medium::topk);
  const SendOptions floor{.fidelity_floor_ppm = 999'999}, full{.medium = Medium::full};
  for (const SendOptions& asked : {floor, full}) {
    CHECK(sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"rows"}, asked)).status.code == Code::rejected);
  }
  for (const SendOptions& asked : {floor, full}) {
    CHECK(sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"same"}, asked)).medium == Medium::tokens);
  }
  CHECK(sent(pair.world, *pair.receiver, pair.receiver->send("doc", {"plain"})).medium == Medium::tokens);
  // A context that was computed on it can't share its blocks.
  const auto tokens = TestAgent::tokens_of(7, 200);
  REQUIRE(pair.b->node->commit(pair.receiver->handle, 900, name_of("mine"), tokens, {}, first.delivery, 13).ok());
  AgentEvent committed;
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::committed, committed, 900); }));
  CHECK_FALSE(committed.status.ok());
  CHECK(pair.send("doc", {.medium = Medium::full}).missing_blocks == 13);
  pair.exact(7, 200);
  CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
  pair.world.check();
}

TEST_CASE("core / medium topk / without importance, a share or a receiver that takes it there is none") {
  AgentInfo without = TestAgent::base_info();
  without.accepted &= ~mask_of(Medium::topk);
  for (const int which : {0, 1, 2}) {
    NodeOptions options = World::small_options(1, 1);
    if (which == 1) options.topk_percent = 0;
    Pair pair(options, TestAgent::base_info(), which == 2 ? without : TestAgent::base_info());
    REQUIRE(pair.sender->commit("doc", 7, 100).ok());
    if (which != 0) REQUIRE(give_importance(*pair.sender, "doc", 100).ok());
    CHECK(pair.send("doc", kTopk).status.code == Code::rejected);
    pair.finish();
  }
}

TEST_CASE("core / medium topk / automatic takes it where that pays, never below the fidelity floor") {
  AgentInfo info = TestAgent::base_info();
  info.accepted = mask_of(Medium::full) | mask_of(Medium::topk);
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 500'000;
  NodeOptions options = World::small_options(1, 1);
  options.lane_rate_hint_bytes_per_s = link.rate_bytes_per_s;
  Pair pair(options, info, info, link);
  for (const double floor : {0.0, 0.9}) {
    const std::string context = floor == 0.0 ? "a" : "b";
    REQUIRE(pair.sender->commit(context, 7, 500).ok());
    REQUIRE(give_importance(*pair.sender, context, 500).ok());
    const AgentEvent event =
        pair.send(context, {.fidelity_floor_ppm = static_cast<std::uint32_t>(floor * 1e6)});
    CHECK(event.status == Status{});
    CHECK(event.medium == (floor == 0.0 ? Medium::topk : Medium::full));
    CHECK(pair.b->node->release(pair.receiver->handle, pair.delivered().delivery, 0).ok());
  }
  pair.finish();
}

TEST_CASE("core / medium topk / a receiver without memory says LATER, a sender without memory sends no topk") {
  NodeOptions options = World::small_options(1, 1);
  options.store.receive_arena_bytes = 192U << 10;  // 24 blocks of 8 KiB, and what else there is
  Pair pair(options);
  REQUIRE(pair.sender->commit("first", 3, 250).ok());
  REQUIRE(pair.send("first", {.medium = Medium::full}).status == Status{});
  const AgentEvent held = pair.delivered();
  REQUIRE(pair.sender->commit("doc", 7, 400).ok());
  REQUIRE(give_importance(*pair.sender, "doc", 400).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kTopk);
  pair.world.run_for(200 * kMillisecondNs);
  CHECK(pair.sender->count(AgentEventKind::sent) == 0);
  CHECK(pair.b->node->counters().laters > 0);
  CHECK(pair.b->node->release(pair.receiver->handle, held.delivery, 0).ok());
  CHECK(pair.b->node->store().counters().stagings == 0);
  CHECK(pair.ended(ticket).status == Status{});
  arrived(pair, 7, 400, 50);
  // Now the sender's own arena is full: of what it holds for others.
  REQUIRE(pair.receiver->commit("back", 9, 250).ok());
  (void)sent(pair.world, *pair.receiver, pair.receiver->send("back", {"sender"}, {.medium = Medium::full}));
  AgentEvent kept;
  REQUIRE(pair.sender->take(AgentEventKind::delivery, kept));
  CHECK(pair.send("doc", kTopk).status.code == Code::rejected);
  CHECK(pair.a->node->release(pair.sender->handle, kept.delivery, 0).ok());
  pair.finish();
}

TEST_CASE("core / medium topk / cancelled, left, or its lane lost at any step: all comes back, or it arrives") {
  for (int cycles = 0; cycles < 60; cycles += 3) {
    for (const int what : {0, 1, 2, 3}) {
      NodeOptions options = World::small_options(1, 1);
      options.work_blocks_per_cycle = 8;
      options.work_bytes_per_cycle = 64 * 1024;
      options.sparse_values = cycles % 2 == 0 ? Medium::full : Medium::int8;
      Pair pair(options);
      REQUIRE(pair.sender->commit("doc", 7, 200).ok());
      REQUIRE(give_importance(*pair.sender, "doc", 200).ok());
      const TicketId ticket = pair.sender->send("doc", {"receiver"}, kTopk);
      for (int i = 0; i < cycles; ++i) {
        for (Host* host : {pair.a, pair.b}) host->node->cycle(pair.world.network.now_ns());
        pair.world.network.advance_to(pair.world.network.now_ns() + 20 * kMicrosecondNs);
      }
      switch (what) {
        case 0: (void)pair.a->node->cancel(pair.sender->handle, ticket); break;
        case 1: pair.a->node->detach(pair.sender->handle); break;
        case 2: pair.b->node->detach(pair.receiver->handle); break;
        default: pair.world.network.lose_lanes(1, 2); break;
      }
      REQUIRE(pair.world.run_until([&] { return pair.world.idle(); }, 90 * kSecondNs));
      pair.world.check();
      CHECK(pair.a->node->store().counters().stagings == 0);
      CHECK(pair.b->node->store().counters().stagings == 0);
      if (what == 1 || what == 3) arrived(pair, 7, 200, 50, cycles % 2 == 0 ? 0 : 0.1F);
    }
  }
}

// A sender whose positions are wrong: they are changed in its memory, where no digest covers them.
TEST_CASE("core / medium topk / positions that lie end the transfer, and nothing is delivered") {
  const auto kept = chosen(200, 50);
  std::vector<std::byte> honest(codec::positions_bytes(kept) + 4);
  store_le32(honest.data(), static_cast<std::uint32_t>(honest.size() - 4));
  (void)codec::encode_positions(kept, 200, std::span(honest).subspan(4));
  for (const int lie : {0, 1, 2, 3}) {
    NodeOptions options = World::small_options(1, 1);
    options.integrity = false;
    options.lane_rate_hint_bytes_per_s = 1'000'000;
    transport::sim::LinkModel link;
    link.rate_bytes_per_s = 1'000'000;
    Pair pair(options, TestAgent::base_info(), TestAgent::base_info(), link);
    REQUIRE(pair.sender->commit("doc", 7, 200).ok());
    REQUIRE(give_importance(*pair.sender, "doc", 200).ok());
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kTopk);
    Store& store = pair.a->node->store();
    const mempool::Arena& arena = *store.arena(store.receive_arena(pair.a->node->tenant_of(pair.sender->handle)));
    std::byte* found = nullptr;
    const auto look = [&] {
      found = static_cast<std::byte*>(::memmem(arena.base(), arena.bytes(), honest.data(), honest.size()));
      return found != nullptr;
    };
    for (int i = 0; i < 5000 && !look(); ++i) {
      for (Host* host : {pair.a, pair.b}) host->node->cycle(pair.world.network.now_ns());
      pair.world.network.advance_to(pair.world.network.now_ns() + 20 * kMicrosecondNs);
    }
    REQUIRE(found != nullptr);
    switch (lie) {
      case 0: found[4] = std::byte{99}; break;                          // fewer than rows
      case 1: found[5] = std::byte{127}; found[6] = std::byte{127}; break;  // beyond the tokens
      case 2: store_le32(found, 0xffffffffU); break;                    // longer than there is room
      default: found[5] = std::byte{0x80}; found[6] = std::byte{0}; break;  // a padded number
    }
    const AgentEvent event = pair.ended(ticket);
    CHECK(event.status.code == Code::protocol_error);
    CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
    pair.finish();
  }
}
