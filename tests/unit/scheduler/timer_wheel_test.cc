#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/timer_wheel.h"

using namespace kvrail;
using namespace kvrail::scheduler;

TEST_CASE("timer wheel / nodes expire once, not early, and within the advance after they are due") {
  struct Timer : TimerNode {
    int expired = 0;
    bool wanted = false;
    TimeNs wanted_ns = 0;
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
      for (const Timer& it : timers) REQUIRE((!it.wanted || it.wanted_ns > now));
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
  CHECK(count >= 40);
  CHECK(count <= 51);
}
