// How often a key was used lately, in fixed memory: a count-min sketch of four 4-bit counters a key (Cormode and
// Muthukrishnan, 2005; TinyLFU by Einziger, Friedman and Manes, 2017, for cache admission). All four counters of a key
// lie in one cache line, so that a count costs one miss. It ages all the time: each counter is halved once in
// kPeriod additions for each key it was made for, one word at a time, so that no addition takes long.
//
// Thread: owner. A count is never under the true one since the last halving, but for its ceiling of 15.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kvrail/base/bits.h"

namespace kvrail::scheduler {

class FrequencySketch {
 public:
  static constexpr std::uint32_t kMost = 15;
  static constexpr std::uint64_t kPeriod = 10;  // additions per key between two halvings of a counter

  // `keys`: how many different ones it should tell apart; rounded up to a power of two, 4 counters each.
  explicit FrequencySketch(std::uint64_t keys);

  // Counts one use; the count with it.
  std::uint32_t add(std::uint64_t hash) noexcept;
  [[nodiscard]] std::uint32_t count(std::uint64_t hash) const noexcept;

 private:
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t kLineWords = kCacheLineBytes / sizeof(std::uint64_t);
  static constexpr std::size_t kCountersPerWord = 16;
  struct alignas(kCacheLineBytes) Line {
    std::array<std::uint64_t, kLineWords> words{};
  };
  struct Place {
    std::size_t word = 0;
    unsigned shift = 0;
  };
  // Row i of a line is its words 2 i and 2 i + 1: 32 counters.
  [[nodiscard]] static Place place(std::uint64_t mixed, std::size_t row) noexcept;
  [[nodiscard]] std::size_t line_of(std::uint64_t mixed) const noexcept { return (mixed >> 32) & (lines_ - 1); }
  void age() noexcept;

  std::size_t lines_;
  std::unique_ptr<Line[]> table_;
  std::uint64_t additions_ = 0;
  std::size_t aged_word_ = 0;
};

}  // namespace kvrail::scheduler
