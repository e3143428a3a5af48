// kvrail-bench [NAME...] [--json] [--list]: runs the named benchmarks, or all.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "perf/bench/benchmarks.h"

namespace kvrail::bench {

const std::vector<Benchmark>& all_benchmarks() {
  static const std::vector<Benchmark> benchmarks{
      {"rings", "SPSC ring across a trust boundary against Boost.Lockfree", run_rings},
      {"tcp", "bulk on loopback against blocking send and recv, with and without digests", run_tcp},
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
  app.add_option("name", names, "which to run (all)");
  app.add_flag("--json", json, "print JSON instead of a table");
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
  for (const Benchmark& b : all_benchmarks()) {
    if (!names.empty() && std::find(names.begin(), names.end(), b.name) == names.end()) continue;
    std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(b.name.size()), b.name.data(),
                 static_cast<int>(b.about.size()), b.about.data());
    b.run(report);
  }
  std::fputs((json ? report.json() + "\n" : report.table()).c_str(), stdout);
  return 0;
}
