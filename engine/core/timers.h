// One timer per entity: a binary heap of (due time, id) with the place of every id known, so that
// setting, moving and cancelling a timer are O(log n) without memory. Ids are dense: 0 to capacity-1.
// Thread: its owner.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"

namespace kvrail::engine {

class Timers {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  explicit Timers(std::uint32_t capacity)
      : capacity_(capacity),
        heap_(std::make_unique<Entry[]>(capacity)),
        place_(std::make_unique<std::uint32_t[]>(capacity)) {
    for (std::uint32_t i = 0; i < capacity; ++i) place_[i] = kNone;
  }

  // Replaces the id's timer; kNever cancels it.
  void set(std::uint32_t id, TimeNs due_ns) noexcept {
    KVRAIL_ASSERT(id < capacity_);
    if (due_ns == kNever) return cancel(id);
    if (place_[id] == kNone) {
      place_[id] = size_;
      heap_[size_++] = Entry{due_ns, id};
    } else {
      heap_[place_[id]].due_ns = due_ns;
    }
    sift_up(place_[id]);
    sift_down(place_[id]);
  }
  void cancel(std::uint32_t id) noexcept {
    KVRAIL_ASSERT(id < capacity_);
    const std::uint32_t at = place_[id];
    if (at == kNone) return;
    place_[id] = kNone;
    --size_;
    if (at == size_) return;
    heap_[at] = heap_[size_];
    place_[heap_[at].id] = at;
    sift_up(at);
    sift_down(place_[heap_[at].id]);
  }
  // Takes one timer that is due, earliest first; kNone when there is none.
  [[nodiscard]] std::uint32_t pop_due(TimeNs now_ns) noexcept {
    if (size_ == 0 || heap_[0].due_ns > now_ns) return kNone;
    const std::uint32_t id = heap_[0].id;
    cancel(id);
    return id;
  }
  [[nodiscard]] TimeNs next_ns() const noexcept { return size_ == 0 ? kNever : heap_[0].due_ns; }
  [[nodiscard]] bool pending(std::uint32_t id) const noexcept { return place_[id] != kNone; }

 private:
  struct Entry {
    TimeNs due_ns = 0;
    std::uint32_t id = 0;
  };

  // Equal times are ordered by id, so that a replay takes them in the same order.
  [[nodiscard]] static bool before(const Entry& a, const Entry& b) noexcept {
    return a.due_ns != b.due_ns ? a.due_ns < b.due_ns : a.id < b.id;
  }
  void swap_entries(std::uint32_t a, std::uint32_t b) noexcept {
    std::swap(heap_[a], heap_[b]);
    place_[heap_[a].id] = a;
    place_[heap_[b].id] = b;
  }
  void sift_up(std::uint32_t at) noexcept {
    while (at > 0 && before(heap_[at], heap_[(at - 1) / 2])) {
      swap_entries(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
  }
  void sift_down(std::uint32_t at) noexcept {
    for (;;) {
      std::uint32_t least = at;
      for (std::uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < size_; ++child) {
        if (before(heap_[child], heap_[least])) least = child;
      }
      if (least == at) return;
      swap_entries(at, least);
      at = least;
    }
  }

  std::uint32_t capacity_;
  std::uint32_t size_ = 0;
  std::unique_ptr<Entry[]> heap_;
  std::unique_ptr<std::uint32_t[]> place_;
};

// Ids that have something to do, each at most once, first in, first out.
class WorkQueue {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  explicit WorkQueue(std::uint32_t capacity)
      : capacity_(capacity), next_(std::make_unique<std::uint32_t[]>(capacity)),
        queued_(std::make_unique<bool[]>(capacity)) {}

  void push(std::uint32_t id) noexcept {
    KVRAIL_ASSERT(id < capacity_);
    if (queued_[id]) return;
    queued_[id] = true;
    next_[id] = kNone;
    (tail_ == kNone ? head_ : next_[tail_]) = id;
    tail_ = id;
    ++size_;
  }
  [[nodiscard]] std::uint32_t pop() noexcept {
    if (head_ == kNone) return kNone;
    const std::uint32_t id = head_;
    head_ = next_[id];
    if (head_ == kNone) tail_ = kNone;
    queued_[id] = false;
    --size_;
    return id;
  }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  std::uint32_t capacity_;
  std::uint32_t size_ = 0;
  std::uint32_t head_ = kNone;
  std::uint32_t tail_ = kNone;
  std::unique_ptr<std::uint32_t[]> next_;
  std::unique_ptr<bool[]> queued_;
};

}  // namespace kvrail::engine
