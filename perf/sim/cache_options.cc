// The command line of `kvrail-sim cache`.
#include <CLI/CLI.hpp>

#include "perf/sim/cache_replay.h"
#include "perf/sim/text_input.h"

namespace kvrail::simulation {
namespace {

// What std::stod would take beside numbers ("nan", "0x1p-3", "1e-2 ") is no number here.
bool share(const std::string& text, double& out) { return parse_number(text, out) && out >= 0 && out <= 1; }

}  // namespace

Result<CacheOptions> parse_cache_options(int argc, const char* const* argv, int& exit_code) {
  CacheOptions options;
  std::string size_fraction, score_from = "0";
  CLI::App app("kvrail-sim cache: token hit rates of a cache of prefix blocks under kvrail's eviction and others'.",
               "kvrail-sim cache");
  app.add_option("--trace", options.trace, "Mooncake JSONL, plain or .xz")->required();
  app.add_option("--size-fraction", size_fraction, "blocks that the cache holds, as a share of the trace's different ones")
      ->required();
  app.add_option("--score-from", score_from, "share of the requests that only warm the cache (0)");
  app.add_option("--policies", options.policies, "comma-separated; all that are compared")->delimiter(',');
  app.add_flag("--json", options.json, "JSON instead of a table");
  exit_code = 2;
  const auto bad = [](const std::string& what) { return Error{{Code::invalid_argument}, what}; };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
    return Error{{Code::cancelled}, ""};
  } catch (const CLI::ParseError& error) {
    return bad(std::string(error.what()) + "; kvrail-sim cache --help lists the options");
  }
  if (!share(size_fraction, options.size_fraction) || options.size_fraction == 0)
    return bad("--size-fraction must be a number over 0, at most 1, such as 0.03; it is \"" + size_fraction + "\"");
  if (!share(score_from, options.score_from) || options.score_from == 1)
    return bad("--score-from must be a number from 0 to under 1, such as 0.5; it is \"" + score_from + "\"");
  return options;
}

}  // namespace kvrail::simulation
