// Variable-size memory taken once at start, for the tables of a data path: best fit in O(log n),
// never the heap, fixed capacity.
//
// Thread: owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>

#include "kvrail/base/result.h"

namespace kvrail::mempool {

class FixedMemory final : public std::pmr::memory_resource {
 public:
  // `touch`: take the pages now instead of at first use.
  [[nodiscard]] static Result<std::unique_ptr<FixedMemory>> create(std::uint64_t bytes, bool touch);
  FixedMemory(const FixedMemory&) = delete;
  FixedMemory& operator=(const FixedMemory&) = delete;
  ~FixedMemory() override;

  // Null when there is no piece that large. To be freed by deallocate() or give_back().
  [[nodiscard]] void* try_allocate(std::uint64_t bytes,
                                   std::size_t alignment = alignof(std::max_align_t)) noexcept;
  void give_back(void* pointer) noexcept;  // null is welcome

  // An array of value-initialised objects; null data when there is no memory (or count is 0).
  template <class T>
  [[nodiscard]] std::span<T> try_array(std::uint64_t count) noexcept;

  [[nodiscard]] std::uint64_t bytes_total() const noexcept { return bytes_; }
  // Sum of the free pieces; a single allocation may find less.
  [[nodiscard]] std::uint64_t bytes_free() const noexcept;
  // Everything is consistent, and all memory is back if `expect_empty`. Slow.
  [[nodiscard]] bool consistent(bool expect_empty = false) noexcept;

 private:
  FixedMemory() = default;
  // Exhaustion aborts with one line: containers can't be told, so callers check budgets first.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  struct Segment;
  std::unique_ptr<Segment> segment_;
  std::byte* buffer_ = nullptr;
  std::uint64_t bytes_ = 0;
};

template <class T>
std::span<T> FixedMemory::try_array(std::uint64_t count) noexcept {
  static_assert(std::is_trivially_destructible_v<T>);
  if (count == 0 || count > bytes_ / sizeof(T)) {
    return {};
  }
  void* memory = try_allocate(count * sizeof(T), alignof(T));
  if (memory == nullptr) {
    return {};
  }
  T* first = static_cast<T*>(memory);
  std::uninitialized_value_construct_n(first, count);
  return {first, count};
}

}  // namespace kvrail::mempool
