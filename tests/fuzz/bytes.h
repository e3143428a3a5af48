// A fuzzer's input as a source of choices; zeros behind its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvrail::test {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t u8() {
    if (bytes_.empty()) return 0;
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  std::uint64_t u64() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | u8();
    return value;
  }
  void take(std::span<std::byte> out) {
    for (std::byte& byte : out) byte = static_cast<std::byte>(u8());
  }
  bool one_in(std::uint8_t n) { return u8() % n == n - 1; }
  // Small most of the time, sometimes up to 2^32.
  std::uint64_t number(std::uint64_t most) { return one_in(16) ? u64() >> 32 : u8() % (most + 1); }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace kvrail::test
