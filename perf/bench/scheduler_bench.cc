// What a decision costs: flows wait on one lane, and over and over one chunk of the most urgent is
// picked, its flow ends, and another one comes; against a binary heap that keeps the same flows in the
// order of their urgency, which would have to be built again as urgencies grow.
#include <time.h>

#include <array>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "perf/bench/benchmarks.h"
#include "scheduler/scheduler.h"

namespace kvrail::bench {
namespace {

using scheduler::FlowSpec;
using scheduler::PostAction;
using scheduler::Scheduler;

// Of this thread: nothing here waits, and what others use of the core is not the scheduler's.
std::int64_t cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecondNs + time.tv_nsec;
}

constexpr std::uint32_t kChunkBytes = 64 * 1024;
constexpr std::uint64_t kRate = 10'000'000'000;
constexpr std::uint32_t kOperations = 200'000;
constexpr TimeNs kStepNs = 200;

FlowSpec drawn(Prng& prng, std::uint64_t cookie, TimeNs now_ns) {
  FlowSpec spec;
  spec.cookie = cookie;
  spec.total_bytes = spec.ready_bytes = kChunkBytes;
  spec.weight = static_cast<std::uint32_t>(prng.between(2, 6));
  spec.base_milli = 1000 * spec.weight;
  spec.submitted_ns = now_ns;
  return spec;
}

// Flows that wait, at all times as many.
class Waiting {
 public:
  explicit Waiting(std::uint32_t flows)
      : scheduler_({.max_lanes = 1, .max_flows = flows + 1}), prng_(1) {
    scheduler_.lane_up(0, kRate, 0);
    for (std::uint32_t i = 0; i < flows; ++i) enqueue();
  }

  // ns of enqueue, pick, and taking note of the end.
  double turn_over() {
    const std::int64_t begin = cpu_ns();
    for (std::uint32_t i = 0; i < kOperations; ++i) {
      now_ += kStepNs;
      std::array<PostAction, 1> action;
      if (scheduler_.step(now_, action) != 1) throw std::logic_error("nothing was picked");
      scheduler_.chunk_done(0, action[0].bytes, now_, now_ + kStepNs, true, now_ + kStepNs);
      scheduler_.remove_flow(action[0].flow);
      enqueue();
    }
    return static_cast<double>(cpu_ns() - begin) / kOperations;
  }

 private:
  void enqueue() { static_cast<void>(scheduler_.add_flow(drawn(prng_, next_++, now_), now_)); }

  Scheduler scheduler_;
  Prng prng_;
  TimeNs now_ = 0;
  std::uint64_t next_ = 0;
};

class Heap {
 public:
  explicit Heap(std::uint32_t flows) : prng_(1) {
    for (std::uint32_t i = 0; i < flows; ++i) enqueue();
  }
  double turn_over() {
    const std::int64_t begin = cpu_ns();
    for (std::uint32_t i = 0; i < kOperations; ++i) {
      now_ += kStepNs;
      queue_.pop();
      enqueue();
    }
    return static_cast<double>(cpu_ns() - begin) / kOperations;
  }

 private:
  struct Entry {
    std::uint64_t urgency_milli;
    FlowSpec spec;
    bool operator<(const Entry& other) const noexcept { return urgency_milli < other.urgency_milli; }
  };
  // Who waits longer is more urgent, so the oldest of a base come first.
  void enqueue() {
    const FlowSpec spec = drawn(prng_, next_++, now_);
    queue_.push({spec.base_milli * 1'000'000ULL - static_cast<std::uint64_t>(now_ / 1'000'000), spec});
  }
  std::priority_queue<Entry> queue_;
  Prng prng_;
  TimeNs now_ = 0;
  std::uint64_t next_ = 0;
};

}  // namespace

void run_scheduler(Report& report) {
  struct Size {
    std::uint32_t flows;
    const char* name;
    double most_ns;
  };
  for (const Size size : {Size{64, "64", 40}, Size{10'000, "10,000", 40}, Size{1'000'000, "1,000,000", 120}}) {
    auto waiting = std::make_unique<Waiting>(size.flows);
    auto heap = std::make_unique<Heap>(size.flows);
    report.compare(std::string("enqueue and pick, ").append(size.name).append(" flows"), "CPU ns", Better::lower,
                   "std::priority_queue", std::nullopt, [&] { return waiting->turn_over(); },
                   [&] { return heap->turn_over(); });
    report.at_most(size.most_ns);
  }
}

}  // namespace kvrail::bench
