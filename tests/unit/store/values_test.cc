// What leaves memory first: by what it is worth, not by age alone.
#include <string>

#include "kvrail/base/prng.h"
#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

constexpr std::size_t kTokens = 128;  // 8 blocks of 2 KiB; an arena of 256 KiB holds fifteen such contexts

StoreOptions without_stubs() {
  StoreOptions options = small_options();
  options.stubs = false;
  return options;
}

// Contexts of another node, named by number, each with tokens of its own.
struct Contexts : Fixture {
  explicit Contexts(const StoreOptions& options = without_stubs()) : Fixture(options), reader(attach(0, "reader")) {}

  static std::string of(std::uint32_t number) { return std::string("c").append(std::to_string(number)); }
  VersionHandle bring(std::uint32_t number, std::size_t tokens = kTokens) {
    const VersionHandle version = receive(request("owner", of(number), ids(tokens, 1000 * (number + 1))), 1);
    kept_tokens.clear();
    return version;
  }
  [[nodiscard]] VersionHandle find(std::uint32_t number) const { return store->find(tenant, name("owner"), name(of(number)), 0); }
  [[nodiscard]] bool here(std::uint32_t number) const { return find(number).valid(); }
  // Somebody reads it for a moment.
  void use(std::uint32_t number) {
    const DeliveryHandle delivery = store->deliver(reader, here(number) ? find(number) : bring(number));
    REQUIRE(delivery.valid());
    REQUIRE(store->release(reader, delivery));
  }
  void keep(std::uint32_t number) {
    const VersionHandle version = find(number);
    store->pin(version);
    store->keep(version);
    store->unpin(version);
  }

  AgentHandle reader;
};

}  // namespace

TEST_CASE("values / what is used again and again outlives a scan that is longer than memory") {
  Contexts f;
  constexpr std::uint32_t kHot = 3, kPeriod = 30;  // each hot one every 30 s, and a context a second that comes once
  std::uint32_t found = 0, asked = 0;
  for (std::uint32_t second = 0; second < 4'000; ++second) {
    f.clock.advance(kSecondNs);
    f.store->housekeep(f.clock.now_ns(), 1 << 20);
    f.use(100 + second);
    if (second % (kPeriod / kHot) != 0) continue;
    const std::uint32_t hot = second / (kPeriod / kHot) % kHot;
    if (second >= 2'000) {
      ++asked;
      found += f.here(hot) ? 1 : 0;
    }
    f.use(hot);
    if (second % 100 == 0) f.store->check();
  }
  // By age alone none of them would be here: thirty contexts come between two uses, and fifteen have room.
  CAPTURE(asked);
  CHECK(found >= asked * 9 / 10);
}

TEST_CASE("values / before anything is known, the one used longest ago goes") {
  Contexts f;
  for (std::uint32_t i = 0; i < 12; ++i) {
    f.use(i);
    f.clock.advance(10 * kMillisecondNs);
  }
  for (std::uint32_t i = 12; i < 24; ++i) f.use(i);
  std::uint32_t first = 0;
  while (!f.here(first)) ++first;
  CHECK(first > 4);
  for (std::uint32_t i = first; i < 24; ++i) CHECK(f.here(i));
}

TEST_CASE("values / what is expected stays until then, and is like all others when that has passed") {
  Contexts f;
  for (std::uint32_t i = 0; i < 8; ++i) f.use(i);
  f.clock.advance(20 * kSecondNs);
  f.store->expect(f.find(0), 900'000, f.clock.now_ns() + 5 * kSecondNs);
  f.store->expect(f.find(1), 900'000, f.clock.now_ns() + 5 * kSecondNs);
  f.store->expect_no_more(f.find(1));
  for (std::uint32_t i = 100; i < 120; ++i) f.use(i);
  CHECK(f.here(0));
  CHECK_FALSE(f.here(1));
  // 5 s, a quarter more, and then as old as it is.
  f.clock.advance(10 * kSecondNs);
  for (std::uint32_t i = 200; i < 220; ++i) f.use(i);
  CHECK_FALSE(f.here(0));
  f.store->expect(VersionHandle{}, 900'000, 1);  // of nothing
  f.store->expect_no_more(VersionHandle{});
}

TEST_CASE("values / what the tier keeps goes before what is nowhere else, whatever either is worth") {
  Contexts f;
  for (std::uint32_t i = 0; i < 12; ++i) {
    f.use(i);
    f.clock.advance(2 * kSecondNs);
  }
  for (std::uint32_t i = 8; i < 12; ++i) f.keep(i);
  CHECK(f.store->next_to_leave(f.tenant) == VersionHandle{});  // no stubs here
  for (std::uint32_t i = 100; i < 106; ++i) f.use(i);
  for (std::uint32_t i = 0; i < 8; ++i) CHECK(f.here(i));
  std::uint32_t left = 0;
  for (std::uint32_t i = 8; i < 12; ++i) left += f.here(i) ? 0 : 1;
  CHECK(left >= 2);
}

TEST_CASE("values / of equal age what is quicker to compute per byte goes first") {
  Contexts f;
  RestoreCosts costs;
  costs.compute = {.prefill_per_token_ns = 1, .prefill_quadratic_ns_q20 = 1ULL << 20};
  f.store->set_costs(costs);
  f.use(0);
  f.bring(50, 4 * kTokens);  // four times as much to compute a token
  f.use(1);
  for (std::uint32_t i = 100; i < 112; ++i) f.use(i);
  CHECK(f.here(50));
  CHECK_FALSE(f.here(0));
  CHECK_FALSE(f.here(1));
}

TEST_CASE("values / the next to be written is the one of least worth that can become a stub") {
  Contexts f{small_options()};
  for (std::uint32_t i = 0; i < 6; ++i) {
    f.use(i);
    f.clock.advance(5 * kSecondNs);
  }
  CHECK(f.store->next_to_leave(f.tenant) == f.find(0));
  f.store->expect(f.find(0), 1'000'000, f.clock.now_ns() + kSecondNs);
  CHECK(f.store->next_to_leave(f.tenant) == f.find(1));
  f.keep(1);
  CHECK(f.store->next_to_leave(f.tenant) == f.find(2));
  const VersionHandle third = f.find(2);
  f.store->pin(third);
  CHECK(f.store->next_to_leave(f.tenant) == f.find(3));
  f.store->unpin(third);
}

TEST_CASE("values / random uses, hints, owners and pressure leave the books in order") {
  Contexts f{small_options()};
  Prng prng(9);
  std::vector<std::pair<VersionHandle, DeliveryHandle>> held;
  AgentHandle owner;
  for (int step = 0; step < 4'000; ++step) {
    f.clock.advance(static_cast<TimeNs>(prng.uniform(3'000)) * kMillisecondNs);
    const auto number = static_cast<std::uint32_t>(prng.uniform(40));
    switch (prng.uniform(9)) {
      case 0:
        if (const VersionHandle version = f.find(number)) {
          f.store->expect(version, static_cast<std::uint32_t>(prng.uniform(1'000'001)), f.clock.now_ns() + kSecondNs);
        }
        break;
      case 1: f.store->expect_no_more(f.find(number)); break;
      case 2:
        if (f.here(number)) f.keep(number);
        break;
      case 3:
        if (f.here(number) && held.size() < 4) held.emplace_back(f.find(number), f.store->deliver(f.reader, f.find(number)));
        break;
      case 4:
        if (!held.empty()) {
          REQUIRE(f.store->release(f.reader, held.back().second));
          held.pop_back();
        }
        break;
      case 5:  // the owner comes here, or goes
        if (owner.valid()) {
          f.store->remove_agent(owner);
          owner = AgentHandle{};
        } else {
          owner = f.attach(1, "owner");
        }
        break;
      default:
        if (!owner.valid() && !f.here(number)) {
          const auto staging = f.stage(f.request("owner", f.of(number), ids(16 * (1 + prng.uniform(8)), 1000 * (number + 1))));
          if (staging.ok()) CHECK(f.publish(*staging).ok());
          f.kept_tokens.clear();
        }
    }
    f.store->housekeep(f.clock.now_ns(), 1 << 20);
    f.store->check();
  }
  for (const auto& [version, delivery] : held) REQUIRE(f.store->release(f.reader, delivery));
}
