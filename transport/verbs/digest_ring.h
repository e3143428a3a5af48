// The digests of chunks that were announced and have not been checked yet, each chunk's contiguous.
// Thread: owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/assert.h"

namespace kvrail::transport::verbs {

class DigestRing {
 public:
  struct Place {
    std::uint32_t at = 0;
    std::uint32_t count = 0;
    std::uint32_t used = 0;  // count, and what was left over at the end of the memory
  };
  /// Room for `digests` at once and as many again, so that one chunk's always fit in one piece.
  explicit DigestRing(std::uint32_t digests) : capacity_(2 * digests) {}
  void make_memory() {
    if (memory_ == nullptr) memory_ = std::make_unique<std::uint64_t[]>(capacity_);
  }
  /// False: a peer has announced more than the protocol lets it.
  [[nodiscard]] bool take(std::uint32_t count, Place& out) noexcept {
    const std::uint32_t rest = capacity_ - end_;
    const std::uint32_t skipped = count > rest ? rest : 0;
    if (count > capacity_ || used_ + skipped + count > capacity_) return false;
    out = {skipped != 0 ? 0 : end_ % capacity_, count, skipped + count};
    end_ = (out.at + count) % capacity_;
    used_ += out.used;
    return true;
  }
  [[nodiscard]] std::span<std::uint64_t> at(const Place& place) noexcept {
    return {memory_.get() + place.at, place.count};
  }
  /// In the order of take().
  void give(const Place& place) noexcept {
    KVRAIL_ASSERT(used_ >= place.used);
    used_ -= place.used;
  }
  void clear() noexcept { end_ = used_ = 0; }

 private:
  std::uint32_t capacity_;
  std::uint32_t end_ = 0;
  std::uint32_t used_ = 0;
  std::unique_ptr<std::uint64_t[]> memory_;
};

}  // namespace kvrail::transport::verbs
