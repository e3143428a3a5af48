// Slots that the agent may give back, and those that have become another object's.
#include "engine/client/slot_claims.h"

#include <doctest/doctest.h>

#include <utility>
#include <vector>

namespace kvrail::client {
namespace {

using Runs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Runs runs_of(const SlotClaims& claims, std::uint32_t arena, std::uint64_t first, std::uint64_t count,
             std::uint64_t claim) {
  Runs runs;
  claims.for_each_run(arena, first, count, claim, [&](std::uint64_t at, std::uint64_t n) { runs.emplace_back(at, n); });
  return runs;
}

TEST_CASE("slots that were given again are not given back") {
  SlotClaims claims;
  const std::uint64_t a = claims.next();
  const std::uint64_t b = claims.next();
  CHECK(a != 0);
  CHECK(a != b);
  claims.take(1, 4, 6, a);
  CHECK(runs_of(claims, 1, 4, 6, a) == Runs{{4, 6}});
  CHECK(runs_of(claims, 1, 4, 6, b).empty());
  claims.take(1, 5, 1, b);
  claims.take(1, 8, 2, b);
  CHECK(runs_of(claims, 1, 4, 6, a) == Runs{{4, 1}, {6, 2}});
  CHECK(runs_of(claims, 1, 0, 100, b) == Runs{{5, 1}, {8, 2}});
  claims.take(1, 4, 6, b);
  CHECK(runs_of(claims, 1, 4, 6, a).empty());
}

TEST_CASE("arenas do not mix, and unknown ranges have no runs") {
  SlotClaims claims;
  const std::uint64_t a = claims.next();
  claims.take(1, 0, 2, a);
  CHECK(runs_of(claims, 2, 0, 2, a).empty());
  CHECK(runs_of(claims, 1, 2, 50, a).empty());
  CHECK(runs_of(claims, 1, 1, 50, a) == Runs{{1, 1}});
}

}  // namespace
}  // namespace kvrail::client
