// What memory of an arena is used for. The classes are kept apart in the accounts so that dropping
// a plane is seen to free memory, and so that a limit can be put on one of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvrail/base/assert.h"

namespace kvrail::mempool {

enum class PoolClass : std::uint8_t { raw = 0, plane0 = 1, plane1 = 2, residual = 3, lowrank = 4, manifest = 5 };
inline constexpr std::size_t kPoolClassCount = 6;

[[nodiscard]] constexpr std::string_view name(PoolClass pool) noexcept {
  constexpr std::array<std::string_view, kPoolClassCount> names{"raw", "plane 0", "plane 1",
                                                                "residual", "lowrank", "manifest"};
  return names[static_cast<std::size_t>(pool)];
}

// Bytes in use per class of one arena. Thread: owner.
class PoolUsage {
 public:
  void take(PoolClass pool, std::uint64_t bytes) noexcept { used_[index(pool)] += bytes; }
  void give_back(PoolClass pool, std::uint64_t bytes) noexcept {
    KVRAIL_ASSERT_MSG(used_[index(pool)] >= bytes,
                      "more given back to a pool class than was taken");
    used_[index(pool)] -= bytes;
  }
  [[nodiscard]] std::uint64_t used(PoolClass pool) const noexcept { return used_[index(pool)]; }
  [[nodiscard]] std::uint64_t total() const noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t bytes : used_) {
      sum += bytes;
    }
    return sum;
  }

 private:
  static constexpr std::size_t index(PoolClass pool) noexcept {
    return static_cast<std::size_t>(pool);
  }
  std::array<std::uint64_t, kPoolClassCount> used_{};
};

}  // namespace kvrail::mempool
