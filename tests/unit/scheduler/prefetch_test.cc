// When a prefetch starts, what stops it, and what is learned about who comes next; worked out by hand.
#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <tuple>

#include "kvrail/base/prng.h"
#include "scheduler/prefetch.h"
#include "scheduler/transitions.h"

using namespace kvrail;
using namespace kvrail::scheduler;

namespace {

constexpr PrefetchPlan::Room kEnough{.free_bytes = std::numeric_limits<std::uint64_t>::max()};
using Step = PrefetchPlan::Step;

PrefetchHint hint_of(std::uint64_t context, std::uint32_t percent, double when_s, double restore_s = 1,
                     std::uint64_t bytes = 100) {
  return {.agent = 1,
          .context = context,
          .probability_ppm = percent * 10'000,
          .when_ns = static_cast<TimeNs>(when_s * 1e9),
          .restore_ns = static_cast<TimeNs>(restore_s * 1e9),
          .bytes = bytes};
}

}  // namespace

TEST_CASE("prefetch / it starts one and a quarter restore times ahead, when it is as probable as not") {
  PrefetchPlan plan(4);
  REQUIRE(plan.expect(hint_of(7, 50, 10, 2), 0));
  REQUIRE(plan.expect(hint_of(8, 49, 10, 2), 0));
  CHECK(plan.next_start_ns() == 7'500 * kMillisecondNs);  // 10 - 1.25 x 2
  CHECK_FALSE(plan.next(7'500 * kMillisecondNs - 1, kEnough).has_value());
  const auto started = plan.next(7'500 * kMillisecondNs, kEnough);
  REQUIRE(started.has_value());
  CHECK(started->hint.context == 7);
  CHECK_FALSE(plan.next(9 * kSecondNs, kEnough).has_value());
  CHECK(plan.next_start_ns() == PrefetchPlan::kNever);
}

TEST_CASE("prefetch / the nearest goes first") {
  PrefetchPlan plan(4);
  REQUIRE(plan.expect(hint_of(1, 90, 3, 10), 0));
  REQUIRE(plan.expect(hint_of(2, 60, 2, 10), 0));
  REQUIRE(plan.expect(hint_of(3, 99, 4, 10), 0));
  for (const std::uint64_t context : {2U, 1U, 3U}) {
    const auto started = plan.next(0, kEnough);
    REQUIRE(started.has_value());
    CHECK(started->hint.context == context);
  }
  CHECK_FALSE(plan.next(0, kEnough).has_value());
}

TEST_CASE("prefetch / nothing goes for it that is worth as much") {
  PrefetchPlan plan(4);
  const PrefetchHint near = hint_of(1, 80, 2, 2, 1000);
  REQUIRE(plan.expect(near, kSecondNs));
  const auto own = ValueIndex::hinted_value({.bytes = 1000, .restore_ns = near.restore_ns, .hit_ns = 0}, 800'000, kSecondNs);
  CHECK_FALSE(plan.next(kSecondNs, {.free_bytes = 999, .next_victim = own}).has_value());
  CHECK_FALSE(plan.next(kSecondNs, {}).has_value());
  // A smaller one behind it is not kept waiting by that.
  REQUIRE(plan.expect(hint_of(2, 80, 2.2, 2, 500), kSecondNs));
  const auto small = plan.next(kSecondNs, {.free_bytes = 999, .next_victim = own});
  REQUIRE(small.has_value());
  CHECK(small->hint.context == 2);
  const auto started = plan.next(kSecondNs, {.free_bytes = 0, .next_victim = own - 1});
  REQUIRE(started.has_value());
  CHECK(started->hint.context == 1);
  CHECK(plan.may_displace(started->id, own - 1, kSecondNs));
  CHECK_FALSE(plan.may_displace(started->id, own, kSecondNs));
}

TEST_CASE("prefetch / it can be given up at every step, and what was moved for nothing is counted") {
  PrefetchPlan plan(4);
  REQUIRE(plan.expect(hint_of(1, 90, 1), 0));
  CHECK(plan.cancel(1, 1).step == Step::waiting);
  CHECK(plan.cancel(1, 1).step == Step::none);
  CHECK(plan.counters().wasted_bytes == 0);
  REQUIRE(plan.expect(hint_of(1, 90, 1), 0));
  const auto running = plan.next(0, kEnough);
  REQUIRE(running.has_value());
  CHECK(plan.cancel(1, 1).step == Step::running);
  CHECK(plan.counters().wasted_bytes == 100);
  plan.arrived(running->id);  // too late to matter
  CHECK(plan.size() == 0);
  REQUIRE(plan.expect(hint_of(1, 90, 1), 0));
  const auto held = plan.next(0, kEnough);
  REQUIRE(held.has_value());
  plan.arrived(held->id);
  CHECK(plan.cancel(1, 1).step == Step::held);
  REQUIRE(plan.expect(hint_of(1, 90, 1), 0));
  const auto gone = plan.next(0, kEnough);
  REQUIRE(gone.has_value());
  plan.lost(gone->id);
  plan.lost(gone->id);
  CHECK(plan.counters().started_bytes == 300);
  CHECK(plan.counters().wasted_bytes == 300);
  CHECK(plan.counters().wasted == 3);
}

TEST_CASE("prefetch / used in time, late, before it began, and without having been planned") {
  PrefetchPlan plan(4);
  for (const std::uint64_t context : {1U, 2U, 3U}) REQUIRE(plan.expect(hint_of(context, 90, static_cast<double>(context)), 0));
  const auto first = plan.next(0, kEnough);
  REQUIRE(first.has_value());
  plan.arrived(first->id);
  REQUIRE(plan.next(kSecondNs, kEnough).has_value());
  CHECK(plan.used(1, 1).step == Step::held);
  CHECK(plan.used(1, 2).step == Step::running);
  CHECK(plan.used(1, 3).step == Step::waiting);
  CHECK(plan.used(1, 4).step == Step::none);
  CHECK(plan.counters().used == 2);
  CHECK(plan.counters().late == 1);
  CHECK(plan.counters().used_bytes == 200);
  CHECK(plan.size() == 0);
}

TEST_CASE("prefetch / a hint is over a quarter of its time after it, at least a second") {
  PrefetchPlan plan(4);
  REQUIRE(plan.expect(hint_of(1, 90, 8, 1), 0));    // over at 10 s
  REQUIRE(plan.expect(hint_of(2, 90, 0.5, 1), 0));  // over at 1.5 s
  CHECK_FALSE(plan.expire(1'499 * kMillisecondNs).has_value());
  const auto early = plan.expire(1'500 * kMillisecondNs);
  REQUIRE(early.has_value());
  CHECK(early->hint.context == 2);
  const auto running = plan.next(8 * kSecondNs, kEnough);
  REQUIRE(running.has_value());
  CHECK_FALSE(plan.expire(9 * kSecondNs).has_value());
  const auto late = plan.expire(10 * kSecondNs);
  REQUIRE(late.has_value());
  CHECK(late->step == Step::running);
  CHECK(plan.counters().wasted == 1);
  // What lies there stays until it goes, or until its place is needed for another one.
  PrefetchPlan small(1);
  REQUIRE(small.expect(hint_of(1, 90, 2, 1), 0));
  const auto held = small.next(kSecondNs, kEnough);
  REQUIRE(held.has_value());
  small.arrived(held->id);
  CHECK_FALSE(small.expire(100 * kSecondNs).has_value());
  CHECK_FALSE(small.expect(hint_of(2, 99, 2, 1), 2 * kSecondNs));
  CHECK(small.expect(hint_of(2, 60, 100, 1), 100 * kSecondNs));
  CHECK(small.counters().wasted_bytes == 100);
  // And one that is over is not started.
  REQUIRE(plan.expect(hint_of(3, 90, 10, 1), 10 * kSecondNs));
  CHECK_FALSE(plan.next(11 * kSecondNs, kEnough).has_value());
}

TEST_CASE("prefetch / what may come later holds longer and is worth less") {
  PrefetchPlan plan(4);
  PrefetchHint hint = hint_of(1, 90, 8, 1);
  hint.spread_ns = 4 * kSecondNs;
  REQUIRE(plan.expect(hint, 0));  // over at 8 + 3 x 4
  CHECK_FALSE(plan.expire(20 * kSecondNs - 1).has_value());
  CHECK(plan.expire(20 * kSecondNs).has_value());
  REQUIRE(plan.expect(hint, 0));
  // At 7 s it must be expected to lie 1 + 4 s.
  const auto five = ValueIndex::hinted_value({.bytes = 100, .restore_ns = kSecondNs, .hit_ns = 0}, 900'000, 5 * kSecondNs);
  CHECK_FALSE(plan.next(7 * kSecondNs, {.free_bytes = 0, .next_victim = five}).has_value());
  CHECK(plan.next(7 * kSecondNs, {.free_bytes = 0, .next_victim = five - 1}).has_value());
}

TEST_CASE("prefetch / a hint for the same need takes the place of the earlier one") {
  PrefetchPlan plan(4);
  REQUIRE(plan.expect(hint_of(1, 90, 10), 0));
  REQUIRE(plan.expect(hint_of(1, 90, 20), 0));
  CHECK(plan.size() == 1);
  CHECK(plan.next_start_ns() == 18'750 * kMillisecondNs);
  const auto running = plan.next(19 * kSecondNs, kEnough);
  REQUIRE(running.has_value());
  REQUIRE(plan.expect(hint_of(1, 90, 40, 1, 9999), 19 * kSecondNs));  // it stays running, with its size
  CHECK_FALSE(plan.expire(30 * kSecondNs).has_value());
  plan.arrived(running->id);
  CHECK(plan.used(1, 1).step == Step::held);
  CHECK(plan.counters().used_bytes == 100);
}

TEST_CASE("prefetch / a full table keeps what is more probable, and what has started") {
  PrefetchPlan plan(2);
  REQUIRE(plan.expect(hint_of(1, 60, 10), 0));
  REQUIRE(plan.expect(hint_of(2, 70, 10), 0));
  CHECK_FALSE(plan.expect(hint_of(3, 60, 1), 0));
  REQUIRE(plan.expect(hint_of(3, 65, 1), 0));
  CHECK(plan.cancel(1, 1).step == Step::none);
  REQUIRE(plan.next(0, kEnough).has_value());  // 3 runs, which nothing drives out
  REQUIRE(plan.expect(hint_of(4, 99, 10), 0));
  CHECK(plan.used(1, 3).step == Step::running);
  CHECK(plan.cancel(1, 2).step == Step::none);
  PrefetchPlan none(0);
  CHECK_FALSE(none.expect(hint_of(1, 99, 1), 0));
}

TEST_CASE("prefetch / times and sizes out of all bounds stay within them") {
  constexpr TimeNs kLast = std::numeric_limits<TimeNs>::max();
  PrefetchPlan plan(2);
  REQUIRE(plan.expect({1, 1, 4'000'000'000U, kLast, kLast, std::numeric_limits<std::uint64_t>::max()}, 0));
  REQUIRE(plan.expect({1, 2, 1'000'000, std::numeric_limits<TimeNs>::min(), -5, 0}, 3));
  CHECK(plan.next_start_ns() <= 3);
  const auto nothing = plan.next(3, {});  // no bytes always fit
  REQUIRE(nothing.has_value());
  CHECK(nothing->hint.context == 2);
  CHECK_FALSE(plan.next(3, {}).has_value());
}

TEST_CASE("prefetch / whatever is done, each that started is used, wasted, or still there") {
  // Against a map from what was told; bytes are conserved at every step.
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    PrefetchPlan plan(20);  // a place for each: nothing has to give way
    std::map<std::uint64_t, std::tuple<PrefetchPlan::Id, bool>> started;  // by context; arrived
    TimeNs now = 0;
    for (int step = 0; step < 3'000; ++step) {
      now += static_cast<TimeNs>(prng.uniform(300)) * kMillisecondNs;
      const std::uint64_t context = prng.uniform(20);
      const auto expected = [&] {
        const auto it = started.find(context);
        return it == started.end() ? Step::none : std::get<1>(it->second) ? Step::held : Step::running;
      };
      while (const auto over = plan.expire(now)) {
        REQUIRE(over->step != Step::held);
        started.erase(over->hint.context);
      }
      switch (prng.uniform(6)) {
        case 0: {
          const Step before = expected();
          const Step found = plan.used(1, context).step;
          REQUIRE((found == Step::waiting ? Step::none : found) == before);
          started.erase(context);
          break;
        }
        case 1: {
          const Step before = expected();
          const Step found = plan.cancel(1, context).step;
          REQUIRE((found == Step::waiting ? Step::none : found) == before);
          started.erase(context);
          break;
        }
        case 2:
          if (const auto it = started.find(context); it != started.end()) {
            plan.arrived(std::get<0>(it->second));
            std::get<1>(it->second) = true;
          }
          break;
        default:
          static_cast<void>(plan.expect(hint_of(context, static_cast<std::uint32_t>(prng.uniform(101)),
                                                static_cast<double>(now) / 1e9 + static_cast<double>(prng.uniform(10))), now));
          while (const auto item = plan.next(now, {.free_bytes = prng.uniform(200)})) {
            REQUIRE(item->hint.probability_ppm >= PrefetchPlan::kLeastProbabilityPpm);
            REQUIRE(item->hint.when_ns - 1'250 * kMillisecondNs <= now);
            REQUIRE(started.emplace(item->hint.context, std::tuple{item->id, false}).second);
          }
      }
      REQUIRE(plan.size() <= 20);
      REQUIRE(plan.counters().started_bytes ==
              plan.counters().used_bytes + plan.counters().wasted_bytes + 100 * started.size());
    }
  }
}

TEST_CASE("transitions / shares and times of who follows, one turn in doubt") {
  // Agent 1 begins four times; agent 2 follows each time after 10 s, agent 3 twice after 4 s.
  Transitions transitions(64);
  Transitions::Predicted room;
  CHECK(transitions.predict(9, 1, 3, room).empty());
  for (int i = 0; i < 4; ++i) {
    transitions.began(9, 1);
    transitions.followed(9, 1, 2, 10 * kSecondNs);
    if (i % 2 == 0) transitions.followed(9, 1, 3, 4 * kSecondNs);
  }
  const auto next = transitions.predict(9, 1, 1, room);
  REQUIRE(next.size() == 2);
  CHECK(next[0].agent == 2);
  CHECK(next[0].probability_ppm == 800'000);  // 4 of 4 + 1
  CHECK(next[0].after_ns == 10 * kSecondNs);
  // The first time alone may be off by half; each further one that agrees takes a quarter off that: 5 x 0.75^3.
  CHECK(next[0].spread_ns == 2'109'375'000);
  CHECK(next[1].agent == 3);
  CHECK(next[1].probability_ppm == 400'000);
  CHECK(next[1].after_ns == 4 * kSecondNs);
  CHECK(transitions.predict(8, 1, 1, room).empty());  // another workflow
}

TEST_CASE("transitions / times follow what happens by quarters") {
  Transitions transitions(64);
  Transitions::Predicted room;
  transitions.began(1, 1);
  transitions.followed(1, 1, 2, 8'000);
  transitions.began(1, 1);
  transitions.followed(1, 1, 2, 12'000);
  const auto next = transitions.predict(1, 1, 1, room);
  REQUIRE(next.size() == 1);
  CHECK(next[0].after_ns == 9'000);   // 8,000 + 4,000 / 4
  CHECK(next[0].spread_ns == 4'000);  // 4,000 + (4,000 - 4,000) / 4
  transitions.followed(1, 1, 2, -5);  // a clock that goes back counts as no time
  CHECK(transitions.predict(1, 1, 1, room)[0].after_ns == 6'750);
}

TEST_CASE("transitions / over several hand-overs the shares multiply and the times add up") {
  Transitions transitions(64);
  Transitions::Predicted room;
  for (int i = 0; i < 9; ++i) {
    for (const std::uint64_t agent : {1U, 2U, 3U}) transitions.began(1, agent);
    transitions.followed(1, 1, 2, kSecondNs);
    transitions.followed(1, 2, 3, 2 * kSecondNs);
    transitions.followed(1, 3, 1, 4 * kSecondNs);  // and round again
  }
  CHECK(transitions.predict(1, 1, 1, room).size() == 1);
  const auto next = transitions.predict(1, 1, 3, room);
  REQUIRE(next.size() == 3);
  CHECK(next[0].agent == 2);
  CHECK(next[0].probability_ppm == 900'000);
  CHECK(next[1].agent == 3);
  CHECK(next[1].probability_ppm == 810'000);
  CHECK(next[1].after_ns == 3 * kSecondNs);
  CHECK(next[2].agent == 1);
  CHECK(next[2].after_ns == 7 * kSecondNs);
}

TEST_CASE("transitions / old habits fade, and the rarest successor gives way to a new one") {
  Transitions transitions(64);
  Transitions::Predicted room;
  for (int i = 0; i < 60; ++i) {
    transitions.began(1, 1);
    transitions.followed(1, 1, 2, kSecondNs);
  }
  for (int i = 0; i < 100; ++i) {
    transitions.began(1, 1);
    transitions.followed(1, 1, 3, kSecondNs);
  }
  const auto next = transitions.predict(1, 1, 1, room);
  REQUIRE(next.size() == 2);
  CHECK(next[0].agent == 3);
  CHECK(next[0].probability_ppm > 700'000);
  for (std::uint64_t agent = 10; agent < 10 + Transitions::kSuccessors; ++agent) transitions.followed(1, 1, agent, 1);
  const auto many = transitions.predict(1, 1, 1, room);
  CHECK(many.size() == Transitions::kSuccessors);
  CHECK(many[0].agent == 3);
}
