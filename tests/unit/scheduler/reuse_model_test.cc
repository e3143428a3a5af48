// Frequencies and the learned times of reuse, on sequences short enough to be worked out by hand.
#include <doctest/doctest.h>

#include <cmath>

#include "kvrail/base/prng.h"
#include "scheduler/exp_table.h"
#include "scheduler/frequency_sketch.h"
#include "scheduler/reuse_model.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr Use kFresh{.added = 20};  // a lineage of ordinary size begins

double density(const ReuseModel& model, std::uint32_t use_class, std::uint32_t age) {
  return std::exp2(static_cast<double>(model.log_density_q32(use_class, age)) / 4294967296.0) * 1e9;
}

}  // namespace

TEST_CASE("frequency sketch / few keys are counted exactly, up to fifteen") {
  FrequencySketch sketch(1 << 12);
  CHECK(sketch.count(7) == 0);
  for (std::uint32_t i = 1; i <= 20; ++i) CHECK(sketch.add(7) == std::min(i, 15U));
  CHECK(sketch.count(7) == 15);
  CHECK(sketch.count(8) == 0);
}

TEST_CASE("frequency sketch / a quarter of the keys it was made for are told apart") {
  constexpr std::uint32_t kKeys = 4096;
  FrequencySketch sketch(kKeys);
  for (std::uint64_t round = 1; round <= 2; ++round) {
    for (std::uint64_t key = 0; key < kKeys / 4; ++key) sketch.add(key);
  }
  std::uint32_t less = 0, more = 0;
  for (std::uint64_t key = 0; key < kKeys / 4; ++key) {
    if (sketch.count(key) < 2) ++less;
    if (sketch.count(key) > 2) ++more;
  }
  // 2,048 additions, one of 1,024 words halved in 40: words of 7 lines out of 128.
  CHECK(less < kKeys / 4 * 7 / 100);
  CHECK(more < kKeys / 4 / 20);
}

TEST_CASE("frequency sketch / what is used no more is forgotten by halves") {
  FrequencySketch sketch(64);  // all of its counters are halved once in 640 additions
  for (int i = 0; i < 15; ++i) sketch.add(1);
  for (int i = 0; i < 640; ++i) sketch.add(2);
  CHECK(sketch.count(1) == 7);
  for (int i = 0; i < 640; ++i) sketch.add(2);
  CHECK(sketch.count(1) == 3);
}

TEST_CASE("frequency sketch / a table for no key at all still works") {
  FrequencySketch sketch(0);
  CHECK(sketch.add(3) == 1);
}

TEST_CASE("reuse classes / how often it was used and how its lineage goes on are told apart") {
  CHECK(use_class(kFresh, 1) != use_class(kFresh, 2));
  CHECK(use_class(kFresh, 3) == use_class(kFresh, 4));
  CHECK(use_class(kFresh, 5) == use_class(kFresh, 15));
  const Use turn{.continues = true, .added = 2, .since_lineage_ns = 100 * kSecondNs};
  const Use pasted{.continues = true, .added = 8, .since_lineage_ns = 100 * kSecondNs};
  const Use quick{.continues = true, .added = 2, .since_lineage_ns = 63 * kSecondNs};
  const Use open{.continues = true, .open_tail = true, .added = 2, .since_lineage_ns = 63 * kSecondNs};
  const Use short_one{.added = 15}, long_one{.added = 128};
  const Use* const all[] = {&kFresh, &turn, &pasted, &quick, &open, &short_one, &long_one};
  for (const Use* const a : all) {
    CHECK(use_class(*a, 1) < kUseClasses);
    for (const Use* const b : all) CHECK((use_class(*a, 1) == use_class(*b, 1)) == (a == b));
  }
}

TEST_CASE("reuse model / ages begin at their bounds") {
  CHECK(ReuseModel::age_of(0) == 0);
  CHECK(ReuseModel::age_of(4 * kSecondNs - 1) == 0);
  CHECK(ReuseModel::age_of(4 * kSecondNs) == 1);
  CHECK(ReuseModel::age_of(2'000 * kSecondNs) == ReuseModel::kAges - 1);
  CHECK(ReuseModel::age_of(1'000'000 * kSecondNs) == ReuseModel::kAges - 1);
}

TEST_CASE("reuse model / knowing nothing, the longer ago a use is, the less is expected of it") {
  const ReuseModel model;
  const std::uint32_t c = use_class(kFresh, 1);
  for (std::uint32_t age = 1; age < ReuseModel::kAges; ++age) {
    CAPTURE(age);
    CHECK(model.log_density_q32(c, age) <= model.log_density_q32(c, age - 1));
  }
  // A tenth in each age. The first one is 4 s: 0.1 uses in 4 * 0.95 s.
  CHECK(density(model, c, 0) == doctest::Approx(0.1 / 3.8).epsilon(0.001));
}

TEST_CASE("reuse model / uses that came again and uses that did not give the hazard of their age") {
  // 1,000 entries are used once at time 0; 250 of them again after 10 s (age 2, from 8 to 16 s), the others never.
  // At risk in age 2: all 1,000. Weighed with what all classes say (the same numbers: class, group and whole are one
  // here), in Q32 with the cold tenth of one use: (250 + 0.1) / 1,001, then (250 + 128 p) / 1,128 twice.
  ReuseModel model;
  const std::uint32_t c = use_class(kFresh, 1), again = use_class(kFresh, 2);
  for (std::uint64_t key = 1; key <= 1000; ++key) model.observe(mix_key(key), c, 0);
  for (std::uint64_t key = 1; key <= 250; ++key) model.observe(mix_key(key), again, 10 * kSecondNs);
  model.observe(mix_key(5000), use_class(kFresh, 5), 17 * kSecondNs);
  model.refresh(c);
  double expected = 250.1 / 1001;
  for (int level = 0; level < 2; ++level) expected = (250 + 128 * expected) / 1128;
  CHECK(static_cast<double>(model.hazard_q32(c, 2)) / 4294967296.0 == doctest::Approx(expected).epsilon(1e-6));
  // Nothing came again before: (0 + 0.1) / (1,251 + 1) for all, of which little is left in the class.
  CHECK(static_cast<double>(model.hazard_q32(c, 1)) / 4294967296.0 < 0.0001);
  // After it nothing is known but the cold tenths of ages that nobody has come to.
  CHECK(density(model, c, 2) > 4 * density(model, c, 3));
  // Kept from the beginning it must lie 8 s for nothing first.
  CHECK(density(model, c, 0) < density(model, c, 2));
}

TEST_CASE("reuse model / an entry that comes again after it was lost sight of counts nowhere") {
  ReuseModel model;
  const std::uint32_t c = use_class(kFresh, 1);
  model.observe(mix_key(1), c, 0);
  // So many others within the same second that the ring has gone round.
  for (std::uint64_t key = 2; key < ReuseModel::kSamples + 10; ++key) model.observe(mix_key(key), c, kSecondNs);
  model.refresh(c);
  const std::uint64_t before = model.hazard_q32(c, 0);
  model.observe(mix_key(1), c, 2 * kSecondNs);
  model.refresh(c);
  CHECK(model.hazard_q32(c, 0) <= before);
}

TEST_CASE("reuse model / the same uses teach the same, bit by bit") {
  ReuseModel a, b;
  Prng prng(11);
  TimeNs now = 0;
  for (int i = 0; i < 20'000; ++i) {
    now += static_cast<TimeNs>(prng.uniform(500)) * kMillisecondNs;
    const std::uint64_t hash = mix_key(prng.uniform(3'000));
    const std::uint32_t c = static_cast<std::uint32_t>(prng.uniform(kUseClasses));
    CHECK(a.observe(hash, c, now) == b.observe(hash, c, now));
  }
  for (std::uint32_t c = 0; c < kUseClasses; ++c)
    for (std::uint32_t age = 0; age < ReuseModel::kAges; ++age) CHECK(a.log_density_q32(c, age) == b.log_density_q32(c, age));
}
