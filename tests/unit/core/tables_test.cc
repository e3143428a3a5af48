// The containers of the core: fixed capacity, no memory after construction.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "engine/core/flat_map.h"
#include "engine/core/range_set.h"
#include "engine/core/scratch.h"
#include "engine/core/timers.h"
#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"

using namespace kvrail;
using namespace kvrail::engine;

namespace {
struct BadHash {  // many collisions, so that probing and shifting are tried
  std::uint64_t operator()(std::uint64_t key) const noexcept { return key % 7; }
};
bool all_are(std::span<const std::uint64_t> words, std::uint64_t value) {
  return std::all_of(words.begin(), words.end(), [&](std::uint64_t word) { return word == value; });
}
}  // namespace

TEST_CASE("flat map / behaves like std::map under random use, with a hash that collides") {
  Prng prng(1);
  FlatMap<std::uint64_t, std::uint64_t, BadHash> map(50);
  std::map<std::uint64_t, std::uint64_t> model;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t key = prng.uniform(80);
    if (prng.chance(0.5)) {
      const bool fits = model.size() < 50 || model.count(key) != 0;
      const std::uint64_t value = prng.next_u64();
      {
        const NoAllocScope scope;
        CHECK((map.insert(key, value) != nullptr) == fits);
      }
      if (fits) model[key] = value;
    } else {
      CHECK(map.erase(key) == (model.erase(key) == 1));
    }
    const std::uint64_t other = prng.uniform(80);
    const auto found = model.find(other);
    const std::uint64_t* got = map.find(other);
    REQUIRE((got != nullptr) == (found != model.end()));
    if (got != nullptr) CHECK(*got == found->second);
    REQUIRE(map.size() == model.size());
  }
  map.erase_if([](std::uint64_t key, std::uint64_t) { return key % 2 == 0; });
  std::size_t odd = 0;
  for (const auto& [key, value] : model) odd += key % 2;
  CHECK(map.size() == odd);
}

TEST_CASE("timers / come due in order of time, whatever was set, moved and cancelled before") {
  Prng prng(2);
  Timers timers(100);
  std::map<std::uint32_t, TimeNs> model;
  TimeNs now = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto id = static_cast<std::uint32_t>(prng.uniform(100));
    const auto dice = prng.uniform(10);
    if (dice < 5) {
      const TimeNs due = now + static_cast<TimeNs>(prng.uniform(1000));
      timers.set(id, due);
      model[id] = due;
    } else if (dice < 7) {
      timers.cancel(id);
      model.erase(id);
    } else {
      now += static_cast<TimeNs>(prng.uniform(100));
      TimeNs last = 0;
      for (std::uint32_t got = timers.pop_due(now); got != Timers::kNone; got = timers.pop_due(now)) {
        REQUIRE(model.count(got) == 1);
        REQUIRE(model[got] <= now);
        REQUIRE(model[got] >= last);
        last = model[got];
        model.erase(got);
      }
      for (const auto& [left, due] : model) REQUIRE(due > now);
    }
    TimeNs next = kNever;
    for (const auto& [left, due] : model) next = std::min(next, due);
    REQUIRE(timers.next_ns() == next);
  }
}

TEST_CASE("work queue / keeps the order and holds each id once") {
  WorkQueue queue(10);
  CHECK(queue.pop() == WorkQueue::kNone);
  queue.push(3);
  queue.push(1);
  queue.push(3);
  queue.push(9);
  CHECK(queue.size() == 3);
  CHECK(queue.pop() == 3);
  queue.push(3);
  CHECK(queue.pop() == 1);
  CHECK(queue.pop() == 9);
  CHECK(queue.pop() == 3);
  CHECK(queue.pop() == WorkQueue::kNone);
}

TEST_CASE("range set / covers what a set of bytes covers") {
  Prng prng(3);
  for (int round = 0; round < 50; ++round) {
    RangeSet ranges;
    std::set<std::uint64_t> model;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t begin = prng.uniform(200);
      const std::uint64_t end = begin + prng.uniform(20);
      const bool add = prng.chance(0.6);
      if (add) {
        ranges.add(begin, end);
      } else {
        ranges.remove(begin, end);
      }
      for (std::uint64_t at = begin; at < end; ++at) {
        if (add) {
          model.insert(at);
        } else {
          model.erase(at);
        }
      }
      REQUIRE(ranges.bytes() == model.size());
      const std::uint64_t from = prng.uniform(200);
      const std::uint64_t to = from + prng.uniform(10);
      bool all = true;
      for (std::uint64_t at = from; at < to; ++at) all = all && model.count(at) == 1;
      REQUIRE(ranges.covers(from, to) == all);
    }
    std::uint64_t gap_bytes = 0;
    ranges.for_each_gap(220, [&](std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t at = begin; at < end; ++at) REQUIRE(model.count(at) == 0);
      gap_bytes += end - begin;
    });
    CHECK(gap_bytes == 220 - model.size());
  }
}

TEST_CASE("range set / when it is full, a further range counts as missing") {
  RangeSet ranges;
  for (std::uint64_t i = 0; i < RangeSet::kCapacity + 10; ++i) ranges.add(2 * i, 2 * i + 1);
  CHECK(ranges.count() == RangeSet::kCapacity);
  CHECK(!ranges.covers(2 * RangeSet::kCapacity, 2 * RangeSet::kCapacity + 1));
  ranges.add(0, 1000);
  CHECK(ranges.count() == 1);
  CHECK(ranges.covers(0, 1000));
}

TEST_CASE("scratch / arrays never overlap, all of it comes back, and merges into one again") {
  Prng prng(4);
  Scratch scratch(1 << 20);
  CHECK(scratch.capacity() == 1 << 20);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<std::span<std::uint64_t>, std::uint64_t>> live;
    for (int i = 0; i < 500; ++i) {
      if (prng.chance(0.6)) {
        const std::uint64_t stamp = prng.next_u64();
        const NoAllocScope scope;
        const auto array = scratch.try_array<std::uint64_t>(1 + prng.uniform(2000));
        const AllowAllocScope allow;
        if (array.empty()) continue;
        for (std::uint64_t& word : array) word = stamp;
        live.emplace_back(array, stamp);
      } else if (!live.empty()) {
        const std::size_t at = prng.uniform(live.size());
        REQUIRE(all_are(live[at].first, live[at].second));
        scratch.give_back(live[at].first);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    for (auto& [array, stamp] : live) {
      REQUIRE(all_are(array, stamp));
      scratch.give_back(array);
    }
    REQUIRE(scratch.used() == 0);
    auto all = scratch.try_array<std::byte>(1 << 20);
    REQUIRE(all.size() == 1 << 20);
    CHECK(scratch.try_array<std::byte>(1).empty());
    scratch.give_back(all);
  }
  CHECK(scratch.try_array<std::byte>(0).empty());
  CHECK(scratch.try_array<std::uint64_t>(SIZE_MAX / 4).empty());
}
