#include "engine/ctl/pick.h"

#include <charconv>

#include "engine/ctl/views.h"

namespace kvrail::engine::ctl {
namespace {

std::string where_text(const StatusTransfer& row) {
  switch (row.direction) {
    case StatusDirection::local:
      return "local";
    case StatusDirection::in:
      return "in from " + node_text(row.peer_node);
    case StatusDirection::out:
      return "out to " + node_text(row.peer_node);
  }
  return "?";
}

}  // namespace

Result<std::uint64_t> parse_id(std::string_view text) {
  const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  const std::string_view digits = text.substr(hexadecimal ? 2 : 0);
  std::uint64_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, value, hexadecimal ? 16 : 10);
  if (error != std::errc{} || stopped != end || value == 0) {
    return Error{{Code::invalid_argument},
                 std::string("'").append(text).append(
                     "' is no id: give a whole number from 1 to 2^64-1, decimal or as 0x...")};
  }
  return value;
}

Picked pick_transfer(const StatusData& data, const Choice& choice) {
  Picked picked;
  for_each_transfer(data, [&](const StatusTransfer& row) {
    if (choice.transfer && row.transfer != *choice.transfer) return;
    if (!choice.way.empty() && choice.way != direction_name(row.direction)) return;
    if (choice.peer && row.peer_node != *choice.peer) return;
    const bool better = picked.row == nullptr || !choice.transfer || row.line_count > 0 ||
                        picked.row->line_count == 0;
    const StatusTransfer* const other = better ? picked.row : &row;
    if (better) picked.row = &row;
    if (choice.transfer && other != nullptr) picked.others.push_back(other);
  });
  return picked;
}

std::string ambiguity_text(const Picked& picked) {
  if (picked.row == nullptr || picked.others.empty()) return {};
  std::string others;
  for (const StatusTransfer* row : picked.others)
    others += (others.empty() ? "" : ", ") + where_text(*row);
  return std::to_string(picked.others.size() + 1) + " transfers have the id " +
         std::to_string(picked.row->transfer) + "; this is the one " + where_text(*picked.row) +
         ", others are " + others + ": choose with --way and --peer, the newest is shown";
}

}  // namespace kvrail::engine::ctl
