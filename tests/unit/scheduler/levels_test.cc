#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/levels.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr std::uint64_t kChunk = 64 * 1024;
constexpr std::uint64_t kNoCap = 1'000'000'000;

Flow& with(Flow& flow, std::uint32_t weight, std::uint32_t level) {
  flow.weight = weight;
  flow.level = level;
  return flow;
}

}  // namespace

TEST_CASE("levels / the highest non-empty level is served") {
  std::array<Flow, 3> flows;
  LevelSet set;
  CHECK(set.turn(kChunk, kNoCap) == nullptr);
  set.insert(with(flows[0], 1, 3));
  set.insert(with(flows[1], 1, 63));
  set.insert(with(flows[2], 1, 0));
  CHECK(set.turn(kChunk, kNoCap) == &flows[1]);
  set.remove(flows[1]);
  CHECK(set.turn(kChunk, kNoCap) == &flows[0]);
  set.remove(flows[0]);
  CHECK(set.turn(kChunk, kNoCap) == &flows[2]);
  set.remove(flows[2]);
  CHECK(set.empty());
}

TEST_CASE("levels / bytes within a level follow the weights, whatever the chunk lengths") {
  Prng prng(3);
  const std::array<std::uint32_t, 5> weights{2, 3, 4, 6, 131'070};
  for (std::size_t used : {4U, 5U}) {
    std::array<Flow, 5> flows;
    std::array<std::uint64_t, 5> bytes{};
    LevelSet set;
    std::uint64_t total_weight = 0;
    for (std::size_t i = 0; i < used; ++i) {
      set.insert(with(flows[i], weights[i], 10));
      total_weight += weights[i];
    }
    std::uint64_t total = 0;
    while (total < total_weight * kChunk * 40) {
      Flow* const flow = set.turn(kChunk, kNoCap * 100);
      const auto index = static_cast<std::size_t>(flow - flows.data());
      const std::uint64_t length = prng.chance(0.2) ? prng.between(1, kChunk) : kChunk;
      LevelSet::charge(*flow, length);
      bytes[index] += length;
      total += length;
    }
    for (std::size_t i = 0; i < used; ++i) {
      const double share = static_cast<double>(bytes[i]) / static_cast<double>(total);
      const double due = weights[i] / static_cast<double>(total_weight);
      CHECK(share > due * 0.95);
      CHECK(share < due * 1.05);
    }
  }
}

TEST_CASE("levels / a turn is never longer than its cap, nor shorter than a chunk") {
  std::array<Flow, 2> flows;
  LevelSet set;
  set.insert(with(flows[0], 1, 1));
  set.insert(with(flows[1], 1000, 1));
  std::uint64_t run = 0, longest = 0;
  const Flow* last = nullptr;
  for (int i = 0; i < 1000; ++i) {
    Flow* const flow = set.turn(kChunk, 10 * kChunk);
    run = flow == last ? run + kChunk : kChunk;
    last = flow;
    longest = std::max(longest, run);
    LevelSet::charge(*flow, kChunk);
  }
  CHECK(longest == 10 * kChunk);
  CHECK(set.turn(kChunk, 1) != nullptr);  // a cap below a chunk still serves chunks
}

TEST_CASE("levels / the smallest weight is learned when it comes and when it goes") {
  std::array<Flow, 3> flows;
  LevelSet set;
  set.insert(with(flows[0], 10, 1));
  set.insert(with(flows[1], 20, 1));
  const auto turn_of = [&](Flow& wanted) {
    while (set.turn(kChunk, kNoCap) != &wanted) LevelSet::charge(*set.turn(kChunk, kNoCap), kChunk);
    std::uint64_t bytes = 0;
    while (set.turn(kChunk, kNoCap) == &wanted) {
      LevelSet::charge(wanted, kChunk);
      bytes += kChunk;
    }
    return bytes;
  };
  CHECK(turn_of(flows[1]) == 2 * kChunk);
  set.insert(with(flows[2], 1, 1));
  CHECK(turn_of(flows[2]) == kChunk);
  CHECK(turn_of(flows[1]) == 20 * kChunk);
  set.remove(flows[2]);
  for (int i = 0; i < 3; ++i) turn_of(flows[0]);
  CHECK(turn_of(flows[1]) == 2 * kChunk);
}

TEST_CASE("levels / every listed flow is served under random arrivals, departures and climbs") {
  Prng prng(11);
  std::vector<Flow> flows(200);
  std::vector<std::uint64_t> waiting(flows.size(), 0);
  LevelSet set;
  std::uint32_t listed = 0;
  for (int i = 0; i < 200'000; ++i) {
    Flow& flow = flows[prng.uniform(flows.size())];
    const auto index = static_cast<std::size_t>(&flow - flows.data());
    if (!flow.listed) {
      set.insert(with(flow, static_cast<std::uint32_t>(prng.between(1, 8)),
                      static_cast<std::uint32_t>(prng.uniform(4))));
      waiting[index] = 0;
      ++listed;
    } else if (prng.chance(0.02)) {
      set.remove(flow);
      --listed;
    } else if (flow.level < 63 && prng.chance(0.01)) {
      set.remove(flow);
      ++flow.level;
      set.insert(flow);
    }
    REQUIRE(set.size() == listed);
    if (listed == 0) continue;
    Flow* const served = set.turn(prng.chance(0.5) ? kChunk : 4096, kNoCap);
    REQUIRE(served != nullptr);
    REQUIRE(served->listed);
    for (const Flow& other : flows) {
      if (i % 1000 == 0 && other.listed) REQUIRE(other.level <= served->level);
    }
    LevelSet::charge(*served, prng.between(1, 4096));
  }
}
