// What each status of a work completion means for us: one row each, and a test that walks them all.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "kvrail/base/status.h"

namespace kvrail::transport::verbs {

enum class Blame : std::uint8_t {
  none,     // it worked
  follows,  // flushed: another completion, or we ourselves, broke the queue pair before
  path,     // the peer or the way to it is gone
  peer,     // the peer refused what we asked: its key was revoked, or it has no receive posted
  own,      // we asked for something malformed: a fault of ours, contained to the lane
  device,   // the device itself failed
};

struct CompletionRule {
  Blame blame = Blame::device;
  Scope scope = Scope::lane;  // how much is dead
};

/// Every status has a row; one that this program does not know counts as the device's failure.
[[nodiscard]] CompletionRule rule_of(ibv_wc_status status) noexcept;

}  // namespace kvrail::transport::verbs
