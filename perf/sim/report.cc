#include "perf/sim/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include <nlohmann/json.hpp>

namespace kvrail::simulation {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kBarWidth = 40;

Json optional_ms(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json media_of(const Figures& it) {
  Json media = Json::object();
  for (std::size_t i = 0; i < it.chosen.size(); ++i) {
    if (it.chosen[i] > 0) media[std::string(medium_name(static_cast<Medium>(i)))] = it.chosen[i];
  }
  return media;
}

Json json_of(const Figures& it) {
  return Json{{"mean_ms", it.mean_ms},
              {"p50_ms", it.p50_ms},
              {"p99_ms", it.p99_ms},
              {"critical_p99_ms", optional_ms(it.critical_p99_ms)},
              {"bytes", it.bytes},
              {"recompute_s", it.recompute_s},
              {"fidelity", it.fidelity},
              {"jain", it.jain},
              {"slo", it.slo},
              {"jitter", it.jitter},
              {"transfers_per_second", it.per_second},
              {"lane_utilisation", it.lane_utilisation},
              {"gpu_utilisation", it.gpu_utilisation},
              {"queue_ms", it.queue_ms},
              {"worst_agent_queue_ms", it.worst_agent_queue_ms},
              {"flaps", it.flaps},
              {"decisions", it.decisions},
              {"laters", it.laters},
              {"reservations_refused", it.reservations_refused},
              {"media", media_of(it)},
              {"chunk_ms", it.chunk_ms},
              {"trace_hash", fmt::format("{:016x}", it.trace_hash)}};
}

void add_point(const Point& point, Json& out) {
  Json& policies = out["policies"] = Json::object();
  for (const Figures& it : point.policies) policies[it.policy] = json_of(it);
  out["best_choice_mean_ms"] = point.bounds ? Json(point.bounds->best_choice_ms) : Json(nullptr);
  out["clairvoyant_mean_ms"] = point.bounds ? Json(point.bounds->clairvoyant_ms) : Json(nullptr);
}

Json json_of(const MemoryFigures& it) {
  return Json{{"task_mean_ms", it.task_mean_ms},
              {"restore_exposed_ms", it.restore_exposed_ms},
              {"prefetch_wasted", it.prefetch_wasted},
              {"turns", it.turns},
              {"waited", it.waited},
              {"late", it.late},
              {"restored_bytes", it.restored_bytes},
              {"prefetched_bytes", it.prefetched_bytes}};
}

std::string table_of(const MemoryReport& memory) {
  const auto line = [](const char* name, const MemoryFigures& it) {
    return fmt::format("{:<14}{:>10.1f}{:>22.2f}{:>14.3f}{:>10}{:>14.1f}\n", name, it.task_mean_ms, it.restore_exposed_ms,
                       it.prefetch_wasted, it.waited, static_cast<double>(it.restored_bytes) / 1e9);
  };
  return fmt::format("{:<14}{:>10}{:>22}{:>14}{:>10}{:>14}\n", "bounded memory", "task ms", "restore exposed ms", "wasted",
                     "waited", "restored GB") +
         line("on demand", memory.off) + line("prefetch", memory.on) +
         fmt::format("of the wait for restores {:.3f} is hidden\n", memory.restore_hidden());
}

std::string bar(double value, double most) {
  const auto width = static_cast<std::size_t>(value / most * static_cast<double>(kBarWidth) + 0.5);
  return std::string(std::min(width, kBarWidth), '#') + (width > kBarWidth ? "+" : "");
}

std::string line_of(const Figures& it, double scale_ms) {
  const std::string critical = it.critical_p99_ms ? fmt::format("{:.3f}", *it.critical_p99_ms) : "-";
  return fmt::format("{:<14}{:>10.1f}{:>10.1f}{:>11.1f}{:>10}{:>9.1f}{:>9.1f}{:>7.3f}{:>7.3f}{:>6.2f}{:>6.2f}{:>6.2f}{:>10.1f}{:>7}  {}\n",
                     it.policy, it.mean_ms, it.p50_ms, it.p99_ms, critical, static_cast<double>(it.bytes) / 1e9,
                     it.recompute_s, it.fidelity, it.jain, it.slo, it.lane_utilisation, it.gpu_utilisation, it.queue_ms,
                     it.flaps, bar(it.mean_ms, scale_ms));
}

std::string table_of(const Point& point) {
  std::string text = fmt::format("{:<14}{:>10}{:>10}{:>11}{:>10}{:>9}{:>9}{:>7}{:>7}{:>6}{:>6}{:>6}{:>10}{:>7}  mean\n",
                                 point.label.empty() ? "policy" : point.label, "mean ms", "p50", "p99", "crit p99", "GB",
                                 "prefill s", "fid.", "jain", "slo", "lane", "gpu", "queue ms", "flaps");
  // Bars compare what is near the best: others end in a plus.
  double least = std::numeric_limits<double>::infinity();
  for (const Figures& it : point.policies) least = std::min(least, it.mean_ms);
  for (const Figures& it : point.policies) text += line_of(it, std::max(4 * least, 1e-9));
  if (point.bounds) {
    text += fmt::format("best choice {:.1f} ms, clairvoyant {:.1f} ms\n", point.bounds->best_choice_ms, point.bounds->clairvoyant_ms);
  }
  return text;
}

double per_minute(const Report& report) {
  return report.wall_s > 0 ? static_cast<double>(report.transfers) / report.wall_s * 60 : 0;
}

}  // namespace

std::string json_report(const Report& report) {
  Json out;
  out["scenario"] = report.scenario;
  out["seed"] = report.seed;
  add_point(report.main, out);
  if (!report.sweep.empty()) {
    Json& sweep = out["sweep"] = Json::array();
    for (const Point& point : report.sweep) {
      Json& entry = sweep.emplace_back(Json{{"at", point.label}});
      add_point(point, entry);
    }
  }
  if (report.memory) {
    out["prefetch"] = Json{{"restore_exposed_ms", report.memory->on.restore_exposed_ms},
                           {"restore_hidden", report.memory->restore_hidden()},
                           {"prefetch_wasted", report.memory->on.prefetch_wasted},
                           {"off", json_of(report.memory->off)},
                           {"on", json_of(report.memory->on)}};
  }
  out["simulator"] = Json{{"transfers", report.transfers}, {"wall_s", report.wall_s}, {"transfers_per_minute", per_minute(report)}};
  return out.dump(2) + "\n";
}

std::string table_report(const Report& report) {
  std::string text = fmt::format("scenario {}, seed {}\n", report.scenario, report.seed);
  for (const std::string& line : report.arithmetic) text += "  " + line + "\n";
  text += table_of(report.main);
  for (const Point& point : report.sweep) text += table_of(point);
  if (report.memory) text += table_of(*report.memory);
  text += fmt::format("{} transfers in {:.2f} s: {:.0f} a minute\n", report.transfers, report.wall_s, per_minute(report));
  return text;
}

}  // namespace kvrail::simulation
