// SIEVE (Zhang, Yang, Yue, Vigfusson and Rashmi, NSDI 2024): one queue, a visited bit, and a hand that goes from the tail
// to the head and takes what was not visited since it came by.
#include "perf/sim/cache_lists.h"
#include "perf/sim/cache_policy.h"

namespace kvrail::simulation {
namespace {

class Sieve final : public BlockPolicy {
 public:
  explicit Sieve(const CacheShape& shape)
      : capacity_(shape.capacity), lists_(shape.blocks, 1), visited_(shape.blocks) {}
  bool holds(std::uint32_t block) const override { return lists_.list_of(block) == 0; }
  std::uint32_t size() const override { return lists_.size(0); }

 private:
  void use(std::uint32_t block, std::uint32_t) override {
    if (holds(block)) {
      visited_[block] = true;
      return;
    }
    if (size() == capacity_) evict();
    lists_.push_front(0, block);
    visited_[block] = false;
  }
  void evict() {
    std::uint32_t at = hand_ == BlockLists::kNone ? lists_.back(0) : hand_;
    while (visited_[at]) {
      visited_[at] = false;
      at = lists_.before(at) == BlockLists::kNone ? lists_.back(0) : lists_.before(at);
    }
    hand_ = lists_.before(at);
    lists_.remove(at);
  }

  std::uint32_t capacity_;
  std::uint32_t hand_ = BlockLists::kNone;  // none: at the tail
  BlockLists lists_;
  std::vector<bool> visited_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_sieve_cache(const CacheShape& shape) { return std::make_unique<Sieve>(shape); }

}  // namespace kvrail::simulation
