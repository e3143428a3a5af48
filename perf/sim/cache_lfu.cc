// Least frequently used, with the uses of what was evicted remembered ("perfect" LFU); of equals the least recently used.
#include <set>
#include <tuple>

#include "perf/sim/cache_policy.h"

namespace kvrail::simulation {
namespace {

class Lfu final : public BlockPolicy {
 public:
  explicit Lfu(const CacheShape& shape) : capacity_(shape.capacity), known_(shape.blocks) {}
  bool holds(std::uint32_t block) const override { return known_[block].held; }
  std::uint32_t size() const override { return static_cast<std::uint32_t>(order_.size()); }

 private:
  struct Known {
    std::uint64_t uses = 0, last = 0;
    bool held = false;
  };
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;  // uses, last use, block
  Key key(std::uint32_t block) const { return {known_[block].uses, known_[block].last, block}; }

  void use(std::uint32_t block, std::uint32_t) override {
    Known& own = known_[block];
    if (own.held) {
      order_.erase(key(block));
    } else if (size() == capacity_) {
      known_[std::get<2>(*order_.begin())].held = false;
      order_.erase(order_.begin());
    }
    own = Known{own.uses + 1, ++clock_, true};
    order_.insert(key(block));
  }

  std::uint32_t capacity_;
  std::uint64_t clock_ = 0;
  std::vector<Known> known_;
  std::set<Key> order_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_lfu_cache(const CacheShape& shape) { return std::make_unique<Lfu>(shape); }

}  // namespace kvrail::simulation
