#include <string>

#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

TEST_CASE("absurd layouts and sizes are refused with one clear line") {
  const StoreOptions options = small_options();
  Layout layout = small_layout();
  layout.block_tokens = 1U << 31;
  auto refused = Store::prepare_agent(options, layout, 0);
  CHECK(refused.status().code == Code::invalid_argument);
  CHECK(refused.error().message.find("block_tokens") != std::string::npos);
  layout.block_tokens = 512;
  layout.layers = 1'024;
  layout.kv_heads = 1'024;
  layout.head_dim = 576;
  refused = Store::prepare_agent(options, layout, 0);
  CHECK(refused.status().code == Code::too_large);
  layout = small_layout();
  refused = Store::prepare_agent(options, layout, layout.block_bytes() - 1);
  CHECK(refused.status().code == Code::too_large);
  CHECK(refused.error().message.find(std::to_string(layout.block_bytes())) != std::string::npos);

  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  CHECK(f.store->allocate(a, UINT32_MAX).status().code == Code::too_large);
  CHECK(f.store->allocate(a, 65).status().code == Code::too_large);
  CHECK(f.store->allocate(a, 0).status().code == Code::invalid_argument);
  CHECK(f.store->allocate(agent_handle(0, 77), 1).status().code == Code::invalid_argument);
}

TEST_CASE("options that cannot work are refused at creation") {
  VirtualClock clock;
  StoreOptions options = small_options();
  options.max_blocks = 0;
  CHECK(Store::create(options, clock).status().code == Code::invalid_argument);
  options = small_options();
  options.table_bytes = 1'000;
  CHECK(Store::create(options, clock).status().code == Code::invalid_argument);
  options = small_options();
  options.context_ttl_ns = 0;
  CHECK(Store::create(options, clock).status().code == Code::invalid_argument);
}

TEST_CASE("an arena without a run that long says how long one there is") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const Extent all = f.allocate(a, 64);
  const std::uint64_t block = f.layout.block_bytes();
  CHECK(f.store->allocate(a, 1).status().code == Code::out_of_capacity);
  CHECK(f.store->free_blocks(a, {all.arena, 3, 10 * block}).ok());
  CHECK(f.store->free_blocks(a, {all.arena, 5, 20 * block}).ok());
  const Status status = f.store->allocate(a, 6).status();
  CHECK(status.code == Code::out_of_capacity);
  CHECK(status.detail == 5);
  CHECK(f.allocate(a, 2).offset == 10 * block);
}

TEST_CASE("full tables refuse and stay whole: versions") {
  StoreOptions options = small_options();
  options.max_versions = 4;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  const Extent slots = f.allocate(a, 5);
  const std::uint64_t block = f.layout.block_bytes();
  for (std::uint32_t i = 0; i < 4; ++i) {
    REQUIRE(
        f.commit(a, std::string("c") + std::to_string(i), ids(16, i * 100), {{slots.arena, 1, i * block}}).ok());
  }
  const Extent last{slots.arena, 1, 4 * block};
  CHECK(f.commit(a, "c4", ids(16, 400), {last}).status().code == Code::out_of_capacity);
  CHECK(f.stage(f.request("far", "c", ids(16))).status().code == Code::out_of_capacity);
  CHECK(f.store->counters().stagings == 0);
  f.store->check();
  f.store->drop_context(a, name("c0"));
  CHECK(f.commit(a, "c4", ids(16, 400), {last}).ok());
}

TEST_CASE("full tables refuse and stay whole: blocks, and the slots remain the agent's") {
  StoreOptions options = small_options();
  options.max_blocks = 8;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  const Extent slots = f.allocate(a, 8);
  REQUIRE(f.commit(a, "small", ids(32, 5'000), {{slots.arena, 2, 0}}).ok());
  const auto refused = f.commit(
      a, "big", ids(112), {{slots.arena, 6, 2 * f.layout.block_bytes()}, {slots.arena, 1, 0}});
  CHECK_FALSE(refused.ok());
  f.store->check();
  CHECK(f.store->counters().blocks == 2);
  CHECK(f.commit(a, "big", ids(96), {{slots.arena, 6, 2 * f.layout.block_bytes()}}).ok());
  CHECK(f.stage(f.request("far", "c", ids(16, 900))).status().code == Code::out_of_capacity);
  CHECK(f.commit(a, "more", ids(16 * 9, 900), {slots}).status().code == Code::too_large);
}

TEST_CASE("full tables refuse and stay whole: stagings and deliveries") {
  StoreOptions options = small_options();
  options.max_stagings = 2;
  options.max_deliveries = 2;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  const auto first = f.stage(f.request("far", "a", ids(3)));
  const auto second = f.stage(f.request("far", "b", ids(3)));
  REQUIRE((first.ok() && second.ok()));
  CHECK(f.stage(f.request("far", "c", ids(3))).status().code == Code::out_of_capacity);
  f.store->abandon(*first);
  const auto version = f.publish(*second);
  const DeliveryHandle one = f.store->deliver(a, *version);
  CHECK(f.store->deliver(a, *version).valid());
  CHECK_FALSE(f.store->deliver(a, *version).valid());
  CHECK(f.store->release(a, one));
  CHECK(f.store->deliver(a, *version).valid());
  CHECK(f.store->find_for(a, name("b"), 0) == *version);
}

TEST_CASE("exhausted table memory is an answer, not the end") {
  StoreOptions options = small_options();
  options.table_bytes = 112 * 1024;
  options.max_blocks = 1'024;
  options.max_versions = 256;
  Fixture f(options);
  std::vector<StagingHandle> stagings;
  Status last;
  for (TokenId i = 0; i < 16; ++i) {
    const auto staging = f.stage(f.request("far", "c", ids(16 * 120, i * 10'000)));
    last = staging.status();
    if (!staging.ok()) {
      break;
    }
    f.store->abandon(*staging);
    stagings.push_back(*staging);
  }
  CHECK(last.ok());  // Each by itself fits.
  const AgentHandle a = f.attach(0, "a");
  const Extent slot = f.allocate(a, 64);
  std::uint32_t committed = 0;
  for (std::uint32_t i = 0; i < 250; ++i) {
    // 30 blocks, all shared after the first commit: 30 * 25 bytes of lists each.
    const auto version = f.commit(a, std::string("c").append(std::to_string(i)), ids(480), {slot});
    if (!version.ok()) {
      CHECK(version.status().code == Code::out_of_memory);
      break;
    }
    ++committed;
  }
  CHECK(committed > 10);
  CHECK(committed < 250);
  f.store->check();
  f.store->drop_context(a, name("c0"));
  CHECK(f.commit(a, "again", ids(480), {slot}).ok());
}

TEST_CASE("a commit needs room for its manifest only, and planes may find none") {
  StoreOptions options = small_options();
  options.receive_arena_bytes = 4096;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  const Extent slots = f.allocate(a, 64);
  const auto version = f.commit(a, "c", ids(320), {slots});
  REQUIRE(version.ok());
  const auto full = f.commit(a, "d", ids(700), {slots});
  CHECK(full.status().code == Code::out_of_memory);
  f.store->check();
  std::uint32_t attached = 0;
  for (const BlockHandle block : f.view(*version).blocks) {
    attached += f.store->attach_planes(block, f.coding(Medium::int8)) ? 1 : 0;
  }
  CHECK(attached < 20);
  CHECK(f.stage(f.request("far", "x", ids(64, 9'000))).status().code == Code::too_large);
  f.store->check();
}

TEST_CASE("a tenant's shares of the tables are bounded, other tenants are not touched") {
  StoreOptions options = small_options();
  options.tenant_max_versions = 2;
  options.tenant_max_blocks = 6;
  Fixture f(options);
  const TenantHandle other = f.store->ensure_tenant(name("other")).value();
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b", other);
  const Extent slots = f.allocate(a, 10);
  const std::uint64_t block = f.layout.block_bytes();
  CHECK(f.commit(a, "c", ids(16 * 7), {slots}).status().code == Code::quota_exceeded);
  REQUIRE(f.commit(a, "c", ids(16 * 2), {slots}).ok());
  REQUIRE(f.commit(a, "d", ids(16 * 2, 900), {{slots.arena, 2, 2 * block}}).ok());
  CHECK(f.commit(a, "e", ids(16, 1'900), {{slots.arena, 1, 4 * block}}).status().code ==
        Code::quota_exceeded);
  REQUIRE(f.commit(b, "c", ids(16 * 3), {f.allocate(b, 3)}).ok());
  f.store->check();
}

TEST_CASE("prepared memory is adopted without allocation, and only where it fits") {
  Fixture f;
  auto tenant_memory = Store::prepare_tenant(small_options(), name("fresh"));
  auto agent_memory = Store::prepare_agent(small_options(), f.layout, 0);
  REQUIRE((tenant_memory.ok() && agent_memory.ok()));
  const Name fresh = name("fresh");
  const Name who = name("who");
  {
    NoAllocScope worker;
    const auto tenant = f.store->ensure_tenant(fresh, std::move(*tenant_memory));
    KVRAIL_ASSERT(tenant.ok());
    KVRAIL_ASSERT(
        f.store->add_agent(agent_handle(3), who, *tenant, f.layout, std::move(*agent_memory)).ok());
  }
  auto wrong = Store::prepare_agent(small_options(), f.layout, 0);
  CHECK(rule_of(f.store->ensure_tenant(name("x"), std::move(*wrong)).status()) ==
        StoreRule::import_only);
  auto layout = f.layout;
  layout.rope_base = 5;
  auto other = Store::prepare_agent(small_options(), layout, 0);
  CHECK(rule_of(f.store->add_agent(agent_handle(4), who, f.tenant, f.layout, std::move(*other))
                    .status()) == StoreRule::import_only);
  CHECK(rule_of(f.store->import_range(agent_handle(3), nullptr).status()) ==
        StoreRule::import_only);
}
