// summary without a callback: whole spans of the text, those that matter most to the agent, in
// their order. What comes out are token ids, which any model with that tokenizer reads anew.
#pragma once

#include <cstdint>
#include <span>

#include "kvrail/types.h"

namespace kvrail::codec {

/// A span of the text: its tokens end with a separator, or there are `longest` of them.
struct TextSpan {
  double density = 0;  // mean importance; minus infinity where one is NaN
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct ExtractRule {
  std::span<const TokenId> separators;  // ascending: ends of sentences or lines; may be empty
  std::uint32_t longest = 64;           // tokens of a span without a separator, at least 1
};

/// extract() in steps, with the same result; the spans are read anew in no step.
class Extractor {
 public:
  Extractor() = default;
  /// The rule's separators must outlive this.
  Extractor(const ExtractRule& rule, std::uint32_t budget) noexcept : rule_(rule), budget_(budget) {}
  /// Goes on for at most `steps` tokens or spans, and lowers it. True: all is written to `out`.
  [[nodiscard]] bool step(std::span<const TokenId> ids, std::span<const float> importance,
                          std::span<TextSpan> memory, std::span<TokenId> out,
                          std::uint64_t& steps) noexcept;
  [[nodiscard]] std::uint32_t written() const noexcept { return written_; }

 private:
  void cut(std::span<const TokenId> ids, std::span<const float> importance,
           std::span<TextSpan> memory) noexcept;
  void take(std::span<TextSpan> memory) noexcept;
  void write(std::span<const TokenId> ids, std::span<TextSpan> memory, std::span<TokenId> out) noexcept;

  ExtractRule rule_;
  std::uint32_t budget_ = 0;
  std::uint32_t at_ = 0, first_ = 0;   // next token to be looked at, first one of the open span
  std::uint32_t spans_ = 0;            // that were cut
  std::uint32_t heap_ = 0;             // of these, in front: not looked at yet, a heap
  std::uint32_t taken_ = 0;            // and those that are taken, at the end
  std::uint32_t written_ = 0;
  bool all_cut_ = false;
};

/// Takes spans by falling density (of equal ones the first) as long as they fit into `budget`
/// tokens, leaving out those that do not, and writes their ids to `out` in the order of the text.
/// Returns how many ids: at most `budget`, 0 where no span is as short. importance.size() ==
/// ids.size(); `memory` has ids.size() places, `out` min(budget, ids.size()). The same input gives
/// the same ids.
[[nodiscard]] std::uint32_t extract(std::span<const TokenId> ids, std::span<const float> importance,
                                    std::uint32_t budget, const ExtractRule& rule,
                                    std::span<TextSpan> memory, std::span<TokenId> out) noexcept;

}  // namespace kvrail::codec
