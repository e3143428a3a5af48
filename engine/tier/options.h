// What a file tier is told at its start.
#pragma once

#include <cstdint>
#include <string>

#include "engine/tier/directory.h"
#include "engine/tier/disk.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::engine::tier {

struct TierOptions {
  std::string directory;
  std::uint64_t capacity_bytes = 4ULL << 30;
  std::uint64_t segment_bytes = 64ULL << 20;
  std::uint32_t max_blocks = 1U << 18;
  Medium coding = Medium::full;      // full, lossless, int8, int4
  std::uint32_t coding_epsilon_ppm = 0;  // what a coding with loss costs at least, as calibrated; measured counts if more
  DirectMode direct = DirectMode::automatic;
  bool uring = true;                 // false: system calls that wait
  std::uint32_t depth = 8;           // buffers of a MiB for reads, and as many for writes
  std::uint32_t in_flight = 64;      // puts and gets together
  TimeNs commit_ns = 2 * kMillisecondNs;       // longest that a written block waits for company before the sync
  std::uint64_t commit_bytes = 8ULL << 20;     // as much as is written without a sync meanwhile
  TimeNs slow_ns = kSecondNs;        // a put that takes longer makes the tier `slow`
  TimeNs retry_ns = kSecondNs;       // after a put that found no room, or an error
  std::uint32_t scrub_share = 16;    // of so many bytes read or written, one is read again to be checked; 0: none
  DiskWrap wrap;                     // tests: what stands between the tier and its disk
};

}  // namespace kvrail::engine::tier
