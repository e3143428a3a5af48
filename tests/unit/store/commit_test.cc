#include <optional>

#include "codec/hash.h"
#include "engine/core/manifest.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

TEST_CASE("a committed version can be found, viewed and delivered without a byte moved") {
  Fixture f;
  const AgentHandle planner = f.attach(0, "planner");
  const AgentHandle coder = f.attach(1, "coder");
  const Extent extent = f.allocate(planner, 3);
  f.fill(extent, 7);
  const auto tokens = ids(40);
  const auto version = f.commit(planner, "talk", tokens, {extent});
  REQUIRE(version.ok());
  CHECK(f.store->find(f.tenant, name("planner"), name("talk"), 0) == *version);
  CHECK(f.store->find(f.tenant, name("planner"), name("talk"), 1) == *version);
  CHECK_FALSE(f.store->find(f.tenant, name("planner"), name("talk"), 2).valid());
  CHECK_FALSE(f.store->find(f.tenant, name("coder"), name("talk"), 0).valid());
  CHECK(f.store->find_for(planner, name("talk"), 0) == *version);

  const VersionView view = f.view(*version);
  CHECK(view.number == 1);
  CHECK(view.tokens.size() == 40);
  CHECK(view.tokens[39] == tokens[39]);
  REQUIRE(view.blocks.size() == 3);
  CHECK(f.store->block(view.blocks[2]).tokens == 8);
  CHECK(f.store->block(view.blocks[1]).raw == f.at(extent) + f.layout.block_bytes());
  std::vector<Hash128> hashes(3);
  f.store->hash_chain(f.tenant, f.layout, tokens, hashes);
  CHECK(std::equal(hashes.begin(), hashes.end(), view.hashes.begin()));
  CHECK(hashes[0] == codec::chain(codec::root_hash("team", f.layout), std::span(tokens).first(16)));

  const DeliveryHandle delivery = f.store->deliver(coder, *version);
  REQUIRE(delivery.valid());
  CHECK(f.store->find_for(coder, name("talk"), 0) == *version);
  const ManifestRef manifest = f.store->manifest(delivery);
  CHECK(f.store->may_read(f.tenant, manifest.arena));
  const std::byte* at = f.store->arena(manifest.arena)->base() + manifest.offset;
  const auto* header = reinterpret_cast<const ManifestHeader*>(at);
  CHECK(header->magic == kManifestMagic);
  CHECK(header->owner == name("planner"));
  CHECK(header->version == 1);
  CHECK(header->token_count == 40);
  REQUIRE(header->block_count == 3);
  CHECK(manifest.bytes ==
        sizeof(ManifestHeader) + 3 * sizeof(ManifestBlock) + 40 * sizeof(TokenId));
  const auto* blocks = reinterpret_cast<const ManifestBlock*>(at + header->header_bytes);
  CHECK(blocks[2].arena == extent.arena);
  CHECK(blocks[2].offset == extent.offset + 2 * f.layout.block_bytes());
  CHECK(blocks[2].tokens == 8);
  CHECK(blocks[2].position == 32);
  CHECK(std::memcmp(blocks + 3, tokens.data(), 40 * sizeof(TokenId)) == 0);
  CHECK_FALSE(f.store->release(planner, delivery));
  CHECK(f.store->release(coder, delivery));
  CHECK_FALSE(f.store->release(coder, delivery));
  CHECK(f.store->counters().copied_bytes == 0);
}

TEST_CASE("two agents' same prefix is one set of blocks; their own slots stay their own") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const Extent first = f.allocate(a, 2);
  const Extent second = f.allocate(b, 3);
  const auto va = f.commit(a, "x", ids(32), {first});
  auto longer = ids(32);
  longer.push_back(9);
  const auto vb = f.commit(b, "y", longer, {second});
  REQUIRE((va.ok() && vb.ok()));
  CHECK(f.view(*vb).blocks[0] == f.view(*va).blocks[0]);
  CHECK(f.view(*vb).blocks[1] == f.view(*va).blocks[1]);
  CHECK(f.store->counters().blocks == 3);
  // b's first two slots are still writable, so b may free them; the third is committed and stays.
  CHECK(f.store->free_blocks(b, second).ok());
  CHECK(f.store->free_blocks(b, {second.arena, 2, second.offset}).code == Code::invalid_argument);
  f.store->drop_context(a, name("x"));
  CHECK(f.store->counters().blocks == 3);  // b's version holds a's blocks.
  f.store->check();
  f.store->drop_context(b, name("y"));
  CHECK(f.store->counters().blocks == 0);
}

TEST_CASE("a tail grows in its slot, over the block's end, and old lengths stay readable") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle reader = f.attach(1, "reader");
  const Extent slots = f.allocate(a, 2);
  const auto v1 = f.commit(a, "talk", ids(5), {slots});
  REQUIRE(v1.ok());
  const DeliveryHandle kept = f.store->deliver(reader, *v1);
  const auto v2 = f.commit(a, "talk", ids(9), {{slots.arena, 1, slots.offset}});
  const auto v3 = f.commit(a, "talk", ids(20), {slots});
  REQUIRE((v2.ok() && v3.ok()));
  const BlockView b1 = f.store->block(f.view(*v1).blocks[0]);
  const BlockView b3 = f.store->block(f.view(*v3).blocks[0]);
  CHECK(b1.raw == b3.raw);
  CHECK(b1.tokens == 5);
  CHECK(b3.tokens == 16);
  CHECK(f.view(*v3).number == 3);
  f.store->check();

  SUBCASE("another continuation of committed rows is refused") {
    auto forked = ids(5);
    forked.resize(12, 77);
    const auto refused = f.commit(a, "fork", forked, {slots});
    CHECK(rule_of(refused.status()) == StoreRule::slot_not_writable);
    const Extent tail = f.allocate(a, 1);
    REQUIRE(f.commit(a, "other", ids(6, 500), {tail}).ok());
    auto other = ids(5, 500);
    other.resize(9, 3);
    CHECK(rule_of(f.commit(a, "other", other, {tail}).status()) == StoreRule::rows_committed);
    CHECK(rule_of(f.commit(a, "other", ids(4, 500), {tail}).status()) == StoreRule::rows_committed);
  }
  SUBCASE("versions beyond the newest two go as soon as nobody reads them") {
    CHECK(f.store->find(f.tenant, name("a"), name("talk"), 1) == *v1);
    CHECK(f.store->release(reader, kept));
    CHECK_FALSE(f.store->find(f.tenant, name("a"), name("talk"), 1).valid());
    CHECK(f.store->find(f.tenant, name("a"), name("talk"), 2) == *v2);
  }
}

TEST_CASE("numbers go on after a context was dropped") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  for (int i = 0; i < 3; ++i) {
    const Extent slot = f.allocate(a, 1);
    REQUIRE(f.commit(a, "c", ids(3, static_cast<TokenId>(i) * 50), {slot}).ok());
  }
  CHECK(f.view(f.store->find_for(a, name("c"), 0)).number == 3);
  f.store->drop_context(a, name("c"));
  CHECK_FALSE(f.store->find_for(a, name("c"), 0).valid());
  const auto again = f.commit(a, "c", ids(3), {f.allocate(a, 1)});
  REQUIRE(again.ok());
  CHECK(f.view(*again).number == 4);
}

TEST_CASE("a dropped context that is being read stays until the reader is through") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle reader = f.attach(1, "reader");
  const Extent slot = f.allocate(a, 1);
  const auto version = f.commit(a, "c", ids(3), {slot});
  const DeliveryHandle delivery = f.store->deliver(reader, *version);
  f.store->drop_context(a, name("c"));
  VersionView view;
  CHECK(f.store->view(*version, view));
  CHECK_FALSE(f.store->find(f.tenant, name("a"), name("c"), 0).valid());
  f.store->check();
  CHECK(f.store->release(reader, delivery));
  CHECK_FALSE(f.store->view(*version, view));
  CHECK(f.store->counters().blocks == 0);
  CHECK(f.store->allocate(a, 64).ok());  // All slots of the arena are free again.
}

TEST_CASE("commit passes loss on: blocks computed on a lossy prefix are no better than it") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const VersionHandle lossy =
      f.receive(f.request("far", "doc", ids(32), 4, Medium::full, 3'000), 1);
  const DeliveryHandle prefix = f.store->deliver(a, lossy);
  CHECK(f.view(lossy).epsilon_ppm == 3'000);

  SUBCASE("slots for the new blocks only") {
    const Extent own = f.allocate(a, 1);
    CHECK(rule_of(f.commit(a, "mine", ids(40), {own}, prefix, 1).status()) == StoreRule::too_few_slots);
    CHECK(rule_of(f.commit(a, "mine", ids(40), {own}, {}, 2).status()) == StoreRule::too_few_slots);
    CHECK(rule_of(f.commit(a, "mine", ids(40, 5), {own}, prefix, 2).status()) == StoreRule::too_few_slots);
    CHECK(rule_of(f.commit(a, "mine", ids(40), {}, prefix, 3).status()) == StoreRule::too_few_slots);
    CHECK(rule_of(f.commit(a, "mine", ids(40), {}, prefix, 4).status()) == StoreRule::too_few_slots);
    const auto version = f.commit(a, "mine", ids(40), {own}, prefix, 2);
    REQUIRE(version.ok());
    const VersionView view = f.view(*version);
    CHECK(view.epsilon_ppm == 3'000);
    CHECK(view.blocks[1] == f.view(lossy).blocks[1]);
    CHECK(f.store->block(view.blocks[2]).epsilon_ppm == 3'000);
    // An exact computation of the same blocks takes their place.
    const AgentHandle b = f.attach(1, "b");
    const auto exact = f.commit(b, "exact", ids(40), {f.allocate(b, 3)});
    REQUIRE(exact.ok());
    CHECK(f.view(*exact).epsilon_ppm == 0);
    CHECK(f.store->have(f.tenant, f.layout, ids(40), 0).held_blocks == 3);
    CHECK(f.view(*version).epsilon_ppm == 3'000);
  }
  SUBCASE("the delivery's own slots, named in place") {
    const BlockView b0 = f.store->block(f.view(lossy).blocks[0]);
    const BlockView b1 = f.store->block(f.view(lossy).blocks[1]);
    const Extent own = f.allocate(a, 1);
    const std::vector<Extent> slots{{b0.arena, 1, b0.offset}, {b1.arena, 1, b1.offset}, own};
    const auto version = f.commit(a, "mine", ids(40), slots);
    REQUIRE(version.ok());
    CHECK(f.view(*version).epsilon_ppm == 3'000);
    const std::vector<Extent> swapped{{b1.arena, 1, b1.offset}, {b0.arena, 1, b0.offset}, own};
    CHECK(rule_of(f.commit(a, "mine", ids(40), swapped).status()) == StoreRule::foreign_slot);
  }
  SUBCASE("a prefix of somebody else") {
    const AgentHandle b = f.attach(1, "b");
    CHECK(rule_of(f.commit(b, "c", ids(40), {f.allocate(b, 3)}, prefix).status()) ==
          StoreRule::stale_prefix);
    CHECK(f.store->release(a, prefix));
    CHECK(rule_of(f.commit(a, "c", ids(40), {f.allocate(a, 3)}, prefix).status()) ==
          StoreRule::stale_prefix);
  }
}

TEST_CASE("hostile slots are refused, and nothing changes") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const Extent own = f.allocate(a, 4);
  const Extent others = f.allocate(b, 4);
  const std::uint64_t block = f.layout.block_bytes();
  const auto tokens = ids(32);
  const auto rule = [&](const std::vector<Extent>& slots) {
    return rule_of(f.commit(a, "c", tokens, slots).status());
  };
  CHECK(rule({}) == StoreRule::too_few_slots);
  CHECK(rule({{own.arena, 1, own.offset}}) == StoreRule::too_few_slots);
  CHECK(rule({others}) == StoreRule::foreign_slot);
  CHECK(rule({{0, 2, 0}}) == StoreRule::foreign_slot);
  CHECK(rule({{12345, 2, 0}}) == StoreRule::foreign_slot);
  CHECK(rule({{f.store->receive_arena(f.tenant), 2, 0}}) == StoreRule::foreign_slot);
  CHECK(rule({{own.arena, 2, own.offset + 1}}) == StoreRule::slot_unaligned);
  CHECK(rule({{own.arena, 2, own.offset + block / 2}}) == StoreRule::slot_unaligned);
  CHECK(rule({{own.arena, 0, own.offset}}) == StoreRule::slot_unaligned);
  CHECK(rule({{own.arena, UINT32_MAX, own.offset}}) == StoreRule::slot_unaligned);
  CHECK(rule({{own.arena, 2, UINT64_MAX - block + 1}}) == StoreRule::slot_unaligned);
  CHECK(rule({{own.arena, 2, own.offset + 4 * block}}) ==
        StoreRule::slot_not_writable);  // Never allocated.
  CHECK(rule({{own.arena, 1, own.offset}, {own.arena, 1, own.offset}}) == StoreRule::slot_twice);
  CHECK(rule_of(f.commit(a, "c", {}, {own}).status()) == StoreRule::no_tokens);
  CHECK(rule_of(f.commit(agent_handle(0, 99), "c", tokens, {own}).status()) ==
        StoreRule::no_such_agent);
  CHECK(rule_of(f.commit(agent_handle(7'000, 1), "c", tokens, {own}).status()) ==
        StoreRule::no_such_agent);
  f.store->check();
  CHECK(f.store->counters().blocks == 0);
  CHECK(f.store->counters().versions == 0);
  CHECK(rule({own}) == StoreRule::none);

  const auto free_rule = [&](const Extent& extent) {
    return rule_of(f.store->free_blocks(a, extent));
  };
  CHECK(free_rule(others) == StoreRule::foreign_slot);
  CHECK(free_rule({f.store->receive_arena(f.tenant), 1, 0}) == StoreRule::foreign_slot);
  CHECK(free_rule({own.arena, 0, 0}) == StoreRule::slot_unaligned);
  CHECK(free_rule({own.arena, 1, 3}) == StoreRule::slot_unaligned);
  CHECK(free_rule({own.arena, 1, UINT64_MAX / block * block}) == StoreRule::slot_unaligned);
  CHECK(free_rule({own.arena, 65, 0}) == StoreRule::slot_unaligned);
  CHECK(free_rule({own.arena, 1, 10 * block}) == StoreRule::slot_not_writable);
  CHECK(free_rule(own) == StoreRule::none);
  CHECK(free_rule(own) == StoreRule::none);  // Two of them are committed and left alone.
  CHECK(free_rule({own.arena, 2, own.offset + 2 * block}) == StoreRule::slot_not_writable);
  CHECK(std::string_view(text(StoreRule::slot_twice)).size() > 5);
}

namespace {

// Steps of one block; what `at_step` says ends it.
template <class F>
std::optional<Result<VersionHandle>> in_steps(Fixture& f, CommitHandle commit, F&& at_step) {
  for (int step = 0; at_step(step); ++step) {
    std::uint64_t budget = 1;
    NoAllocScope worker;
    if (auto done = f.store->advance(commit, budget)) {
      return done;
    }
    KVRAIL_ASSERT(budget == 0);
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a commit in steps: nothing of it is seen before the last one, and others go on meanwhile") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const Extent slots = f.allocate(a, 8);
  const auto tokens = ids(16 * 6 + 3);
  REQUIRE(f.commit(a, "talk", ids(40), {slots}).ok());
  const Extent others = f.allocate(b, 3);
  const auto commit = f.store->begin_commit({a, name("talk"), tokens, std::span(&slots, 1), 0, {}});
  REQUIRE(commit.ok());
  CHECK(f.commit(a, "more", ids(5), {slots}).status().code == Code::busy);
  CHECK(f.store->free_blocks(a, slots).code == Code::busy);
  const auto done = in_steps(f, *commit, [&](int step) {
    const AllowAllocScope rest;
    f.store->check();
    CHECK(f.view(f.store->find_for(a, name("talk"), 0)).number == 1);
    if (step == 9) {
      CHECK(f.commit(b, "theirs", ids(40, 7'000), {others}).ok());
    }
    return true;
  });
  REQUIRE(done->ok());
  CHECK(f.view(**done).number == 2);
  CHECK(f.view(**done).blocks.size() == 7);
  CHECK(f.store->have(f.tenant, f.layout, tokens, 0).held_blocks == 7);
  CHECK(f.store->free_blocks(a, slots).ok());  // One was not needed.
}

TEST_CASE("a commit that is refused at its last slot gives all slots back") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const Extent slots = f.allocate(a, 4);
  const Extent free{slots.arena, 1, slots.offset + 4 * f.layout.block_bytes()};
  const std::vector<Extent> named{slots, free};
  const auto tokens = ids(80);
  const auto commit = f.store->begin_commit({a, name("c"), tokens, named, 0, {}});
  REQUIRE(commit.ok());
  const auto done = in_steps(f, *commit, [&](int) {
    const AllowAllocScope rest;
    f.store->check();
    return true;
  });
  CHECK(rule_of(done->status()) == StoreRule::slot_not_writable);
  f.store->check();
  CHECK(f.store->counters().blocks == 0);
  CHECK(f.commit(a, "c", ids(64), {slots}).ok());  // Still the agent's, and writable.
}

TEST_CASE("an agent may die at any step of its commit") {
  const auto tokens = ids(90);
  for (int death = 0;; ++death) {
    CAPTURE(death);
    Fixture f;
    const AgentHandle a = f.attach(0, "a");
    const AgentHandle b = f.attach(1, "b");
    const Extent slots = f.allocate(a, 8);
    REQUIRE(f.commit(a, "c", ids(20), {slots}).ok());
    const DeliveryHandle kept = f.store->deliver(b, f.store->find_for(a, name("c"), 0));
    const auto commit = f.store->begin_commit({a, name("c"), tokens, std::span(&slots, 1), 0, {}});
    REQUIRE(commit.ok());
    const bool ended = in_steps(f, *commit, [&](int step) { return step < death; }).has_value();
    {
      NoAllocScope worker;
      f.store->remove_agent(a);
    }
    f.store->check();
    CHECK(f.view(f.store->find(f.tenant, name("a"), name("c"), 0)).number == (ended ? 2 : 1));
    CHECK(f.store->release(b, kept));
    f.clock.advance(601 * kSecondNs);
    while (f.store->housekeep(f.clock.now_ns(), 1 << 20) != 0) {
    }
    f.store->check();
    CHECK(f.store->counters().blocks == 0);
    CHECK(f.store->arena(slots.arena) == nullptr);
    if (ended) {
      break;
    }
  }
}

TEST_CASE("blocks before the first slot are the prefix's, or those of the version before") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  REQUIRE(f.commit(a, "doc", ids(40), {f.allocate(a, 3)}).ok());
  const DeliveryHandle prefix = f.store->deliver(b, f.store->find_for(a, name("doc"), 0));
  const Extent own = f.allocate(b, 4);
  const Extent first{own.arena, 2, own.offset};
  const auto v1 = f.commit(b, "work", ids(60), {first}, prefix, 2);  // Blocks 2 and 3, the tail copied.
  REQUIRE(v1.ok());
  CHECK(f.view(*v1).blocks[1] == f.view(f.store->find_for(a, name("doc"), 0)).blocks[1]);
  CHECK(f.store->block(f.view(*v1).blocks[2]).offset == own.offset);
  CHECK(f.store->release(b, prefix));
  const auto v2 = f.commit(b, "work", ids(100), {own, f.allocate(b, 1)}, {}, 2);  // It grew; nothing was delivered.
  REQUIRE(v2.ok());
  CHECK(f.view(*v2).blocks.size() == 7);
  CHECK(f.view(*v2).blocks[0] == f.view(*v1).blocks[0]);
  const auto whole = f.commit(b, "copy", ids(40), {}, f.store->deliver(b, f.store->find_for(a, name("doc"), 0)), 3);
  REQUIRE(whole.ok());  // Its tail too.
  CHECK(f.view(*whole).tokens.size() == 40);
}

TEST_CASE("a large version that goes lets its blocks go in steps, or when room is wanted") {
  StoreOptions options = small_options();
  options.max_blocks = 2048;
  options.table_bytes = 4 << 20;
  options.agent_arena_bytes = 4 << 20;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  const Extent slots = f.allocate(a, 2000);
  REQUIRE(f.commit(a, "c", ids(16 * 2000), {slots}).ok());
  f.store->drop_context(a, name("c"));
  f.store->check();
  CHECK(f.store->counters().blocks == 2000);
  CHECK_FALSE(f.store->find_for(a, name("c"), 0).valid());
  SUBCASE("in steps") {
    CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 1024);
    f.store->check();
    CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 2000 - 1024);
    CHECK(f.store->counters().versions == 0);
  }
  SUBCASE("when room is wanted") {
    CHECK(f.store->allocate(a, 500).ok());
    f.store->check();
    CHECK(f.store->counters().blocks <= 1500);
    CHECK(f.store->allocate(a, 1500).ok());
  }
  CHECK(f.store->counters().blocks == 0);
}
