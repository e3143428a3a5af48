// Least recently used.
#include "perf/sim/cache_lists.h"
#include "perf/sim/cache_policy.h"

namespace kvrail::simulation {
namespace {

class Lru final : public BlockPolicy {
 public:
  explicit Lru(const CacheShape& shape) : capacity_(shape.capacity), lists_(shape.blocks, 1) {}
  bool holds(std::uint32_t block) const override { return lists_.list_of(block) == 0; }
  std::uint32_t size() const override { return lists_.size(0); }

 private:
  void use(std::uint32_t block, std::uint32_t) override {
    if (holds(block)) return lists_.move_front(0, block);
    if (size() == capacity_) lists_.remove(lists_.back(0));
    lists_.push_front(0, block);
  }

  std::uint32_t capacity_;
  BlockLists lists_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_lru_cache(const CacheShape& shape) { return std::make_unique<Lru>(shape); }

}  // namespace kvrail::simulation
