// How fast a medium encodes and decodes, beside memcpy of the same bytes in the same run.
#pragma once

#include <cstdint>

#include "kvrail/base/result.h"
#include "perf/codec/kv_set.h"
#include "perf/codec/medium_under_test.h"

namespace kvrail::fidelity {

/// KV that is coded over and over: small enough for the second-level cache together with what it
/// is coded to and decoded to.
inline constexpr std::uint64_t kWorkingSetBytes = 256 * 1024;
/// The first layers and tokens of a set, whole runs where it has them: at most kWorkingSetBytes,
/// but one run at least.
[[nodiscard]] KvSet working_set(const KvSet& set);

/// 10⁹ bytes of KV (not of what it is coded to) a second.
struct Speeds {
  double encode = 0;
  double decode = 0;
  double memcpy = 0;
};
/// One thread. Encode, memcpy and decode take turns, `rounds` times; the medians.
[[nodiscard]] Result<Speeds> measure_speeds(MediumUnderTest& medium, const KvSet& set,
                                            std::uint32_t rounds = 15);

}  // namespace kvrail::fidelity
