// topk in the store: packed blocks without hashes, and positions that a stranger sends.
#include <algorithm>

#include "codec/sparse.h"
#include "kvrail/base/byte_order.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

constexpr std::uint32_t kTotal = 100;
constexpr std::uint32_t kKept = 40;

StageRequest topk(Fixture& f) {
  StageRequest request = f.request("far", "doc", ids(kTotal), 3, Medium::topk, 500'000);
  request.kept_tokens = kKept;
  return request;
}

std::vector<std::uint32_t> every_second() {
  std::vector<std::uint32_t> out(kKept);
  for (std::uint32_t i = 0; i < kKept; ++i) out[i] = 2 * i + 1;
  return out;
}

void put(std::span<std::byte> room, std::span<const std::uint32_t> positions, std::uint32_t total = kTotal) {
  store_le32(room.data(), static_cast<std::uint32_t>(codec::encode_positions(positions, total, room.subspan(4))));
}

Store::StagingView view_of(Fixture& f, StagingHandle staging) {
  Store::StagingView view;
  REQUIRE(f.store->view(staging, view));
  return view;
}

}  // namespace

TEST_CASE("store / topk / packed blocks and their positions are delivered, and found by nobody") {
  Fixture f;
  const AgentHandle reader = f.attach(0, "reader");
  const auto staging = f.stage(topk(f));
  REQUIRE(staging.ok());
  const Store::StagingView view = view_of(f, *staging);
  REQUIRE(view.block_count == 3);
  CHECK(view.positions.size() == positions_room(kKept, kTotal));
  CHECK(std::all_of(view.missing.begin(), view.missing.end(), [](std::uint8_t missing) { return missing == 1; }));
  CHECK(f.store->block(view.blocks[2]).tokens == 8);
  CHECK(f.store->block(view.blocks[0]).hash == Hash128{});
  f.store->check();
  put(view.positions, every_second());
  CHECK(f.store->take_positions(*staging) == Status{});
  const auto version = f.publish(*staging);
  REQUIRE(version.ok());
  f.store->check();
  CHECK_FALSE(f.store->find(f.tenant, name("far"), name("doc"), 0).valid());
  CHECK(f.store->have(f.tenant, f.layout, ids(kTotal), 1'000'000).held_blocks == 0);
  const VersionView seen = f.view(*version);
  CHECK(seen.tokens.size() == kTotal);
  CHECK(seen.hashes.empty());
  CHECK(seen.kept_tokens == kKept);
  CHECK(std::ranges::equal(seen.positions, every_second()));
  CHECK(seen.epsilon_ppm == 500'000);
  const DeliveryHandle delivery = f.store->deliver(reader, *version);
  const ManifestRef manifest = f.store->manifest(delivery);
  const std::byte* at = f.store->arena(manifest.arena)->base() + manifest.offset;
  const auto* header = reinterpret_cast<const ManifestHeader*>(at);
  CHECK(header->medium == Medium::topk);
  CHECK(header->block_count == 3);
  CHECK(header->token_count == kTotal);
  CHECK(header->position_count == kKept);
  const auto* blocks = reinterpret_cast<const ManifestBlock*>(at + sizeof(ManifestHeader));
  CHECK(blocks[1].position == 33);
  // The agent that got it can't build a context on its blocks.
  const auto built = f.commit(reader, "mine", ids(kTotal), {}, delivery, 7);
  CHECK(built.status().code == Code::invalid_argument);
  CHECK(f.store->release(reader, delivery));
  CHECK(f.store->counters().versions == 0);
  CHECK(f.store->memory(f.tenant).free_bytes == f.store->memory(f.tenant).total_bytes);
}

TEST_CASE("store / topk / coded rows leave no planes behind, and what is given up leaves nothing") {
  Fixture f;
  StageRequest request = topk(f);
  request.coding = f.coding(Medium::int8);
  request.coding.medium = Medium::topk;
  request.coding.values = Medium::int8;
  const auto staging = f.stage(request);
  REQUIRE(staging.ok());
  Store::StagingView view = view_of(f, *staging);
  CHECK(f.store->block(view.blocks[0]).planes[1].data != nullptr);
  put(view.positions, every_second());
  REQUIRE(f.store->take_positions(*staging) == Status{});
  const auto version = f.publish(*staging);
  REQUIRE(version.ok());
  CHECK(f.store->block(f.view(*version).blocks[0]).planes[1].data == nullptr);
  f.store->check();
  const auto other = f.stage(request);
  REQUIRE(other.ok());
  f.store->abandon(*other);
  f.store->check();
  CHECK(f.store->counters().stagings == 0);
}

TEST_CASE("store / topk / rows gathered to be sent take no manifest, and go when they are given up") {
  Fixture f;
  StageRequest request = topk(f);
  request.outgoing = true;
  const std::uint64_t free = f.store->memory(f.tenant).free_bytes;
  const auto staging = f.stage(request);
  REQUIRE(staging.ok());
  const Store::StagingView view = view_of(f, *staging);
  CHECK(view.block_count == 3);
  CHECK(view.positions.size() == positions_room(kKept, kTotal));
  f.store->check();
  f.store->abandon(*staging);
  CHECK(f.store->memory(f.tenant).free_bytes == free);
}

TEST_CASE("store / topk / of no rows, of too many, or of more than there is room for is refused") {
  Fixture f;
  for (const std::uint64_t kept : {0U, kTotal + 1}) {
    StageRequest request = topk(f);
    request.kept_tokens = kept;
    CHECK(f.stage(request).status().detail == static_cast<std::int32_t>(StoreRule::kept));
  }
  StageRequest full = f.request("far", "doc", ids(kTotal), 3);
  full.kept_tokens = 5;
  CHECK(f.stage(full).status().detail == static_cast<std::int32_t>(StoreRule::kept));
  StageRequest other = topk(f);
  for (const Medium values : {Medium::tokens, Medium::topk, Medium::lowrank}) {
    other.coding.values = values;
    CHECK(f.stage(other).status().detail == static_cast<std::int32_t>(StoreRule::medium));
  }
  StageRequest huge = f.request("far", "doc", ids(16 * 200), 3, Medium::topk);
  huge.kept_tokens = 16 * 150;  // 300 KiB of 256
  CHECK(f.stage(huge).status().code == Code::too_large);
  CHECK(f.store->counters().stagings == 0);
}

TEST_CASE("store / topk / positions of a stranger are held against rows and tokens") {
  Fixture f;
  const auto staging = f.stage(topk(f));
  REQUIRE(staging.ok());
  const Store::StagingView view = view_of(f, *staging);
  const auto all = every_second();
  const auto refused = [&] { CHECK(f.store->take_positions(*staging).code == Code::protocol_error); };
  put(view.positions, std::span(all).first(kKept - 1));  // fewer
  refused();
  std::vector<std::uint32_t> more(kKept + 1);
  for (std::uint32_t i = 0; i < more.size(); ++i) more[i] = i;
  put(view.positions, more);
  refused();
  std::vector<std::uint32_t> beyond = all;
  beyond.back() = 200;
  put(view.positions, beyond, 300);
  refused();
  put(view.positions, all);
  store_le32(view.positions.data(), static_cast<std::uint32_t>(view.positions.size()));  // longer than there is room
  refused();
  store_le32(view.positions.data(), 0);
  refused();
  for (std::size_t i = 4; i < view.positions.size(); ++i) view.positions[i] = std::byte{0xff};
  store_le32(view.positions.data(), static_cast<std::uint32_t>(view.positions.size() - 4));
  refused();
  put(view.positions, all);
  CHECK(f.store->take_positions(*staging) == Status{});
  f.store->abandon(*staging);
}
