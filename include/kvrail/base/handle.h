// References that can be checked: an index into a fixed table and the generation of the slot when
// it was taken. A handle that outlived its object is told apart from the one that lives there now.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "kvrail/base/assert.h"

namespace kvrail {

/// The default value refers to nothing: generation 0 is never given out. `Tag` keeps handles to
/// different things from being mixed up; it needs no definition.
template <class Tag>
struct Handle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;

  [[nodiscard]] constexpr bool valid() const noexcept { return generation != 0; }
  explicit constexpr operator bool() const noexcept { return valid(); }

  /// Both halves in one word, for descriptors, map keys and file formats.
  [[nodiscard]] constexpr std::uint64_t packed() const noexcept {
    return (static_cast<std::uint64_t>(generation) << 32) | index;
  }
  [[nodiscard]] static constexpr Handle unpack(std::uint64_t word) noexcept {
    return Handle{static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }

  friend constexpr auto operator<=>(const Handle&, const Handle&) noexcept = default;
};

/// Up to `capacity` objects of type T in slots taken at construction; nothing is allocated
/// afterwards.
///
/// Thread: owner. Handles may be copied anywhere, but only the owner may look them up.
/// Invariant: a slot is either live, or on the free list exactly once; live + free = capacity.
/// Generations: 1 to 2^32 - 1 for each slot, then 1 again. The free list is first in, first out, so
/// a slot rests as long as possible and a stale handle needs 2^32 - 1 reuses of its slot to be
/// taken for a live one.
template <class T, class Tag = T>
class SlotTable {
 public:
  using HandleType = Handle<Tag>;

  explicit SlotTable(std::uint32_t capacity)
      : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {
    KVRAIL_ASSERT(capacity < kNone);
    for (std::uint32_t i = 0; i < capacity; ++i) {
      slots_[i].next_free = i + 1 < capacity ? i + 1 : kNone;
    }
    free_head_ = capacity > 0 ? 0 : kNone;
    free_tail_ = capacity > 0 ? capacity - 1 : kNone;
  }
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  [[nodiscard]] std::uint32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] bool full() const noexcept { return size_ == capacity_; }

  /// Constructs a T in a free slot. An invalid handle means that the table is full: back-pressure.
  template <class... Args>
  [[nodiscard]] HandleType try_emplace(Args&&... args) noexcept {
    if (free_head_ == kNone) {
      return HandleType{};
    }
    const std::uint32_t index = free_head_;
    Slot& slot = slots_[index];
    KVRAIL_ASSERT(!slot.value.has_value());
    free_head_ = slot.next_free;
    if (free_head_ == kNone) {
      free_tail_ = kNone;
    }
    slot.next_free = kNone;
    slot.value.emplace(std::forward<Args>(args)...);
    ++size_;
    KVRAIL_ASSERT(size_ <= capacity_);
    return HandleType{index, slot.generation};
  }

  /// Brings the record into the cache, for a get() soon. Any handle will do.
  void prefetch(HandleType handle) const noexcept {
    if (handle.index < capacity_) {
      const auto* at = reinterpret_cast<const char*>(&slots_[handle.index]);
      for (std::size_t line = 0; line < sizeof(slots_[0]); line += 64) __builtin_prefetch(at + line);
    }
  }

  /// The object, or nullptr if the handle is invalid, stale or from elsewhere.
  [[nodiscard]] T* get(HandleType handle) noexcept {
    return refers(handle) ? &*slots_[handle.index].value : nullptr;
  }
  [[nodiscard]] const T* get(HandleType handle) const noexcept {
    return refers(handle) ? &*slots_[handle.index].value : nullptr;
  }

  /// Destroys the object and retires the handle. False if the handle refers to nothing.
  bool erase(HandleType handle) noexcept {
    if (!refers(handle)) {
      return false;
    }
    Slot& slot = slots_[handle.index];
    slot.value.reset();
    slot.generation = slot.generation == kMaxGeneration ? 1 : slot.generation + 1;
    append_free(handle.index);
    KVRAIL_ASSERT(size_ > 0);
    --size_;
    return true;
  }

  /// The handle of the object in slot `index`, invalid if there is none: to walk the table across
  /// calls.
  [[nodiscard]] HandleType handle_at(std::uint32_t index) const noexcept {
    if (index >= capacity_ || !slots_[index].value.has_value()) {
      return HandleType{};
    }
    return HandleType{index, slots_[index].generation};
  }

  /// Calls f(handle, object) for each live object in index order. f may erase the object it was
  /// given, and no other; what it adds may or may not be visited.
  template <class F>
  void for_each(F&& f) {
    for (std::uint32_t i = 0; i < capacity_; ++i) {
      if (slots_[i].value.has_value()) {
        f(HandleType{i, slots_[i].generation}, *slots_[i].value);
      }
    }
  }
  template <class F>
  void for_each(F&& f) const {
    for (std::uint32_t i = 0; i < capacity_; ++i) {
      if (slots_[i].value.has_value()) {
        f(HandleType{i, slots_[i].generation}, std::as_const(*slots_[i].value));
      }
    }
  }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t kMaxGeneration = std::numeric_limits<std::uint32_t>::max();

  struct Slot {
    std::optional<T> value;
    std::uint32_t generation = 1;
    std::uint32_t next_free = kNone;
  };

  [[nodiscard]] bool refers(HandleType handle) const noexcept {
    return handle.index < capacity_ && handle.generation != 0 &&
           slots_[handle.index].generation == handle.generation &&
           slots_[handle.index].value.has_value();
  }

  void append_free(std::uint32_t index) noexcept {
    slots_[index].next_free = kNone;
    if (free_tail_ == kNone) {
      KVRAIL_ASSERT(free_head_ == kNone);
      free_head_ = index;
    } else {
      slots_[free_tail_].next_free = index;
    }
    free_tail_ = index;
  }

  std::uint32_t capacity_;
  std::uint32_t size_ = 0;
  std::uint32_t free_head_ = kNone;
  std::uint32_t free_tail_ = kNone;
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace kvrail

/// Handles can key the unordered containers of control paths.
template <class Tag>
struct std::hash<kvrail::Handle<Tag>> {
  [[nodiscard]] std::size_t operator()(const kvrail::Handle<Tag>& handle) const noexcept {
    return static_cast<std::size_t>(handle.packed() * 0x9E3779B97F4A7C15ULL);
  }
};
