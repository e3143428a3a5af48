// kvrail's own: scheduler/value.h decides, here is only the glue. An entry is a block; all have one size and one restore
// time, because the figure counts blocks.
#include <algorithm>

#include "perf/sim/cache_policy.h"
#include "perf/sim/traces.h"
#include "scheduler/keyed_table.h"
#include "scheduler/value.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr scheduler::EntryCost kCost{.bytes = 64 << 20, .restore_ns = 20'000'000, .hit_ns = 0};

class Kvrail final : public CachePolicy {
 public:
  explicit Kvrail(const CacheShape& shape)
      : index_({.entries = shape.capacity, .hints = 0}), stubs_(shape.blocks), block_of_(shape.capacity, kNone) {
    for (std::uint32_t handle = shape.capacity; handle-- > 0;) free_.push_back(handle);
  }
  bool holds(std::uint32_t block) const override { return stubs_[block].handle != kNone; }
  std::uint32_t size() const override { return index_.size(); }

  void serve(const CacheRequest& request) override {
    const auto blocks = request.blocks;
    scheduler::Use use = lineage_use(request);
    const bool open = request.tokens < std::uint64_t{blocks.size()} * RequestTrace::kHashTokens;
    const auto use_at = [&](std::size_t i) {
      use.open_tail = open && i + 1 == blocks.size();
      return use;
    };
    // What is here is used before anything goes for what isn't.
    for (std::size_t i = blocks.size(); i-- > 0;) {
      Stub& stub = stubs_[blocks[i]];
      if (stub.handle != kNone) index_.touch(stub.handle, use_at(i), request.at_ns);
    }
    for (std::size_t i = blocks.size(); i-- > 0;) take_in(blocks[i], use_at(i), request.at_ns);
    for (const std::uint32_t block : blocks) {
      stubs_[block].seen = true;
      stubs_[block].used_ns = request.at_ns;
      stubs_[block].path = static_cast<std::uint32_t>(blocks.size());
    }
  }

 private:
  // What stays known of a block when it is gone.
  struct Stub {
    TimeNs used_ns = 0;
    std::uint32_t handle = kNone;
    std::uint32_t path = 0;  // blocks of the request that used it last
    bool seen = false;
  };

  // A request goes on from an earlier one whose path it shares by half at least; the first block alone is the system
  // prompt of many.
  scheduler::Use lineage_use(const CacheRequest& request) const {
    const auto blocks = request.blocks;
    const auto unseen = [this](std::uint32_t block) { return !stubs_[block].seen; };
    const auto known = static_cast<std::size_t>(std::find_if(blocks.begin(), blocks.end(), unseen) - blocks.begin());
    scheduler::Use use{.added = blocks.size() - known};
    if (known < 2) return use;
    const Stub& last = stubs_[blocks[known - 1]];
    use.continues = 2 * known >= last.path;
    use.since_lineage_ns = request.at_ns - last.used_ns;
    return use;
  }
  void take_in(std::uint32_t block, const scheduler::Use& use, TimeNs now_ns) {
    if (holds(block)) return;
    const std::uint64_t hash = scheduler::mix_key(block);
    if (free_.empty()) {
      const auto victim = index_.victim(now_ns);
      if (!victim || !index_.would_admit(hash, kCost, use, *victim)) return index_.note_use(hash, use, now_ns);
      stubs_[block_of_[*victim]].handle = kNone;
      index_.remove(*victim);
      free_.push_back(*victim);
    }
    const std::uint32_t handle = free_.back();
    free_.pop_back();
    index_.insert(handle, hash, kCost, use, now_ns);
    block_of_[handle] = block;
    stubs_[block].handle = handle;
  }

  scheduler::ValueIndex index_;
  std::vector<Stub> stubs_;
  std::vector<std::uint32_t> block_of_, free_;
};

}  // namespace

std::unique_ptr<CachePolicy> make_kvrail_cache(const CacheShape& shape) { return std::make_unique<Kvrail>(shape); }

}  // namespace kvrail::simulation
