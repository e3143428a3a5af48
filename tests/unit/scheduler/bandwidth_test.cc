#include <doctest/doctest.h>

#include "kvrail/base/prng.h"
#include "scheduler/in_flight.h"
#include "tests/unit/scheduler/link_model.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using kvrail::scheduler::test::LinkModel;

namespace {

constexpr std::uint64_t kGigabit = 125'000'000;

double ratio(std::uint64_t a, std::uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

FlowSpec bulk(std::uint64_t bytes, std::uint64_t cookie = 1) {
  FlowSpec spec;
  spec.total_bytes = spec.ready_bytes = bytes;
  spec.cookie = cookie;
  return spec;
}

}  // namespace

TEST_CASE(
    "bandwidth / the windowed maximum holds for ten rounds and then falls to the best since") {
  WindowedMax most;
  most.reset(100, 0);
  for (std::uint64_t round = 1; round <= 10; ++round) {
    most.update(50 + (round == 7 ? 20 : 0), round);
    CHECK(most.value() == 100);
  }
  most.update(50, 11);
  CHECK(most.value() == 70);
  most.update(200, 12);
  CHECK(most.value() == 200);
  for (std::uint64_t round = 13; round <= 40; ++round) most.update(60, round);
  CHECK(most.value() == 60);
}

TEST_CASE("bandwidth / the planning rate is a harmonic mean that distrusts a lane that jumps") {
  PlanningRate rate;
  rate.reset(1000);
  CHECK(rate.value() == 1000);
  for (int i = 0; i < 10; ++i) rate.update(50'000);
  CHECK(rate.value() == 50'000);
  rate.update(100'000);  // predicted 50,000: error 0.5
  const double mean = 5.0 / (4 / 50'000.0 + 1 / 100'000.0);
  CHECK(ratio(rate.value(), 1) == doctest::Approx(mean / 1.5).epsilon(0.001));
  for (int i = 0; i < 10; ++i) rate.update(100'000);
  CHECK(rate.value() == 100'000);
}

TEST_CASE("bandwidth / chunk size is the nearest power of two of half a millisecond") {
  const ChunkBounds bounds;
  CHECK(chunk_bytes_for(kGigabit, bounds) == 64 * 1024);
  CHECK(chunk_bytes_for(kGigabit / 10, bounds) == 8 * 1024);  // 6250: 8192 is nearer than 4096
  CHECK(chunk_bytes_for(1000, bounds) == 4096);
  CHECK(chunk_bytes_for(50'000'000'000, bounds) == 256 * 1024);
  CHECK(chunk_bytes_for(190'000'000, bounds) == 64 * 1024);   // 95,000
  CHECK(chunk_bytes_for(200'000'000, bounds) == 128 * 1024);  // 100,000
}

TEST_CASE("bandwidth / the first chunk is planned at the hint, a transfer measures the link") {
  for (const std::uint64_t link :
       {kGigabit / 100, kGigabit / 10, kGigabit, 10 * kGigabit, 24 * kGigabit}) {
    CAPTURE(link);
    Scheduler scheduler({});
    scheduler.lane_up(0, kGigabit, 0);
    CHECK(scheduler.estimate(0).planning_bytes_per_s == kGigabit);
    CHECK(scheduler.estimate(0).in_flight_limit_bytes == 128 * 1024);
    LinkModel model(scheduler, 0, link, 80'000);
    const FlowHandle flow = scheduler.add_flow(bulk(link / 2), 0);
    REQUIRE(flow.valid());
    model.drain();
    const LaneEstimate estimate = scheduler.estimate(0);
    CHECK(ratio(estimate.capacity_bytes_per_s, link) > 0.93);
    CHECK(ratio(estimate.capacity_bytes_per_s, link) < 1.1);
    CHECK(ratio(estimate.planning_bytes_per_s, link) > 0.7);
    CHECK(ratio(estimate.planning_bytes_per_s, link) < 1.02);
    CHECK(estimate.round_trip_ns < 400'000);
  }
}

TEST_CASE("bandwidth / a gigabit link keeps two chunks in flight, and is full") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit, 80'000);
  (void)scheduler.add_flow(bulk(kGigabit), 0);
  model.run_until(200 * kMillisecondNs);
  CHECK(model.most_in_flight() <= 3 * 64 * 1024);
  CHECK(scheduler.estimate(0).in_flight_limit_bytes < 3 * 64 * 1024);
  CHECK(ratio(model.bytes_of(1), kGigabit / 5) > 0.98);
}

TEST_CASE("bandwidth / a lane polled each millisecond gets megabytes in flight") {
  Scheduler scheduler({});
  scheduler.lane_up(0, 0, 0);  // the initial rate is far too low
  LinkModel model(scheduler, 0, 3'000'000'000, 20'000, kMillisecondNs);
  (void)scheduler.add_flow(bulk(3'000'000'000), 0);
  model.run_until(500 * kMillisecondNs);
  CHECK(scheduler.estimate(0).in_flight_limit_bytes > 2'500'000);
  CHECK(scheduler.estimate(0).in_flight_limit_bytes < 5'000'000);
  CHECK(ratio(model.bytes_of(1), 1'500'000'000) > 0.9);
}

TEST_CASE("bandwidth / a least window widens fast lanes only") {
  for (const bool fast : {false, true}) {
    std::array<std::uint64_t, 2> limit{};
    for (const bool widened : {false, true}) {
      Scheduler scheduler({.least_window_ns = widened ? kMillisecondNs : 0});
      const std::uint64_t rate = fast ? 24 * kGigabit : kGigabit;
      scheduler.lane_up(0, rate, 0);
      LinkModel model(scheduler, 0, rate, 40'000);
      (void)scheduler.add_flow(bulk(rate), 0);
      model.run_until(200 * kMillisecondNs);
      limit[widened ? 1 : 0] = scheduler.estimate(0).in_flight_limit_bytes;
    }
    CHECK(limit[1] == (fast ? limit[1] : limit[0]));
    if (fast) CHECK(limit[1] > 3'000'000);
    if (fast) CHECK(limit[0] < 700'000);
  }
}

TEST_CASE("bandwidth / small critical messages do not shorten the distance of bulk") {
  Scheduler scheduler({});
  scheduler.lane_up(0, 3'000'000'000, 0);
  const auto alone = [&](std::uint32_t bytes, TimeNs at, TimeNs took, bool critical) {
    FlowSpec spec = bulk(bytes);
    spec.critical = critical;
    const FlowHandle flow = scheduler.add_flow(spec, at);
    std::array<PostAction, 4> actions;
    REQUIRE(scheduler.step(at, actions) == 1);
    scheduler.chunk_done(0, bytes, at, at + took, true, at + took);
    scheduler.remove_flow(flow);
  };
  alone(4096, 0, 30'000, true);
  CHECK(scheduler.estimate(0).round_trip_ns < 30'000);
  alone(256 * 1024, kMillisecondNs, 1'000'000, false);
  alone(4096, 3 * kMillisecondNs, 30'000, true);
  CHECK(scheduler.estimate(0).round_trip_ns > 900'000);
}

TEST_CASE("bandwidth / a long fat path fills up although its first rounds deliver little") {
  Scheduler scheduler({});
  scheduler.lane_up(0, 10 * kGigabit, 0);
  LinkModel model(scheduler, 0, 10 * kGigabit, 30 * kMillisecondNs);
  (void)scheduler.add_flow(bulk(20 * kGigabit), 0);
  model.run_until(kSecondNs);
  const std::uint64_t before = model.bytes_of(1);
  model.run_until(2 * kSecondNs - 500 * kMillisecondNs);
  CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, 10 * kGigabit) > 0.9);
  CHECK(ratio(model.bytes_of(1) - before, 5 * kGigabit) > 0.85);
}

TEST_CASE("bandwidth / a halved link is noticed within a few round trips, a doubled one too") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit, 100'000);
  (void)scheduler.add_flow(bulk(std::uint64_t{1} << 40), 0);
  model.run_until(300 * kMillisecondNs);
  model.set_rate(kGigabit / 2);
  model.run_until(310 * kMillisecondNs);
  CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, kGigabit / 2) < 1.1);
  CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, kGigabit / 2) > 0.9);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 2) < 1.05);
  model.set_rate(2 * kGigabit);
  model.run_until(330 * kMillisecondNs);
  CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, 2 * kGigabit) > 0.9);
  model.run_until(360 * kMillisecondNs);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, 2 * kGigabit) > 0.9);
}

TEST_CASE("bandwidth / a pause of the receiver does not make the lane slow") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit, 100'000);
  (void)scheduler.add_flow(bulk(std::uint64_t{1} << 40), 0);
  for (int i = 1; i <= 20; ++i) {
    model.run_until(i * 50 * kMillisecondNs);
    model.stall_until(model.now_ns() + 12 * kMillisecondNs);
    model.run_until(model.now_ns() + 20 * kMillisecondNs);
    CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, kGigabit) > 0.9);
  }
}

TEST_CASE("bandwidth / small transfers on an idle lane do not talk the estimate down") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  Prng prng(5);
  // Polled seldom: the time of a small transfer says nothing about the link.
  LinkModel model(scheduler, 0, kGigabit, 200'000, kMillisecondNs);
  for (int i = 0; i < 500; ++i) {
    model.transfer(prng.between(1, 60'000));
    model.run_until(model.now_ns() + static_cast<TimeNs>(prng.uniform(20 * kMillisecondNs)));
  }
  CHECK(scheduler.estimate(0).planning_bytes_per_s == kGigabit);
  CHECK(scheduler.estimate(0).chunk_bytes == 64 * 1024);
  CHECK(scheduler.estimate(0).round_trip_ns < 1'500'000);
}

TEST_CASE("bandwidth / a slow link is learned from small transfers of a few chunks") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit / 10, 100'000);
  for (int i = 0; i < 12; ++i) {
    model.transfer(120'000);
    model.run_until(model.now_ns() + 20 * kMillisecondNs);
  }
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 10) < 1.2);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 10) > 0.7);
}

TEST_CASE("bandwidth / waiting in the scheduler's queue is not counted") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit, 100'000);
  for (std::uint64_t i = 0; i < 50; ++i) {
    REQUIRE(scheduler.add_flow(bulk(kGigabit / 100, i), 0).valid());
  }
  model.drain();
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit) > 0.95);
  CHECK(scheduler.estimate(0).round_trip_ns < 150'000);
}

TEST_CASE("bandwidth / the least time is confirmed on a lane that is never empty") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit, 100'000);
  (void)scheduler.add_flow(bulk(std::uint64_t{1} << 50), 0);
  model.run_until(60 * kSecondNs);
  CHECK(scheduler.estimate(0).in_flight_limit_bytes < 3 * 64 * 1024);
  CHECK(ratio(model.bytes_of(1), 60 * kGigabit) > 0.98);
}

TEST_CASE("bandwidth / a late acknowledgement of a small chunk hardly lowers the planning rate") {
  // 50 Mbit/s: chunks of 4 KiB, rounds of two milliseconds. The worker shares its core: now and then
  // it sees nothing for a while.
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit / 20, 200'000);
  Prng prng(7);
  model.transfer(400'000);
  double least = 10;
  double most = 0;
  for (int i = 0; i < 200; ++i) {
    FlowSpec spec = bulk(prng.between(50'000, 200'000));
    spec.submitted_ns = model.now_ns();
    const FlowHandle flow = scheduler.add_flow(spec, model.now_ns());
    model.run_until(model.now_ns() + static_cast<TimeNs>(prng.uniform(8 * kMillisecondNs)));
    model.see_nothing_until(model.now_ns() + static_cast<TimeNs>(prng.uniform(3 * kMillisecondNs)));
    model.drain();
    scheduler.remove_flow(flow);
    model.run_until(model.now_ns() + 20 * kMillisecondNs);
    const double planned = ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20);
    least = std::min(least, planned);
    most = std::max(most, planned);
  }
  CAPTURE(least);
  CAPTURE(most);
  CHECK(least > 0.6);
  CHECK(most < 1.1);
}

TEST_CASE("bandwidth / the burst of a token bucket does not pass for the rate of the link") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit / 20, 200'000);
  model.set_bucket(32 * 1024);
  model.transfer(2'000'000);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) < 1.1);
  // Small messages on a lane that rests between them: each passes at once.
  for (int i = 0; i < 50; ++i) {
    model.run_until(model.now_ns() + 30 * kMillisecondNs);
    model.transfer(4096 + static_cast<std::uint64_t>(i) * 256);
  }
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) < 1.2);
  CHECK(ratio(scheduler.estimate(0).capacity_bytes_per_s, kGigabit / 20) < 1.5);
  // Bulk of a few hundred kB, whose head is such a burst.
  for (int i = 0; i < 20; ++i) {
    model.run_until(model.now_ns() + 30 * kMillisecondNs);
    model.transfer(200'000);
  }
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) < 1.3);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) > 0.7);
}

TEST_CASE("bandwidth / a pause as long as TCP's timer is no rate") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit / 20, 200'000);
  for (int i = 0; i < 30; ++i) {
    if (i % 6 == 5) model.stall_until(model.now_ns() + 200 * kMillisecondNs);
    FlowSpec spec = bulk(200'000);
    const FlowHandle flow = scheduler.add_flow(spec, model.now_ns());
    model.run_until(model.now_ns() + 9 * kMillisecondNs);
    if (i % 6 == 2) model.stall_until(model.now_ns() + 200 * kMillisecondNs);
    model.drain();
    scheduler.remove_flow(flow);
    CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) > 0.6);
  }
}

TEST_CASE("bandwidth / transfers of one chunk teach a slow link by their sizes") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  Prng prng(9);
  LinkModel model(scheduler, 0, kGigabit / 20, 200'000);
  for (int i = 0; i < 40; ++i) {
    model.transfer(prng.between(4000, 60'000));
    model.run_until(model.now_ns() + 30 * kMillisecondNs);
  }
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) > 0.8);
  CHECK(ratio(scheduler.estimate(0).planning_bytes_per_s, kGigabit / 20) < 1.25);
}

TEST_CASE("bandwidth / a lane that many choices pass over is believed faster, until one does not") {
  Scheduler scheduler({});
  scheduler.lane_up(0, kGigabit, 0);
  LinkModel model(scheduler, 0, kGigabit / 200, 200'000);
  model.transfer(1'000'000);
  const std::uint64_t slow = scheduler.estimate(0).planning_bytes_per_s;
  CHECK(ratio(slow, kGigabit / 200) < 1.1);
  for (std::uint64_t k = 0; k < 6 * BandwidthEstimator::kPassedOver; ++k) {
    const std::uint64_t doublings =
        std::min<std::uint64_t>(k / BandwidthEstimator::kPassedOver, BandwidthEstimator::kMostDoublings);
    REQUIRE(scheduler.rate_for_choice(0, 0, model.now_ns()) == slow << doublings);
  }
  // 10 kB take 16 ms of it, which 1.024 s without an arrival may buy.
  const std::uint64_t bytes = slow * 16 / 1000;
  CHECK(scheduler.rate_for_choice(0, bytes, model.now_ns() + 1020 * kMillisecondNs) == slow);
  CHECK(scheduler.rate_for_choice(0, bytes, model.now_ns() + 1025 * kMillisecondNs) == 8 * slow);
  CHECK(scheduler.estimate(0).planning_bytes_per_s == slow);
  // Meanwhile the link has become fast: one transfer that tries it is enough to see that.
  model.set_rate(kGigabit);
  model.transfer(200'000);
  CHECK(ratio(scheduler.rate_for_choice(0, 0, model.now_ns()), kGigabit) > 0.2);
  model.transfer(200'000);
  CHECK(ratio(scheduler.rate_for_choice(0, 0, model.now_ns()), kGigabit) > 0.5);
  CHECK(ratio(scheduler.rate_for_choice(0, 0, model.now_ns()), kGigabit) < 1.05);
}
