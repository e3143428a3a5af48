// The command line of kvrail-sim.
#pragma once

#include "perf/sim/simulate.h"

namespace kvrail::simulation {

/// An error with an empty message: there is nothing more to say (--help), end with `exit_code`.
[[nodiscard]] Result<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace kvrail::simulation
