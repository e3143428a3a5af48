// A basis of lowrank for KV that comes without a calibrated one.
#pragma once

#include <span>

#include "codec/basis.h"
#include "perf/codec/kv_set.h"

namespace kvrail::fidelity {

inline constexpr std::uint32_t kFewestLearnedTokens = 64;
inline constexpr std::uint32_t kMostLearnedTokens = 4096;

/// From sets of one form, their last kMostLearnedTokens tokens in all. Where the RoPE data of K are
/// known it is turned back first. unsupported, in one line, where there is too little or where
/// values are not finite.
[[nodiscard]] Result<codec::Basis> learn_basis(std::span<const KvSet> sets);

}  // namespace kvrail::fidelity
