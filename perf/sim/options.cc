#include "perf/sim/options.h"

#include <CLI/CLI.hpp>

namespace kvrail::simulation {

Result<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  Options options;
  CLI::App app("kvrail-sim: a cluster in virtual time, under kvrail's scheduler and under what it is compared with.\n"
               "kvrail-sim cache replays a trace of requests against caches: kvrail-sim cache --help.");
  app.add_option("--scenario", options.scenario, "TOML file, such as perf/scenarios/steady.toml")->required();
  app.add_option("--trace", options.trace, "requests instead of the scenario's: Mooncake JSONL or Azure CSV, plain or .xz");
  app.add_option("--links", options.links, "CSV of trace,t_s,mbit_s, plain or .xz: lane i has trace i mod their number");
  app.add_option("--link-scale", options.link_scale_mbit_s, "mean of each of these traces in Mbit/s (10,000)")
      ->check(CLI::Range(1e-3, 1e7));
  app.add_option("--policies", options.policies, "comma-separated; all that are compared")->delimiter(',');
  app.add_option("--seed", options.seed, "of all that is drawn (1)");
  app.add_flag("--json", options.json, "JSON instead of a table");
  app.add_option("--plot", options.plot, "writes a script there; `gnuplot FILE` makes FILE.svg of it");
  exit_code = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
    return Error{{Code::cancelled}, ""};
  } catch (const CLI::ParseError& error) {
    return Error{{Code::invalid_argument}, std::string(error.what()) + "; kvrail-sim --help lists the options"};
  }
  return options;
}

}  // namespace kvrail::simulation
