#include "perf/demo/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "perf/demo/note.h"

namespace kvrail::demo {
namespace {

using engine::StatusDirection;

bool is_note(const TransferRow& row) {
  return row.data.context.view().starts_with(kNotePrefix);
}

PolicyResult summarise_policy(std::size_t policy, const std::vector<TaskResult>& tasks,
                              const TransferLog& log) {
  PolicyResult out;
  std::unordered_set<std::uint64_t> ids;
  std::vector<double> latencies;
  for (const TaskResult& task : tasks) {
    if (task.policy != policy) continue;
    latencies.push_back(static_cast<double>(task.latency_ns) / 1e6);
    ids.insert(task.task);
    out.right += task.right;
    out.asked += task.asked;
  }
  for (const TransferRow& row : log.rows()) {
    if (row.data.direction == StatusDirection::in && ids.contains(row.data.task))
      out.bytes += row.data.bytes;
  }
  out.n = latencies.size();
  out.p50_ms = quantile(latencies, 0.5);
  out.p95_ms = quantile(latencies, 0.95);
  return out;
}

double rounded(double value) {
  return std::round(value * 1000) / 1000;
}
double rounded_ms(std::int64_t ns) {
  return rounded(static_cast<double>(ns) / 1e6);
}

// What the receiver weighed, part by part.
nlohmann::ordered_json json_of(const engine::StatusCostLine& line) {
  nlohmann::ordered_json out;
  out["medium"] = medium_name(line.medium);
  out["allowed"] = line.allowed != 0;
  out["bytes"] = line.bytes;
  out["wait_ms"] = rounded_ms(line.wait_ns);
  out["encode_ms"] = rounded_ms(line.encode_ns);
  out["transmit_ms"] = rounded_ms(line.transmit_ns);
  out["decode_ms"] = rounded_ms(line.decode_ns);
  out["recompute_ms"] = rounded_ms(line.recompute_ns);
  out["loss_ms"] = rounded_ms(line.loss_ns);
  out["price_ms"] = rounded_ms(line.price_ns);
  out["total_ms"] = rounded_ms(line.total_ns);
  out["cost_ms"] = rounded_ms(line.cost_ns);
  return out;
}

nlohmann::ordered_json json_of(const JsonTransfer& transfer) {
  const engine::StatusTransfer& data = transfer.row.data;
  nlohmann::ordered_json out;
  out["rate"] = transfer.rate;
  out["from"] = place_of(transfer.row, true);
  out["to"] = place_of(transfer.row, false);
  out["task"] = data.task;
  out["context"] = data.context.view();
  out["version"] = data.version;
  out["medium"] = medium_name(data.medium);
  out["missing_blocks"] = data.missing_blocks;
  out["total_blocks"] = data.total_blocks;
  out["bytes"] = data.bytes;
  out["predicted_ms"] = rounded(predicted_ms(data));
  out["observed_ms"] = rounded(observed_ms(data));
  out["critical"] = data.critical != 0;
  out["ok"] = data.status.ok();
  out["why"] = reason_of(data);
  out["costs"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < std::min<std::size_t>(data.line_count, engine::kStatusCostLines);
       ++i) {
    out["costs"].push_back(json_of(data.lines[i]));
  }
  return out;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

std::string rate_name(std::uint64_t rate_bytes_per_s) {
  const double bits = static_cast<double>(rate_bytes_per_s) * 8;
  if (bits >= 1e9) return fmt::format("{:g} Gbit/s", bits / 1e9);
  return bits >= 1e6 ? fmt::format("{:g} Mbit/s", bits / 1e6)
                     : fmt::format("{:g} kbit/s", bits / 1e3);
}

RateResult summarise(std::string name, std::uint64_t rate_bytes_per_s,
                     const std::vector<TaskResult>& tasks, const TransferLog& log) {
  RateResult out;
  out.name = std::move(name);
  out.rate_bytes_per_s = rate_bytes_per_s;
  for (std::size_t i = 0; i < kPolicies.size(); ++i)
    out.policies[i] = summarise_policy(i, tasks, log);
  std::unordered_set<std::uint64_t> adaptive;
  for (const TaskResult& task : tasks) {
    if (kPolicies[task.policy].medium == Medium::automatic) adaptive.insert(task.task);
  }
  for (const TransferRow& row : log.rows()) {
    if (!row.data.status.ok()) ++out.failed_transfers;
    const bool counts = row.data.direction == StatusDirection::in && !is_note(row) &&
                        adaptive.contains(row.data.task);
    if (counts) ++out.adaptive_media[static_cast<std::size_t>(row.data.medium) % kMediumCount];
  }
  return out;
}

std::string table_of(const RateResult& rate) {
  std::string text = fmt::format("\n  {:<10} {:>10} {:>10} {:>5} {:>14} {:>10}\n", rate.name, "p50",
                                 "p95", "n", "bytes/task", "accuracy");
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    const PolicyResult& policy = rate.policies[i];
    if (policy.n == 0) continue;  // not run
    text +=
        fmt::format("  {:<10} {:>7.1f} ms {:>7.1f} ms {:>5} {:>14} {:>10.4f}\n", kPolicies[i].name,
                    policy.p50_ms, policy.p95_ms, policy.n,
                    text_of_bytes(policy.n == 0 ? 0 : policy.bytes / policy.n), policy.accuracy());
  }
  std::string media;
  for (std::size_t i = 0; i < kMediumCount; ++i) {
    if (rate.adaptive_media[i] == 0) continue;
    media += fmt::format("{}{} {}", media.empty() ? "" : ", ", medium_name(static_cast<Medium>(i)),
                         rate.adaptive_media[i]);
  }
  return text + fmt::format("  adaptive moved contexts between the nodes as: {}\n",
                            media.empty() ? "nothing" : media);
}

std::string forecast_line(const TransferLog& log, const std::vector<std::uint64_t>& tasks) {
  const std::unordered_set<std::uint64_t> ids(tasks.begin(), tasks.end());
  std::vector<double> ratios;
  for (const TransferRow& row : log.rows()) {
    const bool counts = row.data.direction == StatusDirection::in && !is_note(row) &&
                        ids.contains(row.data.task) && row.data.predicted_ns > 0 &&
                        row.data.status.ok();
    if (counts) ratios.push_back(observed_ms(row.data) / predicted_ms(row.data));
  }
  if (ratios.empty()) return "";
  return fmt::format(
      "  observed / predicted latency of these: median {:.2f}, 10th to 90th percentile {:.2f} to "
      "{:.2f}\n",
      quantile(ratios, 0.5), quantile(ratios, 0.1), quantile(ratios, 0.9));
}

std::string result_json(const std::vector<RateResult>& rates,
                        const std::vector<JsonTransfer>& transfers) {
  nlohmann::ordered_json out;
  out["rates"] = nlohmann::ordered_json::array();
  for (const RateResult& rate : rates) {
    nlohmann::ordered_json policies;
    for (std::size_t i = 0; i < kPolicies.size(); ++i) {
      const PolicyResult& policy = rate.policies[i];
      policies[std::string(kPolicies[i].name)] = {{"n", policy.n},
                                                  {"p50_ms", policy.p50_ms},
                                                  {"p95_ms", policy.p95_ms},
                                                  {"bytes", policy.bytes},
                                                  {"accuracy", policy.accuracy()}};
    }
    out["rates"].push_back(
        {{"name", rate.name}, {"rate_bytes_per_s", rate.rate_bytes_per_s}, {"policies", policies}});
  }
  out["transfers"] = nlohmann::ordered_json::array();
  for (const JsonTransfer& transfer : transfers) out["transfers"].push_back(json_of(transfer));
  return out.dump(1) + "\n";
}

}  // namespace kvrail::demo
