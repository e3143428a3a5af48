// A hash map of fixed capacity in memory taken at construction: open addressing, linear probing,
// backward shift on erase (no tombstones, so look-ups stay short for the whole life of a node).
// Thread: its owner. Pointers into it are good until the next insert or erase.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <utility>

#include "kvrail/base/assert.h"

namespace kvrail::engine {

// Mixes a word so that every bit of the result depends on every bit of it.
[[nodiscard]] constexpr std::uint64_t mix_bits(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

// Hash is a callable Key -> uint64.
template <class Key, class Value, class Hash>
class FlatMap {
 public:
  explicit FlatMap(std::uint32_t capacity)
      : capacity_(capacity),
        mask_(std::bit_ceil(std::uint64_t{capacity} * 2 + 2) - 1),
        slots_(std::make_unique<Slot[]>(mask_ + 1)) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] bool full() const noexcept { return size_ == capacity_; }

  [[nodiscard]] Value* find(const Key& key) noexcept {
    const std::uint64_t at = locate(key);
    return slots_[at].used ? &slots_[at].value : nullptr;
  }
  [[nodiscard]] const Value* find(const Key& key) const noexcept {
    const std::uint64_t at = locate(key);
    return slots_[at].used ? &slots_[at].value : nullptr;
  }
  // The value for the key, inserted if it was absent; nullptr when the map is full.
  Value* insert(const Key& key, const Value& value) noexcept {
    const std::uint64_t at = locate(key);
    if (!slots_[at].used) {
      if (full()) return nullptr;
      slots_[at].used = true;
      slots_[at].key = key;
      ++size_;
    }
    slots_[at].value = value;
    return &slots_[at].value;
  }
  bool erase(const Key& key) noexcept {
    std::uint64_t hole = locate(key);
    if (!slots_[hole].used) return false;
    // Each follower that its own probe sequence would reach through the hole moves into it.
    for (std::uint64_t at = (hole + 1) & mask_; slots_[at].used; at = (at + 1) & mask_) {
      const std::uint64_t home = Hash{}(slots_[at].key) & mask_;
      if (((at - home) & mask_) >= ((at - hole) & mask_)) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole] = Slot{};
    KVRAIL_ASSERT(size_ > 0);
    --size_;
    return true;
  }
  void clear() noexcept {
    for (std::uint64_t i = 0; i <= mask_; ++i) slots_[i] = Slot{};
    size_ = 0;
  }
  // Calls f(key, value) for each entry; f must not change the map.
  template <class F>
  void for_each(F&& f) const {
    for (std::uint64_t i = 0; i <= mask_; ++i) {
      if (slots_[i].used) f(slots_[i].key, slots_[i].value);
    }
  }
  // Erases what f(key, value) says; starts again after each, so for rare events only.
  template <class F>
  void erase_if(F&& f) {
    for (std::uint64_t i = 0; i <= mask_;) {
      if (slots_[i].used && f(slots_[i].key, slots_[i].value)) {
        const Key key = slots_[i].key;
        erase(key);
        i = 0;
      } else {
        ++i;
      }
    }
  }

 private:
  struct Slot {
    bool used = false;
    Key key{};
    Value value{};
  };

  // Where the key is, or the free slot where it would go. Half of the slots are always free.
  [[nodiscard]] std::uint64_t locate(const Key& key) const noexcept {
    std::uint64_t at = Hash{}(key) & mask_;
    while (slots_[at].used && !(slots_[at].key == key)) at = (at + 1) & mask_;
    return at;
  }

  std::uint32_t capacity_;
  std::uint64_t mask_;
  std::unique_ptr<Slot[]> slots_;
  std::uint32_t size_ = 0;
};

}  // namespace kvrail::engine
