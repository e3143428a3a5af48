// Memory exactly as large as asked for, at alignment 64, so that the address sanitizer sees the
// first byte beyond.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>

namespace kvrail::test {

struct Memory {
  explicit Memory(std::size_t size, std::byte fill = std::byte{0})
      : data(static_cast<std::byte*>(::operator new (size, std::align_val_t{64}))),
        bytes(data, size) {
    std::fill(bytes.begin(), bytes.end(), fill);
  }
  ~Memory() { ::operator delete (data, std::align_val_t{64}); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data;
  std::span<std::byte> bytes;
};

}  // namespace kvrail::test
