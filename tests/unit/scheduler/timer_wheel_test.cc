#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/timer_wheel.h"

using namespace kvrail;
using namespace kvrail::scheduler;

TEST_CASE("timer wheel / nodes expire once, not early, and within the tick after they are due") {
  struct Timer : TimerNode {
    int expired = 0;
    bool wanted = false;
    TimeNs wanted_ns = 0;
    TimeNs armed_ns = 0;
  };
  Prng prng(7);
  std::vector<Timer> timers(300);
  TimerWheel wheel;
  TimeNs now = 0;
  std::uint32_t armed = 0;
  for (int round = 0; round < 20'000; ++round) {
    Timer& timer = timers[prng.uniform(timers.size())];
    if (!timer.armed) {
      // Near, far beyond one turn of the wheel, and already past.
      timer.wanted_ns = now + static_cast<TimeNs>(prng.uniform(2'000'000'000)) - 50'000'000;
      timer.wanted = true;
      timer.armed_ns = now;
      wheel.arm(timer, timer.wanted_ns);
      ++armed;
    } else if (prng.chance(0.3)) {
      wheel.cancel(timer);
      timer.wanted = false;
      --armed;
    }
    if (prng.chance(0.01)) now += 900'000'000;
    now += static_cast<TimeNs>(prng.uniform(3'000'000));
    wheel.advance(now, [&](TimerNode& node) {
      Timer& it = static_cast<Timer&>(node);
      REQUIRE(it.wanted);
      REQUIRE(it.wanted_ns <= now);
      REQUIRE(!it.armed);
      it.wanted = false;
      ++it.expired;
      --armed;
    });
    REQUIRE(wheel.armed_count() == armed);
    if (round % 100 == 0) {
      for (const Timer& it : timers) {
        const TimeNs due_ns = std::max(it.wanted_ns, it.armed_ns);
        REQUIRE((!it.wanted || due_ns + TimerWheel::kTickNs > now));
      }
    }
  }
  CHECK(std::all_of(timers.begin(), timers.end(), [](const Timer& it) { return it.expired > 0; }));
}

TEST_CASE("timer wheel / a node may be armed again while it expires") {
  TimerWheel wheel;
  TimerNode node;
  int count = 0;
  wheel.arm(node, 1000);
  for (TimeNs now = 0; now < 100 * kMillisecondNs; now += kMillisecondNs / 4) {
    wheel.advance(now, [&](TimerNode& it) {
      ++count;
      wheel.arm(it, now + 2 * kMillisecondNs);
    });
  }
  CHECK(count >= 30);
  CHECK(count <= 51);
}

TEST_CASE("timer wheel / what is due minutes or years ahead expires then, over any stretch of silence") {
  constexpr TimeNs kMinute = 60 * kSecondNs;
  for (const TimeNs step : {kMillisecondNs / 3, 70 * kMillisecondNs, kSecondNs, 5 * kMinute, 10'000 * kMinute}) {
    CAPTURE(step);
    TimerWheel wheel;
    std::vector<TimerNode> nodes(3);
    wheel.arm(nodes[0], 20 * step);
    wheel.arm(nodes[1], 20 * step + 2 * kMinute);
    wheel.arm(nodes[2], std::numeric_limits<TimeNs>::max());  // never, and in nobody's way
    std::array<TimeNs, 3> expired{};
    for (TimeNs now = step; now < 23 * step + 4 * kMinute; now += step) {
      wheel.advance(now, [&](TimerNode& node) { expired[static_cast<std::size_t>(&node - nodes.data())] = now; });
    }
    for (const std::size_t i : {0U, 1U}) {
      const TimeNs due = 20 * step + (i == 0 ? 0 : 2 * kMinute);
      CHECK(expired[i] >= due);
      CHECK(expired[i] <= due + TimerWheel::kTickNs + step);
    }
    CHECK(wheel.armed_count() == 1);
    CHECK(nodes[2].armed);
  }
}

TEST_CASE("timer wheel / many nodes of one tick are walked once, not at each advance") {
  constexpr int kNodes = 1000;
  std::vector<TimerNode> nodes(kNodes);
  TimerWheel wheel;
  for (int i = 0; i < kNodes; ++i) wheel.arm(nodes[static_cast<std::size_t>(i)], TimerWheel::kTickNs + 1000 * i);
  int expired = 0;
  const auto count = [&expired](TimerNode&) { ++expired; };
  for (int i = 0; i < 100; ++i) {
    wheel.advance(TimerWheel::kTickNs + 10'000 * i, count);
    CHECK(expired <= 1);  // the one due when the tick begins; none of the others is looked at
  }
  wheel.advance(2 * TimerWheel::kTickNs, count);
  CHECK(expired == kNodes);
}
