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

/// Takes spans by falling density (of equal ones the first) as long as they fit into `budget`
/// tokens, leaving out those that do not, and writes their ids to `out` in the order of the text.
/// Returns how many ids: at most `budget`, 0 where no span is as short. importance.size() ==
/// ids.size(); `memory` has ids.size() places, `out` min(budget, ids.size()). The same input gives
/// the same ids.
[[nodiscard]] std::uint32_t extract(std::span<const TokenId> ids, std::span<const float> importance,
                                    std::uint32_t budget, const ExtractRule& rule,
                                    std::span<TextSpan> memory, std::span<TokenId> out) noexcept;

}  // namespace kvrail::codec
