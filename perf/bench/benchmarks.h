// The benchmarks by name; main.cc lists them. Each prints through the Report it is given.
#pragma once

#include "perf/bench/bench.h"

namespace kvrail::bench {

void run_rings(Report& report);
void run_tcp(Report& report);

}  // namespace kvrail::bench
