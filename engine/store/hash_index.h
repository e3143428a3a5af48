// An open-addressing index from hashes to positions in a table, over memory given once.
//
// Thread: owner.
// State: a cell holds the hash's upper half and position + 1, 0 is empty; linear probing from the
// home that the upper half gives. So a probe looks at a record only if 32 bits of its hash agree.
// Invariant: no empty cell lies between an entry's home and its place, so a probe may stop at the
// first empty cell; erase keeps this by moving later entries back. At most half the cells are used.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kvrail/base/assert.h"

namespace kvrail::engine {

class HashIndex {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  [[nodiscard]] static std::uint64_t cells_for(std::uint64_t entries) noexcept {
    return std::bit_ceil(entries * 2 + 2);
  }
  void attach(std::span<std::uint64_t> cells) noexcept {
    KVRAIL_ASSERT(std::has_single_bit(cells.size()) && cells.size() <= (1ULL << 32));
    cells_ = cells;
    mask_ = cells.size() - 1;
  }

  // The first position under `hash` for which match(position) holds, else kNone. Several entries
  // may have the same hash.
  template <class Match>
  [[nodiscard]] std::uint32_t find(std::uint64_t hash, Match&& match) const noexcept {
    for (std::uint64_t cell = home(hash); cells_[cell] != 0; cell = next(cell)) {
      const auto position = static_cast<std::uint32_t>(cells_[cell]) - 1;
      if ((cells_[cell] ^ hash) >> 32 == 0 && match(position)) {
        return position;
      }
    }
    return kNone;
  }

  // Brings the line of the hash's home into the cache, for a find() soon.
  void prefetch(std::uint64_t hash) const noexcept { __builtin_prefetch(&cells_[home(hash)]); }

  void insert(std::uint64_t hash, std::uint32_t position) noexcept {
    KVRAIL_ASSERT(size_ < cells_.size() / 2 && position != kNone);
    std::uint64_t cell = home(hash);
    while (cells_[cell] != 0) {
      cell = next(cell);
    }
    cells_[cell] = entry(hash, position);
    ++size_;
  }

  void erase(std::uint64_t hash, std::uint32_t position) noexcept {
    std::uint64_t hole = home(hash);
    while (cells_[hole] != entry(hash, position)) {
      KVRAIL_ASSERT_MSG(cells_[hole] != 0, "erasing an entry that is not in the index");
      hole = next(hole);
    }
    for (std::uint64_t cell = next(hole); cells_[cell] != 0; cell = next(cell)) {
      // An entry moves back only if its home is not cyclically within (hole, cell].
      if (((cell - home(cells_[cell])) & mask_) >= ((cell - hole) & mask_)) {
        cells_[hole] = cells_[cell];
        hole = cell;
      }
    }
    cells_[hole] = 0;
    --size_;
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] std::uint64_t home(std::uint64_t hash) const noexcept { return hash >> 32 & mask_; }
  [[nodiscard]] std::uint64_t next(std::uint64_t cell) const noexcept { return (cell + 1) & mask_; }
  [[nodiscard]] static std::uint64_t entry(std::uint64_t hash, std::uint32_t position) noexcept {
    return hash >> 32 << 32 | (position + 1);
  }

  std::span<std::uint64_t> cells_;
  std::uint64_t mask_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace kvrail::engine
