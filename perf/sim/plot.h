// A report as a picture: a script for gnuplot, with its data.
#pragma once

#include <string>

#include "perf/sim/simulate.h"

namespace kvrail::simulation {

// `gnuplot FILE` writes FILE.svg: how latencies are distributed under each policy; of a sweep also their mean and 99th percentile
// at each point. `image`: the name of that file.
[[nodiscard]] std::string plot_script(const Report& report, const std::string& image);

}  // namespace kvrail::simulation
