#include <doctest/doctest.h>

#include "engine/tier/memory_tier.h"
#include "tests/unit/tier/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

// A tier of four blocks.
struct Small {
  explicit Small(MemoryTierOptions wanted = {}) : tier(sized(wanted)) {}
  static MemoryTierOptions sized(MemoryTierOptions options) {
    options.most_block_bytes = small_layout().block_bytes();
    options.capacity_bytes = 4 * options.most_block_bytes;
    return options;
  }
  std::vector<TierCompletion> poll() {
    std::vector<TierCompletion> out(16);
    out.resize(tier.poll(out));
    return out;
  }
  Status put(std::uint64_t number, std::uint32_t tokens = 16, std::uint32_t epsilon_ppm = 0) {
    const auto rows = rows_of(number, layout, tokens);
    REQUIRE(tier.put({number, hash_of(number), layout, tokens, epsilon_ppm, rows.data()}));
    const auto done = poll();
    REQUIRE(!done.empty());
    CHECK(done[0].event == TierEvent::put);
    CHECK(done[0].cookie == number);
    after.assign(done.begin() + 1, done.end());
    return done[0].status;
  }
  TierCompletion get(std::uint64_t number, std::uint32_t tokens = 16) {
    slot.assign(layout.block_bytes(), std::byte{});
    REQUIRE(tier.get({number, hash_of(number), layout, tokens, slot.data()}));
    const auto done = poll();
    REQUIRE(!done.empty());
    CHECK(done[0].event == TierEvent::get);
    after.assign(done.begin() + 1, done.end());
    return done[0];
  }
  bool has(std::uint64_t number) { return tier.find(hash_of(number)).has_value(); }

  Layout layout = small_layout();
  MemoryTier tier;
  std::vector<std::byte> slot;
  std::vector<TierCompletion> after;  // what came with the last completion
};

}  // namespace

TEST_CASE("memory tier: a block comes back as it was put, its tail without the room behind it") {
  Small f;
  CHECK(f.put(1).ok());
  CHECK(f.put(2, 5, 700).ok());
  REQUIRE(f.has(2));
  CHECK(f.tier.find(hash_of(2))->tokens == 5);
  CHECK(f.get(1).status.ok());
  CHECK(f.slot == rows_of(1, f.layout, 16));
  const TierCompletion tail = f.get(2, 5);
  CHECK(tail.status.ok());
  CHECK(tail.epsilon_ppm == 700);
  CHECK(tail.stored_bytes == 5 * 512);
  CHECK(f.slot == rows_of(2, f.layout, 5));
}

TEST_CASE("memory tier: another shape, an unknown or a forgotten block bring nothing") {
  Small f;
  CHECK(f.put(1).ok());
  CHECK(f.get(1, 15).status.code == Code::layout_mismatch);
  f.layout.rope_base = 500.0F;
  CHECK(f.get(1).status.code == Code::layout_mismatch);
  f.layout = small_layout();
  CHECK(f.get(9).status.code == Code::not_found);
  f.tier.forget(hash_of(1));
  CHECK_FALSE(f.has(1));
  CHECK(f.get(1).status.code == Code::not_found);
  CHECK(f.tier.figures().blocks == 0);
  CHECK(f.tier.figures().used_bytes == 0);
}

TEST_CASE("memory tier: a put forgotten on its way is cancelled and leaves nothing") {
  Small f;
  const auto rows = rows_of(1, f.layout, 16);
  REQUIRE(f.tier.put({1, hash_of(1), f.layout, 16, 0, rows.data()}));
  f.tier.forget(hash_of(1));
  const auto done = f.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status.code == Code::cancelled);
  CHECK_FALSE(f.has(1));
}

TEST_CASE("memory tier: a full tier gives up its oldest and says so; a block put again is the youngest") {
  Small f;
  for (std::uint64_t number = 1; number <= 4; ++number) CHECK(f.put(number).ok());
  CHECK(f.put(1, 16, 5).ok());
  CHECK(f.after.empty());
  CHECK(f.put(5).ok());
  REQUIRE(f.after.size() == 1);
  CHECK(f.after[0].event == TierEvent::gone);
  CHECK(f.after[0].hash == hash_of(2));
  CHECK_FALSE(f.has(2));
  CHECK(f.get(1).epsilon_ppm == 5);
  CHECK(f.tier.figures().blocks == 4);
}

TEST_CASE("memory tier: faults asked for are told as a real tier tells them") {
  Small f;
  for (std::uint64_t number = 1; number <= 3; ++number) CHECK(f.put(number).ok());
  f.tier.corrupt(hash_of(1));
  CHECK(f.get(1).status.code == Code::corrupt);
  REQUIRE(f.after.size() == 1);
  CHECK(f.after[0].hash == hash_of(1));
  f.tier.lose_unseen(hash_of(2));
  CHECK(f.has(2));
  CHECK(f.get(2).status.code == Code::not_found);
  CHECK(f.after.size() == 1);
  f.tier.lose(hash_of(3));
  CHECK_FALSE(f.has(3));
  const auto gone = f.poll();
  REQUIRE(gone.size() == 1);
  CHECK(gone[0].hash == hash_of(3));
  f.tier.refuse_next(1);
  CHECK(f.put(4).code == Code::out_of_capacity);
  CHECK(f.put(4).ok());
  CHECK(f.tier.figures().refused == 1);
  f.tier.set_state(TierState::slow);
  const auto rows = rows_of(5, f.layout, 16);
  CHECK_FALSE(f.tier.put({5, hash_of(5), f.layout, 16, 0, rows.data()}));
  CHECK(f.get(4).status.ok());
  f.tier.set_state(TierState::failed);
  CHECK_FALSE(f.has(4));
}

TEST_CASE("memory tier: by a clock, one operation follows the other, and no more than its bound are under way") {
  VirtualClock clock(1'000);
  MemoryTierOptions options;
  options.clock = &clock;
  options.in_flight = 2;
  options.fixed_ns = 100;
  options.bytes_per_s = 8'192'000'000;  // 1 us a block
  Small f(options);
  const auto rows = rows_of(1, f.layout, 16);
  REQUIRE(f.tier.put({1, hash_of(1), f.layout, 16, 0, rows.data()}));
  REQUIRE(f.tier.put({2, hash_of(2), f.layout, 16, 0, rows.data()}));
  CHECK_FALSE(f.tier.put({3, hash_of(3), f.layout, 16, 0, rows.data()}));
  CHECK(f.tier.next_due_ns() == 2'100);
  CHECK(f.tier.restore_ns(8'192) == 3 * 1'100);
  CHECK(f.poll().empty());
  clock.set(2'100);
  CHECK(f.poll().size() == 1);
  CHECK(f.tier.next_due_ns() == 3'200);
  f.tier.hold(true);
  clock.set(9'000);
  CHECK(f.poll().empty());
  f.tier.hold(false);
  const auto done = f.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].took_ns == 8'000);
}

TEST_CASE("memory tier: drawn faults are a function of the seed, and no wrong block is ever read") {
  MemoryTierOptions options;
  options.corrupt_ppm = 200'000;
  options.lose_ppm = 200'000;
  options.refuse_ppm = 200'000;
  Small one(options);
  Small two(options);
  std::size_t failed = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Status put = one.put(i % 7);
    CHECK(put == two.put(i % 7));
    const Status got = one.get(i * 3 % 7).status;
    CHECK(got == two.get(i * 3 % 7).status);
    if (got.ok()) {
      CHECK(one.slot == rows_of(i * 3 % 7, one.layout, 16));
    } else {
      ++failed;
    }
  }
  CHECK(failed > 20);
  CHECK(failed < 180);
}
