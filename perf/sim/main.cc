// kvrail-sim: a cluster in virtual time. docs/simulation.md says what is modelled.
//
// Exit status: 0 done; 1 the output can't be written; 2 bad usage or input; 3 a replay decided otherwise.
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "perf/sim/cache_replay.h"
#include "perf/sim/options.h"
#include "perf/sim/plot.h"
#include "perf/sim/report.h"
#include "perf/sim/text_input.h"
#include "scheduler/replay.h"

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

std::string replay_report(const scheduler::Replay& replay) {
  std::string text = std::to_string(replay.decisions) + " choices, " + std::to_string(replay.rates) + " rates, " +
                     std::to_string(replay.steps) + " steps with " + std::to_string(replay.actions) + " chunks: " +
                     std::to_string(replay.differ) + " decided otherwise";
  if (replay.differ > 0) text += ", first " + replay.first;
  return text + (replay.complete ? "\n" : "; the recording was full before the end\n");
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

// `kvrail-sim replay FILE`: what a daemon recorded (runtime.record), decided again.
int run_replay(int argc, const char* const* argv) {
  if (argc != 2) return fail({{Code::invalid_argument}, "replay takes one argument, the file of runtime.record"}, 2);
  const std::string path = argv[1];
  const auto text = read_text(path);
  if (!text.ok()) return fail(text.error(), 2);
  const auto replayed = scheduler::replay(std::as_bytes(std::span(*text)));
  if (!replayed.ok()) return fail({replayed.status(), path + ": " + replayed.error().message}, 2);
  const std::string report = replay_report(*replayed);
  const int printed = print(report);
  return replayed->differ == 0 ? printed : 3;
}

int run(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "replay") return run_replay(argc - 1, argv + 1);
  if (argc > 1 && std::string_view(argv[1]) == "cache") return run_cache(argc - 1, argv + 1);
  int exit_code = 2;
  const auto options = parse_options(argc, argv, exit_code);
  if (!options.ok()) return fail(options.error(), exit_code);
  const auto report = simulate(*options);
  if (!report.ok()) return fail(report.error(), 2);
  for (const std::string& line : report->left_out) std::fprintf(stderr, "kvrail-sim: left out: %s\n", line.c_str());
  if (!options->plot.empty()) {
    std::ofstream script(options->plot);
    script << plot_script(*report, options->plot + ".svg") << std::flush;
    if (!script) return fail({{Code::io_error}, options->plot + ": cannot be written"}, 1);
  }
  return print(options->json ? json_report(*report) : table_report(*report));
}

}  // namespace
}  // namespace kvrail::simulation

int main(int argc, char** argv) {
  return kvrail::simulation::run(argc, argv);
}
