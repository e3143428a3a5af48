// S3-FIFO (Yang, Zhang, Qiu, Yue and Vigfusson, SOSP 2023): a small queue for a tenth of the blocks, in which what is used
// twice proves itself; a main queue with up to three more turns; a ghost queue of names, as long as the main one.
#include <algorithm>
#include <deque>

#include "perf/sim/cache_lists.h"
#include "perf/sim/cache_policy.h"

namespace kvrail::simulation {
namespace {

class S3Fifo final : public BlockPolicy {
 public:
  explicit S3Fifo(const CacheShape& shape)
      : capacity_(shape.capacity),
        most_small_(std::max<std::uint32_t>(shape.capacity / 10, 1)),
        lists_(shape.blocks, 2),
        uses_(shape.blocks),
        ghost_turn_(shape.blocks) {}
  bool holds(std::uint32_t block) const override { return lists_.list_of(block) != BlockLists::kNone; }
  std::uint32_t size() const override { return lists_.size(kSmall) + lists_.size(kMain); }

 private:
  static constexpr std::uint32_t kSmall = 0, kMain = 1;
  static constexpr std::uint8_t kMostUses = 3;
  std::uint32_t most_main() const { return capacity_ - std::min(most_small_, capacity_); }

  void use(std::uint32_t block, std::uint32_t) override {
    if (holds(block)) {
      uses_[block] = std::min<std::uint8_t>(static_cast<std::uint8_t>(uses_[block] + 1), kMostUses);
      return;
    }
    while (size() >= capacity_) {
      if (lists_.size(kSmall) >= most_small_ || lists_.size(kMain) == 0) {
        shrink_small();
      } else {
        shrink_main();
      }
    }
    lists_.push_front(forget_ghost(block) ? kMain : kSmall, block);
    uses_[block] = 0;
  }
  // One block leaves the cache, or all of the small queue proved itself.
  void shrink_small() {
    while (lists_.size(kSmall) > 0) {
      const std::uint32_t block = lists_.back(kSmall);
      lists_.remove(block);
      if (uses_[block] <= 1) return remember_ghost(block);
      uses_[block] = 0;
      lists_.push_front(kMain, block);
      if (lists_.size(kMain) > most_main()) shrink_main();
    }
  }
  void shrink_main() {
    for (;;) {
      const std::uint32_t block = lists_.back(kMain);
      lists_.remove(block);
      if (uses_[block] == 0) return;
      --uses_[block];
      lists_.push_front(kMain, block);
    }
  }
  void remember_ghost(std::uint32_t block) {
    ghosts_.push_back({block, ++turn_});
    ghost_turn_[block] = turn_;
    ++ghost_count_;
    while (ghost_count_ > most_main()) {
      const Ghost oldest = ghosts_.front();
      ghosts_.pop_front();
      if (ghost_turn_[oldest.block] == oldest.turn) forget_ghost(oldest.block);
    }
    while (!ghosts_.empty() && ghost_turn_[ghosts_.front().block] != ghosts_.front().turn) ghosts_.pop_front();
  }
  bool forget_ghost(std::uint32_t block) {
    if (ghost_turn_[block] == 0) return false;
    ghost_turn_[block] = 0;
    --ghost_count_;
    return true;
  }

  struct Ghost {
    std::uint32_t block = 0;
    std::uint64_t turn = 0;
  };
  std::uint32_t capacity_, most_small_;
  BlockLists lists_;
  std::vector<std::uint8_t> uses_;
  std::vector<std::uint64_t> ghost_turn_;  // 0: not in the ghost queue
  std::deque<Ghost> ghosts_;               // some of them forgotten
  std::uint64_t turn_ = 0;
  std::uint32_t ghost_count_ = 0;
};

}  // namespace

std::unique_ptr<CachePolicy> make_s3fifo_cache(const CacheShape& shape) { return std::make_unique<S3Fifo>(shape); }

}  // namespace kvrail::simulation
