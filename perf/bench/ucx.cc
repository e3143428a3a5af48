#include "perf/bench/ucx.h"

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <vector>

#include "perf/bench/bench.h"
#include "perf/bench/processes.h"

namespace kvrail::bench {
namespace {

constexpr std::int64_t kTimeoutNs = 120'000'000'000;

Child::Program program_of(const std::string& transports, std::uint16_t port, int core) {
  Child::Program program;
  program.command = {"ucx_perftest", "-p", std::to_string(port)};
  if (core >= 0) program.command.insert(program.command.end(), {"-c", std::to_string(core)});
  program.environment = {"UCX_TLS=" + transports, "UCX_NET_DEVICES=lo", "UCX_WARN_UNUSED_ENV_VARS=n",
                         "UCX_LOG_LEVEL=error"};
  return program;
}

// The last line of its CSV: iterations, latency (percentile, average, overall), then bandwidth in
// MiB/s and messages per second (average, overall).
UcxFigures figures_of(const std::string& output) {
  std::istringstream lines(output);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  std::istringstream row(last);
  std::vector<double> fields;
  for (std::string field; std::getline(row, field, ',');) fields.push_back(std::strtod(field.c_str(), nullptr));
  if (fields.size() != 8 || fields[0] <= 0) throw Failure("ucx_perftest printed something else: " + output);
  return {fields[3], fields[5] * 1048576.0, fields[7]};
}

}  // namespace

bool has_ucx() { return in_path("ucx_perftest"); }

UcxFigures run_ucx(const std::string& test, const std::string& transports, std::uint64_t bytes,
                   std::uint64_t iterations, int server_core, int client_core) {
  const std::uint16_t port = free_port();
  const Child server(program_of(transports, port, server_core));
  Child::Program client = program_of(transports, port, client_core);
  client.command.insert(client.command.begin() + 1, "127.0.0.1");
  const std::string warm_up = std::to_string(std::max<std::uint64_t>(iterations / 20, 2));
  const std::vector<std::string> rest{"-t", test, "-s", std::to_string(bytes), "-n", std::to_string(iterations),
                                      "-w", warm_up, "-f", "-v"};
  client.command.insert(client.command.end(), rest.begin(), rest.end());
  // The server needs a moment to listen; the client does not try again by itself.
  const std::int64_t until = now_ns() + kTimeoutNs;
  for (;;) {
    if (const auto output = output_of(client, kTimeoutNs)) return figures_of(*output);
    if (now_ns() > until) throw Failure("ucx_perftest " + test + " does not run with UCX_TLS=" + transports);
    ::usleep(50'000);
  }
}

}  // namespace kvrail::bench
