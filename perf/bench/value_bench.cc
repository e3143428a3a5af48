// What keeping the value of a million blocks costs: a block is looked up by its hash and used, one in eight times one that isn't
// there comes in for the least valuable one; against the same with std::unordered_map and std::list in the order of use.
#include <time.h>

#include <list>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "engine/store/hash_index.h"
#include "kvrail/base/prng.h"
#include "perf/bench/benchmarks.h"
#include "scheduler/keyed_table.h"
#include "scheduler/value.h"

namespace kvrail::bench {
namespace {

constexpr std::uint32_t kBlocks = 1'000'000;
constexpr std::uint32_t kOperations = 1'000'000;  // of a run; there are ten with each way at least
constexpr std::uint32_t kNewOneIn = 8;
constexpr TimeNs kStepNs = 10'000;
constexpr scheduler::EntryCost kCost{.bytes = 1 << 20, .restore_ns = 1'000'000, .hit_ns = 0};

std::int64_t cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kSecondNs + time.tv_nsec;
}

// The hashes of what is held, so that both ways are asked the same.
class ByValue {
 public:
  ByValue() : index_({.entries = kBlocks, .hints = 0, .known_keys = 8 * std::uint64_t{kBlocks}}),
              cells_(engine::HashIndex::cells_for(kBlocks)), hashes_(kBlocks), prng_(1) {
    find_.attach(cells_);
    for (std::uint32_t i = 0; i < kBlocks; ++i) insert(i);
  }
  double run() {
    const std::int64_t begin = cpu_ns();
    for (std::uint32_t i = 0; i < kOperations; ++i) {
      now_ += kStepNs;
      if (i % kNewOneIn == 0) {
        const auto victim = index_.victim(now_);
        if (!victim) throw std::logic_error("nothing may go");
        index_.remove(*victim);
        find_.erase(hashes_[*victim], *victim);
        insert(*victim);
      } else {
        const std::uint64_t hash = hashes_[prng_.uniform(kBlocks)];
        const std::uint32_t at = find_.find(hash, [&](std::uint32_t handle) { return hashes_[handle] == hash; });
        index_.touch(at, {.continues = true}, now_);
      }
    }
    return static_cast<double>(cpu_ns() - begin) / kOperations;
  }

 private:
  void insert(std::uint32_t handle) {
    hashes_[handle] = scheduler::mix_key(++next_);
    find_.insert(hashes_[handle], handle);
    index_.insert(handle, hashes_[handle], kCost, {.added = 20}, now_);
  }
  scheduler::ValueIndex index_;
  std::vector<std::uint64_t> cells_, hashes_;
  engine::HashIndex find_;
  Prng prng_;
  TimeNs now_ = 0;
  std::uint64_t next_ = 0;
};

class ByUse {
 public:
  ByUse() : hashes_(kBlocks), prng_(1) {
    find_.reserve(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i) insert(i);
  }
  double run() {
    const std::int64_t begin = cpu_ns();
    for (std::uint32_t i = 0; i < kOperations; ++i) {
      if (i % kNewOneIn == 0) {
        const std::uint32_t victim = order_.back();
        order_.pop_back();
        find_.erase(hashes_[victim]);
        insert(victim);
      } else {
        order_.splice(order_.begin(), order_, find_.at(hashes_[prng_.uniform(kBlocks)]));
      }
    }
    return static_cast<double>(cpu_ns() - begin) / kOperations;
  }

 private:
  void insert(std::uint32_t handle) {
    hashes_[handle] = scheduler::mix_key(++next_);
    order_.push_front(handle);
    find_.emplace(hashes_[handle], order_.begin());
  }
  std::vector<std::uint64_t> hashes_;
  std::list<std::uint32_t> order_;
  std::unordered_map<std::uint64_t, std::list<std::uint32_t>::iterator> find_;
  Prng prng_;
  std::uint64_t next_ = 0;
};

}  // namespace

void run_value(Report& report) {
  auto ours = std::make_unique<ByValue>();
  auto base = std::make_unique<ByUse>();
  report.compare("look up and use one of 1,000,000 blocks, one in 8 evicted", "CPU ns", Better::lower,
                 "std::unordered_map and std::list", std::nullopt, [&] { return ours->run(); }, [&] { return base->run(); });
  report.at_most(200);
}

}  // namespace kvrail::bench
