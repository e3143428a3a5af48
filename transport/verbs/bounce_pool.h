// Registered memory through which chunks go whose source was never registered. Thread: owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvrail/base/no_alloc.h"
#include "transport/verbs/chunk_ring.h"
#include "transport/verbs/memory_map.h"

namespace kvrail::transport::verbs {

class BouncePool {
 public:
  static constexpr std::uint32_t kBuffers = 4;
  BouncePool(MemoryMap& memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}

  /// kNoBounce: all are in use, or the memory could not be registered.
  [[nodiscard]] std::uint32_t take() noexcept {
    if (buffers_ == nullptr && !make()) return kNoBounce;
    for (std::uint32_t i = 0; i < kBuffers; ++i) {
      if ((used_ >> i & 1u) != 0) continue;
      used_ |= 1u << i;
      return i;
    }
    return kNoBounce;
  }
  /// There will never be one.
  [[nodiscard]] bool is_refused() const noexcept { return refused_; }
  void give(std::uint32_t buffer) noexcept { used_ &= ~(1u << buffer); }
  [[nodiscard]] std::byte* at(std::uint32_t buffer) noexcept {
    return buffers_.get() + buffer * bytes_;
  }

 private:
  [[nodiscard]] bool make() noexcept {
    if (refused_) return false;
    const AllowAllocScope allow;  // once, by the first such chunk
    buffers_ = std::make_unique<std::byte[]>(kBuffers * bytes_);
    if (memory_.add(buffers_.get(), kBuffers * bytes_).ok()) return true;
    refused_ = true;
    buffers_.reset();
    return false;
  }

  MemoryMap& memory_;
  std::size_t bytes_;
  std::unique_ptr<std::byte[]> buffers_;
  std::uint32_t used_ = 0;
  bool refused_ = false;
};

}  // namespace kvrail::transport::verbs
