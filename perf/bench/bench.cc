#include "perf/bench/bench.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvrail::bench {

double Samples::quantile(double q) const {
  if (values.empty()) return 0;
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<std::size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)));
  return sorted[rank];
}

void Report::add(Case line) {
  std::fprintf(stderr, "  %s: %.4g %s%s\n", line.name.c_str(), line.value, line.unit.c_str(),
               line.baseline.empty() ? "" : (", ratio " + std::to_string(line.ratio)).c_str());
  cases_.push_back(std::move(line));
}

void Report::compare(std::string name, std::string unit, Better better, std::string baseline,
                     std::optional<double> goal, const std::function<double()>& ours,
                     const std::function<double()>& base, int pairs) {
  Samples mine;
  Samples theirs;
  Samples ratios;
  for (int i = 0; i < std::min(pairs, most_pairs_); ++i) {
    // Who goes first alternates, so that a drift of the machine favours neither.
    const double first = i % 2 == 0 ? ours() : base();
    const double second = i % 2 == 0 ? base() : ours();
    const double a = i % 2 == 0 ? first : second;
    const double b = i % 2 == 0 ? second : first;
    mine.values.push_back(a);
    theirs.values.push_back(b);
    ratios.values.push_back(better == Better::higher ? a / b : b / a);
  }
  Case line;
  line.name = std::move(name);
  line.unit = std::move(unit);
  line.value = mine.median();
  line.low = mine.quantile(0.1);
  line.high = mine.quantile(0.9);
  line.baseline = std::move(baseline);
  line.baseline_value = theirs.median();
  line.ratio = ratios.median();
  line.ratio_low = ratios.quantile(0.1);
  line.ratio_high = ratios.quantile(0.9);
  if (goal) {
    char text[32];
    std::snprintf(text, sizeof(text), ">= %.2f", *goal);
    line.to_reach = text;
    line.reached = line.ratio >= *goal;
  }
  add(std::move(line));
}

void Report::measure(std::string name, std::string unit, std::optional<double> most,
                     const std::function<double()>& ours, int runs) {
  Samples mine;
  for (int i = 0; i < std::min(runs, most_pairs_); ++i) mine.values.push_back(ours());
  Case line;
  line.name = std::move(name);
  line.unit = std::move(unit);
  line.value = mine.median();
  line.low = mine.quantile(0.1);
  line.high = mine.quantile(0.9);
  add(std::move(line));
  if (most) at_most(*most);
}

void Report::require(const char* relation, double limit, bool reached) {
  char text[32];
  std::snprintf(text, sizeof(text), "%s %.4g", relation, limit);
  cases_.back().to_reach = text;
  cases_.back().reached = reached;
}

void Report::at_most(double limit) { require("<=", limit, cases_.back().value <= limit); }
void Report::at_least(double limit) { require(">=", limit, cases_.back().value >= limit); }

void Report::skip(std::string name, std::string reason) {
  std::fprintf(stderr, "  %s: skipped, %s\n", name.c_str(), reason.c_str());
  skipped_.emplace_back(std::move(name), std::move(reason));
}

void Report::fail(std::string name, std::string reason) {
  std::fprintf(stderr, "  %s: FAILED, %s\n", name.c_str(), reason.c_str());
  skipped_.emplace_back(std::move(name), "failed: " + std::move(reason));
  failed_ = true;
}

void Report::note(const std::string& text) {
  if (cases_.empty()) return;
  std::string& note = cases_.back().note;
  note += (note.empty() ? "" : "; ") + text;
}

std::string Report::table() const {
  std::string out = machine_card() + "\n\n";
  char line[512];
  std::snprintf(line, sizeof(line), "%-46s %12s %10s  %-28s %12s %7s %15s  %s\n", "case", "value", "unit", "baseline",
                "its value", "ratio", "10%..90%", "to reach");
  out += line;
  for (const Case& c : cases_) {
    char ratio[64] = "";
    char spread[64] = "";
    char base[64] = "";
    if (c.baseline.empty()) {
      std::snprintf(spread, sizeof(spread), "%.3g..%.3g", c.low, c.high);
    } else {
      std::snprintf(ratio, sizeof(ratio), "%.2f", c.ratio);
      std::snprintf(spread, sizeof(spread), "%.2f..%.2f", c.ratio_low, c.ratio_high);
      std::snprintf(base, sizeof(base), "%.4g", c.baseline_value);
    }
    std::snprintf(line, sizeof(line), "%-46s %12.4g %10s  %-28s %12s %7s %15s  %s%s%s\n", c.name.c_str(), c.value,
                  c.unit.c_str(), c.baseline.c_str(), base, ratio, spread, c.to_reach.c_str(),
                  !c.reached ? "" : (*c.reached ? "  yes" : "  NO"), c.note.empty() ? "" : ("  " + c.note).c_str());
    out += line;
  }
  for (const auto& [name, reason] : skipped_) out += name + ": skipped, " + reason + "\n";
  return out;
}

std::string Report::json() const {
  nlohmann::ordered_json root;
  root["machine"] = machine_card();
  root["cases"] = nlohmann::ordered_json::array();
  for (const Case& c : cases_) {
    nlohmann::ordered_json item{{"name", c.name},
                                {"unit", c.unit},
                                {"value", c.value},
                                {"baseline", c.baseline},
                                {"baseline_value", c.baseline_value},
                                {"ratio", c.ratio},
                                {"to_reach", c.to_reach},
                                {"value_10_90", {c.low, c.high}},
                                {"ratio_10_90", {c.ratio_low, c.ratio_high}}};
    if (c.reached) item["reached"] = *c.reached;
    if (!c.note.empty()) item["note"] = c.note;
    root["cases"].push_back(std::move(item));
  }
  for (const auto& [name, reason] : skipped_) root["skipped"].push_back({{"name", name}, {"reason", reason}});
  return root.dump(2);
}

namespace {

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  // The process's own mask: a thread that was pinned before must not shrink it.
  if (::sched_getaffinity(::getpid(), sizeof(set), &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

int core_number(unsigned n) {
  static const std::vector<int> cores = usable_cores();
  return cores[n % cores.size()];
}

unsigned core_count() { return static_cast<unsigned>(usable_cores().size()); }

void pin_to_core(unsigned n) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(core_number(n)), &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) std::perror("cannot pin a thread; figures are unpinned");
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string machine_card() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      model = line.substr(line.find(':') + 2);
      break;
    }
  }
  utsname system{};
  ::uname(&system);
  double load = 0;
  char busy[32] = "";
  if (::getloadavg(&load, 1) == 1) std::snprintf(busy, sizeof(busy), ", load %.1f", load);
  return model + ", " + std::to_string(core_count()) + " cores usable, " + system.sysname + " " + system.release + busy;
}

}  // namespace kvrail::bench
