#include "codec/sparse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

// Orders as the floats do, NaN below all, -0 as 0.
std::uint32_t rank(float importance) noexcept {
  if (importance != importance) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(importance + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

bool ascending(std::span<const std::uint32_t> positions, std::uint32_t total) noexcept {
  for (std::size_t i = 1; i < positions.size(); ++i) {
    if (positions[i] <= positions[i - 1]) return false;
  }
  return positions.empty() || positions.back() < total;
}

Error malformed(const char* of, const std::string& what, std::size_t at) {
  return Error{{Code::protocol_error, Scope::transfer, static_cast<std::int32_t>(at)},
               std::string(of).append(what).append(" at byte ").append(std::to_string(at))};
}

const char* text_of(VarintFault fault) noexcept {
  switch (fault) {
    case VarintFault::ends_inside:
      return "input ends inside a number";
    case VarintFault::too_large:
      return "number over 32 bits";
    case VarintFault::padded:
      return "number is padded";
    case VarintFault::none:
      break;
  }
  return "";
}

}  // namespace

std::span<const std::uint32_t> choose_topk(std::span<const float> importance,
                                           std::uint32_t keep_count, std::uint32_t sinks,
                                           std::uint32_t recent,
                                           std::span<std::uint32_t> memory) noexcept {
  const auto tokens = static_cast<std::uint32_t>(importance.size());
  KVRAIL_ASSERT(memory.size() >= tokens);
  keep_count = std::min(keep_count, tokens);
  sinks = std::min(sinks, keep_count);
  recent = std::min(recent, keep_count - sinks);
  std::iota(memory.begin(), memory.begin() + tokens, 0U);
  const auto first = memory.begin() + sinks;
  const auto last = memory.begin() + (tokens - recent);
  const auto cut = first + (keep_count - sinks - recent);
  if (cut < last) {
    // A total order, so that the chosen are the same whatever the library's algorithm.
    std::nth_element(first, cut, last, [&](std::uint32_t a, std::uint32_t b) {
      const std::uint32_t rank_a = rank(importance[a]), rank_b = rank(importance[b]);
      return rank_a != rank_b ? rank_a > rank_b : a < b;
    });
    std::sort(first, cut);
    std::iota(cut, cut + recent, tokens - recent);
  }
  return memory.first(keep_count);
}

TopkChoice::TopkChoice(std::uint32_t tokens, std::uint32_t keep_count, std::uint32_t sinks,
                       std::uint32_t recent) noexcept
    : tokens_(tokens) {
  keep_count = std::min(keep_count, tokens);
  sinks_ = std::min(sinks, keep_count);
  recent_ = std::min(recent, keep_count - sinks_);
  wanted_ = keep_count - sinks_ - recent_;
}

bool TopkChoice::step(std::span<const float> importance, std::span<std::uint32_t> memory,
                      std::uint64_t& budget) noexcept {
  KVRAIL_ASSERT(importance.size() == tokens_ && memory.size() >= tokens_);
  for (;;) {
    const bool collects = pass_ == kBytes;
    if (!collects) at_ = std::max(at_, sinks_);
    if (at_ >= (collects ? tokens_ : tokens_ - recent_)) {
      if (collects) return true;
      next_pass();
      continue;
    }
    if (budget == 0) return false;
    --budget;
    if (pass_ == 0) memory[at_] = rank(importance[at_]);
    collects ? collect(memory) : count(memory[at_]);
    ++at_;
  }
}

void TopkChoice::count(std::uint32_t of) noexcept {
  const std::uint32_t shift = 8 * (kBytes - 1 - pass_);
  if (pass_ == 0 || (of ^ last_rank_) >> (shift + 8) == 0) ++counts_[of >> shift & 0xffU];
}

// A place is written after its rank was read: never more are kept than were looked at.
void TopkChoice::collect(std::span<std::uint32_t> memory) noexcept {
  bool keep = at_ < sinks_ || at_ >= tokens_ - recent_;
  if (!keep) {
    const std::uint32_t of = memory[at_];
    keep = of > last_rank_ || (of == last_rank_ && wanted_ > 0);
    if (of == last_rank_ && wanted_ > 0) --wanted_;
  }
  if (keep) memory[kept_++] = at_;
}

void TopkChoice::next_pass() noexcept {
  const std::uint32_t shift = 8 * (kBytes - 1 - pass_);
  std::uint32_t byte = 0xff;
  if (wanted_ > 0) {
    for (; counts_[byte] < wanted_; --byte) wanted_ -= counts_[byte];
  }
  last_rank_ |= byte << shift;
  counts_.fill(0);
  ++pass_;
  at_ = 0;
}

std::span<const std::uint32_t> choose_window(std::uint32_t tokens, std::uint32_t n,
                                             std::uint32_t sinks,
                                             std::span<std::uint32_t> memory) noexcept {
  n = std::min(n, tokens);
  sinks = std::min(sinks, tokens - n);
  KVRAIL_ASSERT(memory.size() >= std::size_t{sinks} + n);
  std::iota(memory.begin(), memory.begin() + sinks, 0U);
  std::iota(memory.begin() + sinks, memory.begin() + sinks + n, tokens - n);
  return memory.first(std::size_t{sinks} + n);
}

std::size_t positions_bytes(std::span<const std::uint32_t> positions) noexcept {
  std::size_t bytes = varint_size(static_cast<std::uint32_t>(positions.size()));
  std::uint32_t next = 0;
  for (const std::uint32_t position : positions) {
    bytes += varint_size(position - next);
    next = position + 1;
  }
  return bytes;
}

std::size_t encode_positions(std::span<const std::uint32_t> positions, std::uint32_t total,
                             std::span<std::byte> out) noexcept {
  KVRAIL_ASSERT(ascending(positions, total));
  KVRAIL_ASSERT(out.size() >= positions_bytes(positions));
  std::size_t at = put_varint(static_cast<std::uint32_t>(positions.size()), out.data());
  std::uint32_t next = 0;
  for (const std::uint32_t position : positions) {
    at += put_varint(position - next, out.data() + at);
    next = position + 1;
  }
  return at;
}

Result<std::span<const std::uint32_t>> decode_positions(std::span<const std::byte> in,
                                                        std::uint32_t total,
                                                        std::span<std::uint32_t> out) {
  constexpr const char* kWhat = "positions: ";
  std::size_t at = 0;
  std::uint32_t count = 0;
  if (const VarintFault fault = get_varint(in, at, count); fault != VarintFault::none)
    return malformed(kWhat, text_of(fault), at);
  if (count > std::min<std::size_t>(out.size(), total)) {
    return malformed(kWhat,
                     std::to_string(count) + " of them, but there are " +
                         std::to_string(std::min<std::size_t>(out.size(), total)) + " tokens",
                     0);
  }
  std::uint64_t next = 0;
  for (std::uint32_t& position : out.first(count)) {
    const std::size_t from = at;
    std::uint32_t gap = 0;
    if (const VarintFault fault = get_varint(in, at, gap); fault != VarintFault::none)
      return malformed(kWhat, text_of(fault), at);
    if (next + gap >= total) {
      return malformed(
          kWhat, "not ascending or beyond the last of " + std::to_string(total) + " tokens", from);
    }
    position = static_cast<std::uint32_t>(next + gap);
    next = std::uint64_t{position} + 1;
  }
  if (at != in.size()) return malformed(kWhat, "more bytes than they need", at);
  return std::span<const std::uint32_t>(out.first(count));
}

std::uint32_t count_within(std::span<const std::uint32_t> positions, std::uint32_t first,
                           std::uint32_t count) noexcept {
  const auto begin = std::lower_bound(positions.begin(), positions.end(), first);
  const auto end =
      std::lower_bound(begin, positions.end(), std::uint64_t{first} + count,
                       [](std::uint32_t position, std::uint64_t at) { return position < at; });
  return static_cast<std::uint32_t>(end - begin);
}

std::uint32_t gather_rows(const RunShape& shape, const RunView& run, std::uint32_t first,
                          std::span<const std::uint32_t> positions,
                          const MutableRun& out) noexcept {
  const std::size_t row = shape.row_bytes();
  const std::uint32_t count = count_within(positions, first, shape.tokens);
  KVRAIL_ASSERT(run.k.size() == shape.side_bytes() && run.v.size() == shape.side_bytes());
  KVRAIL_ASSERT(out.k.size() >= count * row && out.v.size() >= count * row);
  const auto begin = std::lower_bound(positions.begin(), positions.end(), first);
  for (std::uint32_t to = 0; to < count;) {
    // Neighbours in one copy.
    const std::uint32_t from = begin[to] - first;
    std::uint32_t length = 1;
    while (to + length < count && begin[to + length] - first == from + length) ++length;
    std::memcpy(out.k.data() + to * row, run.k.data() + from * row, length * row);
    std::memcpy(out.v.data() + to * row, run.v.data() + from * row, length * row);
    to += length;
  }
  return count;
}

void encode_mask(std::span<const std::uint32_t> positions, std::uint32_t tokens,
                 std::span<std::byte> out) noexcept {
  KVRAIL_ASSERT(ascending(positions, tokens) && out.size() >= mask_bytes(tokens));
  std::fill_n(out.begin(), mask_bytes(tokens), std::byte{0});
  for (const std::uint32_t position : positions)
    out[position / 8] |= static_cast<std::byte>(1U << position % 8);
}

Result<std::span<const std::uint32_t>> decode_mask(std::span<const std::byte> in,
                                                   std::uint32_t tokens,
                                                   std::span<std::uint32_t> out) {
  constexpr const char* kWhat = "mask of a head: ";
  if (in.size() != mask_bytes(tokens)) {
    return malformed(kWhat, "not the " + std::to_string(mask_bytes(tokens)) + " bytes it must have",
                     in.size());
  }
  std::size_t count = 0;
  for (std::size_t at = 0; at < in.size(); ++at) {
    for (auto bits = static_cast<std::uint32_t>(in[at]); bits != 0; bits &= bits - 1) {
      const std::uint64_t position = 8 * at + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (position >= tokens) return malformed(kWhat, "a bit behind the last token", at);
      if (count == out.size()) {
        return malformed(kWhat, "more than the " + std::to_string(out.size()) + " tokens sent", at);
      }
      out[count++] = static_cast<std::uint32_t>(position);
    }
  }
  if (count == 0) return malformed(kWhat, "no token", 0);
  return std::span<const std::uint32_t>(out.first(count));
}

}  // namespace kvrail::codec
