// The transfers of both nodes, gathered from their status pages while the demo runs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/status_page.h"

namespace kvrail::demo {

/// A transfer as the node saw it that received it (or that both its agents are on).
struct TransferRow {
  int node = 0;  // 0 or 1: whose page it was on
  engine::StatusTransfer data;
};

class TransferLog {
 public:
  /// Takes in what a node's page shows that is new, and what has changed since. Call often enough:
  /// a page keeps the last 256 transfers.
  void collect(int node, const engine::StatusData& page);
  /// Rows that were received or handed over on one node, in order of their end; all that failed.
  [[nodiscard]] const std::vector<TransferRow>& rows() const noexcept { return rows_; }
  /// Transfers that came and went between two looks.
  [[nodiscard]] std::uint64_t missed() const noexcept { return missed_; }
  /// Payload bytes that moved between the nodes for a task.
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t task) const;
  void clear();

 private:
  struct Seen {
    std::uint64_t count = 0;                                // transfers ever ended on that node
    std::unordered_map<std::uint64_t, std::size_t> recent;  // serial -> row
  };
  std::vector<TransferRow> rows_;
  std::array<Seen, 2> seen_;
  std::uint64_t missed_ = 0;
};

/// "coordinator@A": node 0 is A.
[[nodiscard]] std::string place_of(const TransferRow& row, bool sender);
/// Predicted and observed time until the receiver could use it, recompute included.
[[nodiscard]] double predicted_ms(const engine::StatusTransfer& row) noexcept;
[[nodiscard]] double observed_ms(const engine::StatusTransfer& row) noexcept;
/// Why the engine chose the medium: the reason, and what the others would have cost.
[[nodiscard]] std::string reason_of(const engine::StatusTransfer& row);
/// One line for people; header() names the columns.
[[nodiscard]] std::string line_of(const TransferRow& row);
[[nodiscard]] std::string line_header();

[[nodiscard]] std::string text_of_bytes(std::uint64_t bytes);

}  // namespace kvrail::demo
