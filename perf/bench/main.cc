// kvrail-bench [NAME...] [--json] [--list] [--quick]: runs the named benchmarks, or all.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "perf/bench/benchmarks.h"
#include "perf/bench/processes.h"

namespace kvrail::bench {

const std::vector<Benchmark>& all_benchmarks() {
  static const std::vector<Benchmark> benchmarks{
      {"rings", "SPSC ring across a trust boundary against Boost.Lockfree", run_rings},
      {"tcp", "bulk on loopback against blocking send and recv, with and without digests", run_tcp},
      {"local", "a context between agents of one node, 64 KiB to 64 MiB, against copying it", run_local},
      {"message", "a small message between agents of an embedded engine, against a ring's round trip", run_message},
      {"daemon", "the same through kvraild, three processes, against a relay over Unix sockets", run_daemon},
      {"blocks", "100,000 blocks of 4 KiB as one context, same node and tcp", run_blocks},
      {"critical", "a critical message under bulk on a link of 1 Gbit/s, against one FIFO connection", run_critical},
      {"codec", "every medium that codes KV, encode and decode in and out of cache, against memcpy", run_codec},
      {"scheduler", "a flow comes, a chunk is picked, among 64 to 1,000,000 flows, against a heap", run_scheduler},
      {"value", "one of a million blocks is looked up and used or evicted, against a map and a list", run_value},
      {"tier", "blocks of 1 MiB to the tier's files and back, against fio; a look-up among a million", run_tier},
      {"idle", "CPU share of an idle kvraild with two peers and two agents", run_idle},
      {"verbs", "RDMA writes and small frames against perftest on the same device", run_verbs},
#ifdef KVRAIL_BENCH_VERBS
      {"verbs_stub", "what a posted descriptor costs of our own, on a device that completes at once", run_verbs_stub},
#endif
  };
  return benchmarks;
}

}  // namespace kvrail::bench

int main(int argc, char** argv) {
  using namespace kvrail::bench;
  CLI::App app("Benchmarks of kvrail: alternating runs against a named baseline");
  std::vector<std::string> names;
  bool json = false;
  bool list = false;
  bool quick = false;
  app.add_option("name", names, "which to run (all)");
  app.add_flag("--json", json, "print JSON instead of a table");
  app.add_flag("--quick", quick, "two pairs of each: for development, not for figures");
  app.add_flag("--list", list, "print the names and what they measure");
  CLI11_PARSE(app, argc, argv);
  if (list) {
    for (const Benchmark& b : all_benchmarks()) {
      std::printf("%-16.*s %.*s\n", static_cast<int>(b.name.size()), b.name.data(), static_cast<int>(b.about.size()),
                  b.about.data());
    }
    return 0;
  }
  for (const std::string& name : names) {
    if (std::none_of(all_benchmarks().begin(), all_benchmarks().end(),
                     [&name](const Benchmark& b) { return b.name == name; })) {
      std::fprintf(stderr, "kvrail-bench: no benchmark is called \"%s\"; --list prints all\n", name.c_str());
      return 2;
    }
  }
  Report report;
  if (quick) report.limit_pairs(2);
  for (const Benchmark& b : all_benchmarks()) {
    if (!names.empty() && std::find(names.begin(), names.end(), b.name) == names.end()) continue;
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(b.name.size()), b.name.data(),
                 static_cast<int>(b.about.size()), b.about.data());
    try {
      b.run(report);
    } catch (const Failure& failure) {
      report.fail(std::string(b.name), failure.what());
    }
  }
  std::fputs((json ? report.json() + "\n" : report.table()).c_str(), stdout);
  return report.failed() ? 1 : 0;
}
