#include "perf/demo/transfer_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/medium_choice.h"

namespace kvrail::demo {
namespace {

using engine::StatusCostLine;
using engine::StatusDirection;
using engine::StatusTransfer;

bool is_ours(const StatusTransfer& row) noexcept {
  return row.serial != 0 && (row.direction != StatusDirection::out || !row.status.ok());
}

double to_ms(std::int64_t ns) noexcept {
  return static_cast<double>(ns) / 1e6;
}

std::vector<const StatusCostLine*> lines_of(const StatusTransfer& row) {
  std::vector<const StatusCostLine*> lines;
  const auto count = std::min<std::size_t>(row.line_count, engine::kStatusCostLines);
  for (std::size_t i = 0; i < count; ++i) lines.push_back(&row.lines[i]);
  return lines;
}

// "int8 52.1 ms against tokens 304.6, full 775.7": what the receiver compared, prices included.
std::string comparison(const StatusTransfer& row) {
  std::string chosen;
  std::string rest;
  std::vector<const StatusCostLine*> lines = lines_of(row);
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto* a, const auto* b) { return a->cost_ns < b->cost_ns; });
  for (const StatusCostLine* line : lines) {
    const std::string_view medium = medium_name(line->medium);
    if (line->chosen != 0) {
      chosen = fmt::format("{} {:.1f} ms", medium, to_ms(line->cost_ns));
      continue;
    }
    rest += rest.empty() ? "" : ", ";
    rest += line->allowed != 0 ? fmt::format("{} {:.1f}", medium, to_ms(line->cost_ns))
                               : fmt::format("{} (not: {})", medium, line->why_not);
  }
  return rest.empty() ? chosen : chosen + " against " + rest;
}

}  // namespace

void TransferLog::collect(int node, const engine::StatusData& page) {
  Seen& seen = seen_[static_cast<std::size_t>(node)];
  const std::uint64_t fresh = page.transfer_count - std::min(page.transfer_count, seen.count);
  if (fresh > engine::kStatusTransfers) missed_ += fresh - engine::kStatusTransfers;
  seen.count = std::max(seen.count, page.transfer_count);
  std::vector<const StatusTransfer*> news;
  for (const StatusTransfer& row : page.transfers) {
    if (!is_ours(row)) continue;
    if (const auto known = seen.recent.find(row.serial); known != seen.recent.end()) {
      rows_[known->second].data = row;  // the cost of a recompute comes with the release
    } else {
      news.push_back(&row);
    }
  }
  std::sort(news.begin(), news.end(),
            [](const auto* a, const auto* b) { return a->serial < b->serial; });
  for (const StatusTransfer* row : news) {
    seen.recent.emplace(row->serial, rows_.size());
    rows_.push_back({node, *row});
  }
}

std::uint64_t TransferLog::bytes_of(std::uint64_t task) const {
  std::uint64_t bytes = 0;
  for (const TransferRow& row : rows_) {
    if (row.data.task == task && row.data.direction == StatusDirection::in) bytes += row.data.bytes;
  }
  return bytes;
}

void TransferLog::clear() {
  rows_.clear();
  seen_ = {};
  missed_ = 0;
}

std::string place_of(const TransferRow& row, bool sender) {
  const bool here = row.data.direction == StatusDirection::local ||
                    (row.data.direction == StatusDirection::out) == sender;
  const int node = here ? row.node : 1 - row.node;
  return std::string((sender ? row.data.from : row.data.to).view()) + (node == 0 ? "@A" : "@B");
}

double predicted_ms(const StatusTransfer& row) noexcept {
  return to_ms(row.predicted_ns);
}

double observed_ms(const StatusTransfer& row) noexcept {
  return to_ms(row.observed_ns + std::max<std::int64_t>(row.recompute_ns, 0));
}

std::string reason_of(const StatusTransfer& row) {
  if (!row.status.ok()) return fmt::format("FAILED: {}", name(row.status.code));
  if (row.direction == StatusDirection::local) return "same node: a reference, nothing moves";
  if (row.wish != Medium::automatic) return "asked for by the sender";
  switch (static_cast<scheduler::PickReason>(row.reason)) {
    case scheduler::PickReason::least_cost:
      return "least cost: " + comparison(row);
    case scheduler::PickReason::kept_by_hysteresis:
      return "kept, another would gain too little: " + comparison(row);
    case scheduler::PickReason::only_one:
      return "the only one possible";
    case scheduler::PickReason::wished:
      return "asked for by the sender";
    case scheduler::PickReason::none_allowed:
      break;
  }
  return "";
}

std::string text_of_bytes(std::uint64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(bytes) / 1e3);
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

std::string line_header() {
  return fmt::format("  {:<14} {:<14} {:>5} {:<25} {:<7} {:>7} {:>9} {:>10} {:>10}  {}", "from",
                     "to", "task", "context@version", "medium", "missing", "bytes", "predicted",
                     "observed", "why");
}

std::string line_of(const TransferRow& row) {
  const StatusTransfer& data = row.data;
  return fmt::format("  {:<14} {:<14} {:>5} {:<25} {:<7} {:>7} {:>9} {:>7.1f} ms {:>7.1f} ms  {}{}",
                     place_of(row, true), place_of(row, false), data.task & 0xFFFFU,
                     fmt::format("{}@{}", data.context.view(), data.version),
                     medium_name(data.medium),
                     fmt::format("{}/{}", data.missing_blocks, data.total_blocks),
                     text_of_bytes(data.bytes), predicted_ms(data), observed_ms(data),
                     data.critical != 0 ? "critical, " : "", reason_of(data));
}

}  // namespace kvrail::demo
