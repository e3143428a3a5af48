// The script for gnuplot, and, where that is installed, the picture.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "perf/sim/plot.h"

using namespace kvrail;
using namespace kvrail::simulation;

namespace {

Report sample() {
  Report report;
  report.scenario = "it's a test";
  for (const char* policy : {"full", "kvrail"}) {
    Figures figures;
    figures.policy = policy;
    for (std::size_t q = 0; q < figures.quantiles_ms.size(); ++q) figures.quantiles_ms[q] = 10.0 + static_cast<double>(q);
    figures.mean_ms = 60;
    figures.p99_ms = 109;
    report.main.policies.push_back(figures);
  }
  return report;
}

}  // namespace

TEST_CASE("plot / one curve a policy, kvrail's thicker, names quoted") {
  const std::string script = plot_script(sample(), "a.svg");
  CHECK(script.find("set output 'a.svg'") != std::string::npos);
  CHECK(script.find("title 'it''s a test, seed 1'") != std::string::npos);
  CHECK(script.find("$latency0 using 1:2 with lines lw 1 title 'full', $latency1 using 1:2 with lines lw 3 title 'kvrail'") != std::string::npos);
  CHECK(script.find("10.0000 0.00\n") != std::string::npos);
  CHECK(script.find("110.0000 1.00\n") != std::string::npos);
  CHECK(script.find("$sweep") == std::string::npos);
}

TEST_CASE("plot / of a sweep mean and 99th percentile at each point; gnuplot takes it") {
  Report report = sample();
  for (const char* label : {"1/s", "3/s"}) report.sweep.push_back({label, report.main.policies, std::nullopt});
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string base = (folder / ("kvrail-plot-" + std::to_string(std::rand()))).string();
  const std::string script = plot_script(report, base + ".svg");
  CHECK(script.find("set xtics ('1/s' 0, '3/s' 1)") != std::string::npos);
  CHECK(script.find("$sweep1 << EOD\n0 60.0000 109.0000\n1 60.0000 109.0000\nEOD\n") != std::string::npos);
  if (std::system("gnuplot --version >/dev/null 2>&1") != 0) {
    MESSAGE("SKIP: gnuplot is not installed, so the script was not run");
    return;
  }
  std::ofstream(base + ".gp") << script;
  CHECK(std::system(("gnuplot " + base + ".gp").c_str()) == 0);
  std::ifstream image(base + ".svg");
  const std::string text((std::istreambuf_iterator<char>(image)), std::istreambuf_iterator<char>());
  CHECK(text.find("</svg>") != std::string::npos);
  std::filesystem::remove(base + ".gp");
  std::filesystem::remove(base + ".svg");
}
