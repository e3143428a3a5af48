// Coded media from one node to another: each arrives as what it promises, in time or as far as it came.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr Medium kNested[] = {Medium::int4, Medium::int8, Medium::exact};

transport::sim::LinkModel slow_link(std::uint64_t bytes_per_s) {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = bytes_per_s;
  link.latency_ns = 100 * kMicrosecondNs;
  return link;
}

}  // namespace

TEST_CASE("core / coded / lossless and exact arrive bit for bit, in fewer bytes than the rows") {
  for (const Medium medium : {Medium::lossless, Medium::exact}) {
    for (const bool integrity : {true, false}) {
      CAPTURE(medium_name(medium));
      NodeOptions options = World::small_options(1, 1);
      options.integrity = integrity;
      Pair pair(options);
      REQUIRE(pair.sender->commit("doc", 7, 100).ok());
      const AgentEvent sent = pair.send("doc", {.medium = medium});
      CHECK(sent.status == Status{});
      CHECK(sent.medium == medium);
      CHECK(sent.bytes < 100 * small_layout().token_bytes());
      CHECK(pair.exact(7, 100).header.epsilon_ppm == 0);
      pair.finish();
    }
  }
}

TEST_CASE("core / coded / each plane more halves the bytes saved and lowers the error") {
  float worse = 1e9F;
  std::uint64_t fewer = 0;
  for (const Medium medium : kNested) {
    Pair pair;
    REQUIRE(pair.sender->commit("doc", 7, 100).ok());
    const AgentEvent sent = pair.send("doc", {.medium = medium});
    REQUIRE(sent.status == Status{});
    CHECK(sent.medium == medium);
    CHECK(sent.bytes > fewer);
    const AgentEvent event = pair.delivered();
    const Received got = read_delivery(*pair.b, event);
    const float error = largest_error(*pair.b, got, 7);
    CHECK(error < worse);
    CHECK((error == 0) == (medium == Medium::exact));
    CHECK((got.header.epsilon_ppm == 0) == (medium == Medium::exact));
    worse = error;
    fewer = sent.bytes;
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
    pair.finish();
  }
}

TEST_CASE("core / coded / a lossy context is forwarded by the planes it came in, and by no finer ones") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  REQUIRE(pair.send("doc", {.medium = Medium::int4}).status == Status{});
  (void)pair.delivered();
  TestAgent third(*pair.a, "third");
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("third")); }));
  const std::uint64_t encoded = pair.b->node->counters().encoded_bytes;
  const auto forward = [&](Medium medium) {
    const TicketId ticket = pair.receiver->send("doc", {"third"}, {.medium = medium});
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, event, ticket); }));
    return event.status.code;
  };
  CHECK(forward(Medium::int8) == Code::rejected);
  CHECK(forward(Medium::exact) == Code::rejected);
  CHECK(forward(Medium::int4) == Code::ok);
  CHECK(pair.b->node->counters().encoded_bytes == encoded);
  // Its rows as they are now can be sent without further loss.
  CHECK(forward(Medium::lossless) == Code::ok);
  pair.finish();
}

TEST_CASE("core / coded / rows that don't get smaller are not sent as lossless") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 8, 64, 80).ok());
  const Extent extent = pair.sender->contexts["doc"].extent;
  std::byte* slot = pair.a->node->store().arena(extent.arena)->base() + extent.offset + 4 * small_layout().block_bytes();
  Prng prng(1);
  for (std::uint64_t i = 0; i < small_layout().block_bytes(); ++i) slot[i] = static_cast<std::byte>(prng.uniform(256));
  pair.sender->contexts["doc"].written = 80;
  REQUIRE(pair.sender->commit("doc", 8, 80).ok());
  CHECK(pair.send("doc", {.medium = Medium::lossless}).status.code == Code::rejected);
  CHECK(pair.send("doc", {.medium = Medium::full}).status == Status{});
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / coded / rows that need more room are offered again, and nothing has failed") {
  // One value in sixteen is far smaller than the others: half a bit a value more than models need.
  const auto spread = [](TestAgent& agent, std::string_view context, std::size_t tokens) {
    const Extent extent = agent.contexts[std::string(context)].extent;
    std::byte* slot = agent.host().node->store().arena(extent.arena)->base() + extent.offset;
    for (std::uint64_t i = 0; i < tokens * small_layout().token_bytes() / 2; i += 16) {
      const auto bits = static_cast<std::uint16_t>((20 + i / 16 % 60) << 7);
      std::memcpy(slot + 2 * i, &bits, 2);
    }
  };
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 64).ok());
  spread(*pair.sender, "doc", 64);
  const AgentEvent sent = pair.send("doc", {.medium = Medium::lossless});
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::lossless);
  (void)pair.delivered();
  CHECK(pair.b->node->counters().transfers_in_failed == 0);
  CHECK(pair.b->node->counters().transfers_in_ok == 1);

  // Who asked for it is not told of the first try either.
  NodeOptions options = World::small_options(1, 1);
  Pair other(options);
  REQUIRE(other.sender->commit("doc", 8, 64).ok());
  spread(*other.sender, "doc", 64);
  REQUIRE(other.b->node->fetch(other.receiver->handle, 5, name_of("sender"), name_of("doc"), 0, {.medium = Medium::lossless}).ok());
  AgentEvent fetched;
  REQUIRE(other.world.run_until([&] { return other.receiver->take(AgentEventKind::fetched, fetched, 5); }));
  CHECK(fetched.status == Status{});
  (void)other.delivered();
  CHECK(other.b->node->counters().transfers_in_failed == 0);
  CHECK(other.a->node->counters().encoded_bytes > 64 * small_layout().token_bytes());  // it was tried twice
}

TEST_CASE("core / coded / a deadline cuts planes, and what came whole is delivered and named") {
  // 1,500 tokens: 0.2 MB as int4, 0.4 as int8, 0.53 as exact: 160, 320 and 430 ms on this link.
  struct Cut {
    TimeNs deadline_ns;
    Medium reached;
  };
  for (const Cut cut : {Cut{240 * kMillisecondNs, Medium::int4}, Cut{380 * kMillisecondNs, Medium::int8}}) {
    CAPTURE(medium_name(cut.reached));
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), slow_link(1'250'000));
    REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
    const AgentEvent sent = pair.send("doc", {.deadline_ns = cut.deadline_ns, .medium = Medium::exact});
    CHECK(sent.status == Status{});
    CHECK(sent.medium == cut.reached);
    const AgentEvent event = pair.delivered();
    CHECK(event.medium == cut.reached);
    const Received got = read_delivery(*pair.b, event);
    CHECK(got.header.medium == cut.reached);
    CHECK(got.header.epsilon_ppm > 0);
    const float error = largest_error(*pair.b, got, 7);
    CHECK(error > 0);
    CHECK(error < 1.0F);
    CHECK(pair.b->node->counters().transfers_cut == 1);
    pair.finish();
  }
}

TEST_CASE("core / coded / a deadline before the first plane is whole, or below the floor, delivers nothing") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), slow_link(1'250'000));
  REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
  CHECK(pair.send("doc", {.deadline_ns = 60 * kMillisecondNs, .medium = Medium::exact}).status.code == Code::timed_out);
  const SendOptions strict{.deadline_ns = 240 * kMillisecondNs, .fidelity_floor_ppm = 999'000, .medium = Medium::exact};
  CHECK(pair.send("doc", strict).status.code == Code::timed_out);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}

TEST_CASE("core / coded / a finer copy of what is held moves the missing planes only") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const std::uint64_t whole = pair.send("doc", {.medium = Medium::exact}).bytes;
  (void)pair.delivered();
  REQUIRE(pair.sender->commit("other", 8, 100).ok());
  const std::uint64_t first = pair.send("other", {.medium = Medium::int4}).bytes;
  const AgentEvent coarse = pair.delivered();
  const float before = largest_error(*pair.b, read_delivery(*pair.b, coarse), 8);
  const AgentEvent second = pair.send("other", {.medium = Medium::int8});
  CHECK(second.bytes < first);  // no scales
  const AgentEvent finer = pair.delivered();
  const float after = largest_error(*pair.b, read_delivery(*pair.b, finer), 8);
  CHECK(after < before);
  CHECK(first + second.bytes + pair.send("other", {.medium = Medium::exact}).bytes == whole);
  CHECK(pair.exact(8, 100).header.epsilon_ppm == 0);
  // Who reads the coarser copies still reads the same.
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, coarse), 8) == before);
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, finer), 8) == after);
  pair.finish();
}

TEST_CASE("core / coded / planes of another encoding are not built upon") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  REQUIRE(pair.send("doc", {.medium = Medium::int8}).status == Status{});
  (void)pair.delivered();
  // The same tokens, computed elsewhere with other values, as another machine's arithmetic may.
  Host& third = pair.world.add(3);
  pair.world.dial(third, 2);
  TestAgent twin(third, "twin");
  REQUIRE(pair.world.run_until([&] { return third.node->knows(name_of("tenant"), name_of("receiver")); }));
  REQUIRE(twin.commit("doc", 7, 100).ok());
  std::byte* slot = third.node->store().arena(twin.contexts["doc"].extent.arena)->base() + twin.contexts["doc"].extent.offset;
  TestAgent::write_row(small_layout(), 9, 0, slot);  // before anything has been encoded
  const TicketId ticket = twin.send("doc", {"receiver"}, {.medium = Medium::exact});
  AgentEvent sent;
  REQUIRE(pair.world.run_until([&] { return twin.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
  CHECK(third.node->counters().foreign_encodings == 1);
  const Received got = read_delivery(*pair.b, pair.delivered());
  CHECK(got.header.epsilon_ppm == 0);
  const std::byte* row = pair.b->node->store().arena(got.blocks[0].arena)->base() + got.blocks[0].offset;
  CHECK(std::memcmp(row, slot, small_layout().row_bytes()) == 0);
  pair.finish();
}

TEST_CASE("core / coded / a deadline that comes while there is no lane ends the transfer") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), slow_link(1'250'000));
  REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.deadline_ns = 240 * kMillisecondNs, .medium = Medium::exact});
  pair.world.run_for(100 * kMillisecondNs);
  pair.world.network.set_partitioned(1, 2, true);  // no new one
  pair.world.network.lose_lanes(1, 2);
  CHECK(pair.ended(ticket).status.code == Code::timed_out);
  pair.world.network.set_partitioned(1, 2, false);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}
