// Codes of a few bits each, one behind the other, the first in the lowest bits of the first byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/byte_order.h"

namespace kvrail::codec {

/// Writes ceil(sum of bits / 8) bytes, the last by finish(). Up to 16 bits a code.
class BitWriter {
 public:
  explicit BitWriter(std::byte* at) noexcept : at_(at) {}
  void put(std::uint32_t code, std::uint32_t bits) noexcept {
    held_ |= std::uint64_t{code} << count_;
    count_ += bits;
    if (count_ < 32) return;
    store_le32(at_, static_cast<std::uint32_t>(held_));
    at_ += 4;
    held_ >>= 32;
    count_ -= 32;
  }
  void finish() noexcept {
    for (; count_ > 0; count_ -= std::min(count_, 8U), held_ >>= 8)
      *at_++ = static_cast<std::byte>(held_ & 0xff);
  }

 private:
  std::byte* at_;
  std::uint64_t held_ = 0;
  std::uint32_t count_ = 0;
};

/// Never reads past its bytes; behind them are zeros.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> in) noexcept
      : at_(in.data()), end_(in.data() + in.size()) {}
  std::uint32_t get(std::uint32_t bits) noexcept {
    if (count_ < bits) refill();
    const auto code = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return code;
  }

 private:
  void refill() noexcept {
    if (end_ - at_ >= 4) {
      held_ |= std::uint64_t{load_le32(at_)} << count_;
      at_ += 4;
      count_ += 32;
      return;
    }
    for (; at_ != end_; count_ += 8)
      held_ |= std::uint64_t{std::to_integer<std::uint8_t>(*at_++)} << count_;
    count_ += 32;  // of the zeros that held_ has above its bits
  }
  const std::byte* at_;
  const std::byte* end_;
  std::uint64_t held_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace kvrail::codec
