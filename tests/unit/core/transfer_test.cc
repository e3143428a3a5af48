// Each medium from one node to another, over a simulated network.
#include <doctest/doctest.h>

#include "tests/support/node_world.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

struct Pair {
  explicit Pair(NodeOptions options = World::small_options(1, 1)) {
    a = &world.add(1, &options);
    b = &world.add(2, &options);
    world.dial(*a, 2);
    sender = std::make_unique<TestAgent>(*a, "sender");
    receiver = std::make_unique<TestAgent>(*b, "receiver");
    REQUIRE(world.run_until([&] { return a->node->knows(name_of("tenant"), name_of("receiver")) &&
                                         b->node->knows(name_of("tenant"), name_of("sender")); }));
  }
  // Runs until the ticket has ended; the event of the sender.
  AgentEvent ended(TicketId ticket) {
    AgentEvent event;
    REQUIRE(sender->last_status == Status{});
    REQUIRE(world.run_until([&] { return sender->take(AgentEventKind::sent, event, ticket); }));
    return event;
  }
  AgentEvent delivered() {
    AgentEvent event;
    REQUIRE(receiver->take(AgentEventKind::delivery, event));
    return event;
  }
  void finish() {
    CHECK(world.run_until([&] { return world.idle(); }));
    world.check();
  }

  World world;
  Host* a = nullptr;
  Host* b = nullptr;
  std::unique_ptr<TestAgent> sender, receiver;
};

}  // namespace

TEST_CASE("core / medium full / a context arrives bit for bit") {
  Pair pair;
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  const AgentEvent sent = pair.ended(pair.sender->send("doc", {"receiver"}, {.medium = Medium::full}));
  CHECK(sent.status == Status{});
  CHECK(sent.medium == Medium::full);
  CHECK(sent.missing_blocks == 7);
  CHECK(sent.bytes == 100 * small_layout().token_bytes());
  const AgentEvent event = pair.delivered();
  const Received got = read_delivery(*pair.b, event);
  CHECK(got.tokens == TestAgent::tokens_of(7, 100));
  CHECK(got.blocks.size() == 7);
  CHECK(largest_error(*pair.b, got, 7) == 0);
  CHECK(pair.receiver->count(AgentEventKind::delivery) == 0);
  pair.finish();
}
