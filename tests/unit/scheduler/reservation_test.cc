// Reservations in the order of a lane: what is promised comes in time, nothing more is taken, and what is not used is
// the others'.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/arbiter.h"
#include "scheduler/budget.h"
#include "scheduler/scheduler.h"
#include "tests/support/mode.h"
#include "tests/unit/scheduler/link_model.h"

using namespace kvrail;
using namespace kvrail::scheduler;
using kvrail::scheduler::test::LinkModel;

namespace {

constexpr std::uint64_t kGigabit = 125'000'000;
constexpr std::uint64_t kChunk = 64 * 1024;
constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;
constexpr TimeNs kPeriod = 20 * kMillisecondNs;

FlowSpec flow_of(std::uint64_t cookie, std::uint64_t bytes, TimeNs now_ns, BudgetHandle budget = {}) {
  FlowSpec spec;
  spec.cookie = cookie;
  spec.total_bytes = spec.ready_bytes = bytes;
  spec.submitted_ns = now_ns;
  spec.budget = budget;
  return spec;
}

struct Gigabit {
  Scheduler scheduler{SchedulerOptions{}};
  LinkModel model{scheduler, 0, kGigabit, 80'000};
  Gigabit() { scheduler.lane_up(0, kGigabit, 0); }
  FlowHandle add(std::uint64_t cookie, std::uint64_t bytes, BudgetHandle budget = {}) {
    const FlowHandle flow = scheduler.add_flow(flow_of(cookie, bytes, model.now_ns(), budget), model.now_ns());
    REQUIRE(flow.valid());
    return flow;
  }
  TimeNs wait_for(std::uint64_t cookie, std::uint64_t bytes) {
    while (model.bytes_of(cookie) < bytes) model.advance(kNever);
    return model.finished_ns(cookie);
  }
};

}  // namespace

TEST_CASE("reservation / a beat comes before critical and bulk bytes, each period anew") {
  Gigabit it;
  const BudgetHandle budget = it.scheduler.open_budget({0, kPeriod, 0, 1'000'000}, 0);
  (void)it.add(1, kHuge);
  FlowSpec critical = flow_of(2, kHuge, 0);
  critical.critical = true;
  (void)it.scheduler.add_flow(critical, 0);
  it.model.run_until(kPeriod);
  for (std::uint64_t beat = 0; beat < 20; ++beat) {
    const TimeNs begin = it.model.now_ns();
    const FlowHandle flow = it.add(100 + beat, 1'000'000, budget);
    // 8 ms of the lane, behind at most the five chunks of 0.52 ms in flight, and a round trip of 0.08 ms.
    CHECK(it.wait_for(100 + beat, 1'000'000) - begin < 8 * kMillisecondNs + 5 * 525'000 + 80'000);
    it.scheduler.remove_flow(flow);
    it.model.run_until(begin + kPeriod);
  }
  CHECK(it.scheduler.budget(budget).served_bytes == 20'000'000);
  CHECK(it.scheduler.budget(budget).exhausted == 20);
}

TEST_CASE("reservation / beyond its budget a flow waits like any other, until the next period") {
  Gigabit it;
  const BudgetHandle budget = it.scheduler.open_budget({0, kPeriod, 0, 5 * kChunk}, 0);
  // Both have 1,000 s to send, so their bases are near 0 and their levels the same: each gets half of what is left.
  (void)it.add(1, kHuge);
  (void)it.add(2, kHuge, budget);
  it.model.run_until(100 * kPeriod);
  // 100 periods of 5 chunks, and half of the other 2.5 MB - 327,680 B of each: 32.8 MB + 108.6 MB of 250.
  CHECK(it.scheduler.budget(budget).served_bytes == 100 * 5 * kChunk);
  CHECK(it.model.bytes_of(2) > 140'000'000);
  CHECK(it.model.bytes_of(2) < 143'000'000);
  CHECK(it.model.bytes_of(1) + it.model.bytes_of(2) > 248'000'000);
}

TEST_CASE("reservation / what nobody uses is the others', and is not saved up") {
  Gigabit it;
  const BudgetHandle budget = it.scheduler.open_budget({0, kPeriod, 0, 1'000'000}, 0);
  (void)it.add(1, kHuge);
  it.model.run_until(kSecondNs);
  CHECK(it.model.bytes_of(1) > 124'000'000);
  // After 50 idle periods it has one budget, not 50: the rest of 4 MB shares the lane.
  (void)it.add(2, 4'000'000, budget);
  it.model.run_until(kSecondNs + kPeriod - kMillisecondNs);
  CHECK(it.scheduler.budget(budget).served_bytes < 1'000'000 + kChunk);
  CHECK(it.scheduler.budget(budget).served_bytes >= 1'000'000);
}

TEST_CASE("reservation / of two the one whose period ends first") {
  Scheduler scheduler{SchedulerOptions{}};
  scheduler.lane_up(0, kGigabit, 0);
  const BudgetHandle slow = scheduler.open_budget({0, 100 * kMillisecondNs, 0, 4 * kChunk}, 0);
  const BudgetHandle fast = scheduler.open_budget({0, 10 * kMillisecondNs, 0, kChunk}, 0);
  (void)scheduler.add_flow(flow_of(1, 4 * kChunk, 0, slow), 0);
  (void)scheduler.add_flow(flow_of(2, kChunk, 0, fast), 0);
  std::array<PostAction, 8> actions;
  REQUIRE(scheduler.step(0, actions) == 2);  // two chunks may be in flight
  CHECK(actions[0].cookie == 2);
  CHECK(actions[1].cookie == 1);
  CHECK((actions[0].reserved && actions[0].critical));
}

TEST_CASE("reservation / the arithmetic of a budget") {
  // Periods begin at 3 ms, 13 ms, ...; 1,000 B each.
  constexpr TimeNs kMs = kMillisecondNs;
  Budget budget({0, 10 * kMs, 3 * kMs, 1000}, 0);
  CHECK(budget.begun_ns == -7 * kMs);
  CHECK(budget.deadline_ns == 3 * kMs);
  budget.renew(2 * kMs);
  CHECK(budget.deadline_ns == 3 * kMs);
  budget.renew(14 * kMs);
  CHECK(budget.begun_ns == 13 * kMs);
  CHECK(budget.deadline_ns == 23 * kMs);
  // At 14 ms the 9 ms left are worth 900 B at the reserved rate, and 1,000 are there: due a period later, at 24.
  budget.wake(14 * kMs);
  CHECK(budget.deadline_ns == 24 * kMs);
  // With 500 B left at 18 ms the 5 ms are just enough.
  budget.renew(23 * kMs);
  budget.charge(500);
  budget.wake(28 * kMs);
  CHECK(budget.deadline_ns == 33 * kMs);
  // Overdrawn by 300: the next period has 700. By 2,300: two periods have nothing, the third 700, the fourth all.
  budget.charge(800);
  CHECK(budget.left == -300);
  budget.renew(33 * kMs);
  CHECK(budget.left == 700);
  budget.charge(3000);
  CHECK(budget.left == -2300);
  budget.renew(43 * kMs);
  CHECK(budget.left == -1300);
  budget.renew(53 * kMs);
  CHECK(budget.left == -300);
  budget.renew(63 * kMs);
  CHECK(budget.left == 700);
  budget.charge(3000);
  budget.renew(103 * kMs);  // four periods later: 4,000 - 2,300 = 1,700, but no more than 1,000
  CHECK(budget.left == 1000);
  budget.charge(1000);
  budget.give_back(1000);
  CHECK(budget.left == 1000);
  CHECK(budget.counts.served_bytes == 500 + 800 + 3000 + 3000);
  CHECK(budget.counts.exhausted == 3);
}

TEST_CASE("reservation / a closed one leaves its flows to their urgency; a lane that goes takes its own along") {
  Scheduler scheduler({.max_budgets = 2});
  scheduler.lane_up(0, kGigabit, 0);
  const BudgetHandle budget = scheduler.open_budget({0, kPeriod, 0, kHuge}, 0);
  REQUIRE(scheduler.open_budget({0, kPeriod, 0, 1}, 0).valid());
  CHECK(!scheduler.open_budget({0, kPeriod, 0, 1}, 0).valid());
  const FlowHandle flow = scheduler.add_flow(flow_of(1, 4 * kChunk, 0, budget), 0);
  std::array<PostAction, 8> actions;
  REQUIRE(scheduler.step(0, actions) == 2);
  CHECK(actions[1].reserved);
  scheduler.close_budget(budget);
  scheduler.unpost(actions[1]);
  REQUIRE(scheduler.step(0, actions) == 1);
  CHECK(!actions[0].reserved);
  CHECK(actions[0].offset == kChunk);
  CHECK(scheduler.budget(budget).served_bytes == 0);
  scheduler.remove_flow(flow);
  scheduler.lane_down(0);
  scheduler.lane_up(0, kGigabit, 0);
  CHECK(scheduler.open_budget({0, kPeriod, 0, 1}, 0).valid());
  CHECK(scheduler.open_budget({0, kPeriod, 0, 1}, 0).valid());
}

namespace {

std::uint64_t seeds() { return kvrail::test::by_mode<std::uint64_t>(100, 1000, 100'000); }

// Random reservations that the arbiter admits, random flows of all classes, chunks given back and flows removed at any
// moment: what is posted of each flow is its bytes, in order, once.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : prng_(seed) {
    arbiter_.open_lane(0, 64, 4);
    scheduler_.lane_up(0, kGigabit, 0);
  }
  std::uint64_t run() {
    for (int i = 0; i < 300; ++i) event();
    for (int i = 0; i < 100'000 && (!flows_.empty() || !flight_.empty()); ++i) {  // then all ends
      now_ += kMillisecondNs;
      complete();
      step();
      finish();
    }
    CHECK(flows_.empty());
    CHECK(flight_.empty());
    for (const auto& [budget, made] : budgets_) {
      const std::uint64_t begun = static_cast<std::uint64_t>(now_ / made.spec.period_ns) + 2;
      CHECK(scheduler_.budget(budget).served_bytes <= begun * made.spec.bytes + kChunk * 4);
    }
    arbiter_.audit();
    return hash_;
  }

 private:
  struct Live {
    FlowSpec spec;
    std::uint64_t at = 0, ready = 0;
  };
  struct Made {
    ReservationSpec spec;
    ReservationHandle admitted;
  };
  template <class Map>
  typename Map::iterator any(Map& map) {
    return std::next(map.begin(), static_cast<std::ptrdiff_t>(prng_.uniform(map.size())));
  }
  void event() {
    now_ += static_cast<TimeNs>(prng_.uniform(2 * kMillisecondNs));
    switch (prng_.uniform(8)) {
      case 0: return reserve();
      case 1: return cancel();
      case 2:
      case 3: return add();
      case 4: return remove();
      case 5: return complete();
      case 6: return more();
      default: return step();
    }
  }
  void reserve() {
    ReservationSpec spec;
    spec.period_ns = kMillisecondNs * static_cast<TimeNs>(1 + prng_.uniform(50));
    spec.offset_ns = static_cast<TimeNs>(prng_.uniform(static_cast<std::uint64_t>(spec.period_ns)));
    spec.bytes = 1 + prng_.uniform(1'000'000);
    const ReservationAnswer answer = arbiter_.reserve(spec, kGigabit);
    if (!answer.reservation) return;
    const BudgetHandle budget = scheduler_.open_budget(spec, now_);
    if (!budget) return arbiter_.cancel(answer.reservation);
    budgets_[budget] = {spec, answer.reservation};
  }
  void cancel() {
    if (budgets_.empty()) return;
    const auto it = any(budgets_);
    scheduler_.close_budget(it->first);
    arbiter_.cancel(it->second.admitted);
    budgets_.erase(it);
  }
  void add() {
    FlowSpec spec = flow_of(++cookie_, 1 + prng_.uniform(600'000), now_);
    spec.start_offset = prng_.uniform(spec.total_bytes + 1);
    spec.ready_bytes = prng_.chance(0.5) ? spec.total_bytes : prng_.uniform(spec.total_bytes + 1);
    spec.critical = prng_.chance(0.1);
    spec.background = !spec.critical && prng_.chance(0.1);
    if (!budgets_.empty() && prng_.chance(0.5)) spec.budget = any(budgets_)->first;
    const FlowHandle flow = scheduler_.add_flow(spec, now_);
    REQUIRE(flow.valid());
    flows_[flow] = {spec, spec.start_offset, std::max(spec.ready_bytes, spec.start_offset)};
  }
  void more() {
    if (flows_.empty()) return;
    const auto it = any(flows_);
    it->second.ready += prng_.uniform(it->second.spec.total_bytes - it->second.ready + 1);
    scheduler_.set_ready(it->first, it->second.ready, now_);
  }
  void remove() {
    if (flows_.empty() || prng_.chance(0.5)) return;
    const auto it = any(flows_);
    scheduler_.remove_flow(it->first);
    flows_.erase(it);
  }
  void step() {
    std::array<PostAction, 16> actions;
    const std::size_t count = scheduler_.step(now_, actions);
    std::size_t kept = prng_.chance(0.2) ? prng_.uniform(count + 1) : count;
    for (std::size_t i = count; i > kept; --i) scheduler_.unpost(actions[i - 1]);
    for (std::size_t i = 0; i < kept; ++i) {
      const auto it = flows_.find(actions[i].flow);
      REQUIRE(it != flows_.end());
      Live& flow = it->second;
      CHECK(actions[i].offset == flow.at);
      flow.at += actions[i].bytes;
      CHECK(flow.at <= flow.ready);
      CHECK((actions[i].reserved ? actions[i].critical : actions[i].critical == flow.spec.critical));
      CHECK((!actions[i].reserved || budgets_.contains(flow.spec.budget)));
      flight_.emplace_back(actions[i].bytes, now_);
      hash_ = (hash_ ^ actions[i].cookie * 131 ^ actions[i].offset) * 0x9e3779b97f4a7c15ULL;
    }
  }
  void complete() {
    while (!flight_.empty() && prng_.chance(0.8)) {
      const auto [bytes, posted] = flight_.front();
      flight_.erase(flight_.begin());
      scheduler_.chunk_done(0, bytes, posted, now_, prng_.chance(0.95), now_);
    }
  }
  void finish() {
    for (auto it = flows_.begin(); it != flows_.end();) {
      scheduler_.set_ready(it->first, it->second.spec.total_bytes, now_);
      it->second.ready = it->second.spec.total_bytes;
      if (it->second.at < it->second.ready) {
        ++it;
        continue;
      }
      scheduler_.remove_flow(it->first);
      it = flows_.erase(it);
    }
  }
  Prng prng_;
  Scheduler scheduler_{SchedulerOptions{.max_flows = 512, .max_budgets = 64}};
  Arbiter arbiter_{ArbiterOptions{.max_reservations = 64}};
  std::map<FlowHandle, Live> flows_;
  std::map<BudgetHandle, Made> budgets_;
  std::vector<std::pair<std::uint32_t, TimeNs>> flight_;
  TimeNs now_ = kSecondNs;
  std::uint64_t cookie_ = 0, hash_ = 0;
};

}  // namespace

TEST_CASE("reservation / random events: every byte once and in order, no budget overspent, one seed one trace") {
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    const std::uint64_t hash = Stream(seed).run();
    if (seed % 50 == 0) CHECK(Stream(seed).run() == hash);
  }
}

TEST_CASE("reservation / random admitted sets under bulk are met: each beat within its period and what is in flight") {
  for (std::uint64_t seed = 1; seed <= seeds() / 10; ++seed) {
    Prng prng(seed);
    Gigabit it;
    Arbiter arbiter(ArbiterOptions{});
    arbiter.open_lane(0, 64, 4);
    struct Beat {
      ReservationSpec spec;
      BudgetHandle budget;
      TimeNs next_ns = 0;
    };
    std::vector<Beat> beats;
    for (int i = 0; i < 12; ++i) {
      ReservationSpec spec;
      spec.period_ns = kMillisecondNs * static_cast<TimeNs>(5 + prng.uniform(40));
      spec.offset_ns = static_cast<TimeNs>(prng.uniform(static_cast<std::uint64_t>(spec.period_ns)));
      spec.bytes = 1000 + prng.uniform(500'000);
      if (!arbiter.reserve(spec, kGigabit).reservation) continue;
      beats.push_back({spec, it.scheduler.open_budget(spec, 0), spec.offset_ns});
    }
    (void)it.add(1, kHuge);
    std::uint64_t cookie = 100;
    std::map<std::uint64_t, std::pair<TimeNs, std::uint64_t>> due;  // by cookie: latest end, bytes
    while (it.model.now_ns() < 300 * kMillisecondNs && !beats.empty()) {
      const auto first = std::min_element(beats.begin(), beats.end(), [](const Beat& a, const Beat& b) { return a.next_ns < b.next_ns; });
      it.model.run_until(first->next_ns);
      (void)it.add(++cookie, first->spec.bytes, first->budget);
      // Five chunks in flight before it, one by which each of the others may be overdrawn, and a round trip.
      const auto late = static_cast<TimeNs>((5 + beats.size()) * 525'000 + 80'000);
      due[cookie] = {first->next_ns + first->spec.period_ns + late, first->spec.bytes};
      first->next_ns += first->spec.period_ns;
    }
    it.model.run_until(it.model.now_ns() + 100 * kMillisecondNs);
    CAPTURE(seed);
    for (const auto& [id, beat] : due) {
      REQUIRE(it.model.bytes_of(id) == beat.second);
      CHECK(it.model.finished_ns(id) <= beat.first);
    }
  }
}
