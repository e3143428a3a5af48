// What an agent tells its engine of itself, so that the engine can choose what to send it and when.
#pragma once

#include <cstdint>

#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail {

// Kept in shared memory; the engine looks at it at its own pace and never waits for it. Give what is
// known and leave the rest at 0.
struct Probe {
  std::uint32_t queue_length = 0;      // requests that wait in the agent
  std::uint32_t compute_load_ppm = 0;  // 1,000,000 = the accelerator is busy all the time
  TimeNs backlog_ns = 0;               // work that waits in it, as time of its compute
  std::uint64_t cache_bytes = 0;       // KV the agent holds on its own
  TimeNs idle_until_ns = 0;            // CLOCK_MONOTONIC; 0 = not known
  ComputeProfile compute;
  MediumMask accepted = 0;             // media it can use now; 0 = as at attach
  Hash128 tokenizer;                   // 0 = as at attach
};

}  // namespace kvrail
