// Which Blocks object each slot of an agent's arenas was given to last.
//
// A commit need not take the slots that it was given: a block that the tenant holds already is shared,
// and the slot stays the agent's. Only the engine knows which. So Blocks give back all their slots, and the
// engine keeps those that a version holds. But the engine also frees slots by itself when their last
// version goes, and may have given one to other Blocks by then: that one is not to be given back here.
// Thread: the agent's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kvrail::client {

class SlotClaims {
 public:
  /// A new claim, never 0.
  [[nodiscard]] std::uint64_t next() noexcept { return ++last_; }

  void take(std::uint32_t arena, std::uint64_t first, std::uint64_t count, std::uint64_t claim) {
    std::vector<std::uint64_t>& slots = slots_[arena];
    if (slots.size() < first + count) slots.resize(first + count);
    std::fill_n(slots.begin() + static_cast<std::ptrdiff_t>(first), count, claim);
  }

  /// Calls f(first, count) for each run of slots in the range that still have this claim.
  template <class F>
  void for_each_run(std::uint32_t arena, std::uint64_t first, std::uint64_t count, std::uint64_t claim, F f) const {
    const auto found = slots_.find(arena);
    if (found == slots_.end()) return;
    const std::vector<std::uint64_t>& slots = found->second;
    const std::uint64_t end = std::min<std::uint64_t>(first + count, slots.size());
    for (std::uint64_t at = first; at < end;) {
      std::uint64_t stop = at;
      while (stop < end && slots[stop] == claim) ++stop;
      if (stop > at) f(at, stop - at);
      at = stop + 1;
    }
  }

 private:
  std::uint64_t last_ = 0;
  std::unordered_map<std::uint32_t, std::vector<std::uint64_t>> slots_;  // of each arena
};

}  // namespace kvrail::client
