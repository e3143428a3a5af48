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

// The densest span is on top of the heap, of equal ones the first.
bool goes_later(const TextSpan& a, const TextSpan& b) noexcept {
  return a.density != b.density ? a.density < b.density : a.first > b.first;
}

}  // namespace

void Extractor::cut(std::span<const TokenId> ids, std::span<const float> importance,
                    std::span<TextSpan> memory) noexcept {
  const std::uint32_t token = at_++;
  const std::uint32_t length = at_ - first_;
  const bool ends = std::binary_search(rule_.separators.begin(), rule_.separators.end(), ids[token]);
  if (!ends && length < rule_.longest && at_ < ids.size()) return;
  memory[spans_++] = {density(importance.subspan(first_, length)), first_, length};
  const auto heap = memory.first(spans_);
  std::push_heap(heap.begin(), heap.end(), goes_later);
  first_ = at_;
}

// What is taken goes behind all that was looked at, so never onto the heap.
void Extractor::take(std::span<TextSpan> memory) noexcept {
  const auto heap = memory.first(heap_);
  std::pop_heap(heap.begin(), heap.end(), goes_later);
  const TextSpan span = memory[--heap_];
  if (span.count > budget_ - written_) return;
  written_ += span.count;
  memory[spans_ - ++taken_] = span;
}

void Extractor::write(std::span<const TokenId> ids, std::span<TextSpan> memory,
                      std::span<TokenId> out) noexcept {
  const auto taken = memory.subspan(spans_ - taken_, taken_);
  std::sort(taken.begin(), taken.end(),
            [](const TextSpan& a, const TextSpan& b) { return a.first < b.first; });
  auto to = out.begin();
  for (const TextSpan& span : taken) to = std::copy_n(ids.begin() + span.first, span.count, to);
}

bool Extractor::step(std::span<const TokenId> ids, std::span<const float> importance,
                     std::span<TextSpan> memory, std::span<TokenId> out,
                     std::uint64_t& steps) noexcept {
  KVRAIL_ASSERT(importance.size() == ids.size() && memory.size() >= ids.size());
  KVRAIL_ASSERT(out.size() >= std::min<std::size_t>(budget_, ids.size()));
  KVRAIL_ASSERT(rule_.longest > 0);
  for (; at_ < ids.size(); --steps) {
    if (steps == 0) return false;
    cut(ids, importance, memory);
  }
  if (!all_cut_) heap_ = spans_;
  all_cut_ = true;
  for (; heap_ > 0 && written_ < budget_; --steps) {
    if (steps == 0) return false;
    take(memory);
  }
  write(ids, memory, out);
  return true;
}

std::uint32_t extract(std::span<const TokenId> ids, std::span<const float> importance,
                      std::uint32_t budget, const ExtractRule& rule, std::span<TextSpan> memory,
                      std::span<TokenId> out) noexcept {
  Extractor extractor(rule, budget);
  std::uint64_t all = UINT64_MAX;
  KVRAIL_ASSERT(extractor.step(ids, importance, memory, out, all));
  return extractor.written();
}

}  // namespace kvrail::codec
