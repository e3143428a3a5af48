// Which memory ranges exist: by id, which is never given out twice, and by address. Ids travel to
// agents that keep mappings under them, so an id of a range that has gone must not come to mean
// another one.
//
// Thread: owner. Overlapping ranges are legal: a caller may register a part of what it has
// registered already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace kvrail::mempool {

using RegionId = std::uint32_t;  // 0 is "no region"

struct Region {
  RegionId id = 0;
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  int fd = -1;
};

class RegionTable {
 public:
  explicit RegionTable(std::uint32_t capacity);

  // Nothing: the table is full, or its ids are used up (after 2^32 ranges).
  [[nodiscard]] std::optional<RegionId> try_add(std::byte* base, std::uint64_t bytes,
                                                int fd) noexcept;
  bool remove(RegionId id) noexcept;
  [[nodiscard]] const Region* find(RegionId id) const noexcept;
  // A region that holds the whole of [address, address + bytes), the least such one; null: none.
  [[nodiscard]] const Region* find_range(const std::byte* address,
                                         std::uint64_t bytes) const noexcept;

  // Position in [0, capacity) that the region keeps while it lives, for tables beside this one.
  [[nodiscard]] std::uint32_t slot_of(RegionId id) const noexcept { return id % capacity_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  std::uint32_t capacity_;
  std::uint32_t size_ = 0;
  std::unique_ptr<Region[]> regions_;
  std::unique_ptr<RegionId[]> next_ids_;  // per slot: slot + k * capacity, 0 when used up
};

}  // namespace kvrail::mempool
