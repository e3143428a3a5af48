// The medium split: the receiver recomputes the head of a context while its tail arrives. Prefill is causal, so the
// head is what can be computed alone, and the cheapest part (docs/scheduling.md, "Split").
#pragma once

#include <cstdint>
#include <span>

#include "kvrail/base/time.h"
#include "scheduler/medium_choice.h"

namespace kvrail::scheduler {

// What both sides of a split take of `blocks` missing blocks that follow `held_tokens` which are there.
struct SplitFacts {
  ComputeProfile compute;
  TimeNs compute_backlog_ns = 0;  // before the first token can be computed
  std::uint64_t held_tokens = 0, block_tokens = 64;
  std::uint64_t blocks = 0;
  TimeNs wait_ns = 0;             // until the first byte arrives
  TimeNs all_blocks_ns = 0;       // what all of them take from then on: the slowest stage
};
struct SplitPoint {
  std::uint64_t head_blocks = 0;  // to be computed; the others are to come
  TimeNs recompute_ns = 0, transfer_ns = 0;
  [[nodiscard]] TimeNs total_ns() const noexcept { return recompute_ns > transfer_ns ? recompute_ns : transfer_ns; }
};

// The least of max(recompute(h), transfer(blocks - h)) over whole blocks h in [0, blocks]. recompute rises with h and
// transfer falls, so the least lies where they cross: methods of a root are not needed, some halvings are exact.
[[nodiscard]] SplitPoint split_point(const SplitFacts& facts) noexcept;

// As fill_line() and with its meaning, of a candidate split whose tail comes as `candidate.values`.
void fill_split_line(const CandidateCost& candidate, const ReceiverFacts& facts, const LossProfile& loss,
                     CostLine& fresh) noexcept;

// Whether the tail of a split may come so: block after block, and as good as if all had come so.
[[nodiscard]] constexpr bool may_be_tail(Medium medium) noexcept {
  return medium == Medium::full || (is_coded(medium) && medium != Medium::lowrank);
}

}  // namespace kvrail::scheduler
