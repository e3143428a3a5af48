// An open-addressing index from hashes to positions in a table, over memory given once.
//
// Thread: owner.
// State: cells hold position + 1, 0 is empty; linear probing from the hash's low bits.
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
  void attach(std::span<std::uint32_t> cells) noexcept {
    KVRAIL_ASSERT(std::has_single_bit(cells.size()));
    cells_ = cells;
    mask_ = cells.size() - 1;
  }

  // The first position under `hash` for which match(position) holds, else kNone. Several entries
  // may have the same hash.
  template <class Match>
  [[nodiscard]] std::uint32_t find(std::uint64_t hash, Match&& match) const noexcept {
    for (std::uint64_t cell = hash & mask_; cells_[cell] != 0; cell = (cell + 1) & mask_) {
      if (match(cells_[cell] - 1)) {
        return cells_[cell] - 1;
      }
    }
    return kNone;
  }

  void insert(std::uint64_t hash, std::uint32_t position) noexcept {
    KVRAIL_ASSERT(size_ < cells_.size() / 2);
    std::uint64_t cell = hash & mask_;
    while (cells_[cell] != 0) {
      cell = (cell + 1) & mask_;
    }
    cells_[cell] = position + 1;
    ++size_;
  }

  // hash_of(position) must give the hash each present entry was inserted with.
  template <class HashOf>
  void erase(std::uint64_t hash, std::uint32_t position, HashOf&& hash_of) noexcept {
    std::uint64_t hole = hash & mask_;
    while (cells_[hole] != position + 1) {
      KVRAIL_ASSERT_MSG(cells_[hole] != 0, "erasing an entry that is not in the index");
      hole = (hole + 1) & mask_;
    }
    for (std::uint64_t cell = (hole + 1) & mask_; cells_[cell] != 0; cell = (cell + 1) & mask_) {
      // An entry moves back only if its home is not cyclically within (hole, cell].
      const std::uint64_t home = hash_of(cells_[cell] - 1) & mask_;
      if (((cell - home) & mask_) >= ((cell - hole) & mask_)) {
        cells_[hole] = cells_[cell];
        hole = cell;
      }
    }
    cells_[hole] = 0;
    --size_;
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

 private:
  std::span<std::uint32_t> cells_;
  std::uint64_t mask_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace kvrail::engine
