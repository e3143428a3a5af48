// Memory for the arrays of open transfers (token ids, piece lists, digests): a buddy allocator over
// one range taken at construction. Bounded steps per call, no fragmentation beyond powers of two;
// nullptr means back-pressure (the receiver answers LATER, the sender waits).
// Thread: its owner. Invariant: used + free = capacity, checked at every call.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "kvrail/base/assert.h"

namespace kvrail::engine {

class Scratch {
 public:
  static constexpr std::uint64_t kLeastBytes = 256;

  explicit Scratch(std::uint64_t bytes)
      : capacity_(std::bit_floor(bytes < kLeastBytes ? kLeastBytes : bytes)),
        top_(order_of(capacity_)),
        memory_(std::make_unique_for_overwrite<std::byte[]>(capacity_ + kAlignment)),
        base_(align(memory_.get())),
        state_(std::make_unique<std::uint8_t[]>(capacity_ / kLeastBytes)) {
    heads_.fill(nullptr);
    push_free(base_, top_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint64_t used() const noexcept { return used_; }

  // An uninitialised array of n values; empty when there is no room (or n is 0).
  template <class T>
  [[nodiscard]] std::span<T> try_array(std::size_t n) noexcept {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= kAlignment);
    if (n == 0 || n > capacity_ / sizeof(T)) return {};
    auto* memory = static_cast<std::byte*>(try_allocate(n * sizeof(T)));
    if (memory == nullptr) return {};
    return {reinterpret_cast<T*>(memory), n};
  }
  template <class T>
  void give_back(std::span<T>& array) noexcept {
    if (array.data() != nullptr) free(const_cast<std::remove_const_t<T>*>(array.data()));
    array = {};
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::uint8_t kFreeBit = 0x40;
  struct FreeBlock {
    FreeBlock* next;
    FreeBlock* previous;
  };

  [[nodiscard]] static unsigned order_of(std::uint64_t bytes) noexcept {
    const std::uint64_t rounded = std::bit_ceil(bytes < kLeastBytes ? kLeastBytes : bytes);
    return static_cast<unsigned>(std::countr_zero(rounded / kLeastBytes));
  }
  [[nodiscard]] static std::byte* align(std::byte* memory) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    return memory + (kAlignment - address % kAlignment) % kAlignment;
  }
  [[nodiscard]] std::uint8_t& state_at(const std::byte* block) noexcept {
    return state_[static_cast<std::uint64_t>(block - base_) / kLeastBytes];
  }
  void push_free(std::byte* block, unsigned order) noexcept {
    auto* entry = new (block) FreeBlock{heads_[order], nullptr};
    if (heads_[order] != nullptr) heads_[order]->previous = entry;
    heads_[order] = entry;
    state_at(block) = static_cast<std::uint8_t>(kFreeBit | order);
  }
  void unlink(std::byte* block, unsigned order) noexcept {
    auto* entry = reinterpret_cast<FreeBlock*>(block);
    (entry->previous != nullptr ? entry->previous->next : heads_[order]) = entry->next;
    if (entry->next != nullptr) entry->next->previous = entry->previous;
    state_at(block) = static_cast<std::uint8_t>(order);
  }
  [[nodiscard]] void* try_allocate(std::uint64_t bytes) noexcept {
    const unsigned want = order_of(bytes);
    unsigned order = want;
    while (order <= top_ && heads_[order] == nullptr) ++order;
    if (order > top_) return nullptr;
    auto* block = reinterpret_cast<std::byte*>(heads_[order]);
    unlink(block, order);
    for (; order > want; --order) push_free(block + (kLeastBytes << (order - 1)), order - 1);
    state_at(block) = static_cast<std::uint8_t>(want);
    used_ += kLeastBytes << want;
    KVRAIL_ASSERT(used_ <= capacity_);
    return block;
  }
  void free(void* memory) noexcept {
    auto* block = static_cast<std::byte*>(memory);
    KVRAIL_ASSERT(block >= base_ && block < base_ + capacity_);
    unsigned order = state_at(block);
    KVRAIL_ASSERT_MSG((order & kFreeBit) == 0, "freed twice");
    KVRAIL_ASSERT(used_ >= kLeastBytes << order);
    used_ -= kLeastBytes << order;
    while (order < top_) {
      const std::uint64_t offset = static_cast<std::uint64_t>(block - base_);
      std::byte* buddy = base_ + (offset ^ (kLeastBytes << order));
      if (state_at(buddy) != (kFreeBit | order)) break;
      unlink(buddy, order);
      if (buddy < block) block = buddy;
      ++order;
    }
    push_free(block, order);
  }

  std::uint64_t capacity_;
  unsigned top_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* base_;
  std::unique_ptr<std::uint8_t[]> state_;  // per least block that begins one: its order, and kFreeBit
  std::array<FreeBlock*, 48> heads_{};
  std::uint64_t used_ = 0;
};

}  // namespace kvrail::engine
