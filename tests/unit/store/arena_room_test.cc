// Room in an agent's arena against what is only kept for later.
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

TEST_CASE("contexts from elsewhere that share an agent's blocks make room for the agent") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const auto slots = static_cast<std::uint32_t>(small_options().agent_arena_bytes / f.layout.block_bytes());
  const Extent all = f.allocate(a, slots);
  const std::vector<TokenId> tokens = ids(slots * f.layout.block_tokens);
  REQUIRE(f.commit(a, "document", tokens, {all}).ok());
  // Another node's context on the same tokens: all its blocks are held already, in a's arena.
  const auto staging = f.stage(f.request("far", "work", tokens));
  REQUIRE(staging.ok());
  const auto work = f.publish(*staging);
  REQUIRE(work.ok());
  const VersionHandle apart = f.receive(f.request("far", "other", ids(16, 5'000)), 3);
  f.store->drop_context(a, name("document"));
  VersionView view;
  REQUIRE(f.store->view(*work, view));

  SUBCASE("nobody uses it: it goes, and what shares nothing stays") {
    CHECK(f.store->allocate(a, 1).ok());
    CHECK((f.store->view(*work, view) && view.stub));
    CHECK((f.store->view(apart, view) && !view.stub));
  }
  SUBCASE("somebody uses it: it stays, and the agent is told that there is no room") {
    const DeliveryHandle delivery = f.store->deliver(b, *work);
    REQUIRE(delivery.valid());
    CHECK(f.store->allocate(a, 1).status().code == Code::out_of_capacity);
    CHECK(f.store->view(*work, view));
    CHECK(f.store->view(apart, view));
    REQUIRE(f.store->release(b, delivery));
    CHECK(f.store->allocate(a, slots).ok());
  }
}
