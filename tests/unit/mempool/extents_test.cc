#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "mempool/extents.h"

using namespace kvrail;
using namespace kvrail::mempool;

TEST_CASE("best fit takes the tightest range, the lowest of equals") {
  Extents space(100, 100);
  const auto a = space.try_take(10);
  const auto b = space.try_take(20);
  const auto c = space.try_take(10);
  const auto d = space.try_take(5);
  REQUIRE((a && b && c && d));
  CHECK(*a == 0);
  CHECK(*b == 10);
  CHECK(*c == 30);
  CHECK(*d == 40);
  space.give_back(*a, 10);
  space.give_back(*c, 10);
  CHECK(*space.try_take(8) == 0);  // Both holes have 10 units; the lower one.
  CHECK(*space.try_take(10) == 30);
  CHECK(*space.try_take(2) == 8);
  space.check();
}

TEST_CASE("given back neighbours join, in every order") {
  for (int order = 0; order < 6; ++order) {
    Extents space(30, 3);
    REQUIRE(space.try_take(10));
    REQUIRE(space.try_take(10));
    REQUIRE(space.try_take(10));
    CHECK_FALSE(space.try_take(1));
    constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (const int part : kOrders[order]) {
      space.give_back(static_cast<std::uint64_t>(part) * 10, 10);
      space.check();
    }
    CHECK(space.largest_free() == 30);
    CHECK(space.free_ranges() == 1);
  }
}

TEST_CASE("a run may be given back in parts, and pieces are bounded") {
  Extents space(16, 8);
  REQUIRE(space.try_take(8, 8));
  CHECK_FALSE(space.try_take(1));  // All pieces are out although there is space.
  for (std::uint64_t i = 0; i < 8; i += 2) {
    space.give_back(i, 1);
    space.check();
  }
  CHECK(space.free_units() == 12);
  CHECK(space.pieces() == 4);
  CHECK(*space.try_take(1) == 0);
}

TEST_CASE("nothing fits in an empty space") {
  Extents space(0, 10);
  CHECK_FALSE(space.try_take(1));
  CHECK(space.largest_free() == 0);
  space.check();
}

TEST_CASE("random takes and returns agree with a plain model, without allocation") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Prng prng(seed);
    const std::uint64_t total = prng.between(1, 3'000);
    const auto max_pieces = static_cast<std::uint32_t>(prng.between(1, 60));
    Extents space(total, max_pieces);
    std::vector<bool> used(total, false);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
    taken.reserve(max_pieces);
    for (int step = 0; step < 2'000; ++step) {
      if (prng.chance(0.55)) {
        const std::uint64_t units = prng.between(1, prng.chance(0.1) ? total : 1 + total / 20);
        std::optional<std::uint64_t> first;
        {
          NoAllocScope no_alloc;
          first = space.try_take(units);
        }
        if (first) {
          REQUIRE(taken.size() < max_pieces);
          for (std::uint64_t i = 0; i < units; ++i) {
            REQUIRE_FALSE(used[*first + i]);
            used[*first + i] = true;
          }
          taken.emplace_back(*first, units);
        } else {
          REQUIRE((taken.size() == max_pieces || space.largest_free() < units));
        }
      } else if (!taken.empty()) {
        const std::size_t victim = prng.uniform(taken.size());
        const auto [first, units] = taken[victim];
        taken[victim] = taken.back();
        taken.pop_back();
        for (std::uint64_t i = 0; i < units; ++i) {
          used[first + i] = false;
        }
        NoAllocScope no_alloc;
        space.give_back(first, units);
      }
      std::uint64_t longest = 0;
      std::uint64_t run = 0;
      std::uint64_t free = 0;
      for (const bool unit : used) {
        run = unit ? 0 : run + 1;
        free += unit ? 0 : 1;
        longest = std::max(longest, run);
      }
      REQUIRE(space.free_units() == free);
      REQUIRE(space.largest_free() == longest);
      if (step % 50 == 0) {
        space.check();
      }
    }
  }
}
