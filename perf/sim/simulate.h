// A whole simulation: the scenario's points, each with all policies on the same workload.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "perf/sim/memory_run.h"
#include "perf/sim/bounds.h"
#include "perf/sim/figures.h"
#include "perf/sim/policy.h"
#include "perf/sim/scenario.h"

namespace kvrail::simulation {

struct Options {
  std::string scenario, trace, links;  // files; empty: none
  double link_scale_mbit_s = 0;        // 0: the scenario's
  std::vector<std::string> policies;   // empty: the scenario's, or all
  std::uint64_t seed = 1;
  bool json = false;
  std::string plot;                    // a script for gnuplot goes there; empty: none
};

struct Point {
  std::string label;  // "6/s", "500 agents"; empty: the only one
  std::vector<Figures> policies;
  std::optional<Bounds> bounds;
};
struct Report {
  std::string scenario;
  std::uint64_t seed = 1;
  std::vector<std::string> left_out;    // inputs without meaning, and why
  std::vector<std::string> arithmetic;  // of each model class, for people
  Point main;
  std::vector<Point> sweep;
  std::optional<MemoryReport> memory;   // where the scenario bounds it
  std::uint64_t transfers = 0;  // simulated, of all policies together
  std::uint64_t decisions = 0;
  double wall_s = 0;            // the only figures that hang on the machine
};

[[nodiscard]] Result<Report> simulate(const Options& options);

}  // namespace kvrail::simulation
