#include <optional>

#include "engine/core/manifest.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

TEST_CASE("a staged context is invisible until it is published, then all of it is there") {
  Fixture f;
  const AgentHandle reader = f.attach(0, "reader");
  const auto tokens = ids(40);
  const std::uint64_t before = f.store->memory(f.tenant).free_bytes;
  const auto staging = f.stage(f.request("far", "doc", tokens, 7));
  REQUIRE(staging.ok());
  CHECK(f.store->memory(f.tenant).staged_bytes == 3 * f.layout.block_bytes());
  CHECK_FALSE(f.store->find(f.tenant, name("far"), name("doc"), 0).valid());
  CHECK(f.store->have(f.tenant, f.layout, tokens, 0).held_blocks == 0);
  f.store->check();

  SUBCASE("published") {
    Store::StagingView view;
    REQUIRE(f.store->view(*staging, view));
    CHECK(view.block_count == 3);
    CHECK(view.tail_from_row == 0);
    CHECK(view.missing[0] + view.missing[1] + view.missing[2] == 3);
    const auto version = f.publish(*staging);
    REQUIRE(version.ok());
    CHECK_FALSE(f.store->view(*staging, view));
    CHECK(f.publish(*staging).status().code == Code::generation_mismatch);
    CHECK(f.store->find(f.tenant, name("far"), name("doc"), 7) == *version);
    const HaveResult have = f.store->have(f.tenant, f.layout, tokens, 0);
    CHECK(have.leading_blocks == 2);
    CHECK(have.held_blocks == 3);
    CHECK(f.store->memory(f.tenant).staged_bytes == 0);
    CHECK(f.store->deliver(reader, *version).valid());
  }
  SUBCASE("abandoned") {
    f.store->abandon(*staging);
    f.store->abandon(*staging);
    CHECK(f.store->memory(f.tenant).free_bytes == before);
    CHECK(f.store->counters().blocks == 0);
    CHECK_FALSE(f.publish(*staging).ok());
  }
}

TEST_CASE("only what is missing is staged; tenants never share") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  REQUIRE(f.commit(a, "mine", ids(32), {f.allocate(a, 2)}).ok());
  const auto staging = f.stage(f.request("far", "doc", ids(48)));
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.missing[0] == 0);
  CHECK(view.missing[1] == 0);
  CHECK(view.missing[2] == 1);

  const TenantHandle other = f.store->ensure_tenant(name("rivals")).value();
  CHECK(f.store->have(other, f.layout, ids(32), 1'000'000).held_blocks == 0);
  StageRequest request = f.request("far", "doc", ids(32));
  request.tenant = other;
  const auto foreign = f.stage(request);
  REQUIRE(foreign.ok());
  REQUIRE(f.store->view(*foreign, view));
  CHECK(view.missing[0] == 1);
  const auto version = f.publish(*foreign);
  CHECK_FALSE(f.store->find(f.tenant, name("far"), name("doc"), 0).valid());
  CHECK(f.store->find(other, name("far"), name("doc"), 0) == *version);
  CHECK_FALSE(f.store->deliver(a, *version).valid());
  CHECK_FALSE(f.store->may_read(f.tenant, f.store->receive_arena(other)));
  CHECK_FALSE(f.store->may_read(f.tenant, 4'711));
  f.store->abandon(*staging);
}

TEST_CASE("lossy copies never count as exact, and better ones take their place") {
  Fixture f;
  const auto tokens = ids(32);
  const VersionHandle lossy = f.receive(f.request("far", "doc", tokens, 1, Medium::full, 2'000), 1);
  CHECK(f.store->have(f.tenant, f.layout, tokens, 1'999).held_blocks == 0);
  CHECK(f.store->have(f.tenant, f.layout, tokens, 2'000).held_blocks == 2);
  const auto staging = f.stage(f.request("far", "doc", tokens, 1));
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.missing[0] == 1);
  const auto exact = f.publish(*staging);
  REQUIRE(exact.ok());
  CHECK(*exact != lossy);
  CHECK(f.store->find(f.tenant, name("far"), name("doc"), 1) == *exact);
  CHECK(f.store->have(f.tenant, f.layout, tokens, 0).held_blocks == 2);

  SUBCASE("the bound for held blocks may be wider than the loss of what is sent") {
    StageRequest wide = f.request("other", "doc", ids(32, 900), 1, Medium::full, 2'000);
    f.receive(wide, 1);
    wide.epsilon_ppm = 0;
    wide.held_limit_ppm = 5'000;
    const auto held = f.stage(wide);
    REQUIRE(f.store->view(*held, view));
    CHECK(view.missing[0] == 0);
    f.store->abandon(*held);
  }
  SUBCASE("the same again is the version that is there") {
    const auto again = f.stage(f.request("far", "doc", tokens, 1));
    CHECK(*f.publish(*again) == *exact);
  }
}

TEST_CASE("a received tail grows by rows, in place where nothing forks") {
  Fixture f;
  const VersionHandle v1 = f.receive(f.request("far", "doc", ids(20), 1), 11);
  const HaveResult have = f.store->have(f.tenant, f.layout, ids(30), 0);
  CHECK(have.leading_blocks == 1);
  CHECK(have.tail_rows == 4);
  const auto staging = f.stage(f.request("far", "doc", ids(30), 2));
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.tail_block == 1);
  CHECK(view.tail_from_row == 4);
  CHECK(f.store->block(view.blocks[1]).raw == f.store->block(f.view(v1).blocks[1]).raw);
  CHECK(f.store->memory(f.tenant).staged_bytes > 0);

  SUBCASE("published: old rows and new") {
    f.write_rows(view.blocks[1], 4, 22);
    const auto v2 = f.publish(*staging);
    REQUIRE(v2.ok());
    CHECK(f.row_value(f.view(*v2).blocks[1], 3) == 11);
    CHECK(f.row_value(f.view(*v2).blocks[1], 4) == 22);
    CHECK(f.store->counters().copied_bytes == 0);
    // A fork of version 1 can't use the slot any more: its rows are copied, and counted.
    auto forked = ids(20);
    forked.resize(26, 5);
    const auto fork = f.stage(f.request("far", "fork", forked, 1));
    REQUIRE(f.store->view(*fork, view));
    CHECK(view.tail_from_row == 4);
    CHECK(f.store->block(view.blocks[1]).raw != f.store->block(f.view(v1).blocks[1]).raw);
    CHECK(f.row_value(view.blocks[1], 3) == 11);
    CHECK(f.store->counters().copied_bytes == 4 * f.layout.token_bytes());
    f.write_rows(view.blocks[1], 4, 33);
    REQUIRE(f.publish(*fork).ok());
    CHECK(f.row_value(f.view(*v2).blocks[1], 4) == 22);
  }
  SUBCASE("abandoned: the tail may grow in place another time") {
    f.store->abandon(*staging);
    const auto again = f.stage(f.request("far", "doc", ids(25), 2));
    REQUIRE(f.store->view(*again, view));
    CHECK(view.tail_from_row == 4);
    CHECK(f.store->block(view.blocks[1]).raw == f.store->block(f.view(v1).blocks[1]).raw);
    REQUIRE(f.publish(*again).ok());
  }
  SUBCASE("a second growth at the same time copies") {
    const auto second = f.stage(f.request("far", "doc", ids(31), 3));
    Store::StagingView other;
    REQUIRE(f.store->view(*second, other));
    CHECK(other.tail_from_row == 4);
    CHECK(f.store->block(other.blocks[1]).raw != f.store->block(view.blocks[1]).raw);
    f.store->abandon(*staging);
    REQUIRE(f.publish(*second).ok());
  }
  SUBCASE("int8 sends the whole tail") {
    f.store->abandon(*staging);
    const auto coded = f.stage(f.request("far", "doc", ids(30), 2, Medium::int8, 900));
    REQUIRE(f.store->view(*coded, view));
    CHECK(view.tail_from_row == 0);
    CHECK(view.missing[1] == 1);
    f.store->abandon(*coded);
  }
}

TEST_CASE("the growing block may have become full and have others after it") {
  Fixture f;
  f.receive(f.request("far", "doc", ids(10), 1), 1);
  CHECK(f.store->have(f.tenant, f.layout, ids(40), 0).tail_rows == 10);
  const auto staging = f.stage(f.request("far", "doc", ids(40), 2));
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.tail_block == 0);
  CHECK(view.tail_from_row == 10);
  CHECK(view.missing[2] == 1);
  REQUIRE(f.publish(*staging).ok());
}

TEST_CASE("a tail in an agent's arena is copied: only the agent writes there") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const Extent slot = f.allocate(a, 1);
  f.fill(slot, 9);
  REQUIRE(f.commit(a, "c", ids(6), {slot}).ok());
  const auto staging = f.stage(f.request("far", "c", ids(12)));
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.tail_from_row == 6);
  CHECK(f.store->block(view.blocks[0]).arena == f.store->receive_arena(f.tenant));
  CHECK(f.row_value(view.blocks[0], 5) == 9);
  CHECK(f.store->counters().copied_bytes == 6 * f.layout.token_bytes());
  f.store->abandon(*staging);
}

TEST_CASE("int8 keeps the planes as they came, beside what agents read") {
  Fixture f;
  const auto tokens = ids(20);
  const auto staging = f.stage(f.request("far", "doc", tokens, 1, Medium::int8, 1'500));
  REQUIRE(staging.ok());
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  for (const BlockHandle handle : view.blocks) {
    const BlockView block = f.store->block(handle);
    CHECK(block.encoding == Hash128{});
    CHECK(block.planes[2].data == nullptr);
    for (std::size_t i = 0; i < 2; ++i) {
      REQUIRE(block.planes[i].data != nullptr);
      CHECK(block.planes[i].bytes ==
            f.layout.layers * run_bytes(f.layout, f.coding(Medium::int8), block.tokens, i, 0));
      std::memset(block.planes[i].data, 3, block.planes[i].bytes);
    }
    f.write_rows(handle, 0, 5);
  }
  f.store->planes_written(view.blocks[0], planes_of(Medium::int8), 2);  // The other one is left to publish().
  const auto version = f.publish(*staging);
  REQUIRE(version.ok());
  CHECK(f.view(*version).epsilon_ppm == 1'500);
  CHECK(f.view(*version).medium == Medium::int8);
  for (const BlockHandle handle : f.view(*version).blocks) {
    CHECK_FALSE(f.store->block(handle).encoding == Hash128{});
    CHECK(f.store->plane_digests(handle, 0, 1).size() == 1);
    CHECK(f.store->plane_digests(handle, 1, 0).size() == 1);
  }
  Layout odd = f.layout;
  odd.head_dim = 7;
  StageRequest request = f.request("far", "odd", tokens, 1, Medium::int8);
  request.layout = odd;
  CHECK(rule_of(f.stage(request).status()) == StoreRule::medium);
}

TEST_CASE("planes attach to a raw block and are digested when they are complete") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const auto version = f.commit(a, "c", ids(16), {f.allocate(a, 1)});
  const BlockHandle block = f.view(*version).blocks[0];
  CHECK(f.store->plane_digests(block, 0, 0).empty());
  {
    NoAllocScope worker;
    KVRAIL_ASSERT(f.store->attach_planes(block, f.coding(Medium::int8)));
    KVRAIL_ASSERT(f.store->attach_planes(block, f.coding(Medium::int8)));
  }
  CHECK(f.store->plane_digests(block, 0, 0).empty());
  f.store->planes_written(block, planes_of(Medium::int8), f.layout.layers);
  CHECK(f.store->plane_digests(block, 1, 1).size() == 1);
  f.store->check();
}

TEST_CASE("released planes serve the next sender until their memory is needed") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const auto version = f.commit(a, "c", ids(16 * 60), {f.allocate(a, 60)});
  const VersionView view = f.view(*version);
  for (const BlockHandle block : view.blocks) {
    REQUIRE(f.store->attach_planes(block, f.coding(Medium::int8)));
    f.store->planes_written(block, planes_of(Medium::int8), f.layout.layers);
  }
  REQUIRE(f.store->attach_planes(view.blocks[0], f.coding(Medium::int8)));  // A second sender of one block.
  for (const BlockHandle block : view.blocks) {
    f.store->release_planes(block);
  }
  f.store->check();
  REQUIRE(f.store->attach_planes(view.blocks[1], f.coding(Medium::int8)));
  CHECK_FALSE(f.store->block(view.blocks[1]).encoding == Hash128{});  // Still the encoded ones.
  // 60 blocks' planes take about 60 KiB of 256; 110 raw blocks of 2 KiB need most of those.
  const auto staging = f.stage(f.request("far", "doc", ids(16 * 110, 50'000)));
  REQUIRE(staging.ok());
  CHECK(f.store->block(view.blocks[0]).planes[0].data != nullptr);
  CHECK(f.store->block(view.blocks[1]).planes[0].data != nullptr);
  CHECK(f.store->block(view.blocks[2]).planes[0].data == nullptr);
  CHECK(f.store->plane_digests(view.blocks[2], 0, 0).empty());
  f.store->check();
  f.store->abandon(*staging);
  REQUIRE(f.store->attach_planes(view.blocks[2], f.coding(Medium::int8)));
  CHECK(f.store->block(view.blocks[2]).encoding == Hash128{});
  const BlockHandle gone = view.blocks[1];
  f.store->drop_context(a, name("c"));
  f.store->release_planes(gone);
}

TEST_CASE("a window is delivered and never found, by name or by hash") {
  Fixture f;
  const AgentHandle reader = f.attach(0, "reader");
  const auto tokens = ids(16 * 6);
  StageRequest request = f.request("far", "doc", tokens, 3, Medium::window);
  request.window_first_block = 6;
  CHECK(rule_of(f.stage(request).status()) == StoreRule::window);
  request.window_first_block = 4;
  const auto staging = f.stage(request);
  REQUIRE(staging.ok());
  Store::StagingView view;
  REQUIRE(f.store->view(*staging, view));
  CHECK(view.block_count == 6);
  const std::vector<std::uint8_t> expected{1, 0, 0, 0, 1, 1};
  CHECK(std::equal(expected.begin(), expected.end(), view.missing.begin()));
  CHECK_FALSE(view.blocks[2].valid());
  const auto version = f.publish(*staging);
  REQUIRE(version.ok());
  f.store->check();
  CHECK_FALSE(f.store->find(f.tenant, name("far"), name("doc"), 0).valid());
  CHECK(f.store->have(f.tenant, f.layout, tokens, 1'000'000).held_blocks == 0);
  const DeliveryHandle delivery = f.store->deliver(reader, *version);
  const ManifestRef manifest = f.store->manifest(delivery);
  const std::byte* at = f.store->arena(manifest.arena)->base() + manifest.offset;
  const auto* header = reinterpret_cast<const ManifestHeader*>(at);
  CHECK(header->block_count == 3);
  CHECK(header->first_token == 64);
  CHECK(header->medium == Medium::window);
  const auto* blocks = reinterpret_cast<const ManifestBlock*>(at + sizeof(ManifestHeader));
  CHECK(blocks[0].position == 0);
  CHECK(blocks[1].position == 64);
  CHECK(f.view(*version).tokens.size() == tokens.size());
  CHECK(f.store->release(reader, delivery));
  CHECK(f.store->counters().versions == 0);
}

TEST_CASE("tokens and summaries are versions without blocks") {
  Fixture f;
  const AgentHandle reader = f.attach(0, "reader");
  const auto tokens = ids(20);
  const auto version = f.store->publish_tokens(f.tenant, name("far"), name("doc"), 5, f.layout,
                                               Medium::tokens, tokens);
  REQUIRE(version.ok());
  const VersionView view = f.view(*version);
  CHECK(view.blocks.empty());
  CHECK(view.hashes.size() == 2);
  CHECK(view.tokens[19] == tokens[19]);
  CHECK(view.medium == Medium::tokens);
  CHECK(f.store->find(f.tenant, name("far"), name("doc"), 0) == *version);
  // KV of the same version goes before its token ids.
  const VersionHandle kv = f.receive(f.request("far", "doc", tokens, 5), 1);
  CHECK(f.store->find(f.tenant, name("far"), name("doc"), 5) == kv);
  CHECK(*f.store->publish_tokens(f.tenant, name("far"), name("doc"), 5, f.layout, Medium::tokens,
                                 tokens) == *version);

  const char text[] = "all is well";
  const auto summary = f.store->publish_summary(f.tenant, name("far"), name("doc"), 5, 2,
                                                std::as_bytes(std::span(text)));
  REQUIRE(summary.ok());
  const DeliveryHandle delivery = f.store->deliver(reader, *summary);
  const ManifestRef manifest = f.store->manifest(delivery);
  const std::byte* at = f.store->arena(manifest.arena)->base() + manifest.offset;
  CHECK(reinterpret_cast<const ManifestHeader*>(at)->summary_kind == 2);
  CHECK(std::memcmp(at + sizeof(ManifestHeader), text, sizeof(text)) == 0);
  CHECK(f.view(*summary).summary.size() == sizeof(text));
  CHECK(f.store->find(f.tenant, name("far"), name("doc"), 0) == kv);

  Layout bad = f.layout;
  bad.block_tokens = 0;
  CHECK(rule_of(
            f.store
                ->publish_tokens(f.tenant, name("far"), name("doc"), 5, bad, Medium::tokens, tokens)
                .status()) == StoreRule::layout);
}

TEST_CASE("another node cannot put versions into the context of an agent that lives here") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const auto own = f.commit(a, "c", ids(10), {f.allocate(a, 1)});
  const VersionHandle forged = f.receive(f.request("a", "c", ids(10, 700), 99), 1);
  CHECK(f.store->find(f.tenant, name("a"), name("c"), 0) == *own);
  CHECK_FALSE(f.store->find(f.tenant, name("a"), name("c"), 99).valid());
  CHECK(f.store->deliver(a, forged).valid());
  // Its own version coming back is the version that is there.
  const auto back = f.stage(f.request("a", "c", ids(10), 1));
  CHECK(*f.publish(*back) == *own);
  CHECK(rule_of(f.stage(f.request("x", "c", ids(3), 0)).status()) == StoreRule::version_number);
  CHECK(rule_of(f.stage(f.request("x", "c", ids(3), UINT64_MAX)).status()) ==
        StoreRule::version_number);
}

TEST_CASE("bad requests are refused with their rule") {
  Fixture f;
  StageRequest request = f.request("far", "doc", ids(5));
  request.tenant = TenantHandle{3, 9};
  CHECK(f.stage(request).status().code == Code::not_found);
  CHECK(rule_of(f.stage(f.request("far", "doc", {})).status()) == StoreRule::no_tokens);
  CHECK(rule_of(f.stage(f.request("far", "doc", ids(5), 1, Medium::split)).status()) ==
        StoreRule::medium);
  request = f.request("far", "doc", ids(5));
  request.layout.layers = 0;
  CHECK(rule_of(f.stage(request).status()) == StoreRule::layout);
  request.layout.layers = 1'024;
  request.layout.kv_heads = 1'024;
  request.layout.head_dim = 576;
  request.layout.block_tokens = 512;
  CHECK(rule_of(f.stage(request).status()) == StoreRule::layout);  // A block of over 2 GiB.
}

TEST_CASE("staging and publication in steps: nothing is found before the end, and any step may be the last") {
  const auto tokens = ids(16 * 5 + 3);
  for (int last = 0;; ++last) {
    CAPTURE(last);
    Fixture f;
    f.receive(f.request("far", "doc", ids(16 * 2 + 5), 1), 7);  // Its tail is to grow.
    const StageRequest request = f.request("far", "doc", tokens, 2);
    const auto staging = f.store->begin_stage(request);
    REQUIRE(staging.ok());
    int step = 0;
    bool staged = false;
    std::optional<Result<VersionHandle>> version;
    for (; step < last && !version; ++step) {
      std::uint64_t budget = 1;
      NoAllocScope worker;
      if (!staged) {
        const auto status = f.store->advance(*staging, budget);
        staged = status.has_value();
        KVRAIL_ASSERT(!status || status->ok());
      } else {
        version = f.store->advance_publish(*staging, budget);
      }
      const AllowAllocScope rest;
      f.store->check();
      const VersionHandle newest = f.store->find(f.tenant, name("far"), name("doc"), 0);
      CHECK(f.view(newest).number == (version ? 2 : 1));
    }
    if (version) {
      CHECK(version->ok());
      CHECK(f.view(**version).tokens.size() == tokens.size());
      CHECK(std::equal(tokens.begin(), tokens.end(), f.view(**version).tokens.begin()));
      f.store->check();
      return;
    }
    f.store->abandon(*staging);
    f.store->check();
    CHECK(f.store->memory(f.tenant).staged_bytes == 0);
    CHECK(f.view(f.store->find(f.tenant, name("far"), name("doc"), 0)).number == 1);
    CHECK(f.receive(f.request("far", "doc", tokens, 2), 8).valid());  // It can come again.
    f.store->check();
  }
}

TEST_CASE("a finer copy is built on the planes of a coarser one, which stays as it is") {
  Fixture f;
  const auto tokens = ids(40);
  const auto coarse = f.stage(f.request("far", "doc", tokens, 1, Medium::int4, 9'500));
  Store::StagingView view;
  REQUIRE(f.store->view(*coarse, view));
  CHECK(view.first_plane == 0);
  for (const BlockHandle handle : view.blocks) {
    const PlaneView plane = f.store->block(handle).planes[0];
    std::memset(plane.data, 3, plane.bytes);
    f.write_rows(handle, 0, 5);
  }
  const auto held = f.publish(*coarse);
  REQUIRE(held.ok());
  const Hash128 encoding = f.store->block(f.view(*held).blocks[0]).encoding;

  StageRequest request = f.request("far", "doc", tokens, 1, Medium::exact, 0);
  request.build_on_planes = true;
  const auto finer = f.stage(request);
  REQUIRE(f.store->view(*finer, view));
  CHECK(view.first_plane == 1);
  const BlockView block = f.store->block(view.blocks[0]);
  CHECK(block.encoding == encoding);
  CHECK(static_cast<int>(block.planes[0].data[0]) == 3);
  CHECK(block.raw != f.store->block(f.view(*held).blocks[0]).raw);
  f.store->abandon(*finer);

  request.build_on_planes = false;
  const auto anew = f.stage(request);
  REQUIRE(f.store->view(*anew, view));
  CHECK(view.first_plane == 0);
  f.store->abandon(*anew);
  // Part of it held, part not: all planes of all of it are to come.
  const auto longer = ids(80);
  StageRequest more = f.request("far", "doc", longer, 2, Medium::exact, 0);
  more.build_on_planes = true;
  const auto mixed = f.stage(more);
  REQUIRE(f.store->view(*mixed, view));
  CHECK(view.first_plane == 0);
  f.store->abandon(*mixed);
  f.store->check();
}

TEST_CASE("what is cut is published by the planes that came, with their loss") {
  Fixture f;
  const auto staging = f.stage(f.request("far", "doc", ids(40), 1, Medium::exact, 0));
  f.store->cut(*staging, Medium::int8, 40);
  const auto version = f.publish(*staging);
  REQUIRE(version.ok());
  CHECK(f.view(*version).medium == Medium::int8);
  CHECK(f.view(*version).epsilon_ppm == 40);
  const BlockView block = f.store->block(f.view(*version).blocks[0]);
  CHECK(block.came_coded);
  CHECK(block.planes[1].data != nullptr);
  CHECK(block.planes[2].data == nullptr);
  f.store->check();
}
