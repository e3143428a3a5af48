// Two nodes with one agent each, connected: where most tests of the core start.
#pragma once

#include <doctest/doctest.h>

#include "tests/support/node_world.h"
#include "transport/wire/codec.h"

namespace kvrail::testing {

namespace wire = transport::wire;

struct Pair {
  // `receivers`: options of the second node where they differ.
  explicit Pair(const NodeOptions& options = World::small_options(1, 1), AgentInfo from = TestAgent::base_info(),
                AgentInfo to = TestAgent::base_info(), const transport::sim::LinkModel& link = {},
                const NodeOptions* receivers = nullptr)
      : world(1, link) {
    a = &world.add(1, &options);
    b = &world.add(2, receivers != nullptr ? receivers : &options);
    world.dial(*a, 2);
    sender = std::make_unique<TestAgent>(*a, "sender", from);
    receiver = std::make_unique<TestAgent>(*b, "receiver", to);
    REQUIRE(world.run_until([&] {
      return a->node->knows(to.tenant, name_of("receiver")) && b->node->knows(from.tenant, name_of("sender"));
    }));
  }
  // Runs until the ticket has ended; the event of the sender.
  AgentEvent ended(TicketId ticket, TimeNs within_ns = 40 * kSecondNs) {
    AgentEvent event;
    REQUIRE(sender->last_status == Status{});
    REQUIRE(world.run_until([&] { return sender->take(AgentEventKind::sent, event, ticket); }, within_ns));
    return event;
  }
  AgentEvent send(std::string_view context, const SendOptions& options = {}) {
    return ended(sender->send(context, {"receiver"}, options));
  }
  AgentEvent delivered() {
    AgentEvent event;
    REQUIRE(receiver->take(AgentEventKind::delivery, event));
    return event;
  }
  // The delivery is there, exact, and of these tokens.
  Received exact(std::uint64_t seed, std::size_t tokens) {
    const AgentEvent event = delivered();
    Received got = read_delivery(*b, event);
    CHECK(got.tokens == TestAgent::tokens_of(seed, tokens));
    CHECK(got.blocks.size() == (tokens + 15) / 16);
    CHECK(largest_error(*b, got, seed) == 0);
    CHECK(b->node->release(receiver->handle, event.delivery, 0).ok());
    return got;
  }
  // Nothing is open any more, nothing is left over, no event came twice.
  void finish() {
    CHECK(world.run_until([&] { return world.idle(); }));
    CHECK(sender->count(AgentEventKind::sent) == 0);
    CHECK(receiver->count(AgentEventKind::delivery) == 0);
    world.check();
  }

  World world;
  Host* a = nullptr;
  Host* b = nullptr;
  std::unique_ptr<TestAgent> sender, receiver;
};

}  // namespace kvrail::testing
