// What has many blocks is done some blocks per duty cycle: nothing small waits behind it, nothing of it is
// seen before its end, and it may be broken off at any cycle.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::size_t kManyTokens = 16 * 20'000;
constexpr TimeNs kCycleNs = 300 * kMicrosecondNs;  // what a full cycle may take

// Blocks of 512 bytes.
Layout thin_layout() {
  Layout layout = small_layout();
  layout.layers = 1;
  layout.kv_heads = 1;
  layout.head_dim = 8;
  return layout;
}

// Planes of thin blocks are many small pieces, which want an arena to match.
constexpr std::uint64_t kRoomForRaw = 24U << 20;
constexpr std::uint64_t kRoomForPlanes = 80U << 20;

NodeOptions roomy_options(std::uint64_t receive_bytes) {
  NodeOptions options = World::small_options(1, 1);
  options.store.max_blocks = 1U << 16;
  options.store.table_bytes = 64U << 20;
  options.store.receive_arena_bytes = receive_bytes;
  options.limits.scratch_bytes = 64U << 20;
  return options;
}

AgentInfo thin_agent() {
  AgentInfo info = TestAgent::base_info();
  info.layout = thin_layout();
  info.arena_bytes = 16U << 20;
  return info;
}

// Two nodes whose cycles take time.
struct Busy : Pair {
  explicit Busy(std::uint64_t receive_bytes = kRoomForRaw)
      : Pair(roomy_options(receive_bytes), thin_agent(), thin_agent()) {
    small = std::make_unique<TestAgent>(*a, "small", thin_agent());
    peer = std::make_unique<TestAgent>(*b, "peer", thin_agent());
    REQUIRE(small->commit("note", 9, 40).ok());
    REQUIRE(world.run_until([&] { return a->node->knows(peer->tenant, name_of("peer")); }));
  }
  void cycle() {
    for (auto& [id, host] : world.hosts) host->node->cycle(world.network.now_ns());
    world.network.advance_to(world.network.now_ns() + kCycleNs);
  }
  // Cycles until the small agent's context has come.
  int small_send(const std::string& to) {
    TestAgent& to_agent = to == "peer" ? *peer : *sender;
    small->send("note", {to}, {.medium = Medium::full});
    REQUIRE(small->last_status.ok());
    AgentEvent event;
    int cycles = 0;
    for (; !to_agent.take(AgentEventKind::delivery, event); ++cycles) {
      REQUIRE(cycles < 1'000);
      cycle();
    }
    CHECK(to_agent.host().node->release(to_agent.handle, event.delivery, 0).ok());
    return cycles;
  }
  // Begins the commit of many blocks; the KV is written before.
  void begin_commit(std::string_view context, std::uint64_t seed) {
    const auto blocks = static_cast<std::uint32_t>(kManyTokens / 16);
    const TicketId ticket = sender->next_ticket++;
    REQUIRE(a->node->allocate(sender->handle, ticket, blocks).ok());
    a->node->cycle(world.network.now_ns());
    AgentEvent event;
    REQUIRE(sender->take(AgentEventKind::allocated, event, ticket));
    REQUIRE(event.status.ok());
    std::byte* base = a->node->store().arena(event.extent.arena)->base() + event.extent.offset;
    for (std::size_t token = 0; token < kManyTokens; ++token) {
      TestAgent::write_row(thin_layout(), seed, token, base + token / 16 * thin_layout().block_bytes());
    }
    const auto tokens = TestAgent::tokens_of(seed, kManyTokens);
    REQUIRE(a->node->commit(sender->handle, sender->next_ticket++, name_of(context), tokens, std::span(&event.extent, 1), {}, 0).ok());
  }
  void end_commit() {
    AgentEvent event;
    for (int cycles = 0; !sender->take(AgentEventKind::committed, event); ++cycles) {
      REQUIRE(cycles < 1'000);
      CHECK_FALSE(a->node->ready(sender->handle));
      cycle();
    }
    CHECK(event.status.ok());
    CHECK(event.version_number == 1);
    CHECK(a->node->ready(sender->handle));
  }

  std::unique_ptr<TestAgent> small, peer;
};

}  // namespace

TEST_CASE("core / steps / a commit of many blocks lets others through, and is one commit") {
  Busy busy;
  const int alone = busy.small_send("peer");
  busy.begin_commit("doc", 7);
  CHECK_FALSE(busy.a->node->ready(busy.sender->handle));
  const auto one = TestAgent::tokens_of(1, 16);
  CHECK(busy.a->node->commit(busy.sender->handle, 77, name_of("more"), one, {}, {}, 1).code == Code::busy);
  CHECK(busy.small_send("peer") <= alone + 2);
  CHECK(busy.small_send("sender") <= 2);  // on the same node
  CHECK(busy.sender->count(AgentEventKind::committed) == 0);
  CHECK_FALSE(busy.a->node->store().find_for(busy.sender->handle, name_of("doc"), 0).valid());
  busy.a->node->check();
  busy.end_commit();
  CHECK(busy.sender->count(AgentEventKind::committed) == 0);
  CHECK(busy.a->node->store().find_for(busy.sender->handle, name_of("doc"), 0).valid());
  busy.world.check();
}

TEST_CASE("core / steps / an agent may die while its commit goes on") {
  for (const int cycles : {0, 5, 25, 45, 70}) {
    Busy busy;
    busy.begin_commit("doc", 7);
    for (int i = 0; i < cycles; ++i) busy.cycle();
    REQUIRE(busy.sender->count(AgentEventKind::committed) == 0);
    const AgentHandle gone = busy.sender->handle;
    busy.a->node->detach(gone);
    busy.world.check();
    for (int i = 0; i < 100; ++i) busy.cycle();
    busy.world.check();
    CHECK(busy.a->node->store().counters().blocks == 3);  // those of the small agent's context
    CHECK(busy.a->node->counters().commits == 1);
  }
}

TEST_CASE("core / steps / many blocks that arrive let others through, from the offer to the delivery") {
  for (const Medium medium : {Medium::full, Medium::int8, Medium::tokens}) {
    Busy busy(medium == Medium::int8 ? kRoomForPlanes : kRoomForRaw);
    const int alone = busy.small_send("peer");
    busy.begin_commit("doc", 7);
    busy.end_commit();
    const TicketId ticket = busy.sender->send("doc", {"receiver"}, {.medium = medium});
    int worst = 0;
    int sends = 0;
    for (; busy.receiver->count(AgentEventKind::delivery) == 0; ++sends) {
      REQUIRE(sends < 2'000);
      worst = std::max(worst, busy.small_send("peer"));
      if (sends % 16 == 0) busy.b->node->check();
    }
    CHECK(sends > 10);  // it took its time
    CHECK(worst <= alone + 6);
    const AgentEvent event = busy.delivered();
    const Received got = read_delivery(*busy.b, event);
    CHECK(got.tokens == TestAgent::tokens_of(7, kManyTokens));
    if (medium == Medium::full) CHECK(largest_error(*busy.b, got, 7) == 0);
    if (medium == Medium::int8) CHECK(largest_error(*busy.b, got, 7) < 0.15F);
    CHECK(busy.ended(ticket).status.ok());
    busy.world.check();
  }
}

TEST_CASE("core / steps / a receiver may die, or the sender cancel, at any cycle of a large transfer") {
  for (const bool cancel : {true, false}) {
    for (const int cycles : {3, 20, 45, 60, 80, 100, 130, 160}) {
      CAPTURE(cycles);
      Busy busy;
      busy.begin_commit("doc", 7);
      busy.end_commit();
      const TicketId ticket = busy.sender->send("doc", {"receiver"}, {.medium = Medium::full});
      for (int i = 0; i < cycles; ++i) busy.cycle();
      if (cancel) {
        static_cast<void>(busy.a->node->cancel(busy.sender->handle, ticket));
      } else {
        busy.b->node->detach(busy.receiver->handle);
      }
      AgentEvent event;
      REQUIRE(busy.world.run_until([&] { return busy.sender->take(AgentEventKind::sent, event, ticket); }));
      CHECK(busy.world.run_until([&] { return busy.world.idle(); }));
      busy.world.check();
      if (busy.receiver->take(AgentEventKind::delivery, event)) {
        CHECK(largest_error(*busy.b, read_delivery(*busy.b, event), 7) == 0);
      }
    }
  }
}
