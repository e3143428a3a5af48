// Flows that make way for a far more urgent one on another lane of the same interface.
#include <doctest/doctest.h>

#include <array>
#include <deque>
#include <map>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/exp_table.h"
#include "scheduler/scheduler.h"
#include "tests/support/mode.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr std::uint64_t kGigabit = 125'000'000;
constexpr std::uint64_t kMiB = 1 << 20;

FlowSpec flow_of(std::uint64_t cookie, LaneIndex lane, std::uint64_t bytes, TimeNs now_ns, std::uint32_t role_sum = 2) {
  FlowSpec spec;
  spec.cookie = cookie;
  spec.lane = lane;
  spec.total_bytes = spec.ready_bytes = bytes;
  spec.weight = role_sum;
  spec.base_milli = role_sum * 1000;
  spec.submitted_ns = now_ns;
  return spec;
}

// Lanes that share one interface, first come first served; acknowledged 0.1 ms later.
class Interface {
 public:
  explicit Interface(LaneIndex lanes, const SchedulerOptions& options = {}) : scheduler(options) {
    for (LaneIndex lane = 0; lane < lanes; ++lane) scheduler.lane_up(lane, kGigabit, 0);
  }
  FlowHandle add(const FlowSpec& spec) {
    const FlowHandle flow = scheduler.add_flow(spec, now_);
    REQUIRE(flow.valid());
    return flow;
  }
  void run_until(TimeNs until_ns) {
    while (now_ < until_ns) {
      post();
      now_ = flight_.empty() ? until_ns : std::min(until_ns, flight_.front().done_ns);
      while (!flight_.empty() && flight_.front().done_ns <= now_) {
        const Chunk chunk = flight_.front();
        flight_.pop_front();
        CHECK(chunk.action.offset == at_[chunk.action.cookie]);  // in order, from the cursor on
        at_[chunk.action.cookie] += chunk.action.bytes;
        ended_[chunk.action.cookie] = now_;
        scheduler.chunk_done(chunk.action.lane, chunk.action.bytes, chunk.posted_ns, now_, true, now_);
      }
    }
  }
  [[nodiscard]] TimeNs now() const { return now_; }
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t cookie) { return at_[cookie]; }
  [[nodiscard]] TimeNs ended(std::uint64_t cookie) { return ended_[cookie]; }

  Scheduler scheduler;

 private:
  struct Chunk {
    PostAction action;
    TimeNs posted_ns = 0, done_ns = 0;
  };
  void post() {
    std::array<PostAction, 32> actions;
    while (const std::size_t count = scheduler.step(now_, actions)) {
      for (std::size_t i = 0; i < count; ++i) {
        free_ns_ = std::max(free_ns_, now_) + sending_ns(actions[i].bytes, kGigabit);
        flight_.push_back({actions[i], now_, free_ns_ + 100'000});
      }
    }
  }
  TimeNs now_ = 0, free_ns_ = 0;
  std::deque<Chunk> flight_;
  std::map<std::uint64_t, std::uint64_t> at_;
  std::map<std::uint64_t, TimeNs> ended_;
};

// 20 MiB of bulk on each of seven lanes, then 5 critical MiB on the eighth.
TimeNs urgent_takes(const SchedulerOptions& options, std::uint64_t* suspensions = nullptr) {
  Interface it(8, options);
  for (LaneIndex lane = 0; lane < 7; ++lane) it.add(flow_of(lane, lane, 20 * kMiB, 0));
  it.run_until(20 * kMillisecondNs);
  FlowSpec urgent = flow_of(100, 7, 5 * kMiB, it.now());
  urgent.critical = true;
  it.add(urgent);
  it.run_until(3 * kSecondNs);
  for (LaneIndex lane = 0; lane < 7; ++lane) CHECK(it.bytes_of(lane) == 20 * kMiB);
  CHECK(it.bytes_of(100) == 5 * kMiB);
  if (suspensions != nullptr) *suspensions = it.scheduler.suspensions();
  return it.ended(100) - 20 * kMillisecondNs;
}

}  // namespace

TEST_CASE("suspension / what is urgent gets the interface, not its lane's share of it") {
  // 5 MiB take 42 ms of the interface. Without suspending, eight lanes have an eighth each; with it there are before
  // them only the chunks in flight on seven lanes.
  std::uint64_t suspensions = 0;
  SchedulerOptions never;
  never.suspend_below_ppm = 0;
  const TimeNs alone = sending_ns(5 * kMiB, kGigabit);
  CHECK(urgent_takes(never) > 4 * alone);
  CHECK(urgent_takes(SchedulerOptions{}, &suspensions) < 2 * alone);
  CHECK(suspensions >= 7);
  CHECK(suspensions <= 7 * 3);
}

TEST_CASE("suspension / only for four times the urgency, under the threshold, three times, on a lane as fast") {
  const auto step_of = [](const FlowSpec& bulk, const FlowSpec& other, SchedulerOptions options, std::uint64_t rate,
                          bool shares) {
    Scheduler scheduler(options);
    scheduler.lane_up(0, kGigabit, 0);
    scheduler.lane_up(1, rate, 0, shares);
    const FlowHandle flow = scheduler.add_flow(bulk, kSecondNs);
    (void)scheduler.add_flow(other, kSecondNs);
    std::array<PostAction, 16> actions;
    bool posted = false;
    const std::size_t count = scheduler.step(kSecondNs, actions);
    for (std::size_t i = 0; i < count; ++i) posted = posted || actions[i].lane == 0;
    CHECK(scheduler.suspensions_of(flow) == bulk.suspensions + (posted ? 0 : 1));
    return posted;
  };
  const SchedulerOptions options;
  const FlowSpec bulk = flow_of(1, 0, 100 * kMiB, kSecondNs);
  FlowSpec urgent = flow_of(2, 1, kMiB, kSecondNs, 8);
  // 100 MiB take 839 ms, 84 slices: base 2 / 9.2 = 0.22, urgency 1.22, level 1. 8 + 1 is level 15: 14 more.
  CHECK(!step_of(bulk, urgent, options, kGigabit, true));
  // 3 + 1 is level 9: 8 more are 3.06 times as much.
  CHECK(step_of(bulk, flow_of(2, 1, kMiB, kSecondNs, 3), options, kGigabit, true));
  urgent.critical = true;
  CHECK(!step_of(bulk, urgent, options, kGigabit, true));
  CHECK(step_of(bulk, urgent, options, kGigabit, false));     // not through the interface
  CHECK(step_of(bulk, urgent, options, kGigabit / 4, true));  // a slow lane can't use what is left
  FlowSpec begun = bulk;
  begun.start_offset = 40 * kMiB;
  CHECK(step_of(begun, urgent, options, kGigabit, true));
  begun.start_offset = 39 * kMiB;
  CHECK(!step_of(begun, urgent, options, kGigabit, true));
  begun.suspensions = 3;
  CHECK(step_of(begun, urgent, options, kGigabit, true));
  FlowSpec old = bulk;
  old.submitted_ns = kSecondNs - 1960 * kMillisecondNs;  // 0.22 + e^1.96 = 7.3, level 14
  old.suspensions = 0;
  CHECK(step_of(old, urgent, options, kGigabit, true));
}

TEST_CASE("suspension / random streams: every byte once and in order, three times at most, nobody waits for ever") {
  for (std::uint64_t seed = 1; seed <= kvrail::test::by_mode<std::uint64_t>(20, 200, 20'000); ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    Interface it(4);
    struct Live {
      FlowHandle handle;
      FlowSpec spec;
    };
    std::vector<Live> flows;
    std::uint64_t most = 0;
    for (std::uint64_t cookie = 1; cookie <= 60; ++cookie) {
      FlowSpec spec = flow_of(cookie, static_cast<LaneIndex>(prng.uniform(4)), 1 + prng.uniform(4 * kMiB), it.now(),
                              static_cast<std::uint32_t>(2 + prng.uniform(6)));
      spec.critical = prng.chance(0.15);
      if (prng.chance(0.3)) spec.deadline_ns = it.now() + static_cast<TimeNs>(prng.uniform(200 * kMillisecondNs));
      flows.push_back({it.add(spec), spec});
      it.run_until(it.now() + static_cast<TimeNs>(prng.uniform(30 * kMillisecondNs)));
    }
    it.run_until(it.now() + 3 * kSecondNs);
    for (const Live& flow : flows) {
      CHECK(it.bytes_of(flow.spec.cookie) == flow.spec.total_bytes);
      most = std::max<std::uint64_t>(most, it.scheduler.suspensions_of(flow.handle));
      it.scheduler.remove_flow(flow.handle);
    }
    CHECK(most <= 3);
  }
}

TEST_CASE("suspension / the bound: against an endless critical flow a bulk flow moves within two seconds") {
  Interface it(2);
  FlowSpec critical = flow_of(1, 0, std::uint64_t{1} << 40, 0);
  critical.critical = true;
  it.add(critical);
  it.add(flow_of(2, 1, 50 * kMiB, 0));
  it.run_until(1900 * kMillisecondNs);
  CHECK(it.bytes_of(2) == 0);
  it.run_until(1980 * kMillisecondNs);
  CHECK(it.bytes_of(2) > 0);
  it.run_until(4 * kSecondNs);
  CHECK(it.bytes_of(2) == 50 * kMiB);
}
