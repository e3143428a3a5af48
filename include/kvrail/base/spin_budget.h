// How long one that waits polls before it sleeps. Being woken costs a few microseconds of its own and
// tens of latency, so polling pays where the next news comes within about that; elsewhere it only burns
// the core. What was is taken for what will be: after news that came within `most`, it polls up to twice
// that long the next time, and after a longer wait no more than `least`. Halt polling in KVM rests on
// the same bet.
//
// Thread: the one that waits.
#pragma once

#include <sched.h>

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"

namespace kvrail {

/// What pays at most; 0 on a single core, where whoever is waited for cannot run meanwhile.
[[nodiscard]] inline TimeNs adaptive_spin_ns() noexcept {
  cpu_set_t cores;
  const bool several = ::sched_getaffinity(0, sizeof(cores), &cores) != 0 || CPU_COUNT(&cores) > 1;
  return several ? 100 * kMicrosecondNs : 0;
}

class SpinBudget {
 public:
  SpinBudget(TimeNs least_ns, TimeNs most_ns) noexcept : least_ns_(least_ns), most_ns_(most_ns), now_ns_(least_ns) {
    KVRAIL_ASSERT(least_ns >= 0 && most_ns >= least_ns);
  }
  [[nodiscard]] TimeNs ns() const noexcept { return now_ns_; }
  // News came `waited_ns` after the last work, whether that time was spun or slept.
  void learn(TimeNs waited_ns) noexcept {
    now_ns_ = waited_ns > most_ns_ ? least_ns_ : std::clamp(std::max(2 * waited_ns, now_ns_), least_ns_, most_ns_);
  }

 private:
  TimeNs least_ns_, most_ns_, now_ns_;
};

}  // namespace kvrail
