// Free space of one range, in units (bytes of a granule, or whole block slots): best fit in
// O(log n) over preallocated nodes, no allocation after construction.
//
// Thread: owner.
// State: the free ranges, each in two trees, by address and by (size, address).
// Invariant: free ranges neither touch nor overlap, so there are at most pieces + 1 of them, and
// the nodes always suffice; free units + used units = total units.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace kvrail::mempool {

class Extents {
 public:
  // `max_pieces` bounds how many pieces may be taken at a time; it decides the memory for nodes.
  Extents(std::uint64_t total_units, std::uint32_t max_pieces);
  Extents(const Extents&) = delete;
  Extents& operator=(const Extents&) = delete;
  ~Extents();

  // The lowest of the tightest ranges that hold `units`. Nothing: no such range, or all pieces are
  // taken. A run that is freed in parts counts as that many pieces.
  [[nodiscard]] std::optional<std::uint64_t> try_take(std::uint64_t units,
                                                      std::uint32_t pieces = 1) noexcept;
  // Gives a part of a taken range back; a range that is (partly) free already is a programmer
  // error. No pieces: one end of a piece, the rest of which stays taken.
  void give_back(std::uint64_t first, std::uint64_t units, std::uint32_t pieces = 1) noexcept;

  [[nodiscard]] std::uint64_t total_units() const noexcept { return total_units_; }
  [[nodiscard]] std::uint64_t free_units() const noexcept { return free_units_; }
  [[nodiscard]] std::uint64_t largest_free() const noexcept;
  [[nodiscard]] std::uint32_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::uint32_t free_ranges() const noexcept;

  // Walks both trees and asserts the invariant.
  void check() const noexcept;

 private:
  struct Trees;
  std::unique_ptr<Trees> trees_;
  std::uint64_t total_units_;
  std::uint64_t free_units_;
  std::uint32_t max_pieces_;
  std::uint32_t pieces_ = 0;
};

}  // namespace kvrail::mempool
