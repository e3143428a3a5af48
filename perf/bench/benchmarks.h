// The benchmarks by name; main.cc lists them. Each prints through the Report it is given.
#pragma once

#include "perf/bench/bench.h"

namespace kvrail::bench {

void run_rings(Report& report);
void run_tcp(Report& report);

void run_local(Report& report);
void run_message(Report& report);
void run_daemon(Report& report);
void run_blocks(Report& report);
void run_critical(Report& report);
void run_idle(Report& report);
void run_verbs(Report& report);
void run_verbs_stub(Report& report);  // of builds with verbs
void run_codec(Report& report);
void run_scheduler(Report& report);
void run_value(Report& report);
void run_tier(Report& report);

// The baseline of `rings` and `message`: there and back between two pinned threads, 32 bytes each way.
[[nodiscard]] double boost_round_trip_ns();

}  // namespace kvrail::bench
