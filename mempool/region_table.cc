#include "mempool/region_table.h"

#include "kvrail/base/assert.h"
#include "kvrail/base/checked.h"

namespace kvrail::mempool {

RegionTable::RegionTable(std::uint32_t capacity)
    : capacity_(capacity),
      regions_(std::make_unique<Region[]>(capacity)),
      next_ids_(std::make_unique<RegionId[]>(capacity)) {
  KVRAIL_ASSERT(capacity > 0 && capacity < (1U << 30));
  for (std::uint32_t i = 0; i < capacity; ++i) {
    next_ids_[i] = i == 0 ? capacity : i;  // Id 0 is no region.
  }
}

std::optional<RegionId> RegionTable::try_add(std::byte* base, std::uint64_t bytes,
                                             int fd) noexcept {
  KVRAIL_ASSERT(base != nullptr && bytes > 0);
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    if (regions_[i].id != 0 || next_ids_[i] == 0) {
      continue;
    }
    const RegionId id = next_ids_[i];
    if (__builtin_add_overflow(id, capacity_, &next_ids_[i])) {
      next_ids_[i] = 0;
    }
    regions_[i] = Region{id, base, bytes, fd};
    ++size_;
    return id;
  }
  return std::nullopt;
}

bool RegionTable::remove(RegionId id) noexcept {
  if (find(id) == nullptr) {
    return false;
  }
  regions_[slot_of(id)] = Region{};
  KVRAIL_ASSERT(size_ > 0);
  --size_;
  return true;
}

const Region* RegionTable::find(RegionId id) const noexcept {
  const Region& region = regions_[slot_of(id)];
  return id != 0 && region.id == id ? &region : nullptr;
}

const Region* RegionTable::find_range(const std::byte* address,
                                      std::uint64_t bytes) const noexcept {
  const Region* best = nullptr;
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  // A node has at most some hundreds of regions, and look-ups by address are made at import and
  // registration only.
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    const Region& region = regions_[i];
    const auto start = reinterpret_cast<std::uintptr_t>(region.base);
    if (region.id != 0 && wanted >= start && range_fits(wanted - start, bytes, region.bytes) &&
        (best == nullptr || region.bytes < best->bytes)) {
      best = &region;
    }
  }
  return best;
}

}  // namespace kvrail::mempool
