// Decides recorded events again (record.h) and tells where the outcome is another one. Allocates; no part of an engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvrail/base/result.h"

namespace kvrail::scheduler {

struct Replay {
  std::uint64_t records = 0;
  std::uint64_t decisions = 0;   // media chosen
  std::uint64_t steps = 0, actions = 0;
  std::uint64_t rates = 0;       // asked for choices
  std::uint64_t differ = 0;      // outcomes that are others now
  std::string first;             // what the first of these is; empty: none
  bool complete = true;          // false: the recording had no room for all that happened
};

// Refused: no recording, one of another build, or a damaged one.
[[nodiscard]] Result<Replay> replay(std::span<const std::byte> recording);

}  // namespace kvrail::scheduler
