#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codec/hash.h"
#include "tests/unit/store/fixture.h"
#include "transport/payload.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

TEST_CASE(
    "an agent's death returns its writable slots and pins at once; what it committed stays for the "
    "TTL") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const auto theirs = f.commit(b, "theirs", ids(20, 900), {f.allocate(b, 2)});
  const DeliveryHandle pinned = f.store->deliver(a, *theirs);
  f.store->drop_context(b, name("theirs"));
  const Extent slots = f.allocate(a, 5);
  const auto version = f.commit(a, "c", ids(32), {slots});
  REQUIRE(version.ok());
  const std::uint32_t arena = f.store->agent_arena(a);
  {
    NoAllocScope worker;
    KVRAIL_ASSERT(f.store->remove_agent(a) == 3);  // Five slots, two of them committed.
    KVRAIL_ASSERT(f.store->remove_agent(a) == 0);
  }
  f.store->check();
  VersionView view;
  CHECK_FALSE(f.store->view(*theirs, view));  // Only the dead agent's delivery held it.
  CHECK_FALSE(f.store->release(a, pinned));
  CHECK(f.store->find(f.tenant, name("a"), name("c"), 0) == *version);
  CHECK(f.store->deliver(b, *version).valid());  // Others may still read it.
  CHECK(f.store->arena(arena) != nullptr);
  CHECK(f.store->take_retired() == nullptr);

  f.clock.advance(f.store->counters().versions == 1 ? 599 * kSecondNs : 0);
  f.store->housekeep(f.clock.now_ns(), 0);
  CHECK(f.store->find(f.tenant, name("a"), name("c"), 0) == *version);
  f.clock.advance(2 * kSecondNs);
  f.store->housekeep(f.clock.now_ns(), 0);
  CHECK(f.store->view(*version, view));  // Pinned by b's delivery, whatever the time.
  f.store->remove_agent(b);
  f.clock.advance(599 * kSecondNs);
  f.store->housekeep(f.clock.now_ns(), 0);
  CHECK(f.store->view(*version, view));  // The TTL runs from the last use.
  f.clock.advance(2 * kSecondNs);
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) >= 1);
  CHECK_FALSE(f.store->view(*version, view));
  CHECK(f.store->arena(arena) == nullptr);
  StoreMemoryPtr gone = f.store->take_retired();
  CHECK(gone != nullptr);  // Both agents' arenas, in a chain.
  CHECK(f.store->take_retired() == nullptr);
}

TEST_CASE("retired arenas that nobody takes are unmapped by housekeeping") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  f.store->remove_agent(a);
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 0);
  f.clock.advance(9 * kSecondNs);
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 0);
  f.clock.advance(2 * kSecondNs);
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 1);
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 0);
  CHECK(f.store->take_retired() == nullptr);
}

TEST_CASE("an agent that comes back under its name finds its contexts and goes on numbering") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  REQUIRE(f.commit(a, "c", ids(20), {f.allocate(a, 2)}).ok());
  f.store->remove_agent(a);
  const AgentHandle again = f.attach(0, "a");
  CHECK(f.store->find_for(again, name("c"), 0).valid());
  const auto version = f.commit(again, "c", ids(33), {f.allocate(again, 3)});
  REQUIRE(version.ok());
  CHECK(f.view(*version).number == 2);
  f.store->check();
  f.clock.advance(10'000 * kSecondNs);
  f.store->housekeep(f.clock.now_ns(), 0);
  CHECK(f.store->find_for(again, name("c"), 1).valid());  // It has an owner again: no TTL.
}

TEST_CASE("names are unique within a tenant, handles within the store") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  CHECK(f.store->add_agent(agent_handle(1), name("a"), f.tenant, f.layout, 0).status().code ==
        Code::already_exists);
  CHECK(f.store->add_agent(a, name("b"), f.tenant, f.layout, 0).status().code ==
        Code::already_exists);
  CHECK(f.store->add_agent(agent_handle(1), name("b"), TenantHandle{2, 8}, f.layout, 0)
            .status()
            .code == Code::not_found);
  const TenantHandle other = f.store->ensure_tenant(name("other")).value();
  CHECK(f.store->add_agent(agent_handle(1), name("a"), other, f.layout, 0).ok());
  CHECK(f.store->ensure_tenant(name("other")).value() == other);
  CHECK(f.store->find_tenant(name("other")) == other);
  CHECK_FALSE(f.store->find_tenant(name("third")).valid());
}

TEST_CASE("a full receive arena makes room from what nobody uses, least recently used first") {
  Fixture f;
  const AgentHandle reader = f.attach(0, "reader");
  // 256 KiB hold 127 blocks of 2 KiB beside their manifests: four contexts of 30 blocks.
  std::vector<VersionHandle> versions;
  for (TokenId i = 0; i < 4; ++i) {
    f.clock.advance(1);
    versions.push_back(
        f.receive(f.request("far", std::string("c") + std::to_string(i), ids(480, i * 1'000), 1), 1));
  }
  const DeliveryHandle used = f.store->deliver(reader, versions[0]);
  f.store->release(reader, used);  // Now the most recently used.
  const DeliveryHandle pinned = f.store->deliver(reader, versions[1]);
  const VersionHandle fifth = f.receive(f.request("far", "c4", ids(480, 9'000), 1), 1);
  VersionView view;
  CHECK((f.store->view(versions[0], view) && !view.stub));
  CHECK((f.store->view(versions[1], view) && !view.stub));
  CHECK((f.store->view(versions[2], view) && view.stub));
  CHECK((f.store->view(versions[3], view) && !view.stub));
  CHECK((f.store->view(fifth, view) && !view.stub));
  f.store->check();

  // More than is there even if everything idle went: nothing visible changes for a context that can
  // never fit, and idle contexts make room for one that may.
  CHECK(f.stage(f.request("far", "huge", ids(16 * 200, 20'000), 1)).status().code ==
        Code::too_large);
  CHECK(f.store->view(fifth, view));
  const auto refused = f.stage(f.request("far", "big", ids(16 * 110, 20'000), 1));
  CHECK(refused.status().code == Code::out_of_memory);
  CHECK(refused.status().detail > 0);
  CHECK(f.store->view(versions[1], view));
  CHECK(f.store->memory(f.tenant).staged_bytes == 0);
  f.store->check();
  f.store->release(reader, pinned);
  CHECK(f.stage(f.request("far", "big", ids(16 * 110, 20'000), 1)).ok());
}

TEST_CASE("digests are those of the bytes, computed in bounded steps") {
  Fixture f;
  f.layout.layers = 16;
  f.layout.kv_heads = 16;
  f.layout.head_dim = 128;  // Row 4 KiB, a layer of a block 128 KiB.
  const AgentHandle a = agent_handle(0);
  REQUIRE(f.store->add_agent(a, name("a"), f.tenant, f.layout, 8 << 20).ok());
  const Extent slots = f.allocate(a, 2);
  for (std::uint64_t i = 0; i < 2 * f.layout.block_bytes(); ++i) {
    f.at(slots)[i] = static_cast<std::byte>(i * 31 >> 8);
  }
  const auto version = f.commit(a, "c", ids(20), {slots});
  REQUIRE(version.ok());
  const BlockHandle full = f.view(*version).blocks[0];
  const BlockHandle tail = f.view(*version).blocks[1];
  const auto layers = static_cast<std::uint32_t>(f.layout.layers);
  CHECK(f.store->raw_digests(full, 0).empty());
  {
    std::uint64_t budget = 128 * 1024;
    CHECK(f.store->ensure_digests(full, 1, budget));  // The first layer is asked for first.
    CHECK(budget == 0);
    CHECK(f.store->raw_digests(full, 0).size() == 2);
    CHECK(f.store->raw_digests(full, 1).empty());
  }
  int calls = 0;
  for (bool done = false; !done; ++calls) {
    std::uint64_t budget = 256 * 1024;
    NoAllocScope worker;
    done = f.store->ensure_digests(full, layers, budget);
    KVRAIL_ASSERT(budget <= 128 * 1024);
  }
  CHECK(calls == 8);
  const std::byte* raw = f.store->block(full).raw;
  CHECK(f.store->raw_digests(full, 0)[1] == codec::digest({raw + kDigestUnitBytes, kDigestUnitBytes}));
  CHECK(f.store->raw_digests(full, 15)[1] == codec::digest({raw + 31 * kDigestUnitBytes, kDigestUnitBytes}));
  CHECK(f.store->raw_digests(full, 16).empty());

  CHECK(f.store->raw_digests(tail, 0).empty());
  CHECK(f.store->housekeep(f.clock.now_ns(), 0) == 0);
  while (f.store->housekeep(f.clock.now_ns(), 1 << 20) != 0) {
  }
  const std::byte* tail_raw = f.store->block(tail).raw;
  for (const std::uint32_t layer : {0U, 15U}) {
    const auto rows = f.store->raw_digests(tail, layer);
    REQUIRE(rows.size() == 2);  // Four rows of K, four of V.
    CHECK(rows[1] == codec::digest({tail_raw + f.layout.row_offset(layer, 1, 0), 4 * f.layout.row_bytes()}));
  }
  std::uint64_t none = 0;
  CHECK(f.store->ensure_digests(tail, layers, none));  // Known already: no budget needed.
}

TEST_CASE("host memory is used in place, and the import ends when its slots are free") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const std::uint64_t block = f.layout.block_bytes();
  alignas(64) static std::byte pages[4 * 2048];
  REQUIRE(sizeof(pages) == 4 * block);
  CHECK(f.store->import_range(a, pages, sizeof(pages) - 1, -1).status().code ==
        Code::invalid_argument);
  CHECK(f.store->import_range(a, pages + 1, block, -1).status().code == Code::invalid_argument);
  CHECK(f.store->import_range(a, nullptr, block, -1).status().code == Code::invalid_argument);
  CHECK(f.store->import_range(a, pages, 0, -1).status().code == Code::invalid_argument);
  CHECK(f.store->import_range(agent_handle(5), pages, block, -1).status().code ==
        Code::invalid_argument);
  const auto extent = f.store->import_range(a, pages, sizeof(pages), -1);
  REQUIRE(extent.ok());
  CHECK(extent->count == 4);
  CHECK(f.store->arena(extent->arena)->base() == pages);
  const auto version = f.commit(a, "c", ids(20), {*extent});
  REQUIRE(version.ok());
  CHECK(f.store->block(f.view(*version).blocks[1]).raw == pages + block);
  f.store->check();
  CHECK(f.store->free_blocks(a, *extent).ok());
  CHECK(f.store->arena(extent->arena) != nullptr);  // Two slots are committed.
  f.store->drop_context(a, name("c"));
  CHECK(f.store->arena(extent->arena) == nullptr);
  CHECK(f.store->take_retired() != nullptr);
}

TEST_CASE("an imported memfd is mapped, kept by its contexts, and closed after them") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const std::uint64_t bytes = 2 * f.layout.block_bytes();
  const int fd = ::memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  REQUIRE(::pwrite(fd, "kv", 2, 0) == 2);
  const auto extent = f.store->import_range(a, nullptr, bytes, fd);
  ::close(fd);
  REQUIRE(extent.ok());
  const auto version = f.commit(a, "c", ids(32), {*extent});
  REQUIRE(version.ok());
  f.store->remove_agent(a);
  REQUIRE(f.store->arena(extent->arena) != nullptr);
  CHECK(std::memcmp(f.store->block(f.view(*version).blocks[0]).raw, "kv", 2) == 0);
  f.clock.advance(601 * kSecondNs);
  f.store->housekeep(f.clock.now_ns(), 0);
  CHECK(f.store->arena(extent->arena) == nullptr);
}

TEST_CASE("arena ids are never given out twice") {
  Fixture f;
  std::vector<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < 50; ++i) {
    const AgentHandle a = f.attach(0, "a");
    const std::uint32_t arena = f.store->agent_arena(a);
    CHECK(std::find(seen.begin(), seen.end(), arena) == seen.end());
    seen.push_back(arena);
    f.store->remove_agent(a);
    CHECK(f.store->take_retired() != nullptr);
    CHECK(f.store->arena(arena) == nullptr);
    CHECK_FALSE(f.store->may_read(f.tenant, arena));
  }
}
