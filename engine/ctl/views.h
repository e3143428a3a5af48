// What kvrailctl shows of a status page, as text or JSON.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/status_page.h"

namespace kvrail::engine::ctl {

enum class View : std::uint8_t { status, agents, lanes, peers, tasks, transfers, reservations, contexts, tiers, prefetch };

// Lines for a person, ending with a newline.
[[nodiscard]] std::string text_of(const StatusData& data, View view);
[[nodiscard]] std::string text_of(const StatusData& data, const StatusTransfer& transfer);
// One JSON document.
[[nodiscard]] std::string json_of(const StatusData& data, View view);
[[nodiscard]] std::string json_of(const StatusData& data, const StatusTransfer& transfer);

// Rows that are in use, oldest first. A task or transfer ring shows its newest entries.
template <class Visit>
void for_each_transfer(const StatusData& data, Visit visit) {
  const std::uint64_t first =
      data.transfer_count > kStatusTransfers ? data.transfer_count - kStatusTransfers : 0;
  for (std::uint64_t serial = first; serial <= data.transfer_count; ++serial) {
    const StatusTransfer& row = data.transfers[serial % kStatusTransfers];
    if (row.serial == serial && serial != 0) visit(row);
  }
}
template <class Visit>
void for_each_task(const StatusData& data, Visit visit) {
  for (const StatusTask& row : data.tasks) {
    if (row.task != 0) visit(row);
  }
}

// "0x" and 16 digits, as parse_id() takes it back; 0 is "local".
[[nodiscard]] std::string node_text(std::uint64_t node);
[[nodiscard]] const char* place_name(StatusPlace place) noexcept;
[[nodiscard]] const char* step_name(StatusExpected::Step step) noexcept;
[[nodiscard]] const char* tier_state_name(std::uint8_t state) noexcept;  // TierState
[[nodiscard]] const char* direction_name(StatusDirection direction) noexcept;
[[nodiscard]] const char* reason_name(std::uint8_t reason) noexcept;  // scheduler::PickReason

}  // namespace kvrail::engine::ctl
