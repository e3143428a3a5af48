// What a disk does to a tier while it runs: errors, short and interrupted operations, no room, no answer for long.
#include "tests/unit/tier/faulty_disk.h"
#include "tests/unit/tier/file_fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

struct Faulty {
  Faulty() : options(small_tier(folder)) {
    options.wrap = [this](std::unique_ptr<tier::Disk> under) { return std::make_unique<FaultyDisk>(std::move(under), faults); };
  }
  Folder folder{memory_folder()};
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  tier::TierOptions options;
};

}  // namespace

TEST_CASE("tier faults: short, interrupted and repeated operations go on where they were") {
  Faulty f;
  f.options.segment_bytes = 8U << 20;
  f.options.capacity_bytes = 64U << 20;
  f.faults->shorten = true;
  Layout layout = small_layout();
  layout.layers = 40;  // 2.5 MiB a block
  layout.block_tokens = 64;
  layout.kv_heads = 4;
  layout.head_dim = 64;
  {
    Tier tier(f.options, layout);
    for (std::uint64_t number = 0; number < 20; ++number) tier.start_put(number, 1 + static_cast<std::uint32_t>(number * 3));
    for (std::uint64_t number = 0; number < 20; ++number) CHECK(tier.end_put(number).status.ok());
    for (std::uint64_t number = 0; number < 20; ++number) CHECK(tier.good(number, 1 + static_cast<std::uint32_t>(number * 3)));
  }
  Tier tier(f.options, layout);
  for (std::uint64_t number = 0; number < 20; ++number) CHECK(tier.good(number, 1 + static_cast<std::uint32_t>(number * 3)));
}

TEST_CASE("tier faults: a write that fails acknowledges nothing, and the next goes elsewhere") {
  for (const int error : {EIO, ENOSPC}) {
    Faulty f;
    f.faults->error = error;
    Tier tier(f.options);
    CHECK(tier.put(1).status.ok());
    f.faults->fail_writes = 1;
    const Status status = tier.put(2).status;
    CHECK(status.code == (error == EIO ? Code::io_error : Code::out_of_capacity));
    CHECK(status.detail == error);
    CHECK_FALSE(tier.has(2));
    CHECK(tier.put(3).status.ok());
    CHECK(tier.put(2).status.ok());
    for (std::uint64_t number = 1; number <= 3; ++number) CHECK(tier.good(number));
    CHECK(tier.port->figures().refused == 1);
  }
}

TEST_CASE("tier faults: a sync that fails acknowledges none of those that it was for") {
  Faulty f;
  Tier tier(f.options);
  CHECK(tier.put(1).status.ok());
  f.faults->fail_syncs = 1;
  CHECK(tier.put(2).status.code == Code::io_error);
  CHECK_FALSE(tier.has(2));
  CHECK(tier.put(2).status.ok());
  CHECK(tier.good(1));
  CHECK(tier.good(2));
}

TEST_CASE("tier faults: a block that cannot be read is told so and given up; the others are served") {
  Faulty f;
  Tier tier(f.options);
  for (std::uint64_t number = 1; number <= 3; ++number) CHECK(tier.put(number).status.ok());
  f.faults->fail_reads = 1;
  CHECK(tier.get(2).status.code == Code::io_error);
  tier.until([&] { return !tier.gone.empty(); });
  CHECK(tier.gone[0] == hash_of(2));
  CHECK_FALSE(tier.has(2));
  CHECK(tier.good(1));
  CHECK(tier.good(3));
  CHECK(tier.port->figures().damaged == 1);
}

TEST_CASE("tier faults: a result beyond what was asked for is an error") {
  Faulty f;
  Tier tier(f.options);
  f.faults->overlong = 1;
  CHECK(tier.put(1).status.code == Code::io_error);
  CHECK(tier.put(1).status.ok());
  f.faults->overlong = 1;
  CHECK(tier.get(1).status.code == Code::io_error);
}

TEST_CASE("tier faults: after a put that failed none is taken until it is time to try again") {
  Faulty f;
  f.options.retry_ns = 3'600 * kSecondNs;
  Tier tier(f.options);
  CHECK(tier.put(1).status.ok());
  f.faults->error = ENOSPC;
  f.faults->fail_writes = 1;
  CHECK(tier.put(2).status.code == Code::out_of_capacity);
  CHECK_FALSE(tier.port->put({3, hash_of(3), tier.layout, 16, 0, tier.rows[2].data()}));
  CHECK(tier.port->figures().state == TierState::slow);
  CHECK(tier.good(1));
}

TEST_CASE("tier faults: a disk that does not answer takes no more puts, and holds nobody up") {
  Faulty f;
  f.options.slow_ns = 1;
  Tier tier(f.options);
  CHECK(tier.put(1).status.ok());
  f.faults->hold = true;
  tier.start_put(2);
  tier.until([&] { return tier.port->figures().state == TierState::slow; });
  CHECK_FALSE(tier.port->put({3, hash_of(3), tier.layout, 16, 0, tier.rows[1].data()}));
  CHECK(tier.has(1));
  CHECK(tier.puts.count(2) == 0);
  f.faults->hold = false;
  CHECK(tier.end_put(2).status.ok());
  tier.until([&] { return tier.port->figures().state == TierState::ready; });
  CHECK(tier.good(2));
}

TEST_CASE("tier faults: carrying on what was read survives errors; what it could not carry is given up, never wrong") {
  Faulty f;
  Tier tier(f.options);
  for (std::uint64_t number = 0; number < 400; ++number) {
    if (number % 23 == 22) f.faults->fail_reads = 1;
    if (number % 31 == 30) f.faults->fail_writes = 1;
    static_cast<void>(tier.put(number));
    if (tier.has(number / 2)) {
      const TierCompletion done = tier.get(number / 2);
      if (done.status.ok()) CHECK(tier.slot == tier.make_rows(number / 2, 16));
    }
  }
  CHECK(tier.port->figures().blocks > 50);
  CHECK(tier.port->figures().used_bytes <= f.options.capacity_bytes);
}

TEST_CASE("tier faults: power is cut at any time; what was acknowledged is there, and nothing is wrong") {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const Folder folder(memory_folder());
    tier::TierOptions options = small_tier(folder);
    options.direct = tier::DirectMode::off;
    auto power = std::make_shared<UnsyncedDisk::Power>();
    power->seed = seed;
    options.wrap = [power](std::unique_ptr<tier::Disk> under) { return std::make_unique<UnsyncedDisk>(std::move(under), power); };
    std::vector<std::uint64_t> acknowledged;
    {
      Tier tier(options);
      for (std::uint64_t number = 0; number < 10 + seed * 3; ++number) tier.start_put(number);
      power->cut = true;
      for (const auto& [number, done] : tier.puts) {
        if (done.status.ok()) acknowledged.push_back(number);
      }
    }
    lost += power->lost;
    options.wrap = nullptr;
    Tier tier(options);
    for (const std::uint64_t number : acknowledged) CHECK(tier.good(number));
    for (std::uint64_t number = 0; number < 10 + seed * 3; ++number) {
      if (tier.has(number) && tier.get(number).status.ok()) CHECK(tier.slot == tier.make_rows(number, 16));
    }
  }
  CHECK(lost > 0);
}
