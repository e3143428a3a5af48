// The memory that the devices know: each range registered once with every device, in regions of at
// most 2 GiB, found again by address.
//
// Thread: owner.
// Invariant: regions are sorted and do not overlap. A range that is registered again as it is, is
// counted; one that overlaps another is new memory at old addresses, so the old one goes.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvrail/base/result.h"
#include "transport/verbs/device.h"

namespace kvrail::transport::verbs {

inline constexpr std::uint64_t kMaxRegionBytes = 1ULL << 31;

struct Region {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  std::byte* base = nullptr;  // of the range that it is a part of
  std::uint32_t uses = 1;     // of the range
  bool foreign = false;       // registered by somebody else, who also undoes it
  bool writable = false;      // by peers
  int dmabuf = -1;            // while it is registered: the descriptor that it lies in
  std::array<ibv_mr*, kMaxDevices> keys{};
};

class MemoryMap {
 public:
  explicit MemoryMap(Devices& devices) : devices_(devices) {}
  ~MemoryMap();
  MemoryMap(const MemoryMap&) = delete;
  MemoryMap& operator=(const MemoryMap&) = delete;

  /// All or nothing: what was registered before a failure is undone. Control path.
  /// fd: what is mapped there from its start. Where that is a DMA-BUF (memory of a device, as a GPU's),
  /// it is registered by it, or by its addresses where the device or kernel refuses that, which works
  /// with a peer memory driver. -1: none.
  [[nodiscard]] Result<void> add(std::byte* base, std::uint64_t bytes, int fd = -1);
  /// A range that somebody else has registered with the first device, for as long as it is here.
  void add_foreign(std::byte* base, std::uint64_t bytes, ibv_mr* key);
  void remove(std::byte* base) noexcept;

  /// The region that holds `address`, or nullptr.
  [[nodiscard]] const Region* find(const std::byte* address) noexcept {
    if (last_ < regions_.size() && contains(regions_[last_], address)) return &regions_[last_];
    return search(address);
  }
  [[nodiscard]] std::size_t size() const noexcept { return regions_.size(); }
  /// Registrations so far, by device and region, by way of a DMA-BUF; and those that were refused so
  /// and went by address.
  [[nodiscard]] std::uint64_t by_dmabuf() const noexcept { return by_dmabuf_; }
  [[nodiscard]] std::uint64_t by_peer_memory() const noexcept { return by_peer_memory_; }

 private:
  [[nodiscard]] static bool contains(const Region& region, const std::byte* address) noexcept {
    return address >= region.begin && address < region.end;
  }
  [[nodiscard]] const Region* search(const std::byte* address) noexcept;
  [[nodiscard]] int register_region(Region& region) noexcept;
  [[nodiscard]] ibv_mr* register_with(const Device& device, Region& region) noexcept;
  void release(Region& region) noexcept;

  Devices& devices_;
  std::uint64_t by_dmabuf_ = 0;
  std::uint64_t by_peer_memory_ = 0;
  std::vector<Region> regions_;
  std::size_t last_ = 0;  // where the last look-up ended; the next is mostly there too
};

}  // namespace kvrail::transport::verbs
