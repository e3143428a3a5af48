// What does not move: blocks and rows that the receiver holds already.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {
constexpr SendOptions kFull{.medium = Medium::full};
constexpr std::uint64_t kTokenBytes = 512;
}  // namespace

TEST_CASE("core / delta / a grown context moves its new blocks and the tail's new rows") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 40, 200).ok());
  CHECK(pair.send("doc", kFull).bytes == 40 * kTokenBytes);
  const AgentEvent first = pair.delivered();
  REQUIRE(pair.sender->commit("doc", 7, 45).ok());  // within the tail block
  const AgentEvent second = pair.send("doc", kFull);
  CHECK(second.missing_blocks == 1);
  CHECK(second.bytes == 5 * kTokenBytes);
  pair.exact(7, 45);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());  // the old tail fills up, others follow
  const AgentEvent third = pair.send("doc", kFull);
  CHECK(third.missing_blocks == 5);
  CHECK(third.bytes == 55 * kTokenBytes);
  pair.exact(7, 100);
  // The first delivery still shows what it showed.
  const Received old = read_delivery(*pair.b, first);
  CHECK(old.tokens.size() == 40);
  CHECK(largest_error(*pair.b, old, 7) == 0);
  CHECK(pair.b->node->counters().delta_transfers == 2);
  pair.finish();
}

TEST_CASE("core / delta / the same version again moves nothing") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kFull).bytes > 0);
  const AgentEvent first = pair.delivered();
  const AgentEvent sent = pair.send("doc", kFull);
  CHECK(sent.status == Status{});
  CHECK(sent.bytes == 0);
  CHECK(sent.missing_blocks == 0);
  pair.exact(7, 100);
  CHECK(pair.b->node->release(pair.receiver->handle, first.delivery, 0).ok());
  pair.finish();
}

TEST_CASE("core / delta / only new token ids travel once the base is known") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 160, 400).ok());
  CHECK(pair.send("doc", kFull).status == Status{});
  std::uint64_t base = 0;
  pair.world.network.set_frame_filter([&](NodeId, NodeId, std::span<const std::byte> frame) {
    if (wire::peek_type(frame) != wire::MessageType::offer) return false;
    wire::Offer offer;
    REQUIRE(wire::decode(frame, offer).ok());
    base = offer.base_tokens;
    return false;
  });
  REQUIRE(pair.sender->commit("doc", 7, 200).ok());
  CHECK(pair.send("doc", kFull).bytes == 40 * kTokenBytes);
  CHECK(base == 160);
  (void)pair.delivered();
  pair.exact(7, 200);
  pair.finish();
}

TEST_CASE("core / delta / a base that the receiver lost is sent again, never merged wrongly") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 160, 400).ok());
  CHECK(pair.send("doc", kFull).status == Status{});
  const AgentEvent first = pair.delivered();
  CHECK(pair.b->node->release(pair.receiver->handle, first.delivery, 0).ok());
  // Another agent's context pushes it out of the small receive arena.
  pair.world.run_for(700 * kSecondNs);
  REQUIRE(pair.sender->commit("doc", 7, 200).ok());
  const AgentEvent sent = pair.send("doc", kFull);
  CHECK(sent.status == Status{});
  CHECK(sent.bytes == 200 * kTokenBytes);
  pair.exact(7, 200);
  pair.finish();
}

TEST_CASE("core / delta / contexts that share a prefix share its blocks") {
  Pair pair;
  REQUIRE(pair.sender->commit("one", 7, 64).ok());
  CHECK(pair.send("one", kFull).bytes == 64 * kTokenBytes);
  REQUIRE(pair.sender->commit("two", 7, 96).ok());
  CHECK(pair.send("two", kFull).bytes == 32 * kTokenBytes);
  (void)pair.delivered();
  pair.exact(7, 96);
  pair.finish();
}

TEST_CASE("core / delta / a lossy copy never counts as exact") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 64).ok());
  CHECK(pair.send("doc", {.medium = Medium::int8}).missing_blocks == 4);
  const AgentEvent lossy = pair.delivered();
  CHECK(pair.send("doc", {.medium = Medium::int8}).missing_blocks == 0);
  (void)pair.delivered();
  const AgentEvent exact = pair.send("doc", kFull);
  CHECK(exact.missing_blocks == 4);
  pair.exact(7, 64);
  CHECK(pair.b->node->release(pair.receiver->handle, lossy.delivery, 0).ok());
  pair.finish();
}

TEST_CASE("core / delta / what was delivered can be forwarded and grown") {
  Pair pair;
  Host& c = pair.world.add(3);
  pair.world.dial(c, 2);
  TestAgent third(c, "third");
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("third")); }));
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kFull).status == Status{});
  (void)pair.delivered();
  const TicketId ticket = pair.receiver->send("doc", {"third"}, kFull);
  AgentEvent sent;
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
  AgentEvent event;
  REQUIRE(third.take(AgentEventKind::delivery, event));
  const Received got = read_delivery(c, event);
  CHECK(got.tokens == TestAgent::tokens_of(7, 100));
  CHECK(largest_error(c, got, 7) == 0);
  pair.finish();
}
