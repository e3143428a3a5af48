// kvrail-codec: what each medium makes of KV. docs/codecs.md defines every figure.
//
// Exit status: 0 done; 1 the machine failed (memory, files that change); 2 bad usage or input.
#include <cstdio>

#include "perf/codec/measure.h"

namespace kvrail::fidelity {
namespace {

bool is_machine_fault(Code code) {
  return code == Code::io_error || code == Code::out_of_memory || code == Code::internal;
}

int fail(const Error& error, int exit_code) {
  if (!error.message.empty()) std::fprintf(stderr, "kvrail-codec: %s\n", error.message.c_str());
  return exit_code;
}

int run(int argc, const char* const* argv) {
  int exit_code = 2;
  auto options = parse_options(argc, argv, exit_code);
  if (!options.ok()) return fail(options.error(), exit_code);
  auto measured = measure(*options);
  if (!measured.ok())
    return fail(measured.error(), is_machine_fault(measured.status().code) ? 1 : 2);
  for (const std::string& line : measured->left_out)
    std::fprintf(stderr, "kvrail-codec: left out: %s\n", line.c_str());
  std::string text;
  if (options->json) {
    text = json_report(measured->media);
  } else {
    text = measured->description + "\n" + table_report(measured->media) +
           "enc, dec, memcpy: GB/s of KV on one core, in cache. docs/codecs.md defines all.\n";
  }
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!written) return fail({{Code::io_error}, "the report cannot be written to its output"}, 1);
  return 0;
}

}  // namespace
}  // namespace kvrail::fidelity

int main(int argc, char** argv) {
  return kvrail::fidelity::run(argc, argv);
}
