#include "perf/sim/plot.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvrail::simulation {
namespace {

// A quoted string of gnuplot: names are the user's.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string distribution_data(const Point& point) {
  std::string text;
  for (std::size_t i = 0; i < point.policies.size(); ++i) {
    text += fmt::format("$latency{} << EOD\n", i);
    const auto& quantiles = point.policies[i].quantiles_ms;
    for (std::size_t q = 0; q < quantiles.size(); ++q) {
      text += fmt::format("{:.4f} {:.2f}\n", std::max(quantiles[q], 1e-3), static_cast<double>(q) / 100);
    }
    text += "EOD\n";
  }
  return text;
}

std::string lines_of(const Point& point, const char* data, const char* columns) {
  std::string text = "plot ";
  for (std::size_t i = 0; i < point.policies.size(); ++i) {
    const Figures& it = point.policies[i];
    text += fmt::format("{}${}{} using {} with lines lw {} title {}", i == 0 ? "" : ", ", data, i, columns,
                        it.policy == "kvrail" ? 3 : 1, quoted(it.policy));
  }
  return text + "\n";
}

// One block a policy: number of the point, mean, 99th percentile.
std::string sweep_data(const Report& report) {
  std::string text;
  for (std::size_t i = 0; i < report.main.policies.size(); ++i) {
    text += fmt::format("$sweep{} << EOD\n", i);
    for (std::size_t at = 0; at < report.sweep.size(); ++at) {
      if (i >= report.sweep[at].policies.size()) continue;
      const Figures& it = report.sweep[at].policies[i];
      text += fmt::format("{} {:.4f} {:.4f}\n", at, std::max(it.mean_ms, 1e-3), std::max(it.p99_ms, 1e-3));
    }
    text += "EOD\n";
  }
  return text;
}

std::string ticks_of(const Report& report) {
  std::string text = "set xtics (";
  for (std::size_t at = 0; at < report.sweep.size(); ++at) {
    text += fmt::format("{}{} {}", at == 0 ? "" : ", ", quoted(report.sweep[at].label), at);
  }
  return text + ")\n";
}

}  // namespace

std::string plot_script(const Report& report, const std::string& image) {
  const bool sweep = !report.sweep.empty();
  std::string text = fmt::format("set terminal svg size 900,{} dynamic background 'white'\nset output {}\n", sweep ? 1400 : 500, quoted(image));
  text += distribution_data(report.main);
  if (sweep) text += sweep_data(report);
  text += fmt::format("set multiplot layout {},1 title {} noenhanced\nset key outside right noenhanced\nset grid\n", sweep ? 3 : 1,
                      quoted(fmt::format("{}, seed {}", report.scenario, report.seed)));
  text += "set logscale x\nset xlabel 'latency, ms'\nset ylabel 'share at most so late'\nset yrange [0:1]\n";
  text += lines_of(report.main, "latency", "1:2");
  if (sweep) {
    text += "unset logscale x\nset logscale y\nset yrange [*:*]\nset xlabel ''\n" + ticks_of(report);
    text += "set ylabel 'mean latency, ms'\n" + lines_of(report.main, "sweep", "1:2");
    text += "set ylabel '99th percentile, ms'\n" + lines_of(report.main, "sweep", "1:3");
  }
  return text + "unset multiplot\n";
}

}  // namespace kvrail::simulation
