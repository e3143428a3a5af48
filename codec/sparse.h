// topk and window: KV of some tokens only, at the positions that they were computed at.
//
// The choice is one set of tokens for all layers and heads, so what arrives is ordinary KV of fewer
// tokens: a compact run, whose values go through any codec, and a list of positions. K keeps the
// RoPE of its original position; the receiver attends to the rows that there are and counts on from
// the total. Rows are never put back among zeros: a K of zeros scores 0, not minus infinity, and so
// would draw attention. Delivery is terminal: such KV has no block hashes and is no base for
// others.
//
//   memory.resize(tokens);
//   auto kept = choose_topk(importance, tokens / 2, kSinks, kRecent, memory);
//   encode_positions(kept, tokens, out);
//   gather_rows(shape, run, first, kept, compact);           // run by run
//   codec_for(Medium::int4)->encode(compact_shape, …);
//
// Agents that declare accepts_mask can be given a set for each head instead: encode_mask.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "codec/varint.h"
#include "kvrail/base/result.h"

namespace kvrail::codec {

/// Tokens at the start that models lean on whatever they say, and the newest: both are kept.
inline constexpr std::uint32_t kSinks = 4;
inline constexpr std::uint32_t kRecent = 64;

/// The `keep_count` tokens (all, where there are no more) that importance ranks highest, among them
/// the first `sinks` and the last `recent`; where these are too many already, fewer of the recent,
/// then of the sinks. Equal importance: the lower position; NaN is the lowest there is.
/// `memory` has importance.size() places; the result, ascending, lies in it.
[[nodiscard]] std::span<const std::uint32_t> choose_topk(std::span<const float> importance,
                                                         std::uint32_t keep_count,
                                                         std::uint32_t sinks, std::uint32_t recent,
                                                         std::span<std::uint32_t> memory) noexcept;
/// choose_topk() in steps, with the same result. `memory` has a place for each token, from the first step
/// to the last; importance is read in the first pass alone.
class TopkChoice {
 public:
  TopkChoice() = default;
  TopkChoice(std::uint32_t tokens, std::uint32_t keep_count, std::uint32_t sinks,
             std::uint32_t recent) noexcept;
  /// Goes on for at most `budget` tokens of a pass, and lowers it. True: all is chosen.
  [[nodiscard]] bool step(std::span<const float> importance, std::span<std::uint32_t> memory,
                          std::uint64_t& budget) noexcept;
  [[nodiscard]] std::span<const std::uint32_t> kept(
      std::span<std::uint32_t> memory) const noexcept {
    return memory.first(kept_);
  }

 private:
  void count(std::uint32_t rank) noexcept;
  void collect(std::span<std::uint32_t> memory) noexcept;
  void next_pass() noexcept;

  // Ranks are narrowed down to the last one that is kept, from their highest byte on.
  static constexpr std::uint32_t kBytes = 4;
  std::uint32_t tokens_ = 0, sinks_ = 0, recent_ = 0;
  std::uint32_t pass_ = 0;      // kBytes: collects
  std::uint32_t at_ = 0;        // next token of the pass
  std::uint32_t last_rank_ = 0;  // as far as it is known
  std::uint32_t wanted_ = 0;    // of those whose rank begins so, by rank
  std::uint32_t kept_ = 0;
  std::array<std::uint32_t, 256> counts_{};
};

/// The last `n` of `tokens` tokens and the first `sinks`. `memory` has min(tokens, n + sinks)
/// places.
[[nodiscard]] std::span<const std::uint32_t> choose_window(
    std::uint32_t tokens, std::uint32_t n, std::uint32_t sinks,
    std::span<std::uint32_t> memory) noexcept;

/// Positions as bytes, described in docs/codecs.md. They are ascending and below `total`.
[[nodiscard]] std::size_t positions_bytes(std::span<const std::uint32_t> positions) noexcept;
/// Most that `count` positions below `total` take.
[[nodiscard]] constexpr std::size_t positions_bound(std::uint32_t count, std::uint32_t total) noexcept {
  // A byte each and five for their number; a gap of 128 tokens or more pays for what it takes beyond.
  return std::size_t{5} + count + (total - count) / 128;
}
std::size_t encode_positions(std::span<const std::uint32_t> positions, std::uint32_t total,
                             std::span<std::byte> out) noexcept;
/// From a stranger: all of `in`, which lists at most out.size() positions below `total`. Returns
/// them, in `out`; else protocol_error with the place and what is wrong.
[[nodiscard]] Result<std::span<const std::uint32_t>> decode_positions(std::span<const std::byte> in,
                                                                      std::uint32_t total,
                                                                      std::span<std::uint32_t> out);

/// How many of the ascending `positions` lie in [first, first + count).
[[nodiscard]] std::uint32_t count_within(std::span<const std::uint32_t> positions,
                                         std::uint32_t first, std::uint32_t count) noexcept;
/// Copies the rows of `run`, whose tokens are `first` and on, that `positions` names, in order.
/// `out` has room for count_within() rows. Returns how many.
std::uint32_t gather_rows(const RunShape& shape, const RunView& run, std::uint32_t first,
                          std::span<const std::uint32_t> positions, const MutableRun& out) noexcept;

/// One head's tokens as a bitmap, a bit a token. `positions` as above.
[[nodiscard]] constexpr std::size_t mask_bytes(std::uint32_t tokens) noexcept {
  return (std::size_t{tokens} + 7) / 8;
}
void encode_mask(std::span<const std::uint32_t> positions, std::uint32_t tokens,
                 std::span<std::byte> out) noexcept;
/// From a stranger: exactly mask_bytes(tokens). Refuses bits behind the last token, more tokens
/// than `out` has places, and a mask without any.
[[nodiscard]] Result<std::span<const std::uint32_t>> decode_mask(std::span<const std::byte> in,
                                                                 std::uint32_t tokens,
                                                                 std::span<std::uint32_t> out);

}  // namespace kvrail::codec
