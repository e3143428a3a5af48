// Records by their hash in memory taken once: a dense table, its free places, and an index of 8-byte cells.
// Thread: its owner. A record's number stays until it is erased.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/flat_map.h"
#include "engine/store/hash_index.h"
#include "kvrail/types.h"

namespace kvrail::engine::tier {

// T has a Hash128 `hash` and may use `next` for anything while it is in use.
template <class T>
class RecordTable {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  explicit RecordTable(std::uint32_t capacity) : records_(capacity), cells_(HashIndex::cells_for(capacity)) {
    index_.attach(cells_);
    for (std::uint32_t i = capacity; i-- > 0;) {
      records_[i].next = free_;
      free_ = i;
    }
  }

  [[nodiscard]] std::uint32_t find(const Hash128& hash) const noexcept {
    return index_.find(key(hash), [&](std::uint32_t at) { return records_[at].hash == hash; });
  }
  // kNone: full. The hash must not be there yet.
  [[nodiscard]] std::uint32_t insert(const T& record) noexcept {
    if (free_ == kNone) return kNone;
    const std::uint32_t at = free_;
    free_ = records_[at].next;
    records_[at] = record;
    index_.insert(key(record.hash), at);
    return at;
  }
  void erase(std::uint32_t at) noexcept {
    index_.erase(key(records_[at].hash), at);
    records_[at] = T{};
    records_[at].next = free_;
    free_ = at;
  }
  [[nodiscard]] T& operator[](std::uint32_t at) noexcept { return records_[at]; }
  [[nodiscard]] const T& operator[](std::uint32_t at) const noexcept { return records_[at]; }
  [[nodiscard]] std::uint64_t size() const noexcept { return index_.size(); }
  [[nodiscard]] bool full() const noexcept { return free_ == kNone; }

 private:
  // The index takes the upper half; a hash is even already, but who made it is not known here.
  [[nodiscard]] static std::uint64_t key(const Hash128& hash) noexcept { return mix_bits(hash.low ^ hash.high); }

  std::vector<T> records_;
  std::vector<std::uint64_t> cells_;
  HashIndex index_;
  std::uint32_t free_ = kNone;
};

}  // namespace kvrail::engine::tier
