// Reading and writing little-endian bytes at any alignment, alone and along a bounded span.
//
// ByteReader and ByteWriter fail stickily: the first access out of bounds turns ok() false, every
// later read returns zero and every later write does nothing. So a decoder reads a whole frame and
// checks once.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvrail {

static_assert(
    std::endian::native == std::endian::little,
    "every machine that kvrail is built for is little-endian; wire and shared memory rely on it");

[[nodiscard]] inline std::uint16_t load_le16(const void* from) noexcept {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
[[nodiscard]] inline std::uint32_t load_le32(const void* from) noexcept {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
[[nodiscard]] inline std::uint64_t load_le64(const void* from) noexcept {
  std::uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline void store_le16(void* to, std::uint16_t value) noexcept {
  std::memcpy(to, &value, sizeof(value));
}
inline void store_le32(void* to, std::uint32_t value) noexcept {
  std::memcpy(to, &value, sizeof(value));
}
inline void store_le64(void* to, std::uint64_t value) noexcept {
  std::memcpy(to, &value, sizeof(value));
}

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  /// ok, and every byte was read: a frame with a tail that nobody understands is malformed.
  [[nodiscard]] bool done() const noexcept { return ok_ && offset_ == bytes_.size(); }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - offset_; }
  /// For a decoder that read a value it does not accept.
  void fail() noexcept { ok_ = false; }

  [[nodiscard]] std::uint8_t u8() noexcept {
    const std::byte* at = take(1);
    return at == nullptr ? std::uint8_t{0} : static_cast<std::uint8_t>(*at);
  }
  [[nodiscard]] std::uint16_t u16() noexcept {
    const std::byte* at = take(2);
    return at == nullptr ? std::uint16_t{0} : load_le16(at);
  }
  [[nodiscard]] std::uint32_t u32() noexcept {
    const std::byte* at = take(4);
    return at == nullptr ? 0U : load_le32(at);
  }
  [[nodiscard]] std::uint64_t u64() noexcept {
    const std::byte* at = take(8);
    return at == nullptr ? std::uint64_t{0} : load_le64(at);
  }
  [[nodiscard]] std::int32_t i32() noexcept { return std::bit_cast<std::int32_t>(u32()); }
  [[nodiscard]] std::int64_t i64() noexcept { return std::bit_cast<std::int64_t>(u64()); }
  [[nodiscard]] float f32() noexcept { return std::bit_cast<float>(u32()); }
  [[nodiscard]] double f64() noexcept { return std::bit_cast<double>(u64()); }

  /// A view of the next `count` bytes, empty on failure. Valid as long as the reader's span.
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t count) noexcept {
    const std::byte* at = take(count);
    return at == nullptr ? std::span<const std::byte>{} : std::span{at, count};
  }
  /// Copies `out.size()` bytes; on failure `out` stays untouched.
  void copy_to(std::span<std::byte> out) noexcept {
    const std::byte* at = take(out.size());
    if (at != nullptr && !out.empty()) {
      std::memcpy(out.data(), at, out.size());
    }
  }
  void skip(std::size_t count) noexcept { static_cast<void>(take(count)); }

 private:
  const std::byte* take(std::size_t count) noexcept {
    if (!ok_ || count > bytes_.size() - offset_) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* at = bytes_.data() + offset_;
    offset_ += count;
    return at;
  }

  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
  bool ok_ = true;
};

class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> out) noexcept : out_(out) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }
  [[nodiscard]] std::size_t remaining() const noexcept { return out_.size() - offset_; }
  /// What was written so far.
  [[nodiscard]] std::span<const std::byte> written() const noexcept { return out_.first(offset_); }

  void u8(std::uint8_t value) noexcept { put(&value, sizeof(value)); }
  void u16(std::uint16_t value) noexcept { put(&value, sizeof(value)); }
  void u32(std::uint32_t value) noexcept { put(&value, sizeof(value)); }
  void u64(std::uint64_t value) noexcept { put(&value, sizeof(value)); }
  void i32(std::int32_t value) noexcept { put(&value, sizeof(value)); }
  void i64(std::int64_t value) noexcept { put(&value, sizeof(value)); }
  void f32(float value) noexcept { put(&value, sizeof(value)); }
  void f64(double value) noexcept { put(&value, sizeof(value)); }
  void bytes(std::span<const std::byte> from) noexcept { put(from.data(), from.size()); }
  void zeros(std::size_t count) noexcept {
    if (std::byte* at = take(count); at != nullptr && count != 0) {
      std::memset(at, 0, count);
    }
  }
  /// A view of the next `count` bytes to fill later (a length, a checksum); empty on failure.
  [[nodiscard]] std::span<std::byte> reserve(std::size_t count) noexcept {
    std::byte* at = take(count);
    return at == nullptr ? std::span<std::byte>{} : std::span{at, count};
  }

 private:
  std::byte* take(std::size_t count) noexcept {
    if (!ok_ || count > out_.size() - offset_) {
      ok_ = false;
      return nullptr;
    }
    std::byte* at = out_.data() + offset_;
    offset_ += count;
    return at;
  }
  void put(const void* from, std::size_t count) noexcept {
    if (std::byte* at = take(count); at != nullptr && count != 0) {
      std::memcpy(at, from, count);
    }
  }

  std::span<std::byte> out_;
  std::size_t offset_ = 0;
  bool ok_ = true;
};

}  // namespace kvrail
