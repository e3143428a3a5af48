#include "perf/codec/learned_basis.h"

#include <algorithm>
#include <cmath>

#include "kvrail/base/assert.h"
#include "perf/calibrate/klt.h"

namespace kvrail::fidelity {
namespace {

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Tokens [first, end) of every layer; false where a value is not finite.
bool add(const KvSet& set, std::uint32_t first, calibrate::KltFit& fit) {
  std::vector<float> rows((set.tokens - first) * set.row_values());
  const std::uint32_t position = first + (set.rope ? set.rope->first_position : 0);
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, first, set.tokens - first);
    for (const codec::Side side : {codec::Side::k, codec::Side::v}) {
      to_floats(set.dtype, side == codec::Side::k ? run.k : run.v, rows);
      if (!all_finite(rows)) return false;
      fit.add(layer, side, rows, position);
    }
  }
  return true;
}

}  // namespace

Result<codec::Basis> learn_basis(std::span<const KvSet> sets) {
  KVRAIL_ASSERT(!sets.empty());
  std::uint64_t tokens = 0;
  for (const KvSet& set : sets) tokens += set.tokens;
  if (tokens < kFewestLearnedTokens) {
    return Error{{Code::unsupported},
                 "its basis would come from " + std::to_string(tokens) + " tokens, and " +
                     std::to_string(kFewestLearnedTokens) +
                     " at least are needed; give more tokens"};
  }
  calibrate::KltOptions options;
  options.layers = sets[0].layers;
  options.kv_heads = sets[0].kv_heads;
  options.head_dim = sets[0].head_dim;
  if (sets[0].rope) options.rope = sets[0].rope->rule;
  calibrate::KltFit fit(options);
  std::uint32_t left = kMostLearnedTokens;
  for (std::size_t i = sets.size(); i-- > 0 && left > 0;) {
    const std::uint32_t take = std::min(left, sets[i].tokens);
    if (!add(sets[i], sets[i].tokens - take, fit))
      return Error{{Code::unsupported}, "no basis comes from KV with NaN or Inf"};
    left -= take;
  }
  return codec::Basis::parse(codec::basis_file(fit.fit({})));
}

}  // namespace kvrail::fidelity
