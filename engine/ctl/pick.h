// Which transfer a command line means. Ids are counted by the node where a transfer begins, from 1
// at each of its starts: this node's own ones (out, local) and those of each peer (in) may share an
// id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status_page.h"
#include "kvrail/base/result.h"

namespace kvrail::engine::ctl {

// Decimal ("010" is ten) or 0x and hexadecimal digits; from 1 on, no sign, no blanks.
[[nodiscard]] Result<std::uint64_t> parse_id(std::string_view text);

struct Choice {
  std::optional<std::uint64_t> transfer;  // none: the last one
  std::string way;                        // "in", "out", "local"; empty: any
  std::optional<std::uint64_t> peer;      // the node at the other end; none: any
};

struct Picked {
  const StatusTransfer* row = nullptr;        // none: there is no such transfer
  std::vector<const StatusTransfer*> others;  // of the same id, which the choice leaves open
};

// Of several, the newest that tells why (the receiver's), else the newest. Rows are of `data`.
[[nodiscard]] Picked pick_transfer(const StatusData& data, const Choice& choice);
// One line that says which one is shown and how to choose; empty where there is but one.
[[nodiscard]] std::string ambiguity_text(const Picked& picked);

}  // namespace kvrail::engine::ctl
