// The extractive summary: whole spans, the densest that fit, in the order of the text.
#include "codec/extract.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kvrail/base/prng.h"

using namespace kvrail;
using namespace kvrail::codec;

namespace {

using Ids = std::vector<TokenId>;

Ids extracted(const Ids& ids, const std::vector<float>& importance, std::uint32_t budget,
              const ExtractRule& rule) {
  std::vector<TextSpan> memory(ids.size());
  Ids out(std::min<std::size_t>(budget, ids.size()));
  out.resize(extract(ids, importance, budget, rule, memory, out));
  return out;
}

constexpr TokenId kStop = 9;
const Ids kSeparators{kStop};
// Spans: 1 2 9 | 3 9 | 4 5 6 9 | 7
const Ids kText{1, 2, kStop, 3, kStop, 4, 5, 6, kStop, 7};
const std::vector<float> kImportance{1, 1, 1, 5, 5, 2, 2, 2, 2, 3};

}  // namespace

TEST_CASE("extract / the densest spans that fit, in the order of the text") {
  const ExtractRule rule{kSeparators, 64};
  CHECK(extracted(kText, kImportance, 2, rule) == Ids{3, kStop});
  CHECK(extracted(kText, kImportance, 3, rule) == Ids{3, kStop, 7});
  CHECK(extracted(kText, kImportance, 7, rule) == Ids{3, kStop, 4, 5, 6, kStop, 7});
  CHECK(extracted(kText, kImportance, 10, rule) == kText);
  CHECK(extracted(kText, kImportance, 1'000, rule) == kText);
  // One that does not fit is left out for a shorter, less dense one.
  CHECK(extracted(kText, kImportance, 6, rule) == Ids{1, 2, kStop, 3, kStop, 7});
  CHECK(extracted(kText, kImportance, 0, rule).empty());
  CHECK(extracted({}, {}, 5, rule).empty());
}

TEST_CASE("extract / without separators spans are windows, and no span is longer") {
  CHECK(extracted({1, 2, 3, 4, 5}, {0, 0, 1, 1, 9}, 3, {{}, 2}) == Ids{3, 4, 5});
  CHECK(extracted({1, 2, 3, 4, 5}, {0, 0, 1, 1, 9}, 1, {{}, 2}) == Ids{5});
  const ExtractRule rule{kSeparators, 2};  // 1 2 | 9 | 3 9 | 4 5 | 6 9 | 7
  CHECK(extracted(kText, kImportance, 5, rule) == Ids{3, kStop, 4, 5, 7});
}

TEST_CASE("extract / equal spans: the first; a span with NaN is the last") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(extracted({1, 2, 3}, {4, 4, 4}, 2, {{}, 1}) == Ids{1, 2});
  CHECK(extracted({1, 2, 3}, {nan, -1, -2}, 2, {{}, 1}) == Ids{2, 3});
  CHECK(extracted({1, 2, 3, 4}, {inf, -inf, -1, -1}, 2, {{}, 2}) == Ids{3, 4});
}

TEST_CASE("extract / properties over drawn texts") {
  Prng random(11);
  for (int round = 0; round < 200; ++round) {
    Ids ids(random.uniform(150));
    std::vector<float> importance(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<TokenId>(random.uniform(30));
      importance[i] = static_cast<float>(random.uniform(5));
    }
    const auto budget = static_cast<std::uint32_t>(random.uniform(160));
    const ExtractRule rule{kSeparators, static_cast<std::uint32_t>(1 + random.uniform(20))};
    const Ids summary = extracted(ids, importance, budget, rule);
    REQUIRE(summary.size() <= budget);
    if (budget >= rule.longest && !ids.empty()) REQUIRE_FALSE(summary.empty());
    // A subsequence of the text.
    auto at = ids.begin();
    for (const TokenId id : summary) {
      at = std::find(at, ids.end(), id);
      REQUIRE(at != ids.end());
      ++at;
    }
    REQUIRE(extracted(ids, importance, budget, rule) == summary);
  }
}

TEST_CASE("extract / in steps of any size the same ids are written") {
  Prng prng(11);
  for (int round = 0; round < 100; ++round) {
    Ids ids(prng.uniform(200));
    std::vector<float> importance(ids.size());
    for (TokenId& id : ids) id = static_cast<TokenId>(prng.uniform(12));
    for (float& value : importance) value = static_cast<float>(prng.uniform(5));
    const auto budget = static_cast<std::uint32_t>(prng.uniform(120));
    const ExtractRule rule{kSeparators, 1 + static_cast<std::uint32_t>(prng.uniform(20))};
    Extractor extractor(rule, budget);
    std::vector<TextSpan> memory(ids.size());
    Ids out(std::min<std::size_t>(budget, ids.size()));
    for (bool done = false; !done;) {
      std::uint64_t steps = 1 + prng.uniform(30);
      done = extractor.step(ids, importance, memory, out, steps);
    }
    out.resize(extractor.written());
    CHECK(out == extracted(ids, importance, budget, rule));
  }
}
