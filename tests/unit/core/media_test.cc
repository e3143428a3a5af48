// Each medium from one node to another, over a simulated network.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

TEST_CASE("core / medium full / a context arrives bit for bit") {
  for (const bool integrity : {true, false}) {
    NodeOptions options = World::small_options(1, 1);
    options.integrity = integrity;
    Pair pair(options);
    REQUIRE(pair.sender->commit("doc", 7, 100).ok());
    const AgentEvent sent = pair.send("doc", {.medium = Medium::full});
    CHECK(sent.status == Status{});
    CHECK(sent.medium == Medium::full);
    CHECK(sent.missing_blocks == 7);
    CHECK(sent.bytes == 100 * small_layout().token_bytes());
    CHECK(sent.observed_ns > 0);
    CHECK(sent.predicted_ns > 0);
    pair.exact(7, 100);
    pair.finish();
  }
}

TEST_CASE("core / medium full / every size around a block border arrives") {
  Pair pair;
  for (const std::size_t tokens : {1U, 15U, 16U, 17U, 31U, 32U, 33U, 1000U}) {
    const std::string context = "doc" + std::to_string(tokens);
    REQUIRE(pair.sender->commit(context, 1000 + tokens, tokens).ok());
    CHECK(pair.send(context, {.medium = Medium::full}).bytes == tokens * small_layout().token_bytes());
    pair.exact(1000 + tokens, tokens);
  }
  pair.finish();
}

TEST_CASE("core / medium full / a context longer than one frame of ids arrives") {
  NodeOptions options = World::small_options(1, 1);
  options.store.receive_arena_bytes = 64U << 20;
  options.store.max_blocks = 4096;
  options.store.table_bytes = 16U << 20;
  options.limits.scratch_bytes = 16U << 20;
  AgentInfo info = TestAgent::base_info();
  info.layout.layers = 1;
  info.layout.kv_heads = 1;
  info.layout.head_dim = 8;
  info.arena_bytes = 4U << 20;
  Pair pair(options, info, info);
  REQUIRE(pair.sender->commit("long", 5, 40'000).ok());
  CHECK(pair.send("long", {.medium = Medium::full}).status == Status{});
  const Received got = read_delivery(*pair.b, pair.delivered());
  CHECK(got.tokens == TestAgent::tokens_of(5, 40'000));
  CHECK(largest_error(*pair.b, got, 5) == 0);
  pair.finish();
}

TEST_CASE("core / medium tokens / ids arrive and no lease is taken") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = pair.send("doc", {.medium = Medium::tokens});
  CHECK(sent.status == Status{});
  CHECK(sent.bytes == 100 * sizeof(TokenId));
  const AgentEvent event = pair.delivered();
  CHECK(event.medium == Medium::tokens);
  const Received got = read_delivery(*pair.b, event);
  CHECK(got.tokens == TestAgent::tokens_of(7, 100));
  CHECK(got.blocks.empty());
  CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 123'456'789).ok());
  CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 1) == Status{Code::generation_mismatch});
  pair.finish();
}

TEST_CASE("core / medium int8 / values arrive within the quantiser's error, and forwarding adds none") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = pair.send("doc", {.medium = Medium::int8});
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::int8);
  CHECK(sent.bytes < 100 * small_layout().token_bytes() * 6 / 10);
  const AgentEvent event = pair.delivered();
  const Received got = read_delivery(*pair.b, event);
  CHECK(got.tokens == TestAgent::tokens_of(7, 100));
  CHECK(got.header.epsilon_ppm > 0);
  const float error = largest_error(*pair.b, got, 7);
  CHECK(error > 0);
  CHECK(error < 0.1F);
  // Back to the node it came from, under the receiver's name: the planes go as they are.
  const std::uint64_t encoded = pair.b->node->counters().encoded_bytes;
  TestAgent third(*pair.a, "third");
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("third")); }));
  const TicketId ticket = pair.receiver->send("doc", {"third"}, {.medium = Medium::int8});
  AgentEvent back;
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, back, ticket); }));
  CHECK(back.status == Status{});
  CHECK(pair.b->node->counters().encoded_bytes == encoded);
  pair.finish();
}

TEST_CASE("core / medium int8 / planes made for sending give way when the sender's node needs the room") {
  NodeOptions options = World::small_options(1, 1);
  options.store.receive_arena_bytes = 256U << 10;
  Pair pair(options);
  for (int i = 0; i < 6; ++i) {  // planes of all six would take more than there is
    const std::string context = "doc" + std::to_string(i);
    REQUIRE(pair.sender->commit(context, 50 + static_cast<std::uint64_t>(i), 200).ok());
    CHECK(pair.send(context, {.medium = Medium::int8}).status == Status{});
    CHECK(pair.b->node->release(pair.receiver->handle, pair.delivered().delivery, 0).ok());
  }
  REQUIRE(pair.receiver->commit("back", 99, 300).ok());
  const TicketId ticket = pair.receiver->send("back", {"sender"}, {.medium = Medium::full});
  AgentEvent back;
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, back, ticket); }));
  CHECK(back.status == Status{});
  pair.finish();
}

TEST_CASE("core / medium int8 / a block with NaN goes by another medium") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 8, 64, 80).ok());
  const Extent grown = pair.sender->contexts["doc"].extent;
  // The agent writes a NaN into the fifth block and commits it.
  std::byte* slot = pair.a->node->store().arena(grown.arena)->base() + grown.offset + 4 * small_layout().block_bytes();
  TestAgent::write_row(small_layout(), 8, 64, slot);
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(slot, &nan, 2);
  pair.sender->contexts["doc"].written = 65;
  REQUIRE(pair.sender->commit("doc", 8, 65).ok());
  CHECK(pair.send("doc", {.medium = Medium::int8}).status.code == Code::rejected);
  const AgentEvent sent = pair.send("doc", {.medium = Medium::full});
  CHECK(sent.status == Status{});
  CHECK(pair.delivered().medium == Medium::full);
  pair.finish();
}

TEST_CASE("core / medium window / the first block and the last ones arrive") {
  NodeOptions options = World::small_options(1, 1);
  options.window_tokens = 48;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 200).ok());
  const AgentEvent sent = pair.send("doc", {.medium = Medium::window});
  CHECK(sent.status == Status{});
  const AgentEvent event = pair.delivered();
  CHECK(event.medium == Medium::window);
  const Received got = read_delivery(*pair.b, event);
  CHECK(got.tokens.size() == 200);
  REQUIRE(got.blocks.size() >= 3);
  CHECK(got.blocks.size() < 13);
  CHECK(got.blocks.front().position == 0);
  CHECK(got.blocks.back().position == 192);
  CHECK(largest_error(*pair.b, got, 7) == 0);
  // Never a base: the next one moves everything.
  CHECK(pair.send("doc", {.medium = Medium::full}).missing_blocks == 13);
  pair.exact(7, 200);
  pair.finish();
}

TEST_CASE("core / medium reference / names arrive, and a fetch brings the bytes") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", {.medium = Medium::reference}).status == Status{});
  const AgentEvent event = pair.delivered();
  CHECK(event.medium == Medium::reference);
  CHECK(read_delivery(*pair.b, event).blocks.empty());
  REQUIRE(pair.b->node->fetch(pair.receiver->handle, 77, name_of("sender"), name_of("doc"), event.version_number,
                              {.medium = Medium::full}).ok());
  AgentEvent fetched;
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::fetched, fetched, 77); }));
  CHECK(fetched.status == Status{});
  CHECK(fetched.bytes == 100 * small_layout().token_bytes());
  pair.exact(7, 100);
  pair.finish();
}

TEST_CASE("core / medium summary / the sending agent is asked and its words arrive") {
  AgentInfo from = TestAgent::base_info();
  from.summary_bytes = 64;
  from.summary_ns = 1'000'000;
  AgentInfo to = TestAgent::base_info();
  to.accepted |= mask_of(Medium::summary);
  Pair pair(World::small_options(1, 1), from, to);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.medium = Medium::summary});
  AgentEvent asked;
  REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::summary_request, asked); }));
  const std::string words = "it was about a key";
  const auto bytes = std::as_bytes(std::span(words));
  CHECK(pair.a->node->summary(pair.sender->handle, asked.transfer + 999, 0, bytes) == Status{Code::not_found});
  CHECK(pair.a->node->summary(pair.sender->handle, asked.transfer, 7, bytes) == Status{Code::invalid_argument});
  CHECK(pair.a->node->summary(pair.sender->handle, asked.transfer, 0, bytes).ok());
  CHECK(pair.ended(ticket).status == Status{});
  const AgentEvent event = pair.delivered();
  CHECK(event.medium == Medium::summary);
  CHECK(read_delivery(*pair.b, event).summary == words);
  pair.finish();
}

TEST_CASE("core / eager / a small context takes one way") {
  NodeOptions options = World::small_options(1, 1);
  options.eager_limit_bytes = 16 * 1024;
  transport::sim::LinkModel link;
  link.latency_ns = 10 * kMillisecondNs;
  Pair pair(options, TestAgent::base_info(), TestAgent::base_info(), link);
  REQUIRE(pair.sender->commit("small", 7, 20).ok());
  const AgentEvent sent = pair.send("small", {.medium = Medium::full});
  CHECK(sent.status == Status{});
  CHECK(pair.b->node->counters().eager_transfers == 1);
  CHECK(sent.observed_ns < 12 * kMillisecondNs);  // two ways would be 20
  pair.exact(7, 20);
  REQUIRE(pair.sender->commit("large", 8, 100).ok());
  CHECK(pair.send("large", {.medium = Medium::full}).status == Status{});
  CHECK(pair.b->node->counters().eager_transfers == 1);
  pair.exact(8, 100);
  pair.finish();
}

TEST_CASE("core / automatic / a slow prefill or a slow link decides") {
  for (const bool fast_link : {true, false}) {
    AgentInfo info = TestAgent::base_info();
    info.accepted = mask_of(Medium::tokens) | mask_of(Medium::full);
    info.compute.prefill_per_token_ns = fast_link ? 1'000'000 : 1'000;
    transport::sim::LinkModel link;
    link.rate_bytes_per_s = fast_link ? 1'000'000'000 : 1'000'000;
    NodeOptions options = World::small_options(1, 1);
    options.lane_rate_hint_bytes_per_s = link.rate_bytes_per_s;
    Pair pair(options, info, info, link);
    REQUIRE(pair.sender->commit("doc", 7, 500).ok());
    const AgentEvent sent = pair.send("doc");
    CHECK(sent.status == Status{});
    CHECK(sent.medium == (fast_link ? Medium::full : Medium::tokens));
    (void)pair.delivered();
    pair.finish();
  }
}

TEST_CASE("core / policy / a forced medium holds for every send that names none") {
  NodeOptions options = World::small_options(1, 1);
  options.policy = Medium::int8;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 64).ok());
  CHECK(pair.send("doc").medium == Medium::int8);
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / layouts differ / tokens remain, and a forced full is refused") {
  AgentInfo other = TestAgent::base_info();
  other.layout.head_dim = 16;
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), other);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = pair.send("doc");
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::tokens);
  CHECK(read_delivery(*pair.b, pair.delivered()).tokens.size() == 100);
  CHECK(pair.send("doc", {.medium = Medium::full}).status.code == Code::layout_mismatch);
  pair.finish();
}

TEST_CASE("core / layouts and tokenizers differ / nothing can be sent") {
  AgentInfo other = TestAgent::base_info();
  other.layout.head_dim = 16;
  other.tokenizer = {6, 6};
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), other);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc").status.code == Code::layout_mismatch);
  pair.finish();
}
