// W-TinyLFU (Einziger, Friedman and Manes, 2017): a window of 1 % by recency; what leaves it enters the main part only if the
// sketch counted more uses of it than of what would go. The main part is a segmented LRU, four fifths of it protected.
#include <algorithm>

#include "perf/sim/cache_lists.h"
#include "perf/sim/cache_policy.h"
#include "scheduler/frequency_sketch.h"

namespace kvrail::simulation {
namespace {

class WTinyLfu final : public BlockPolicy {
 public:
  explicit WTinyLfu(const CacheShape& shape)
      : capacity_(shape.capacity),
        most_window_(std::max<std::uint32_t>(shape.capacity / 100, 1)),
        most_protected_(static_cast<std::uint32_t>(std::uint64_t{shape.capacity - most_window_} * 8 / 10)),
        lists_(shape.blocks, 3),
        sketch_(shape.capacity) {}
  bool holds(std::uint32_t block) const override { return lists_.list_of(block) != BlockLists::kNone; }
  std::uint32_t size() const override { return lists_.size(kWindow) + lists_.size(kProbation) + lists_.size(kProtected); }

 private:
  static constexpr std::uint32_t kWindow = 0, kProbation = 1, kProtected = 2;

  void use(std::uint32_t block, std::uint32_t) override {
    sketch_.add(block);
    switch (lists_.list_of(block)) {
      case kWindow: return lists_.move_front(kWindow, block);
      case kProtected: return lists_.move_front(kProtected, block);
      case kProbation: return protect(block);
      default: break;
    }
    // Out of the window first, so that there is never one too many.
    if (lists_.size(kWindow) == most_window_) leave_window();
    lists_.push_front(kWindow, block);
  }
  void protect(std::uint32_t block) {
    lists_.move_front(kProtected, block);
    if (lists_.size(kProtected) > most_protected_) lists_.move_front(kProbation, lists_.back(kProtected));
  }
  void leave_window() {
    const std::uint32_t candidate = lists_.back(kWindow);
    const std::uint32_t main = lists_.size(kProbation) + lists_.size(kProtected);
    if (main < capacity_ - most_window_) return lists_.move_front(kProbation, candidate);
    if (main == 0) return lists_.remove(candidate);
    const std::uint32_t victim = lists_.back(lists_.size(kProbation) > 0 ? kProbation : kProtected);
    if (sketch_.count(candidate) <= sketch_.count(victim)) return lists_.remove(candidate);
    lists_.remove(victim);
    lists_.move_front(kProbation, candidate);
  }

  std::uint32_t capacity_, most_window_, most_protected_;
  BlockLists lists_;
  scheduler::FrequencySketch sketch_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_wtinylfu_cache(const CacheShape& shape) {
  return std::make_unique<WTinyLfu>(shape);
}

}  // namespace kvrail::simulation
