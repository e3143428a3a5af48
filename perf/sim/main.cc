// kvrail-sim: a cluster in virtual time. docs/simulation.md says what is modelled.
//
// Exit status: 0 done; 1 the output can't be written; 2 bad usage or input.
#include <cstdio>

#include "perf/sim/options.h"
#include "perf/sim/report.h"

namespace kvrail::simulation {
namespace {

int fail(const Error& error, int exit_code) {
  if (!error.message.empty()) std::fprintf(stderr, "kvrail-sim: %s\n", error.message.c_str());
  return exit_code;
}

int run(int argc, const char* const* argv) {
  int exit_code = 2;
  const auto options = parse_options(argc, argv, exit_code);
  if (!options.ok()) return fail(options.error(), exit_code);
  const auto report = simulate(*options);
  if (!report.ok()) return fail(report.error(), 2);
  for (const std::string& line : report->left_out) std::fprintf(stderr, "kvrail-sim: left out: %s\n", line.c_str());
  const std::string text = options->json ? json_report(*report) : table_report(*report);
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : fail({{Code::io_error}, "the report cannot be written to its output"}, 1);
}

}  // namespace
}  // namespace kvrail::simulation

int main(int argc, char** argv) {
  return kvrail::simulation::run(argc, argv);
}
