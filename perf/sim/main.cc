// kvrail-sim: a cluster in virtual time. docs/simulation.md says what is modelled.
//
// Exit status: 0 done; 1 the output can't be written; 2 bad usage or input.
#include <cstdio>
#include <string_view>

#include "perf/sim/cache_replay.h"
#include "perf/sim/options.h"
#include "perf/sim/report.h"

namespace kvrail::simulation {
namespace {

int fail(const Error& error, int exit_code) {
  if (!error.message.empty()) std::fprintf(stderr, "kvrail-sim: %s\n", error.message.c_str());
  return exit_code;
}

int print(const std::string& text) {
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : fail({{Code::io_error}, "the report cannot be written to its output"}, 1);
}

// Arguments from the word "cache" on.
int run_cache(int argc, const char* const* argv) {
  int exit_code = 2;
  const auto options = parse_cache_options(argc, argv, exit_code);
  if (!options.ok()) return fail(options.error(), exit_code);
  const auto report = simulate_caches(*options);
  if (!report.ok()) return fail(report.error(), 2);
  return print(options->json ? json_report(*report) : table_report(*report));
}

int run(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "cache") return run_cache(argc - 1, argv + 1);
  int exit_code = 2;
  const auto options = parse_options(argc, argv, exit_code);
  if (!options.ok()) return fail(options.error(), exit_code);
  const auto report = simulate(*options);
  if (!report.ok()) return fail(report.error(), 2);
  for (const std::string& line : report->left_out) std::fprintf(stderr, "kvrail-sim: left out: %s\n", line.c_str());
  return print(options->json ? json_report(*report) : table_report(*report));
}

}  // namespace
}  // namespace kvrail::simulation

int main(int argc, char** argv) {
  return kvrail::simulation::run(argc, argv);
}
