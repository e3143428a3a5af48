// The flows of one class on one lane that have something to post: a ring per urgency level, a
// bitmap to find the highest non-empty one, deficit round robin within it.
//
// Every operation is O(1); a flow is touched only when it is served, listed, or climbs a level.
// Invariant: bit k of the bitmap is set exactly when ring k is not empty.
#pragma once

#include <array>
#include <cstdint>

#include "kvrail/base/bits.h"
#include "scheduler/flow_table.h"

namespace kvrail::scheduler {

class LevelSet {
 public:
  [[nodiscard]] bool empty() const noexcept { return bitmap_ == 0; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  // Of the flow whose turn it is; the set is not empty.
  [[nodiscard]] std::uint32_t top_level() const noexcept { return find_last_set(bitmap_); }

  // Puts the flow last in the ring of its level.
  void insert(Flow& flow) noexcept;
  void remove(Flow& flow) noexcept;

  // The flow whose turn it is in the highest level, nullptr when there is none. A turn begins with
  // chunk_bytes * weight / (smallest active weight), at most turn_cap_bytes but at least a chunk,
  // and lasts until it is used up. Asking again without charge() gives the same flow.
  [[nodiscard]] Flow* turn(std::uint64_t chunk_bytes, std::uint64_t turn_cap_bytes) noexcept;
  static void charge(Flow& flow, std::uint64_t bytes) noexcept {
    flow.deficit -= static_cast<std::int64_t>(bytes);
  }

 private:
  // The smallest weight is exact for arrivals and learns of departures after one round: keeping it
  // exact would need a search, and being late by a round only lengthens turns in proportion.
  struct Ring {
    Flow* head = nullptr;
    std::uint32_t count = 0;
    std::uint32_t turns_left = 0;    // until the round ends
    std::uint32_t least_weight = 0;  // of the last round and of arrivals since, 0 when empty
    std::uint32_t next_least = 0;    // of this round so far, 0 when none
  };

  void begin_turn(Ring& ring, Flow& flow, std::uint64_t chunk_bytes,
                  std::uint64_t turn_cap_bytes) noexcept;

  std::uint64_t bitmap_ = 0;
  std::uint32_t size_ = 0;
  std::array<Ring, kLevels> rings_{};
};

}  // namespace kvrail::scheduler
