// What breaks: frames, lanes, peers, agents, memory, patience. Every ticket ends once, nothing partial
// is seen, and all memory returns.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr SendOptions kFull{.medium = Medium::full};

transport::sim::LinkModel slow_link() {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 20'000'000;  // 1500 tokens take 38 ms
  link.latency_ns = 2 * kMillisecondNs;
  return link;
}

AgentInfo roomy() {
  AgentInfo info = TestAgent::base_info();
  info.arena_bytes = 4U << 20;
  return info;
}

struct SlowPair : Pair {
  SlowPair() : Pair(World::small_options(1, 1), roomy(), TestAgent::base_info(), slow_link()) {
    REQUIRE(sender->commit("doc", 7, 1500).ok());
  }
};

// Moments in a transfer over the slow link, from before the OFFER to after DONE.
const std::vector<TimeNs> kMoments{0,       100'000,    1'000'000,  2'100'000,  3'900'000,  4'100'000,  6'500'000, 9'000'000,
                                   15'000'000, 25'000'000, 38'000'000, 42'000'000, 44'000'000, 46'000'000, 48'000'000, 60'000'000};

// The receiver saw all of it or nothing, at most once.
void check_whole(Pair& pair, bool must) {
  AgentEvent event;
  if (!pair.receiver->take(AgentEventKind::delivery, event)) {
    CHECK(!must);
    return;
  }
  const Received got = read_delivery(*pair.b, event);
  CHECK(got.tokens == TestAgent::tokens_of(7, 1500));
  CHECK(largest_error(*pair.b, got, 7) == 0);
}

}  // namespace

TEST_CASE("core / cancel / at any moment there is one end and all memory returns") {
  for (const Medium medium : {Medium::full, Medium::int8, Medium::tokens}) {
    for (const TimeNs moment : kMoments) {
      SlowPair pair;
      const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.medium = medium});
      pair.world.run_for(moment);
      const Status status = pair.a->node->cancel(pair.sender->handle, ticket);
      const AgentEvent sent = pair.ended(ticket);
      CHECK(sent.status.code == (status.ok() ? Code::cancelled : Code::ok));
      CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
      // A CANCEL that comes too late finds the context delivered.
      if (medium == Medium::full) check_whole(pair, sent.status.ok());
      AgentEvent event;
      while (medium != Medium::full && pair.receiver->take(AgentEventKind::delivery, event)) {
      }
      pair.finish();
      CHECK(pair.a->node->cancel(pair.sender->handle, ticket).code == Code::not_found);
    }
  }
}

TEST_CASE("core / lost frames / each message lost once is made up for") {
  using enum wire::MessageType;
  for (const wire::MessageType lost : {offer, accept, done, tokens, query, outcome, later}) {
    SlowPair pair;
    int left = lost == query || lost == outcome ? 2 : 1;
    bool seen_done = false;
    pair.world.network.set_frame_filter([&](NodeId, NodeId, std::span<const std::byte> frame) {
      const auto type = wire::peek_type(frame);
      if ((lost == query || lost == outcome) && type == done && !seen_done) {
        seen_done = true;  // so that there is something to ask
        return true;
      }
      if (type != lost || left == 0) return false;
      --left;
      return true;
    });
    const AgentEvent sent = pair.send("doc", kFull);
    CHECK(sent.status == Status{});
    check_whole(pair, true);
    pair.finish();
  }
}

TEST_CASE("core / lost frames / a lost DONE is found out by QUERY") {
  SlowPair pair;
  int dropped = 0;
  pair.world.network.set_frame_filter([&](NodeId, NodeId, std::span<const std::byte> frame) {
    return wire::peek_type(frame) == wire::MessageType::done && dropped++ == 0;
  });
  CHECK(pair.send("doc", kFull).status == Status{});
  CHECK(dropped == 1);
  CHECK(pair.a->node->counters().queries >= 1);
  check_whole(pair, true);
  pair.finish();
}

TEST_CASE("core / lanes / lost at any moment, the transfer goes on from what is missing") {
  for (const Medium medium : {Medium::full, Medium::int8}) {
    std::uint64_t resumes = 0;
    for (const TimeNs moment : kMoments) {
      SlowPair pair;
      const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.medium = medium});
      pair.world.run_for(moment);
      pair.world.network.lose_lanes(1, 2);
      const AgentEvent sent = pair.ended(ticket);
      CHECK(sent.status == Status{});
      if (medium == Medium::full) {
        check_whole(pair, true);
      } else {
        (void)pair.delivered();
      }
      pair.finish();
      resumes += pair.a->node->counters().resumes;
      // Nothing of any size is sent twice.
      CHECK(pair.b->node->counters().payload_bytes_in <= sent.bytes + 300 * 1024);
    }
    CHECK(resumes > 3);
  }
}

TEST_CASE("core / lanes / two dials make one lane") {
  World world;
  Host& a = world.add(1);
  Host& b = world.add(2);
  world.dial(a, 2);
  world.dial(b, 1);
  TestAgent from(a, "from");
  TestAgent to(b, "to");
  REQUIRE(world.run_until([&] { return a.node->knows(name_of("tenant"), name_of("to")); }));
  world.run_for(5 * kSecondNs);
  CHECK(a.node->counters().duplicate_lanes + b.node->counters().duplicate_lanes >= 1);
  CHECK(a.node->counters().duplicate_lanes + b.node->counters().duplicate_lanes <= 3);
  CHECK(a.node->peer_up(2));
  REQUIRE(from.commit("doc", 7, 100).ok());
  const TicketId ticket = from.send("doc", {"to"}, kFull);
  AgentEvent sent;
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
}

TEST_CASE("core / peers / a node that dials itself gives up quietly") {
  World world;
  Host& a = world.add(1);
  world.dial(a, 1);
  world.run_for(3 * kSecondNs);
  CHECK(!a.node->peer_up(1));
  world.check();
}

TEST_CASE("core / peers / a silent peer is dead within 3 s, at any moment") {
  for (const TimeNs moment : kMoments) {
    SlowPair pair;
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kFull);
    pair.world.run_for(moment);
    AgentEvent sent;
    const bool over = pair.sender->take(AgentEventKind::sent, sent, ticket);
    pair.receiver.reset();
    pair.world.kill(2, true);
    const TimeNs before = pair.world.network.now_ns();
    if (!over) {
      REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, sent, ticket); }));
      CHECK(pair.world.network.now_ns() - before <= 3 * kSecondNs);
      CHECK(sent.status.code == Code::peer_down);
    }
    REQUIRE(pair.world.run_until([&] { return !pair.a->node->knows(name_of("tenant"), name_of("receiver")); }, 3 * kSecondNs));
    CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
    pair.world.check();
  }
}

TEST_CASE("core / peers / the sender's node dies: the receiver's memory returns") {
  for (const TimeNs moment : kMoments) {
    SlowPair pair;
    (void)pair.sender->send("doc", {"receiver"}, kFull);
    pair.world.run_for(moment);
    pair.sender.reset();
    pair.world.kill(1, true);
    CHECK(pair.world.run_until([&] { return pair.world.idle(); }, 3 * kSecondNs));
    check_whole(pair, false);
    pair.world.check();
    CHECK(pair.b->node->store().counters().stagings == 0);
  }
}

TEST_CASE("core / peers / a restarted peer: nothing of its old life is honoured") {
  for (const TimeNs moment : kMoments) {
    SlowPair pair;
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kFull);
    pair.world.run_for(moment);
    pair.receiver.reset();
    pair.world.kill(2);
    Host& again = pair.world.add(2, nullptr, 99);
    TestAgent receiver(again, "receiver");
    AgentEvent sent;
    REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, sent, ticket); }));
    CHECK((sent.status.code == Code::peer_restarted || sent.status.code == Code::ok || sent.status.code == Code::peer_down));
    // Transfers are counted anew; the same ids mean other transfers now.
    REQUIRE(pair.world.run_until([&] {
      return pair.a->node->counters().peer_restarts == 1 &&
             pair.a->node->knows(name_of("tenant"), name_of("receiver"));
    }));
    const TicketId next = pair.sender->send("doc", {"receiver"}, kFull);
    REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, sent, next); }));
    CHECK(sent.status == Status{});
    AgentEvent event;
    REQUIRE(receiver.take(AgentEventKind::delivery, event));
    CHECK(largest_error(again, read_delivery(again, event), 7) == 0);
    CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
    pair.world.check();
  }
}

TEST_CASE("core / peers / a restarted sender may use the same transfer ids again") {
  SlowPair pair;
  CHECK(pair.send("doc", kFull).status == Status{});
  check_whole(pair, true);
  pair.sender.reset();
  pair.world.kill(1);
  Host& again = pair.world.add(1, nullptr, 99);
  pair.world.dial(again, 2);
  TestAgent sender(again, "sender");
  REQUIRE(sender.commit("other", 8, 64).ok());
  REQUIRE(pair.world.run_until([&] { return again.node->knows(name_of("tenant"), name_of("receiver")); }));
  const TicketId ticket = sender.send("other", {"receiver"}, kFull);
  AgentEvent sent;
  REQUIRE(pair.world.run_until([&] { return sender.take(AgentEventKind::sent, sent, ticket); }));
  CHECK(sent.status == Status{});
  CHECK(sent.bytes == 64 * 512);
  AgentEvent event;
  REQUIRE(pair.receiver->take(AgentEventKind::delivery, event));
  CHECK(largest_error(*pair.b, read_delivery(*pair.b, event), 8) == 0);
}

TEST_CASE("core / memory / a full receiver says LATER, and the transfer ends when there is room") {
  NodeOptions options = World::small_options(1, 1);
  options.store.receive_arena_bytes = 512U << 10;
  Pair pair(options);
  std::vector<AgentEvent> held;
  for (int i = 0; i < 4; ++i) {
    const std::string context = "doc" + std::to_string(i);
    REQUIRE(pair.sender->commit(context, 100 + static_cast<std::uint64_t>(i), 400).ok());
    const TicketId ticket = pair.sender->send(context, {"receiver"}, {.deadline_ns = 0, .medium = Medium::full});
    AgentEvent sent;
    if (i < 4 && pair.world.run_until([&] { return pair.sender->take(AgentEventKind::sent, sent, ticket); }, kSecondNs)) {
      REQUIRE(sent.status == Status{});
      held.push_back(pair.delivered());
      continue;
    }
    CHECK(pair.b->node->counters().laters > 0);
    REQUIRE(!held.empty());
    for (const AgentEvent& event : held) CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
    held.clear();
    CHECK(pair.ended(ticket).status == Status{});
    const Received got = read_delivery(*pair.b, pair.delivered());
    CHECK(largest_error(*pair.b, got, 100 + static_cast<std::uint64_t>(i)) == 0);
    pair.finish();
    return;
  }
  FAIL("the receive arena never filled up");
}

TEST_CASE("core / deadlines / a receiver that stays full times the transfer out on both sides") {
  NodeOptions options = World::small_options(1, 1);
  options.store.receive_arena_bytes = 256U << 10;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 200).ok());
  CHECK(pair.send("doc", kFull).status == Status{});  // pinned by its delivery from now on
  REQUIRE(pair.sender->commit("other", 8, 400).ok());
  const TimeNs before = pair.world.network.now_ns();
  const AgentEvent sent = pair.send("other", {.deadline_ns = 300 * kMillisecondNs, .medium = Medium::full});
  CHECK((sent.status.code == Code::timed_out || sent.status.code == Code::rejected));
  CHECK(pair.world.network.now_ns() - before <= 400 * kMillisecondNs);
  (void)pair.delivered();
  pair.finish();
}

TEST_CASE("core / deadlines / one that passes while bytes are on their way") {
  SlowPair pair;
  const AgentEvent sent = pair.send("doc", {.deadline_ns = 20 * kMillisecondNs, .medium = Medium::full});
  CHECK((sent.status.code == Code::timed_out || sent.status.code == Code::rejected));
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}

TEST_CASE("core / agents / the receiver leaves at any moment") {
  for (const TimeNs moment : kMoments) {
    SlowPair pair;
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kFull);
    pair.world.run_for(moment);
    pair.b->node->detach(pair.receiver->handle);
    pair.b->events.clear();
    const AgentEvent sent = pair.ended(ticket);
    CHECK((sent.status.code == Code::not_found || sent.status.code == Code::ok));
    pair.finish();
    CHECK(pair.b->node->store().counters().stagings == 0);
    CHECK(pair.b->node->store().counters().deliveries == 0);
    // The name is free again, on both nodes.
    TestAgent again(*pair.b, "receiver");
    REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("tenant"), name_of("receiver")); }));
  }
}

TEST_CASE("core / agents / the sender leaves at any moment, what it sent goes on") {
  for (const TimeNs moment : kMoments) {
    SlowPair pair;
    (void)pair.sender->send("doc", {"receiver"}, kFull);
    pair.world.run_for(moment);
    pair.a->node->detach(pair.sender->handle);
    pair.a->events.clear();
    CHECK(pair.world.run_until([&] { return pair.world.idle(); }));
    check_whole(pair, true);
    pair.world.check();
    CHECK(pair.a->events[pair.sender->handle.packed()].empty());
  }
}

TEST_CASE("core / integrity / a flipped bit is found and its unit sent again") {
  SlowPair pair;
  transport::sim::LinkModel bad = slow_link();
  bad.chunk_flip = 0.05;
  pair.world.network.set_links(1, 2, bad);
  int good = 0;
  for (int i = 0; i < 20; ++i) {
    const std::string context = std::string("c") + std::to_string(i);
    REQUIRE(pair.sender->commit(context, 200 + static_cast<std::uint64_t>(i), 64).ok());
    const AgentEvent sent = pair.send(context, kFull);
    CHECK((sent.status.code == Code::ok || sent.status.code == Code::corrupt));
    AgentEvent event;
    const bool delivered = pair.receiver->take(AgentEventKind::delivery, event);
    CHECK(delivered == sent.status.ok());
    if (!delivered) continue;
    ++good;
    CHECK(largest_error(*pair.b, read_delivery(*pair.b, event), 200 + static_cast<std::uint64_t>(i)) == 0);
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
  }
  CHECK(good > 10);
  CHECK(pair.b->node->counters().corrupt_units > 0);
  pair.finish();
}

TEST_CASE("core / drain / nothing new is taken, what is open ends") {
  SlowPair pair;
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, kFull);
  pair.world.run_for(10 * kMillisecondNs);
  pair.a->node->drain(pair.world.network.now_ns() + kSecondNs);
  CHECK(!pair.a->node->drained());
  (void)pair.sender->send("doc", {"receiver"}, kFull);
  CHECK(pair.sender->last_status.code == Code::shutting_down);
  pair.sender->last_status = Status{};
  CHECK(pair.ended(ticket).status == Status{});
  check_whole(pair, true);
  CHECK(pair.world.run_until([&] { return pair.a->node->drained(); }, kSecondNs));
  CHECK(pair.a->node->open_transfers() == 0);
  pair.b->node->drain(pair.world.network.now_ns() + 10 * kMillisecondNs);
  pair.world.run_for(20 * kMillisecondNs);
  CHECK(pair.b->node->drained());
}

TEST_CASE("core / commands / what makes no sense is refused at once") {
  Pair pair;
  Node& node = *pair.a->node;
  const AgentHandle agent = pair.sender->handle;
  const std::vector<Name> one{name_of("receiver")};
  CHECK(node.send(agent, 1, name_of("none"), 0, one, {}).code == Code::not_found);
  REQUIRE(pair.sender->commit("doc", 7, 32).ok());
  CHECK(node.send(agent, 0, name_of("doc"), 0, one, {}).code == Code::invalid_argument);
  CHECK(node.send(agent, 1, name_of("doc"), 0, {}, {}).code == Code::invalid_argument);
  CHECK(node.send(agent, 1, name_of("doc"), 9, one, {}).code == Code::not_found);
  CHECK(node.send(AgentHandle{}, 1, name_of("doc"), 0, one, {}).code == Code::not_found);
  CHECK(node.cancel(agent, 12345).code == Code::not_found);
  CHECK(node.release(agent, DeliveryHandle{3, 4}, 0).code == Code::generation_mismatch);
  CHECK(node.begin_task(agent, 0, name_of("w"), 0).code == Code::invalid_argument);
  AgentInfo info = TestAgent::base_info();
  info.name = name_of("sender");
  CHECK(node.attach(info).status().code == Code::already_exists);
  info.name = name_of("other");
  info.accepted = ~MediumMask{0};
  CHECK(node.attach(info).status().code == Code::invalid_argument);
  info.accepted = kAllMedia;
  CHECK(!node.commit(agent, 5, Name{}, TestAgent::tokens_of(1, 16), {}, {}, 0).ok());
  CHECK(node.fetch(agent, 5, name_of("receiver"), Name{}, 0, {}).code == Code::not_found);
  info.layout.layers = 0;
  CHECK(!node.attach(info).ok());
  NodeOptions options = World::small_options(1, 1);
  options.node_id = 0;
  CHECK(!Node::create(options, pair.world.network.clock()).ok());
}

TEST_CASE("core / out of room / sends beyond the table are refused, none is lost") {
  NodeOptions options = World::small_options(1, 1);
  options.limits.max_out = 4;
  Pair pair(options);
  REQUIRE(pair.sender->commit("doc", 7, 32).ok());
  std::vector<TicketId> taken;
  for (int i = 0; i < 10; ++i) {
    const TicketId ticket = pair.sender->send("doc", {"receiver"}, kFull);
    if (pair.sender->last_status.ok()) {
      taken.push_back(ticket);
    } else {
      CHECK(pair.sender->last_status.code == Code::out_of_capacity);
    }
  }
  CHECK(taken.size() == 4);
  pair.sender->last_status = Status{};
  for (const TicketId ticket : taken) {
    CHECK(pair.ended(ticket).status == Status{});
    (void)pair.delivered();
  }
  pair.finish();
}
