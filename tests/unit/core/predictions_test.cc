// What a transfer is predicted to take against what it takes, and the choice that follows from it.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr TimeNs kWayNs = 20 * kMillisecondNs;

transport::sim::LinkModel link_of(std::uint64_t rate, TimeNs latency_ns) {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = rate;
  link.latency_ns = latency_ns;
  return link;
}

double ratio(TimeNs a, TimeNs b) { return static_cast<double>(a) / static_cast<double>(b); }

}  // namespace

TEST_CASE("core / predictions / token ids: the offer's way and the recompute, no less") {
  AgentInfo info = TestAgent::base_info();
  Pair pair(World::small_options(1, 1), info, info, link_of(125'000'000, kWayNs));
  const auto deliver = [&](std::uint64_t seed, std::size_t tokens, Medium medium) {
    const std::string context = "doc" + std::to_string(seed);
    REQUIRE(pair.sender->commit(context, seed, tokens).ok());
    const TimeNs begin_ns = pair.world.network.now_ns();
    const TicketId ticket = pair.sender->send(context, {"receiver"}, {.medium = medium});
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::delivery, event); }));
    const TimeNs arrived_ns = pair.world.network.now_ns() - begin_ns;
    const TimeNs recompute_ns = medium == Medium::tokens ? static_cast<TimeNs>(tokens) * kMillisecondNs : 0;
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, recompute_ns).ok());
    (void)pair.ended(ticket);
    return ratio(event.predicted_ns, arrived_ns + recompute_ns);
  };
  (void)deliver(1, 1000, Medium::full);  // the sender learns the round trip
  double last = 0;
  for (std::uint64_t i = 0; i < 12; ++i) last = deliver(10 + i, 64, Medium::tokens);
  CHECK(last > 0.95);
  CHECK(last < 1.05);
  pair.finish();
}

TEST_CASE("core / predictions / a receiver that waits for the bytes of another is told so") {
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(),
            link_of(5'000'000, kMillisecondNs));
  TestAgent second(*pair.b, "second");
  REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(name_of("tenant"), name_of("second")); }));
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const std::string context = "doc" + std::to_string(seed);
    REQUIRE(pair.sender->commit(context, seed, 500).ok());
    (void)pair.sender->send(context, {"receiver", "second"}, {.medium = Medium::full});
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return second.take(AgentEventKind::delivery, event); }));
    CHECK(event.observed_ns > 40 * kMillisecondNs);
    CHECK(ratio(event.predicted_ns, event.observed_ns) > 0.95);
    CHECK(ratio(event.predicted_ns, event.observed_ns) < 1.05);
    AgentEvent first;
    REQUIRE(pair.receiver->take(AgentEventKind::delivery, first));
    CHECK(pair.b->node->release(pair.receiver->handle, first.delivery, -1).ok());
    CHECK(pair.b->node->release(second.handle, event.delivery, -1).ok());
    REQUIRE(pair.world.run_until([&] { return pair.world.idle(); }));
    CHECK(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
  }
}

TEST_CASE("core / predictions / agents that wait for each other pay no price for the link") {
  AgentInfo info = TestAgent::base_info();
  info.accepted = mask_of(Medium::tokens) | mask_of(Medium::full) | mask_of(Medium::int8);
  info.compute.prefill_per_token_ns = 120'000;  // 500 tokens: 60 ms
  // 132 kB of int8 in 40 ms. Each round waits for the one before, so nobody is ever delayed, however
  // often they come.
  Pair pair(World::small_options(1, 1), info, info, link_of(3'300'000, 100'000));
  std::size_t int8 = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const std::string context = "doc" + std::to_string(seed);
    REQUIRE(pair.sender->commit(context, seed, 500).ok());
    (void)pair.send(context);
    const AgentEvent event = pair.delivered();
    if (seed > 15) int8 += event.medium == Medium::int8 ? 1 : 0;
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, event.medium == Medium::tokens ? 60'000'000 : -1).ok());
    CHECK(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
  }
  CHECK(int8 == 25);
  pair.finish();
}

TEST_CASE("core / predictions / a link that has become faster is found out") {
  AgentInfo info = TestAgent::base_info();
  info.accepted = mask_of(Medium::tokens) | mask_of(Medium::full) | mask_of(Medium::int8);
  info.compute.prefill_per_token_ns = 120'000;  // 500 tokens: 60 ms
  Pair pair(World::small_options(1, 1), info, info, link_of(625'000, 100'000));  // int8: 211 ms
  std::array<std::size_t, 2> recomputed{};
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    if (seed == 31) pair.world.network.set_links(1, 2, link_of(25'000'000, 100'000));  // int8: 5 ms
    const std::string context = "doc" + std::to_string(seed);
    REQUIRE(pair.sender->commit(context, seed, 500).ok());
    (void)pair.send(context);
    const AgentEvent event = pair.delivered();
    const bool tokens = event.medium == Medium::tokens;
    if (seed > 20 && seed <= 30) recomputed[0] += tokens ? 1 : 0;
    if (seed > 250) recomputed[1] += tokens ? 1 : 0;
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, tokens ? 60'000'000 : -1).ok());
    CHECK(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
  }
  CHECK(recomputed[0] == 10);
  CHECK(recomputed[1] == 0);
  pair.finish();
}

// 51 kB take 10 ms of a lane of 5 MB/s, and while ten times as much comes from another peer twice that: of it as much goes
// before. (Lanes of the simulated transport don't really share; this is about what the receiver reckons with.)
TEST_CASE("core / predictions / what another peer brings through the same interface is counted while it comes") {
  NodeOptions options = World::small_options(1, 1);
  options.lane_rate_hint_bytes_per_s = 5'000'000;
  Pair pair(options, TestAgent::base_info(), TestAgent::base_info(), link_of(5'000'000, kMillisecondNs));
  Host& c = pair.world.add(3, &options);
  pair.world.dial(c, 2);
  TestAgent other(c, "other");
  REQUIRE(pair.world.run_until([&] { return c.node->knows(name_of("tenant"), name_of("receiver")); }));
  const auto predicted = [&](std::uint64_t seed) {
    const std::string context = "doc" + std::to_string(seed);
    REQUIRE(pair.sender->commit(context, seed, 100).ok());
    const TicketId ticket = pair.sender->send(context, {"receiver"}, {.medium = Medium::full});
    (void)pair.ended(ticket);
    AgentEvent event;
    REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::delivery, event); }));
    CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
    return event.predicted_ns;
  };
  for (std::uint64_t seed = 1; seed <= 8; ++seed) (void)predicted(seed);
  const TimeNs alone_ns = predicted(9);
  REQUIRE(other.commit("large", 10, 1000).ok());
  const TicketId large = other.send("large", {"receiver"}, {.medium = Medium::full});
  pair.world.run_for(20 * kMillisecondNs);
  const TimeNs beside_ns = predicted(11);
  CHECK(ratio(beside_ns, alone_ns) > 1.5);
  CHECK(ratio(beside_ns, alone_ns) < 2.3);
  AgentEvent event;
  REQUIRE(pair.world.run_until([&] { return other.take(AgentEventKind::sent, event, large); }, 40 * kSecondNs));
  REQUIRE(pair.world.run_until([&] { return pair.receiver->take(AgentEventKind::delivery, event); }));
  CHECK(pair.b->node->release(pair.receiver->handle, event.delivery, 0).ok());
  CHECK(ratio(predicted(12), alone_ns) < 1.3);
  pair.finish();
}
