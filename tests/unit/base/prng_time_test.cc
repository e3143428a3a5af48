#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/time.h"

namespace kvrail {
namespace {

TEST_CASE("prng / seed 42 gives the published splitmix64 and xoshiro256** sequence") {
  // First outputs of xoshiro256** whose state is four splitmix64 draws from 42, from the reference
  // code.
  Prng prng(42);
  CHECK(prng.next_u64() == 1546998764402558742ULL);
  CHECK(prng.next_u64() == 6990951692964543102ULL);
  CHECK(prng.next_u64() == 12544586762248559009ULL);
}

TEST_CASE("prng / sub-streams differ by name and do not depend on each other") {
  const Prng root(7);
  Prng link = root.split("link/3");
  Prng worker = root.split("worker/1");
  Prng link_again = root.split("link/3");
  std::set<std::uint64_t> draws;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t draw = link.next_u64();
    CHECK(draw == link_again.next_u64());
    CHECK(draws.insert(draw).second);
    CHECK(draws.insert(worker.next_u64()).second);
  }
  Prng other_seed = Prng(8).split("link/3");
  CHECK(draws.count(other_seed.next_u64()) == 0);
}

TEST_CASE("prng / uniform stays in range and is even") {
  Prng prng(1);
  std::vector<int> counts(10);
  for (int i = 0; i < 100'000; ++i) {
    ++counts[prng.uniform(10)];
  }
  for (const int count : counts) {
    CHECK(count > 9'500);
    CHECK(count < 10'500);
  }
  for (int i = 0; i < 1000; ++i) {
    CHECK(prng.uniform(1) == 0);
    const std::uint64_t draw = prng.between(5, 7);
    CHECK(draw >= 5);
    CHECK(draw <= 7);
    const double real = prng.uniform01();
    CHECK(real >= 0.0);
    CHECK(real < 1.0);
  }
  static_cast<void>(prng.between(0, ~std::uint64_t{0}));
}

TEST_CASE("prng / exponential has its mean and is never negative") {
  Prng prng(3);
  double sum = 0.0;
  for (int i = 0; i < 100'000; ++i) {
    const double draw = prng.exponential(250.0);
    REQUIRE(draw >= 0.0);
    sum += draw;
  }
  CHECK(sum / 100'000 == doctest::Approx(250.0).epsilon(0.02));
  CHECK(prng.exponential(0.0) == 0.0);
}

TEST_CASE("prng / portable_log follows log to the last bits") {
  Prng prng(5);
  for (int i = 0; i < 10'000; ++i) {
    const double x = std::ldexp(prng.uniform01() + 0.5, static_cast<int>(prng.uniform(200)) - 100);
    CHECK(portable_log(x) == doctest::Approx(std::log(x)).epsilon(1e-14));
  }
  CHECK(portable_log(1.0) == 0.0);
}

TEST_CASE("clock / the steady clock never runs backwards") {
  const SteadyClock clock;
  TimeNs last_ns = clock.now_ns();
  for (int i = 0; i < 1000; ++i) {
    const TimeNs now_ns = clock.now_ns();
    CHECK(now_ns >= last_ns);
    last_ns = now_ns;
  }
}

TEST_CASE("clock / the virtual clock moves only when told") {
  VirtualClock clock(100);
  const Clock& seen = clock;
  CHECK(seen.now_ns() == 100);
  clock.advance(5 * kMillisecondNs);
  CHECK(seen.now_ns() == 5'000'100);
  clock.set(6 * kSecondNs);
  CHECK(seen.now_ns() == 6 * kSecondNs);
}

TEST_CASE("time / a deadline far away saturates") {
  CHECK(add_saturating(5, 6) == 11);
  CHECK(add_saturating(kNever - 1, 2) == kNever);
  CHECK(add_saturating(kNever, kNever) == kNever);
  CHECK(add_saturating(INT64_MIN, -1) == INT64_MIN);
}

}  // namespace
}  // namespace kvrail
