// Several receivers, receivers on the same node, receivers that fetch, and receivers of others.
#include <set>

#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {
constexpr SendOptions kFull{.medium = Medium::full};
}  // namespace

TEST_CASE("core / several receivers / one copy per node, one end per receiver") {
  Pair pair;
  TestAgent second(*pair.b, "second");
  TestAgent third(*pair.b, "third");
  TestAgent neighbour(*pair.a, "neighbour");
  REQUIRE(pair.world.run_until([&] {
    return pair.a->node->knows(name_of("tenant"), name_of("second")) &&
           pair.a->node->knows(name_of("tenant"), name_of("third"));
  }));
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver", "second", "nobody", "third", "neighbour"}, kFull);
  REQUIRE(pair.sender->last_status.ok());
  std::vector<AgentEvent> ends(5);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, event, ticket); }));
    ends.at(event.receiver) = event;
    bytes += event.bytes;
  }
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(ends[i].ticket == ticket);
    CHECK(ends[i].status.code == (i == 2 ? Code::not_found : Code::ok));
    CHECK((ends[i].transfer == 0) == (i == 2));
  }
  CHECK(bytes == 100 * 512);
  std::set<TransferId> ids;
  for (const AgentEvent& end : ends) ids.insert(end.transfer);
  CHECK(ids.size() == ends.size());
  for (TestAgent* agent : {pair.receiver.get(), &second, &third, &neighbour}) {
    AgentEvent event;
    REQUIRE(agent->take(AgentEventKind::delivery, event));
    CHECK(ids.contains(event.transfer));
    const Received got = read_delivery(agent->host(), event);
    CHECK(got.tokens == TestAgent::tokens_of(7, 100));
    CHECK(largest_error(agent->host(), got, 7) == 0);
  }
  pair.finish();
}

TEST_CASE("core / several receivers / a follower goes on when the first fails") {
  Pair pair;
  TestAgent second(*pair.b, "second");
  REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("tenant"), name_of("second")); }));
  REQUIRE(pair.sender->commit("doc", 7, 1000).ok());
  const TicketId first = pair.sender->send("doc", {"receiver"}, kFull);
  const TicketId other = pair.sender->send("doc", {"second"}, kFull);
  CHECK(pair.a->node->cancel(pair.sender->handle, first).ok());
  CHECK(pair.ended(first).status.code == Code::cancelled);
  CHECK(pair.ended(other).status == Status{});
  AgentEvent event;
  REQUIRE(second.take(AgentEventKind::delivery, event));
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, event), 7) == 0);
  pair.finish();
}

TEST_CASE("core / same node / a delivery is a reference, no byte is read") {
  World world;
  Host& host = world.add(1);
  TestAgent from(host, "from");
  TestAgent to(host, "to");
  REQUIRE(from.commit("doc", 7, 500).ok());
  const std::uint64_t copied = host.node->store().counters().copied_bytes;
  const TicketId ticket = from.send("doc", {"to"});
  AgentEvent sent;
  AgentEvent event;
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
  REQUIRE(to.take(AgentEventKind::delivery, event));
  CHECK(host.node->store().counters().copied_bytes == copied);
  const Received got = read_delivery(host, event);
  REQUIRE(got.blocks.size() == 32);
  CHECK(got.blocks[0].arena == from.contexts["doc"].extent.arena);
  CHECK(largest_error(host, got, 7) == 0);
  CHECK(host.node->release(to.handle, event.delivery, 0).ok());
  CHECK(world.idle());
  world.check();
}

TEST_CASE("core / same node / another layout gets tokens, a summary is asked for") {
  World world;
  Host& host = world.add(1);
  AgentInfo info = TestAgent::base_info();
  info.summary_bytes = 32;
  TestAgent from(host, "from", info);
  AgentInfo other = TestAgent::base_info();
  other.layout.layers = 3;
  TestAgent to(host, "to", other);
  REQUIRE(from.commit("doc", 7, 100).ok());
  AgentEvent sent;
  AgentEvent event;
  TicketId ticket = from.send("doc", {"to"});
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.medium == Medium::tokens);
  REQUIRE(to.take(AgentEventKind::delivery, event));
  CHECK(read_delivery(host, event).tokens.size() == 100);
  AgentInfo reader = TestAgent::base_info();
  reader.accepted = mask_of(Medium::summary);
  TestAgent third(host, "third", reader);
  ticket = from.send("doc", {"third"});
  AgentEvent asked;
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::summary_request, asked); }));
  const std::string words = "short";
  REQUIRE(host.node->summary(from.handle, asked.transfer, 0, std::as_bytes(std::span(words))).ok());
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
  REQUIRE(third.take(AgentEventKind::delivery, event));
  CHECK(read_delivery(host, event).summary == words);
  CHECK(world.idle());
  world.check();
}

TEST_CASE("core / tenants / another tenant's agent is not found, on no node") {
  Pair pair;
  AgentInfo other = TestAgent::base_info();
  other.tenant = name_of("others");
  TestAgent near(*pair.a, "near", other);
  TestAgent far(*pair.b, "far", other);
  TestAgent namesake(*pair.b, "sender", other);
  REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("others"), name_of("far")); }));
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  CHECK(pair.ended(pair.sender->send("doc", {"near"}, kFull)).status.code == Code::not_found);
  CHECK(pair.ended(pair.sender->send("doc", {"far"}, kFull)).status.code == Code::not_found);
  // Of its own tenant's namesake, which has no such context.
  CHECK(pair.b->node->fetch(far.handle, 5, name_of("sender"), name_of("doc"), 0, kFull).code == Code::not_found);
}

TEST_CASE("core / tenants / equal tokens of two tenants share nothing") {
  Pair pair;
  AgentInfo other = TestAgent::base_info();
  other.tenant = name_of("others");
  TestAgent from(*pair.a, "sender", other);
  TestAgent to(*pair.b, "receiver", other);
  REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("others"), name_of("receiver")); }));
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  REQUIRE(from.commit("doc", 7, 100).ok());
  CHECK(pair.send("doc", kFull).missing_blocks == 7);
  AgentEvent sent;
  const TicketId ticket = from.send("doc", {"receiver"}, kFull);
  REQUIRE(pair.world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.missing_blocks == 7);
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / fetch / from the other node, from the same one, of what is not there") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  Node& node = *pair.b->node;
  const AgentHandle agent = pair.receiver->handle;
  AgentEvent fetched;
  REQUIRE(node.fetch(agent, 5, name_of("sender"), name_of("doc"), 0, kFull).ok());
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::fetched, fetched, 5); }));
  CHECK(fetched.status == Status{});
  CHECK(fetched.bytes == 100 * 512);
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, pair.delivered()), 7) == 0);
  CHECK(pair.sender->count(AgentEventKind::sent) == 0);  // the owner is not told

  REQUIRE(node.fetch(agent, 6, name_of("sender"), name_of("nothing"), 0, kFull).ok());
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::fetched, fetched, 6); }));
  CHECK(fetched.status.code == Code::not_found);
  CHECK(node.fetch(agent, 7, name_of("nobody"), name_of("doc"), 0, kFull).code == Code::not_found);

  TestAgent neighbour(*pair.b, "neighbour");
  REQUIRE(node.fetch(neighbour.handle, 8, name_of("receiver"), name_of("doc"), 0, kFull).ok());
  REQUIRE(pair.world.run_until([&] { return neighbour.take(AgentEventKind::fetched, fetched, 8); }));
  CHECK(fetched.status == Status{});
  AgentEvent event;
  REQUIRE(neighbour.take(AgentEventKind::delivery, event));
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, event), 7) == 0);
  pair.finish();
}

TEST_CASE("core / fetch / cancelled before and after the offer") {
  transport::sim::LinkModel link;
  link.latency_ns = 5 * kMillisecondNs;
  for (const TimeNs wait : {TimeNs{0}, 7 * kMillisecondNs, 13 * kMillisecondNs, 16 * kMillisecondNs}) {
    Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), link);
    REQUIRE(pair.sender->commit("doc", 7, 1500).ok());
    Node& node = *pair.b->node;
    REQUIRE(node.fetch(pair.receiver->handle, 5, name_of("sender"), name_of("doc"), 0, kFull).ok());
    pair.world.run_for(wait);
    CHECK(node.cancel(pair.receiver->handle, 5).ok());
    AgentEvent fetched;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::fetched, fetched, 5); }));
    CHECK(fetched.status.code == Code::cancelled);
    pair.finish();
    CHECK(pair.receiver->count(AgentEventKind::fetched) == 0);
  }
}

TEST_CASE("core / tasks / a task counts what served it") {
  Pair pair;
  REQUIRE(pair.a->node->begin_task(pair.sender->handle, 9, name_of("review"), 0).ok());
  AgentEvent begun;
  REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::task, begun, 9); }));
  CHECK(begun.task != 0);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = pair.send("doc", {.task = begun.task, .medium = Medium::full});
  CHECK(sent.task == begun.task);
  CHECK(pair.delivered().task == begun.task);
  CHECK(pair.b->node->end_task(pair.receiver->handle, begun.task).code == Code::not_found);
  CHECK(pair.a->node->end_task(pair.sender->handle, begun.task).ok());
  CHECK(pair.a->node->end_task(pair.sender->handle, begun.task).code == Code::not_found);
  pair.finish();
}

TEST_CASE("core / events / one that finds room does not wait for the cycle, others keep their order behind it") {
  Pair pair;
  TestAgent near(*pair.a, "near");
  REQUIRE(pair.sender->commit("doc", 7, 32).ok());
  CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
  const auto tickets = [&] {
    std::vector<TicketId> all;
    AgentEvent event;
    while (pair.sender->take(AgentEventKind::sent, event)) all.push_back(event.ticket);
    return all;
  };
  const TicketId first = pair.sender->send("doc", {"near"}, kFull);
  CHECK(near.count(AgentEventKind::delivery) == 1);
  CHECK(tickets() == std::vector{first});
  pair.a->ring = 0;
  const TicketId second = pair.sender->send("doc", {"near"}, kFull);
  CHECK(tickets().empty());
  pair.a->ring = SIZE_MAX;
  const TicketId third = pair.sender->send("doc", {"near"}, kFull);
  CHECK(tickets().empty());  // It must not pass the second.
  pair.a->node->cycle(pair.world.network.now_ns());
  CHECK(tickets() == std::vector{second, third});
  CHECK(near.count(AgentEventKind::delivery) == 3);
  AgentEvent event;
  while (near.take(AgentEventKind::delivery, event)) CHECK(pair.a->node->release(near.handle, event.delivery, 0).ok());
  pair.finish();
}

TEST_CASE("core / events / a full ring delays events and loses none") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 32).ok());
  pair.b->ring = 2;
  std::vector<TicketId> tickets;
  for (int i = 0; i < 10; ++i) tickets.push_back(pair.sender->send("doc", {"receiver"}, kFull));
  for (const TicketId ticket : tickets) CHECK(pair.ended(ticket).status == Status{});
  std::size_t got = 0;
  AgentEvent event;
  REQUIRE(pair.world.run_until([&] {
    while (pair.receiver->take(AgentEventKind::delivery, event)) ++got;
    return got == 10;
  }));
  CHECK(pair.b->node->counters().events_deferred > 0);
  pair.finish();
}
