// The bounds on cases that can be worked out on paper.
#include <doctest/doctest.h>

#include "perf/sim/bounds.h"
#include "perf/sim/figures.h"
#include "perf/sim/world.h"

using namespace kvrail;
using namespace kvrail::simulation;

namespace {

// One lane of 1.25 GB/s, no distance, codecs that take no time; full KV of 131,072 B a token.
struct Rig {
  Rig() {
    scenario.cluster.receivers = 2;
    scenario.cluster.round_trip_ns = 0;
    scenario.cluster.codec_takes_time = false;
    scenario.traffic.transfers = 0;
    scenario.media = {Medium::full};
    workload = *make_workload(scenario, 1, nullptr, {}, {});
  }
  void add(TimeNs at, std::uint32_t tokens) {
    Job job;
    job.submitted_ns = at;
    job.tokens = tokens;
    workload.jobs.push_back(job);
  }
  Scenario scenario;
  Workload workload;
};

constexpr double kTokenMs = 131'072 / 1.25e9 * 1e3;  // 0.1048576

}  // namespace

TEST_CASE("bounds / on one lane the shortest goes first, and the rest after it") {
  Rig rig;
  rig.add(0, 8000);  // 839 ms
  rig.add(1, 1000);  // 105 ms, takes the lane at once
  const auto bounds = find_bounds(rig.scenario, rig.workload);
  REQUIRE(bounds.has_value());
  const double mean = (9000 + 1000) * kTokenMs / 2;
  CHECK(bounds->best_choice_ms == doctest::Approx(mean).epsilon(1e-6));
  CHECK(bounds->clairvoyant_ms == doctest::Approx(mean).epsilon(1e-6));
}

TEST_CASE("bounds / who knows the future leaves the lane to those who need it more") {
  Rig rig;
  rig.scenario.media = {Medium::tokens, Medium::full};
  // Of 1,000 tokens KV takes 104.9 ms, a prefill 40.7; of 12,000 1,258 and 574: alone all are computed.
  rig.add(0, 12'000);
  rig.add(1, 12'000);
  const auto bounds = find_bounds(rig.scenario, rig.workload);
  REQUIRE(bounds.has_value());
  // On one GPU the second waits for the first: 574.4 and 1,148.7, or the lane's 1,258.3 for one of them.
  const double prefill = 12'000 * 0.04 + 687'195.0 / (1 << 20) * 144e6 / 1e6;
  CHECK(bounds->best_choice_ms == doctest::Approx((prefill + 2 * prefill) / 2).epsilon(1e-5));
  CHECK(bounds->clairvoyant_ms <= bounds->best_choice_ms);
}

TEST_CASE("bounds / nothing is below the clairvoyant one, whatever the policy") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Scenario scenario;
    scenario.traffic.transfers = 6;
    scenario.traffic.per_second = 20;
    const Workload workload = *make_workload(scenario, seed, nullptr, {}, {});
    const auto bounds = find_bounds(scenario, workload);
    REQUIRE(bounds.has_value());
    CHECK(bounds->clairvoyant_ms <= bounds->best_choice_ms * 1.0001);
    for (const Policy& policy : policies()) {
      const double mean = make_figures(scenario, workload, World(scenario, workload, policy).run(), "").mean_ms;
      CHECK(mean >= bounds->clairvoyant_ms * 0.9999);
    }
  }
}

TEST_CASE("bounds / larger cases and tasks have none") {
  Scenario scenario;
  scenario.traffic.transfers = kMostContexts + 1;
  CHECK(!find_bounds(scenario, *make_workload(scenario, 1, nullptr, {}, {})).has_value());
  scenario.traffic.transfers = 6;
  Workload workload = *make_workload(scenario, 1, nullptr, {}, {});
  CHECK(find_bounds(scenario, workload).has_value());
  workload.tasks = 1;
  CHECK(!find_bounds(scenario, workload).has_value());
}
