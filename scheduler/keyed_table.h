// A fixed-size memory of small values by 64-bit key: sets of four entries, the least recently used
// of a set gives way. Forgetting costs a little knowledge, never correctness.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"

namespace kvrail::scheduler {

[[nodiscard]] constexpr std::uint64_t mix_key(std::uint64_t key) noexcept {
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ULL;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBULL;
  return key ^ (key >> 31);
}

template <class Value>
class KeyedTable {
 public:
  static constexpr std::size_t kWays = 4;

  explicit KeyedTable(std::uint32_t slots)
      : sets_(next_power_of_two(std::max<std::uint64_t>(slots / kWays, 1))),
        entries_(std::make_unique<Entry[]>(sets_ * kWays)) {}

  [[nodiscard]] Value* find(std::uint64_t key) noexcept {
    Entry* const set = set_of(key);
    for (std::size_t i = 0; i < kWays; ++i) {
      if (set[i].used != 0 && set[i].key == key) {
        set[i].used = ++clock_;
        return &set[i].value;
      }
    }
    return nullptr;
  }
  // The value of the key, made anew where it was not known.
  [[nodiscard]] Value& obtain(std::uint64_t key) noexcept {
    if (Value* const known = find(key)) return *known;
    Entry* const set = set_of(key);
    Entry* const victim = std::min_element(
        set, set + kWays, [](const Entry& a, const Entry& b) { return a.used < b.used; });
    *victim = Entry{key, ++clock_, Value{}};
    return victim->value;
  }

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint64_t used = 0;  // 0: empty
    Value value{};
  };
  [[nodiscard]] Entry* set_of(std::uint64_t key) noexcept {
    return &entries_[(key & (sets_ - 1)) * kWays];
  }

  std::uint64_t sets_;
  std::uint64_t clock_ = 0;
  std::unique_ptr<Entry[]> entries_;
};

}  // namespace kvrail::scheduler
