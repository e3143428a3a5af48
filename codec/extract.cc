#include "codec/extract.h"

#include <algorithm>
#include <limits>

#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

double density(std::span<const float> importance) noexcept {
  double sum = 0;
  for (const float value : importance) sum += double{value};
  // NaN, also of Inf - Inf, would make the order of spans none.
  if (sum != sum) return -std::numeric_limits<double>::infinity();
  return sum / static_cast<double>(importance.size());
}

std::size_t cut_into_spans(std::span<const TokenId> ids, std::span<const float> importance,
                           const ExtractRule& rule, std::span<TextSpan> spans) noexcept {
  std::size_t count = 0;
  std::uint32_t first = 0;
  for (std::uint32_t token = 0; token < ids.size(); ++token) {
    const std::uint32_t length = token + 1 - first;
    const bool ends =
        std::binary_search(rule.separators.begin(), rule.separators.end(), ids[token]);
    if (!ends && length < rule.longest && token + 1 < ids.size()) continue;
    spans[count++] = {density(importance.subspan(first, length)), first, length};
    first = token + 1;
  }
  return count;
}

}  // namespace

std::uint32_t extract(std::span<const TokenId> ids, std::span<const float> importance,
                      std::uint32_t budget, const ExtractRule& rule, std::span<TextSpan> memory,
                      std::span<TokenId> out) noexcept {
  KVRAIL_ASSERT(importance.size() == ids.size() && memory.size() >= ids.size());
  KVRAIL_ASSERT(out.size() >= std::min<std::size_t>(budget, ids.size()));
  KVRAIL_ASSERT(rule.longest > 0);
  const auto spans = memory.first(cut_into_spans(ids, importance, rule, memory));
  std::sort(spans.begin(), spans.end(), [](const TextSpan& a, const TextSpan& b) {
    return a.density != b.density ? a.density > b.density : a.first < b.first;
  });
  std::size_t taken = 0;
  std::uint32_t written = 0;
  for (const TextSpan& span : spans) {
    if (span.count > budget - written) continue;
    written += span.count;
    spans[taken++] = span;
  }
  std::sort(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(taken),
            [](const TextSpan& a, const TextSpan& b) { return a.first < b.first; });
  auto to = out.begin();
  for (const TextSpan& span : spans.first(taken))
    to = std::copy_n(ids.begin() + span.first, span.count, to);
  return written;
}

}  // namespace kvrail::codec
