// A report as people or programs read it.
#pragma once

#include <string>

#include "perf/sim/simulate.h"

namespace kvrail::simulation {

[[nodiscard]] std::string table_report(const Report& report);
[[nodiscard]] std::string json_report(const Report& report);

}  // namespace kvrail::simulation
