// Belady's MIN with bypass: what is used again last of all goes, and that may be the newcomer. Optimal for single blocks;
// prefix hits need all blocks before, so for them it is a strong reference rather than a bound.
#include <set>
#include <utility>

#include "perf/sim/cache_policy.h"

namespace kvrail::simulation {
namespace {

class Belady final : public BlockPolicy {
 public:
  explicit Belady(const CacheShape& shape) : capacity_(shape.capacity), next_(shape.blocks), held_(shape.blocks) {}
  bool holds(std::uint32_t block) const override { return held_[block]; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(order_.size()); }

 private:
  void use(std::uint32_t block, std::uint32_t next_use) override {
    if (held_[block]) {
      order_.erase({next_[block], block});
    } else if (size() == capacity_) {
      const auto last = std::prev(order_.end());
      if (last->first <= next_use) return;
      held_[last->second] = false;
      order_.erase(last);
    }
    held_[block] = true;
    next_[block] = next_use;
    order_.insert({next_use, block});
  }

  std::uint32_t capacity_;
  std::vector<std::uint32_t> next_;
  std::vector<bool> held_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> order_;  // next use, block
};

}  // namespace

std::unique_ptr<CachePolicy> make_belady_cache(const CacheShape& shape) { return std::make_unique<Belady>(shape); }

}  // namespace kvrail::simulation
