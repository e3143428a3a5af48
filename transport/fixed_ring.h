// A first-in-first-out queue whose memory is taken once. Thread: its owner.
#pragma once

#include <cstddef>
#include <memory>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"

namespace kvrail::transport {

template <class T>
class FixedRing {
 public:
  // Rounded up to a power of two.
  explicit FixedRing(std::size_t capacity)
      : mask_(static_cast<std::size_t>(next_power_of_two(capacity)) - 1),
        slots_(std::make_unique<T[]>(mask_ + 1)) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return mask_ + 1; }
  [[nodiscard]] std::size_t size() const noexcept { return tail_ - head_; }
  [[nodiscard]] bool empty() const noexcept { return tail_ == head_; }
  [[nodiscard]] bool full() const noexcept { return size() == capacity(); }

  [[nodiscard]] bool try_push(const T& value) noexcept {
    if (full()) return false;
    slots_[tail_++ & mask_] = value;
    return true;
  }
  // For places where the capacity was computed so that it cannot be full.
  void push(const T& value) noexcept {
    const bool taken = try_push(value);
    KVRAIL_ASSERT_MSG(taken, "a queue sized for the worst case is full");
  }
  [[nodiscard]] T& front() noexcept {
    KVRAIL_ASSERT(!empty());
    return slots_[head_ & mask_];
  }
  // The i-th oldest element.
  [[nodiscard]] T& operator[](std::size_t i) noexcept {
    KVRAIL_ASSERT(i < size());
    return slots_[(head_ + i) & mask_];
  }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept {
    KVRAIL_ASSERT(i < size());
    return slots_[(head_ + i) & mask_];
  }
  void pop() noexcept {
    KVRAIL_ASSERT(!empty());
    ++head_;
  }
  void clear() noexcept { head_ = tail_; }

 private:
  std::size_t mask_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::unique_ptr<T[]> slots_;
};

}  // namespace kvrail::transport
