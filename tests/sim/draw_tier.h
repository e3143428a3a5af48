// A tier for a node of the simulation: of any size and speed, and with faults or without. Such nodes have little memory,
// so that contexts leave it.
#pragma once

#include "engine/core/node.h"
#include "engine/tier/memory_tier.h"
#include "kvrail/base/prng.h"

namespace kvrail::testing {

inline engine::MemoryTierOptions draw_tier(Prng& prng, engine::NodeOptions& node) {
  node.store.receive_arena_bytes = std::uint64_t{64 * 1024} << prng.uniform(3);
  node.offload_below_ppm = 300'000 + 50'000 * static_cast<std::uint32_t>(prng.uniform(14));
  node.offload_until_ppm = 1'000'000;
  engine::MemoryTierOptions options;
  options.capacity_bytes = std::uint64_t{64 * 1024} << prng.uniform(7);
  options.in_flight = 1 + static_cast<std::uint32_t>(prng.uniform(40));
  options.bytes_per_s = std::uint64_t{10'000'000} << prng.uniform(9);
  options.fixed_ns = static_cast<TimeNs>(1'000 + prng.uniform(500'000));
  options.seed = 1 + prng.uniform(1U << 30);
  if (prng.chance(0.3)) options.corrupt_ppm = 1U << prng.uniform(18);
  if (prng.chance(0.3)) options.lose_ppm = 1U << prng.uniform(18);
  if (prng.chance(0.3)) options.refuse_ppm = 1U << prng.uniform(18);
  return options;
}

}  // namespace kvrail::testing
