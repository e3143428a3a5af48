#include "scheduler/frequency_sketch.h"

#include <algorithm>

#include "scheduler/keyed_table.h"

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kLowBits = 0x7777777777777777ULL;  // what halving leaves of 16 counters

}  // namespace

FrequencySketch::FrequencySketch(std::uint64_t keys)
    : lines_(next_power_of_two(std::max<std::uint64_t>(keys, 1) * kRows) / (kLineWords * kCountersPerWord)),
      table_(nullptr) {
  lines_ = std::max<std::size_t>(lines_, 1);
  table_ = std::make_unique<Line[]>(lines_);
}

FrequencySketch::Place FrequencySketch::place(std::uint64_t mixed, std::size_t row) noexcept {
  const std::uint64_t at = mixed >> (row * 5) & 31;
  return Place{2 * row + at / kCountersPerWord, static_cast<unsigned>(at % kCountersPerWord * 4)};
}

std::uint32_t FrequencySketch::count(std::uint64_t hash) const noexcept {
  const std::uint64_t mixed = mix_key(hash);
  const Line& line = table_[line_of(mixed)];
  std::uint32_t least = kMost;
  for (std::size_t row = 0; row < kRows; ++row) {
    const Place at = place(mixed, row);
    least = std::min(least, static_cast<std::uint32_t>(line.words[at.word] >> at.shift & kMost));
  }
  return least;
}

std::uint32_t FrequencySketch::add(std::uint64_t hash) noexcept {
  const std::uint32_t known = count(hash);
  const std::uint64_t mixed = mix_key(hash);
  Line& line = table_[line_of(mixed)];
  // Only the least ones are raised: what others count is larger already because of other keys.
  for (std::size_t row = 0; row < kRows && known < kMost; ++row) {
    const Place at = place(mixed, row);
    if ((line.words[at.word] >> at.shift & kMost) == known) line.words[at.word] += std::uint64_t{1} << at.shift;
  }
  if (++additions_ % (kPeriod * kCountersPerWord / kRows) == 0) age();
  return std::min(known + 1, kMost);
}

void FrequencySketch::age() noexcept {
  std::uint64_t& word = table_[aged_word_ / kLineWords].words[aged_word_ % kLineWords];
  word = word >> 1 & kLowBits;
  aged_word_ = (aged_word_ + 1) % (lines_ * kLineWords);
}

}  // namespace kvrail::scheduler
