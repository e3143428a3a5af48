// Which entry goes next: by hand, and against a list that is searched from end to end.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/exp_table.h"
#include "scheduler/value.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr Use kFresh{.added = 20};
constexpr EntryCost kPlain{.bytes = 1 << 20, .restore_ns = 1 << 20, .hit_ns = 0};  // 1 ns saved per byte
constexpr std::int64_t kBucketQ32 = kOneQ32 / ValueIndex::kBucketsPerOctave;

ValueIndex::Config config(std::uint32_t entries, std::uint32_t hints = 0) {
  return {.entries = entries, .hints = hints, .known_keys = 1U << 14};
}

}  // namespace

TEST_CASE("value / of what is equal, the one used longest ago goes") {
  ValueIndex index(config(3));
  CHECK_FALSE(index.victim(0).has_value());
  for (std::uint32_t i = 0; i < 3; ++i) index.insert(i, mix_key(i), kPlain, kFresh, kSecondNs * i);
  CHECK(index.victim(2 * kSecondNs) == 0U);
  index.remove(0);
  CHECK(index.victim(2 * kSecondNs) == 1U);
  CHECK(index.size() == 2);
}

TEST_CASE("value / what was used twice outlives what came after it and was used once") {
  // Knowing nothing, a class used twice and one used once differ only by age; after some hundred lives of which those used
  // twice come again and the others do not, the newest of the others goes first.
  ValueIndex index(config(4));
  TimeNs now = 0;
  for (std::uint64_t life = 0; life < 2'000; ++life) {
    now += kSecondNs / 10;
    if (life % 4 == 0) {
      for (int turn = 0; turn < 4; ++turn) index.note_use(mix_key(1'000'000 + life), kFresh, now += kSecondNs);
    } else {
      index.note_use(mix_key(1'000'000 + life), kFresh, now);
    }
  }
  index.insert(0, mix_key(1), kPlain, kFresh, now);
  index.touch(0, kFresh, now);
  index.insert(1, mix_key(2), kPlain, kFresh, now);
  CHECK(index.victim(now) == 1U);
  // Nor would another new one be let in for it; for one of its own kind it would.
  CHECK_FALSE(index.would_admit(mix_key(3), kPlain, kFresh, 0));
  CHECK(index.would_admit(mix_key(3), kPlain, kFresh, 1));
}

TEST_CASE("value / what costs less to bring back per byte goes first") {
  ValueIndex index(config(4));
  index.insert(0, mix_key(1), {.bytes = 1000, .restore_ns = 5'000, .hit_ns = 0}, kFresh, 0);      // 5 ns a byte
  index.insert(1, mix_key(2), {.bytes = 1000, .restore_ns = 5'000, .hit_ns = 4'000}, kFresh, 0);  // 1
  index.insert(2, mix_key(3), {.bytes = 4000, .restore_ns = 10'000, .hit_ns = 0}, kFresh, 0);     // 2.5
  CHECK(index.victim(0) == 1U);
  index.set_cost(1, {.bytes = 10, .restore_ns = 1'000'000, .hit_ns = 0}, 0);
  CHECK(index.victim(0) == 2U);
  // A hit that takes as long as bringing it back is worth nothing, and no size or time overflows.
  index.insert(3, mix_key(4), {.bytes = 0, .restore_ns = 5, .hit_ns = 5}, kFresh, 0);
  CHECK(index.victim(0) == 3U);
  index.set_cost(3, {.bytes = 1, .restore_ns = std::numeric_limits<TimeNs>::max(), .hit_ns = 0}, 0);
  CHECK(index.victim(0) == 2U);
}

TEST_CASE("value / a pinned entry is never the victim, and counts as used when the last pin goes") {
  ValueIndex index(config(2));
  index.insert(0, mix_key(1), kPlain, kFresh, 0);
  index.insert(1, mix_key(2), kPlain, kFresh, kSecondNs);
  index.pin(0);
  index.pin(0);
  CHECK(index.victim(kSecondNs) == 1U);
  index.unpin(0, 2 * kSecondNs);
  index.pin(1);
  CHECK_FALSE(index.victim(2 * kSecondNs).has_value());
  index.unpin(1, 2 * kSecondNs);
  CHECK(index.victim(2 * kSecondNs) == 1U);
  index.unpin(0, 3 * kSecondNs);
  CHECK(index.victim(3 * kSecondNs) == 1U);
}

TEST_CASE("value / a hint's value is its probability by the time it must lie, and doubles as that halves") {
  // 1 ns a byte, half, in 8 s: log2(0.5 / 8e9) = -33.9. In 4 s one more.
  const auto log = [](TimeNs residency, std::uint32_t ppm) {
    return static_cast<double>(ValueIndex::hinted_value(kPlain, ppm, residency)) / 4294967296.0;
  };
  CHECK(log(8 * kSecondNs, 500'000) == doctest::Approx(-33.897).epsilon(0.0001));
  CHECK(log(4 * kSecondNs, 500'000) == doctest::Approx(-32.897).epsilon(0.0001));
  CHECK(log(8 * kSecondNs, 1'000'000) == doctest::Approx(-32.897).epsilon(0.0001));
  CHECK(log(0, 1'000'000) == log(ValueIndex::kLeastResidencyNs, 1'000'000));
  CHECK(log(8 * kSecondNs, 0) < -70);
}

TEST_CASE("value / hints decide until they are used, withdrawn, or over") {
  ValueIndex index(config(3, 2));
  for (std::uint32_t i = 0; i < 3; ++i) index.insert(i, mix_key(i), kPlain, kFresh, 0);
  REQUIRE(index.hint(0, 900'000, 10 * kSecondNs, 0));
  REQUIRE(index.hint(1, 10, 1'000 * kSecondNs, 0));
  CHECK_FALSE(index.hint(2, 900'000, 10 * kSecondNs, 0));  // no room for a third
  CHECK(index.victim(0) == 1U);                            // hardly ever used
  index.forget_hint(1, 0);
  CHECK(index.victim(0) != 0U);
  REQUIRE(index.hint(2, 900'000, 10 * kSecondNs, 0));
  // The hints were for 10 s and are over at 12.5 s: then all are as old as each other again.
  CHECK(index.victim(9 * kSecondNs) == 1U);
  const auto soon = index.value(0);
  index.advance(13 * kSecondNs);
  CHECK(index.value(0) < soon);
  CHECK(index.value(0) == index.value(1));
  REQUIRE(index.hint(0, 900'000, 20 * kSecondNs, 13 * kSecondNs));  // and their room is free
  index.touch(0, kFresh, 14 * kSecondNs);
  REQUIRE(index.hint(1, 900'000, 20 * kSecondNs, 14 * kSecondNs));
  index.remove(1);
  REQUIRE(index.hint(2, 900'000, 20 * kSecondNs, 14 * kSecondNs));
  REQUIRE(index.hint(2, 100'000, 20 * kSecondNs, 14 * kSecondNs));  // in the place of the one before
  REQUIRE(index.hint(0, 100'000, 20 * kSecondNs, 14 * kSecondNs));
}

namespace {

// The same by search: every value computed from what was told of the entry.
struct Naive {
  struct Entry {
    bool present = false, hinted = false;
    std::uint64_t hash = 0;
    std::uint32_t use_class = 0, pins = 0, probability_ppm = 0, rank = 0;
    std::int64_t cost_log = 0;  // octaves of ns a byte
    TimeNs used_ns = 0, when_ns = 0, over_ns = 0;
  };
  explicit Naive(std::uint32_t count) : entries(count), sketch(1U << 14) {}

  std::uint32_t learn(std::uint64_t hash, const Use& use, TimeNs now) {
    const std::uint32_t c = use_class(use, sketch.add(hash));
    model.observe(hash, c, now);
    return c;
  }
  [[nodiscard]] std::int64_t value(const Entry& e, TimeNs now) const {
    return model.log_density_q32(e.use_class, ReuseModel::age_of(now - e.used_ns)) + e.cost_log * kOneQ32;
  }
  [[nodiscard]] bool same_cell(const Entry& a, const Entry& b, TimeNs now) const {
    return a.rank == b.rank && a.use_class == b.use_class && a.cost_log == b.cost_log &&
           ReuseModel::age_of(now - a.used_ns) == ReuseModel::age_of(now - b.used_ns);
  }
  void unhint(Entry& e, TimeNs now) {
    e.hinted = false;
    if (e.pins > 0) return;
    for (const Entry& other : entries)
      if (&other != &e && other.present && !other.hinted && other.pins == 0 && same_cell(e, other, now))
        e.used_ns = std::min(e.used_ns, other.used_ns);
  }

  std::vector<Entry> entries;
  FrequencySketch sketch;
  ReuseModel model;
};

struct Duel {
  static constexpr std::uint32_t kEntries = 40, kHints = 6;
  ValueIndex index{{.entries = kEntries, .hints = kHints, .known_keys = 1U << 14, .ranks = 2}};
  Naive naive{kEntries};
  Prng prng;
  std::uint32_t hints = 0;

  explicit Duel(std::uint64_t seed) : prng(seed) {}

  Use draw_use() {
    return Use{.continues = prng.uniform(2) == 0, .open_tail = prng.uniform(8) == 0, .added = prng.uniform(200),
               .since_lineage_ns = static_cast<TimeNs>(prng.uniform(200)) * kSecondNs};
  }
  void use(std::uint32_t handle, TimeNs now) {
    auto& e = naive.entries[handle];
    const Use use = draw_use();
    if (!e.present) {
      const std::int64_t octave = static_cast<std::int64_t>(prng.uniform(5)) - 2;
      e = Naive::Entry{};
      e.present = true;
      e.hash = mix_key(prng.uniform(200));
      e.cost_log = octave;
      const EntryCost cost{.bytes = 1 << 10, .restore_ns = (TimeNs{1} << (10 + octave)) + 7, .hit_ns = 7};
      e.use_class = naive.learn(e.hash, use, now);
      e.rank = static_cast<std::uint32_t>(prng.uniform(2));
      index.insert(handle, e.hash, cost, use, now, e.rank);
    } else {
      e.use_class = naive.learn(e.hash, use, now);
      if (e.hinted) --hints;
      e.hinted = false;
      index.touch(handle, use, now);
    }
    e.used_ns = now;
  }
  void hint(std::uint32_t handle, TimeNs now) {
    auto& e = naive.entries[handle];
    if (!e.present) return;
    if (prng.uniform(4) == 0) {
      if (e.hinted) {
        --hints;
        naive.unhint(e, now);
      }
      return index.forget_hint(handle, now);
    }
    const auto ppm = static_cast<std::uint32_t>(prng.uniform(1'000'001));
    const TimeNs when = now + static_cast<TimeNs>(prng.uniform(60)) * kSecondNs;
    REQUIRE(index.hint(handle, ppm, when, now) == (e.hinted || hints < kHints));
    if (!e.hinted && hints == kHints) return;
    hints += e.hinted ? 0 : 1;
    e.hinted = true;
    e.probability_ppm = ppm;
    e.when_ns = when;
    e.over_ns = when + std::max(kSecondNs, (when - now) / 4);
  }
  void pin(std::uint32_t handle, TimeNs now) {
    auto& e = naive.entries[handle];
    if (!e.present) return;
    if (e.pins > 0 && prng.uniform(2) == 0) {
      index.unpin(handle, now);
      if (--e.pins == 0 && !e.hinted) e.used_ns = now;
    } else if (e.pins < 3) {
      ++e.pins;
      index.pin(handle);
    }
  }
  void rank(std::uint32_t handle, TimeNs now) {
    auto& e = naive.entries[handle];
    if (!e.present) return;
    const auto rank = static_cast<std::uint32_t>(prng.uniform(2));
    index.set_rank(handle, rank, now);
    if (rank == e.rank) return;
    e.rank = rank;
    if (!e.hinted) naive.unhint(e, now);
  }
  void remove(std::uint32_t handle) {
    auto& e = naive.entries[handle];
    if (!e.present || e.pins > 0) return;
    if (e.hinted) --hints;
    e.present = false;
    index.remove(handle);
  }
  // One hint that ends after the other, each a little after its time, so that both sides see them in this order.
  void pass_to(TimeNs now) {
    for (;;) {
      Naive::Entry* next = nullptr;
      for (auto& e : naive.entries)
        if (e.present && e.hinted && e.over_ns < now && (next == nullptr || e.over_ns < next->over_ns)) next = &e;
      if (next == nullptr) return index.advance(now);
      const TimeNs seen = std::min(next->over_ns + 3 * kMillisecondNs, now);
      index.advance(seen);
      --hints;
      naive.unhint(*next, seen);
    }
  }
  // All of the rank that are not pinned, each once, those of less value first but for the width of a bucket.
  void check_order(std::uint32_t rank, std::size_t there) {
    std::array<ValueIndex::Handle, kEntries> order{};
    const std::size_t count = index.next_victims(rank, order);
    REQUIRE(count == there);
    std::set<ValueIndex::Handle> seen;
    std::int64_t most = std::numeric_limits<std::int64_t>::min() / 2;
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE(naive.entries[order[i]].rank == rank);
      REQUIRE(seen.insert(order[i]).second);
      REQUIRE(index.value(order[i]) > most - kBucketQ32);
      most = std::max(most, index.value(order[i]));
    }
    std::array<ValueIndex::Handle, 3> first{};
    const std::size_t few = index.next_victims(rank, first);
    REQUIRE(few == std::min<std::size_t>(there, first.size()));
    REQUIRE(std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(few), order.begin()));
  }
  void check(TimeNs now) {
    pass_to(now);
    const auto victim = index.victim(now);
    std::array<std::int64_t, 2> least;
    least.fill(std::numeric_limits<std::int64_t>::max());
    std::array<std::size_t, 2> there{};
    for (std::uint32_t h = 0; h < kEntries; ++h) {
      const auto& e = naive.entries[h];
      REQUIRE(index.contains(h) == e.present);
      if (!e.present) continue;
      const std::int64_t value = index.value(h);
      if (e.pins > 0) {
        REQUIRE(value == std::numeric_limits<std::int64_t>::max());
      } else if (e.hinted) {
        const EntryCost cost{.bytes = 1 << 10, .restore_ns = TimeNs{1} << (10 + e.cost_log), .hit_ns = 0};
        const std::int64_t exact = ValueIndex::hinted_value(cost, e.probability_ppm, e.when_ns - now);
        REQUIRE(std::abs(value - exact) <= kOneQ32 * 16 / 10);
        least[e.rank] = std::min(least[e.rank], value);
        ++there[e.rank];
      } else {
        REQUIRE(value == naive.value(e, now));
        least[e.rank] = std::min(least[e.rank], value);
        ++there[e.rank];
      }
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) check_order(rank, there[rank]);
    REQUIRE(victim.has_value() == (there[0] + there[1] > 0));
    if (!victim) return;
    const auto& gone = naive.entries[*victim];
    REQUIRE(gone.pins == 0);
    REQUIRE(gone.rank == (there[0] > 0 ? 0U : 1U));
    REQUIRE(index.value(*victim) < least[gone.rank] + kBucketQ32);
    for (const auto& other : naive.entries) {
      if (!gone.hinted && other.present && other.pins == 0 && !other.hinted && naive.same_cell(gone, other, now))
        REQUIRE(gone.used_ns <= other.used_ns);
    }
  }
};

}  // namespace

TEST_CASE("value / it agrees with a search through all entries, whatever is done") {
  // What happens at other milliseconds than uses meets no age at its very bound, nor does a check: there the wheel may
  // be one tick late.
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Duel duel(seed);
    TimeNs now = 0;
    for (int step = 0; step < 2'000; ++step) {
      now += static_cast<TimeNs>(duel.prng.uniform(step % 50 == 0 ? 20'000 : 100)) * 10 * kMillisecondNs;
      duel.pass_to(now);
      const auto handle = static_cast<std::uint32_t>(duel.prng.uniform(Duel::kEntries));
      switch (duel.prng.uniform(10)) {
        case 0: duel.remove(handle); break;
        case 1: duel.pin(handle, now + 1 * kMillisecondNs); break;
        case 2: duel.hint(handle, now + 7 * kMillisecondNs); break;
        case 3: duel.rank(handle, now + 1 * kMillisecondNs); break;
        default: duel.use(handle, now + 1 * kMillisecondNs); break;
      }
      now += 10 * kMillisecondNs;
      duel.check(now + 4 * kMillisecondNs);
    }
  }
}

TEST_CASE("value / ten thousand entries of one age grow older a few at a time, and still go in their order") {
  constexpr std::uint32_t kMany = 10'000;
  ValueIndex index({.entries = kMany, .known_keys = 1U << 18});
  for (std::uint32_t i = 0; i < kMany; ++i) index.insert(i, mix_key(i), kPlain, kFresh, i);
  // Two bounds between ages pass at once.
  for (TimeNs now = 10 * kSecondNs; now < 11 * kSecondNs; now += 2 * kMillisecondNs) index.advance(now);
  std::vector<ValueIndex::Handle> order(kMany);
  REQUIRE(index.next_victims(0, order) == kMany);
  for (std::uint32_t i = 0; i < kMany; ++i) REQUIRE(order[i] == i);
}

TEST_CASE("value / the same calls give the same victims") {
  std::vector<std::optional<std::uint32_t>> first;
  for (int round = 0; round < 2; ++round) {
    Prng prng(5);
    ValueIndex index(config(64, 8));
    TimeNs now = 0;
    for (int step = 0; step < 5'000; ++step) {
      now += static_cast<TimeNs>(prng.uniform(400)) * kMillisecondNs;
      const auto handle = static_cast<std::uint32_t>(prng.uniform(64));
      const Use use{.continues = prng.uniform(2) == 0, .added = prng.uniform(40)};
      if (!index.contains(handle)) {
        index.insert(handle, mix_key(prng.uniform(500)), kPlain, use, now);
      } else if (prng.uniform(3) == 0) {
        index.hint(handle, static_cast<std::uint32_t>(prng.uniform(1'000'000)), now + kSecondNs, now);
      } else {
        index.touch(handle, use, now);
      }
      const auto victim = index.victim(now);
      if (round == 0) {
        first.push_back(victim);
      } else {
        REQUIRE(victim == first[static_cast<std::size_t>(step)]);
      }
      if (victim && step % 3 == 0) index.remove(*victim);
    }
  }
}
