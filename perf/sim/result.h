// What one run of one policy leaves behind.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "perf/sim/workload.h"

namespace kvrail::simulation {

struct JobResult {
  TimeNs submitted_ns = 0;
  TimeNs latency_ns = 0;  // from the submission until the receiver can go on, with the extra decoding that losses cost
  TimeNs queued_ns = 0;   // from the answer until the first chunk; for token ids behind other prefills
  Medium medium = Medium::automatic;
  Medium rows = Medium::automatic;  // what its bytes were coded as, where the medium is a split
};

struct RunResult {
  std::vector<JobResult> jobs;  // as in the workload
  std::vector<TimeNs> task_ns;
  std::uint64_t bytes = 0;      // payload on all lanes, and token ids
  TimeNs prefill_ns = 0;        // of all GPUs together
  TimeNs end_ns = 0;
  double busiest_lane = 0;      // share of the time
  double busiest_gpu = 0;
  std::uint64_t flaps = 0;      // under the same key another medium than last time
  std::uint64_t decisions = 0, laters = 0;
  std::uint32_t reservations_refused = 0;
  std::array<std::uint64_t, kMediumCount> chosen{};
  std::uint64_t trace_hash = 0;  // over every decision and completion with its time
  std::uint64_t events = 0;
  TimeNs chunk_ns = 0;           // what a chunk takes on the first lane
};

}  // namespace kvrail::simulation
