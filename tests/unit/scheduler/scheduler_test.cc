#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/scheduler.h"
#include "scheduler/urgency.h"
#include "tests/unit/scheduler/link_model.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using kvrail::scheduler::test::LinkModel;

namespace {

constexpr std::uint64_t kGigabit = 125'000'000;
constexpr std::uint64_t kChunk = 64 * 1024;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;

FlowSpec flow_of(std::uint64_t cookie, std::uint64_t bytes, std::uint32_t role_sum = 2) {
  FlowSpec spec;
  spec.cookie = cookie;
  spec.total_bytes = spec.ready_bytes = bytes;
  spec.weight = role_sum;
  spec.base_milli = role_sum * 1000;
  return spec;
}

double share(const LinkModel& model, std::uint64_t cookie, std::uint64_t total) {
  return static_cast<double>(model.bytes_of(cookie)) / static_cast<double>(total);
}

struct Gigabit {
  Scheduler scheduler{SchedulerOptions{}};
  LinkModel model{scheduler, 0, kGigabit, 80'000};
  Gigabit() { scheduler.lane_up(0, kGigabit, 0); }
  FlowHandle add(FlowSpec spec) {
    spec.submitted_ns = model.now_ns();
    const FlowHandle flow = scheduler.add_flow(spec, model.now_ns());
    REQUIRE(flow.valid());
    return flow;
  }
};

}  // namespace

TEST_CASE("scheduler / equal flows share a lane equally, weights count within a level") {
  Gigabit it;
  for (std::uint64_t i = 0; i < 4; ++i) (void)it.add(flow_of(i, kHuge));
  it.model.run_until(kSecondNs);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(share(it.model, i, kGigabit) > 0.24);
    CHECK(share(it.model, i, kGigabit) < 0.26);
  }
}

TEST_CASE("scheduler / a coordinator's flow goes first, an executor's is never starved") {
  Gigabit it;
  // Fresh urgent flows keep coming for ten seconds; each alone would fill the lane.
  (void)it.add(flow_of(1, 20'000'000, 2));
  std::uint64_t cookie = 100;
  TimeNs finished = 0;
  while (it.model.now_ns() < 10 * kSecondNs && finished == 0) {
    (void)it.add(flow_of(cookie++, kGigabit / 10, 6));
    it.model.run_until(it.model.now_ns() + 100 * kMillisecondNs);
    if (it.model.now_ns() < 900 * kMillisecondNs) CHECK(it.model.bytes_of(1) < 1'000'000);
    if (it.model.bytes_of(1) == 20'000'000) finished = it.model.finished_ns(1);
  }
  // Urgency 2 + e^t passes 6 + 1, that of a fresh one, after 1.6 s; then it is served first.
  CHECK(finished > kSecondNs);
  CHECK(finished < 4 * kSecondNs);
}

TEST_CASE("scheduler / of equal roles the shorter flow goes first, and the longer one passes fresh ones in time") {
  Gigabit it;
  (void)it.add(flow_of(1, kGigabit, 6));       // a second of the lane: base 0.6
  it.model.run_until(50 * kMillisecondNs);
  (void)it.add(flow_of(2, kGigabit / 50, 6));  // 20 ms: base 4.2
  it.model.run_until(kSecondNs / 10);
  CHECK(it.model.bytes_of(2) == kGigabit / 50);
  CHECK(it.model.finished_ns(2) < 80 * kMillisecondNs);
  // Short ones that fill the lane keep coming. 0.6 + e^t passes their 6 + 1 after 1.9 s.
  std::uint64_t cookie = 100;
  while (it.model.now_ns() < 1800 * kMillisecondNs) {
    (void)it.add(flow_of(cookie++, kGigabit / 100, 6));
    it.model.run_until(it.model.now_ns() + 10 * kMillisecondNs);
  }
  const std::uint64_t before = it.model.bytes_of(1);
  while (it.model.now_ns() < 2200 * kMillisecondNs) {
    (void)it.add(flow_of(cookie++, kGigabit / 100, 6));
    it.model.run_until(it.model.now_ns() + 10 * kMillisecondNs);
  }
  CHECK(it.model.bytes_of(1) > before + kGigabit / 10);
}

TEST_CASE("scheduler / a flow whose slack runs out overtakes flows of a higher role") {
  Gigabit it;
  FlowSpec urgent = flow_of(1, 1'000'000, 2);
  urgent.deadline_ns = 100 * kMillisecondNs;
  (void)it.add(urgent);
  (void)it.add(flow_of(2, kHuge, 6));
  it.model.run_until(200 * kMillisecondNs);
  REQUIRE(it.model.bytes_of(1) == 1'000'000);
  CHECK(it.model.finished_ns(1) < 105 * kMillisecondNs);
}

TEST_CASE("scheduler / critical traffic overtakes and may exceed the bulk bound") {
  Gigabit it;
  (void)it.add(flow_of(1, kHuge));
  it.model.run_until(100 * kMillisecondNs);
  TimeNs worst = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    FlowSpec critical = flow_of(1000 + i, 4096);
    critical.critical = true;
    const TimeNs submitted = it.model.now_ns();
    const FlowHandle flow = it.add(critical);
    while (it.model.bytes_of(1000 + i) < 4096) it.model.advance(kNever);
    worst = std::max(worst, it.model.now_ns() - submitted);
    it.scheduler.remove_flow(flow);
    it.model.run_until(it.model.now_ns() + 3'700'000);
  }
  CHECK(worst < 1'200'000);  // two chunks of bulk in front of it
  CHECK(share(it.model, 1,
              kGigabit / 1000 * static_cast<std::uint64_t>(it.model.now_ns() / 1'000'000)) > 0.97);

  // Even with the bulk bound used up to the last byte it is posted at once.
  std::array<PostAction, 8> actions;
  CHECK(it.scheduler.step(it.model.now_ns(), actions) == 0);
  FlowSpec critical = flow_of(7, 4096);
  critical.critical = true;
  (void)it.add(critical);
  REQUIRE(it.scheduler.step(it.model.now_ns(), actions) == 1);
  CHECK(actions[0].cookie == 7);
  CHECK(actions[0].critical);
}

TEST_CASE("scheduler / critical bytes in flight are bounded too") {
  Gigabit it;
  (void)it.add(flow_of(1, kHuge));
  FlowSpec critical = flow_of(2, kHuge);
  critical.critical = true;
  (void)it.add(critical);
  it.model.run_until(100 * kMillisecondNs);
  CHECK(it.model.most_in_flight() <= 5 * kChunk);
  CHECK(share(it.model, 2, kGigabit / 10) > 0.95);
}

TEST_CASE("scheduler / background yields to everything but keeps a twentieth") {
  Gigabit it;
  FlowSpec background = flow_of(1, kHuge);
  background.background = true;
  (void)it.add(background);
  it.model.run_until(200 * kMillisecondNs);
  CHECK(share(it.model, 1, kGigabit / 5) > 0.97);  // alone it gets all
  const std::uint64_t before = it.model.bytes_of(1);
  (void)it.add(flow_of(2, kHuge));
  (void)it.add(flow_of(3, kHuge, 6));
  it.model.run_until(5 * kSecondNs);
  const double got =
      static_cast<double>(it.model.bytes_of(1) - before) / (4.8 * static_cast<double>(kGigabit));
  CHECK(got > 0.048);
  CHECK(got < 0.056);
}

TEST_CASE("scheduler / chunks end at multiples of the chunk size, from any start") {
  Gigabit it;
  FlowSpec spec = flow_of(1, 300'000);
  spec.start_offset = 70'001;
  const FlowHandle flow = it.add(spec);
  CHECK(it.scheduler.estimate(0).queued_bytes == 300'000 - 70'001);
  std::array<PostAction, 16> actions;
  std::uint64_t at = 70'001;
  while (at < 300'000) {
    const std::size_t count = it.scheduler.step(0, actions);
    REQUIRE(count > 0);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(actions[i].offset == at);
      at += actions[i].bytes;
      CHECK((at % kChunk == 0 || at == 300'000));
      it.scheduler.chunk_done(0, actions[i].bytes, 0, 0, true, 0);
    }
  }
  CHECK(it.scheduler.step(0, actions) == 0);
  CHECK(it.scheduler.estimate(0).queued_bytes == 0);
  it.scheduler.remove_flow(flow);
}

TEST_CASE("scheduler / only encoded bytes are posted, in whole pieces until the end") {
  Gigabit it;
  FlowSpec spec = flow_of(1, 200'000);
  spec.ready_bytes = 0;
  const FlowHandle flow = it.add(spec);
  std::array<PostAction, 16> actions;
  CHECK(it.scheduler.step(0, actions) == 0);
  it.scheduler.set_ready(flow, 4095, 0);
  CHECK(it.scheduler.step(0, actions) == 0);
  it.scheduler.set_ready(flow, 10'000, 0);
  REQUIRE(it.scheduler.step(0, actions) == 1);
  CHECK(actions[0].bytes == 8192);
  it.scheduler.chunk_done(0, 8192, 0, 0, false, 0);  // teaches nothing: the sizes stay
  it.scheduler.set_ready(flow, 140'000, 0);
  REQUIRE(it.scheduler.step(0, actions) == 3);
  CHECK(actions[0].bytes == kChunk - 8192);
  CHECK(actions[1].bytes == kChunk);
  CHECK(actions[2].bytes == 4096 * 2);  // 140,000 rounded down
  for (std::size_t i = 0; i < 3; ++i) it.scheduler.chunk_done(0, actions[i].bytes, 0, 0, false, 0);
  it.scheduler.set_ready(flow, 200'000, 0);
  REQUIRE(it.scheduler.step(0, actions) == 2);
  CHECK(actions[0].offset + actions[0].bytes == 3 * kChunk);
  CHECK(actions[1].offset + actions[1].bytes == 200'000);
}

TEST_CASE("scheduler / a chunk given back is posted again, also after its flow went") {
  Gigabit it;
  const FlowHandle flow = it.add(flow_of(1, kChunk + 100));
  std::array<PostAction, 8> actions;
  REQUIRE(it.scheduler.step(0, actions) == 2);
  CHECK(it.scheduler.estimate(0).queued_bytes == 0);
  it.scheduler.unpost(actions[1]);
  it.scheduler.unpost(actions[0]);
  CHECK(it.scheduler.estimate(0).queued_bytes == kChunk + 100);
  CHECK(it.scheduler.estimate(0).in_flight_bytes == 0);
  std::array<PostAction, 8> again;
  REQUIRE(it.scheduler.step(0, again) == 2);
  CHECK(again[0].offset == 0);
  CHECK(again[1].offset == kChunk);
  it.scheduler.remove_flow(flow);
  it.scheduler.unpost(again[1]);
  CHECK(it.scheduler.estimate(0).in_flight_bytes == kChunk);
  CHECK(it.scheduler.estimate(0).queued_bytes == 0);
  it.scheduler.chunk_done(0, static_cast<std::uint32_t>(kChunk), 0, 1000, false, 1000);
  CHECK(it.scheduler.estimate(0).in_flight_bytes == 0);
  it.scheduler.lane_down(0);
}

TEST_CASE("scheduler / a full table refuses, and serves again when a flow has gone") {
  Scheduler scheduler({.max_flows = 2});
  scheduler.lane_up(3, kGigabit, 0);
  FlowSpec spec = flow_of(1, 100);
  spec.lane = 3;
  const FlowHandle first = scheduler.add_flow(spec, 0);
  REQUIRE(scheduler.add_flow(spec, 0).valid());
  CHECK(!scheduler.add_flow(spec, 0).valid());
  scheduler.remove_flow(first);
  CHECK(scheduler.add_flow(spec, 0).valid());
}

TEST_CASE("scheduler / many lanes progress together under a small action buffer") {
  Scheduler scheduler({.max_lanes = 100});
  std::vector<std::uint64_t> bytes(100, 0);
  for (LaneIndex lane = 0; lane < 100; ++lane) {
    scheduler.lane_up(lane, kGigabit, 0);
    FlowSpec spec = flow_of(lane, kHuge);
    spec.lane = lane;
    REQUIRE(scheduler.add_flow(spec, 0).valid());
  }
  TimeNs now = 0;
  std::array<PostAction, 3> actions;
  for (int i = 0; i < 4000; ++i) {
    now += 10'000;
    const std::size_t count = scheduler.step(now, actions);
    REQUIRE(count == 3);
    for (std::size_t k = 0; k < count; ++k) {
      bytes[actions[k].lane] += actions[k].bytes;
      scheduler.chunk_done(actions[k].lane, actions[k].bytes, now, now, false, now);
    }
  }
  for (const std::uint64_t got : bytes) CHECK(got >= 100 * kChunk);
}

TEST_CASE("scheduler / backlog is what a new flow would wait behind") {
  Gigabit it;
  (void)it.add(flow_of(1, kGigabit / 10));
  FlowSpec background = flow_of(2, kGigabit);
  background.background = true;
  (void)it.add(background);
  FlowSpec critical = flow_of(3, kGigabit / 100);
  critical.critical = true;
  (void)it.add(critical);
  CHECK(it.scheduler.backlog_ns(0, true) == 10 * kMillisecondNs);
  CHECK(it.scheduler.backlog_ns(0, false) == 110 * kMillisecondNs);
  CHECK(it.scheduler.next_timer_ns() == kNever);
}

TEST_CASE("scheduler / explain shows level and urgency") {
  Gigabit it;
  // A slice of 10 ms or less begins with its base; four times as much with half of it.
  CHECK(it.scheduler.urgency_milli(it.add(flow_of(2, kGigabit / 100, 3)), 0) == 4000);
  CHECK(it.scheduler.urgency_milli(it.add(flow_of(3, kGigabit / 25, 3)), 0) == 2500);
  const FlowHandle flow = it.add(flow_of(1, kHuge, 3));
  const std::uint32_t first = it.scheduler.level_of(flow);
  it.model.run_until(3 * kSecondNs);
  CHECK(it.scheduler.level_of(flow) > first);
  const std::uint64_t now_urgency = it.scheduler.urgency_milli(flow, it.model.now_ns());
  const std::uint64_t threshold = level_threshold_milli(it.scheduler.level_of(flow));
  CHECK(threshold <= now_urgency);
  CHECK(now_urgency < threshold * 120 / 100);  // one level ratio and a tick
}

TEST_CASE("scheduler / cost of a decision with ten thousand flows (printed)") {
  constexpr std::uint32_t kFlows = 10'000;
  Scheduler scheduler({.max_lanes = 1, .max_flows = kFlows});
  scheduler.lane_up(0, 50'000'000'000, 0);
  Prng prng(1);
  for (std::uint32_t i = 0; i < kFlows; ++i) {
    FlowSpec spec = flow_of(i, kHuge, static_cast<std::uint32_t>(prng.between(2, 6)));
    REQUIRE(scheduler.add_flow(spec, 0).valid());
  }
  std::array<PostAction, 64> actions;
  TimeNs now = 0;
  std::uint64_t decisions = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200'000; ++i) {
    now += 5000;
    const std::size_t count = scheduler.step(now, actions);
    for (std::size_t k = 0; k < count; ++k)
      scheduler.chunk_done(0, actions[k].bytes, now, now + 5000, true, now + 5000);
    decisions += count;
  }
  const auto spent =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
  CHECK(decisions > 100'000);
  MESSAGE("ns per chunk decided and completed, 10,000 flows: "
          << spent / static_cast<double>(decisions));
}

TEST_CASE("scheduler / a lane that refuses gives back its own actions, the others' stay posted") {
  Scheduler scheduler({.max_lanes = 2});
  for (LaneIndex lane = 0; lane < 2; ++lane) {
    scheduler.lane_up(lane, kGigabit, 0);
    FlowSpec spec = flow_of(lane, kHuge);
    spec.lane = lane;
    REQUIRE(scheduler.add_flow(spec, 0).valid());
  }
  std::array<PostAction, 8> actions;
  const std::size_t count = scheduler.step(0, actions);
  REQUIRE(count == 4);
  for (std::size_t i = count; i-- > 0;) {
    if (actions[i].lane == 0) scheduler.unpost(actions[i]);
  }
  CHECK(scheduler.estimate(0).in_flight_bytes == 0);
  CHECK(scheduler.estimate(1).in_flight_bytes == 2 * kChunk);
  REQUIRE(scheduler.step(1000, actions) == 2);
  CHECK(actions[0].lane == 0);
  CHECK(actions[0].offset == 0);
}
