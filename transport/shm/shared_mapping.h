// Memory that two engines share by file descriptor: making it, checking what a stranger passes,
// mapping and unmapping. Control path; nothing here is called per chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "kvrail/base/status.h"

namespace kvrail::transport::shm {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { reset(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool valid() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  int fd_ = -1;
};

// A mapping that ends with its owner.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* base, std::size_t bytes) noexcept : base_(base), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      base_ = std::exchange(other.base_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }
  [[nodiscard]] bool valid() const noexcept { return base_ != nullptr; }
  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {base_, bytes_}; }
  void reset() noexcept;

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// A sealed, fully allocated memfd of that size, all zero.
[[nodiscard]] Status make_shared(std::size_t bytes, UniqueFd& fd, Mapping& mapping) noexcept;

// Maps `bytes` from `offset` of a descriptor that a peer passed. Refused unless it is a memfd that
// cannot shrink and is large enough, so that no later act of the peer makes an access fault.
[[nodiscard]] Status map_foreign(int fd, std::uint64_t offset, std::uint64_t bytes, bool writable,
                                 Mapping& mapping) noexcept;

// The same memory, but a descriptor that can only be mapped for reading; invalid where it can't be
// had or shared safely (no seal against shrinking).
[[nodiscard]] UniqueFd read_only_copy(int fd) noexcept;

}  // namespace kvrail::transport::shm
