// What a decision costs: flows wait on one lane, and over and over one chunk of the most urgent is
// picked, its flow ends, and another one comes; against a binary heap that keeps the same flows in the
// order of their urgency, which would have to be built again as urgencies grow.
#include <time.h>

#include <algorithm>
#include <array>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "perf/bench/benchmarks.h"
#include "scheduler/medium_choice.h"
#include "scheduler/scheduler.h"
#include "scheduler/split.h"

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

// Both halves of a choice, for a context of an 8B model with everything that may be offered and a split, over pairs in
// turn, so that what is remembered of each has to be found.
class Decisions {
 public:
  Decisions() : chooser_(scheduler::LossProfile::built_in()) {
    sender_.layout.layers = 32;
    sender_.layout.kv_heads = 8;
    sender_.layout.head_dim = 128;
    sender_.total_tokens = sender_.believed_missing_tokens = 3000;
    sender_.receiver_accepts = sender_.sender_can = ~MediumMask{0};
    sender_.lane_rate_bytes_per_s = 1'250'000'000;
    sender_.round_trip_ns = 100'000;
    const std::uint64_t block = sender_.layout.block_bytes();
    for (const Medium medium : {Medium::lossless, Medium::int8, Medium::int4, Medium::exact, Medium::lowrank}) {
      sender_.coded[static_cast<std::size_t>(medium)] = {block / 2, block / 3, 100'000};
    }
    sender_.topk = {1500, Medium::full, 1500 * sender_.layout.token_bytes(), block, block / 2, 0};
    sender_.summary_bytes = 400;
    receiver_.total_tokens = 3000;
    receiver_.missing_full_blocks = 46;
    receiver_.missing_tail = true;
    receiver_.missing_tail_bytes = 56 * sender_.layout.token_bytes();
    receiver_.compute = {1'000'000, 40'000, 687'194, 10'000'000};
    receiver_.lease_bytes_free = std::uint64_t{1} << 34;
    receiver_.block_slot_bytes = block;
  }

  // ns of a decision, the sender's half and the receiver's.
  double decide() {
    constexpr std::uint32_t kDecisions = 50'000;
    constexpr std::uint32_t kPairsInTurn = 1000;
    const std::int64_t begin = cpu_ns();
    for (std::uint32_t i = 0; i < kDecisions; ++i) {
      receiver_.pair_key = 1 + i % kPairsInTurn;
      std::array<scheduler::CandidateCost, scheduler::kMaxCandidates> offered;
      std::array<scheduler::CandidateCost, scheduler::kMaxWeighed> weighed;
      const char* why = nullptr;
      std::size_t count = scheduler::candidates(sender_, loss_, offered, &why);
      std::copy_n(offered.begin(), count, weighed.begin());
      const auto all = std::span(weighed);
      if (chooser_.split_of(all.first(count), receiver_, weighed[count])) ++count;
      media_ = count;
      if (chooser_.pick(all.first(count), receiver_, 0).index < 0) throw std::logic_error("nothing was picked");
    }
    return static_cast<double>(cpu_ns() - begin) / kDecisions;
  }
  [[nodiscard]] std::size_t media() const { return media_; }

 private:
  scheduler::MediumChooser chooser_;
  scheduler::DepthLoss loss_;
  scheduler::SenderFacts sender_;
  scheduler::ReceiverFacts receiver_;
  std::size_t media_ = 0;
};

}  // namespace

void run_scheduler(Report& report) {
  Decisions decisions;
  report.measure("decision on a medium, both halves", "CPU ns", 1000, [&] { return decisions.decide(); });
  report.note(std::to_string(decisions.media()) + " media weighed");
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
