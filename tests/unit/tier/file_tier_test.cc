// A file tier at work: what is put comes back, now and after a restart, within its space.
#include "tests/unit/tier/file_fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

// 3.5 MiB a block: four pieces.
Layout large_layout() {
  Layout layout = small_layout();
  layout.layers = 7;
  layout.kv_heads = 8;
  layout.head_dim = 256;
  layout.block_tokens = 64;
  return layout;
}

void each_disk(const std::function<void(tier::TierOptions)>& test) {
  const Folder ring;
  tier::TierOptions options = small_tier(ring);
  test(options);
  const Folder calls;
  options.directory = calls.path;
  options.uring = false;
  test(options);
  const Folder cached;
  options.directory = cached.path;
  options.uring = true;
  options.direct = tier::DirectMode::off;
  test(options);
}

}  // namespace

TEST_CASE("file tier: blocks and tails come back as they were put, whatever moves the bytes") {
  each_disk([](const tier::TierOptions& options) {
    Tier tier(options);
    for (std::uint64_t number = 0; number < 10; ++number) {
      const TierCompletion done = tier.put(number, number % 2 == 0 ? 0 : 5, 40);
      CHECK(done.status.ok());
      CHECK(done.epsilon_ppm == 40);
    }
    CHECK(tier.port->find(hash_of(3))->tokens == 5);
    CHECK(tier.port->find(hash_of(3))->stored_bytes == 5 * 512);
    for (std::uint64_t number = 0; number < 10; ++number) CHECK(tier.good(number, number % 2 == 0 ? 0 : 5));
    CHECK(tier.get(4).epsilon_ppm == 40);
    CHECK(tier.port->figures().blocks == 10);
    CHECK(tier.port->figures().puts == 10);
  });
}

TEST_CASE("file tier: after a restart all is there that was acknowledged, and nothing else") {
  each_disk([](const tier::TierOptions& options) {
    {
      Tier tier(options);
      for (std::uint64_t number = 0; number < 60; ++number) CHECK(tier.put(number).status.ok());
      CHECK(tier.put(7, 3, 9).status.ok());  // a newer one of the same hash
    }
    Tier tier(options);
    CHECK(tier.port->figures().blocks == 60);
    for (std::uint64_t number = 0; number < 60; ++number) CHECK(tier.good(number, number == 7 ? 3 : 0));
    CHECK(tier.port->find(hash_of(7))->epsilon_ppm == 9);
    CHECK(tier.port->figures().damaged == 0);
    CHECK(tier.port->figures().quarantined == 0);
    CHECK(tier.put(100).status.ok());
    CHECK(tier.good(100));
  });
}

TEST_CASE("file tier: many at a time, larger than a piece, are written and read as streams") {
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  options.segment_bytes = 16U << 20;
  options.capacity_bytes = 128U << 20;
  {
    Tier tier(options, large_layout());
    for (std::uint64_t number = 0; number < 12; ++number) tier.start_put(number, number % 3 == 0 ? 21 : 0);
    for (std::uint64_t number = 0; number < 12; ++number) CHECK(tier.end_put(number).status.ok());
    for (std::uint64_t number = 0; number < 12; ++number) CHECK(tier.good(number, number % 3 == 0 ? 21 : 0));
  }
  Tier tier(options, large_layout());
  std::vector<std::vector<std::byte>> slots(12, std::vector<std::byte>(tier.layout.block_bytes()));
  for (std::uint64_t number = 0; number < 12; ++number) {
    REQUIRE(tier.port->get({number, hash_of(number), tier.layout, number % 3 == 0 ? 21U : 64U, slots[number].data()}));
  }
  tier.until([&] { return tier.gets.size() == 12; });
  for (std::uint64_t number = 0; number < 12; ++number) {
    CHECK(tier.gets[number].status.ok());
    CHECK(slots[number] == tier.make_rows(number, number % 3 == 0 ? 21 : 64));
  }
}

TEST_CASE("file tier: another shape, an unknown and a forgotten block bring nothing") {
  const Folder folder;
  Tier tier(small_tier(folder));
  CHECK(tier.put(1).status.ok());
  CHECK(tier.get(1, 15).status.code == Code::layout_mismatch);
  tier.layout.rope_scale = 2.0F;
  CHECK(tier.get(1).status.code == Code::layout_mismatch);
  tier.layout = small_layout();
  CHECK(tier.good(1));
  CHECK(tier.get(2).status.code == Code::not_found);
  tier.port->forget(hash_of(1));
  CHECK_FALSE(tier.has(1));
  CHECK(tier.get(1).status.code == Code::not_found);
  CHECK(tier.gone.empty());
  CHECK(tier.put(1).status.ok());
  CHECK(tier.good(1));
}

TEST_CASE("file tier: a put forgotten on its way is cancelled and not found") {
  const Folder folder;
  Tier tier(small_tier(folder));
  tier.start_put(1);
  tier.port->forget(hash_of(1));
  CHECK(tier.end_put(1).status.code == Code::cancelled);
  CHECK_FALSE(tier.has(1));
  CHECK(tier.get(1).status.code == Code::not_found);
}

TEST_CASE("file tier: a full one gives up what is oldest, carries on what was read, and stays within its space") {
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  Tier tier(options);
  // 20 blocks a segment, 8 segments; the first block is read now and then.
  for (std::uint64_t number = 0; number < 400; ++number) {
    CHECK(tier.put(number).status.ok());
    if (number % 10 == 9) CHECK(tier.good(0));
    CHECK(tier.port->figures().used_bytes <= options.capacity_bytes);
  }
  CHECK(tier.good(0));
  CHECK(tier.good(399));
  CHECK_FALSE(tier.has(1));
  CHECK(tier.port->thread().figures().carried.load() > 0);
  CHECK(tier.gone.size() + tier.port->figures().blocks == 400);
  CHECK(tier.port->figures().blocks > 100);
  for (const Hash128& hash : tier.gone) CHECK_FALSE(tier.port->find(hash).has_value());
}

TEST_CASE("file tier: a segment of which little is wanted goes before older ones, and what is wanted of it stays") {
  const Folder folder;
  Tier tier(small_tier(folder));
  for (std::uint64_t number = 0; number < 100; ++number) CHECK(tier.put(number).status.ok());
  for (std::uint64_t number = 42; number < 58; ++number) tier.port->forget(hash_of(number));
  for (std::uint64_t number = 100; number < 165; ++number) CHECK(tier.put(number).status.ok());
  CHECK(tier.gone.empty());
  for (std::uint64_t number = 0; number < 165; ++number) {
    if (number < 42 || number >= 58) CHECK(tier.good(number));
  }
}

TEST_CASE("file tier: with more blocks than its table has room for, the oldest go") {
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  options.max_blocks = 64;
  {
    Tier tier(options);
    for (std::uint64_t number = 0; number < 150; ++number) CHECK(tier.put(number).status.ok());
    CHECK(tier.port->figures().blocks <= 64);
    CHECK(tier.gone.size() + tier.port->figures().blocks == 150);
    CHECK(tier.good(149));
  }
  options.max_blocks = 8;
  Tier tier(options);
  CHECK(tier.port->figures().blocks == 8);
  for (std::uint64_t number = 0; number < 150; ++number) {
    if (tier.has(number)) CHECK(tier.good(number));
  }
}

TEST_CASE("file tier: a block that fits no segment is refused, and the tier goes on") {
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  Layout layout = large_layout();
  Tier tier(options, layout);
  CHECK(tier.put(1).status.code == Code::too_large);
  tier.layout = small_layout();
  CHECK(tier.put(2).status.ok());
  CHECK(tier.good(2));
}

TEST_CASE("file tier: blocks share a sync") {
  const Folder folder;
  tier::TierOptions options = small_tier(folder);
  options.commit_ns = kSecondNs;
  Tier tier(options);
  for (int round = 0; round < 8; ++round) {
    for (std::uint64_t number = 0; number < 16; ++number) tier.start_put(number);
    for (std::uint64_t number = 0; number < 16; ++number) CHECK(tier.end_put(number).status.ok());
  }
  const std::uint64_t syncs = tier.port->thread().figures().syncs.load();
  CHECK(syncs > 0);
  CHECK(syncs < 8 * 16);
}

TEST_CASE("file tier: created and destroyed unused, and with puts on their way") {
  const Folder folder;
  for (int i = 0; i < 10; ++i) {
    Tier tier(small_tier(folder));
    if (i % 2 == 0) {
      for (std::uint64_t number = 0; number < 10; ++number) tier.start_put(number);
    }
  }
  Tier tier(small_tier(folder));
  for (std::uint64_t number = 0; number < 10; ++number) {
    if (tier.has(number)) CHECK(tier.good(number));
  }
}
