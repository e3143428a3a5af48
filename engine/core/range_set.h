// Which bytes of a stream have arrived: disjoint, sorted ranges, merged where they touch. Lanes are
// ordered, so a transfer has one or two ranges; capacity is for lane loss and corrupt units. When a
// range doesn't fit, it is not recorded: those bytes count as missing and are asked for again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvrail/base/assert.h"

namespace kvrail::engine {

class RangeSet {
 public:
  static constexpr std::size_t kCapacity = 64;
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  void clear() noexcept { count_ = 0; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] const Range& operator[](std::size_t i) const noexcept {
    KVRAIL_ASSERT(i < count_);
    return ranges_[i];
  }

  void add(std::uint64_t begin, std::uint64_t end) noexcept {
    KVRAIL_ASSERT(begin <= end);
    if (begin == end) return;
    std::size_t first = 0;
    while (first < count_ && ranges_[first].end < begin) ++first;
    std::size_t last = first;  // one past the ranges that the new one swallows
    for (; last < count_ && ranges_[last].begin <= end; ++last) {
      if (ranges_[last].begin < begin) begin = ranges_[last].begin;
      if (ranges_[last].end > end) end = ranges_[last].end;
    }
    if (first == last && count_ == kCapacity) return;
    replace(first, last, Range{begin, end});
  }
  void remove(std::uint64_t begin, std::uint64_t end) noexcept {
    if (begin >= end) return;  // nothing to take out must not cut a range in two
    for (std::size_t i = 0; i < count_;) {
      const Range range = ranges_[i];
      if (range.end <= begin || range.begin >= end) {
        ++i;
        continue;
      }
      erase(i);
      // Re-adding what stays of it may fail for want of room, which is on the safe side.
      if (range.begin < begin) insert_at(i, Range{range.begin, begin}) ? ++i : i;
      if (range.end > end) insert_at(i, Range{end, range.end}) ? ++i : i;
    }
  }
  [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t end) const noexcept {
    if (begin >= end) return true;
    for (std::size_t i = 0; i < count_; ++i) {
      if (ranges_[i].begin <= begin) {
        if (end <= ranges_[i].end) return true;
      } else {
        return false;
      }
    }
    return false;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < count_; ++i) sum += ranges_[i].end - ranges_[i].begin;
    return sum;
  }
  // Calls f(begin, end) for each gap in [0, total).
  template <class F>
  void for_each_gap(std::uint64_t total, F&& f) const {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (ranges_[i].begin > at) f(at, ranges_[i].begin);
      at = ranges_[i].end;
    }
    if (at < total) f(at, total);
  }

 private:
  void replace(std::size_t first, std::size_t last, Range range) noexcept {
    if (first == last) {
      for (std::size_t i = count_; i > first; --i) ranges_[i] = ranges_[i - 1];
      ++count_;
    } else {
      const std::size_t gone = last - first - 1;
      for (std::size_t i = last; i < count_; ++i) ranges_[i - gone] = ranges_[i];
      count_ -= gone;
    }
    ranges_[first] = range;
  }
  void erase(std::size_t at) noexcept {
    for (std::size_t i = at + 1; i < count_; ++i) ranges_[i - 1] = ranges_[i];
    --count_;
  }
  bool insert_at(std::size_t at, Range range) noexcept {
    if (count_ == kCapacity) return false;
    replace(at, at, range);
    return true;
  }

  std::size_t count_ = 0;
  std::array<Range, kCapacity> ranges_{};
};

}  // namespace kvrail::engine
