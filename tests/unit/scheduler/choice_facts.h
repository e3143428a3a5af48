// An 8B model's context of 1,000 tokens, and what both sides know of it: what tests of the choice begin with.
#pragma once

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "scheduler/cost.h"
#include "scheduler/medium_choice.h"

namespace kvrail::scheduler::testing {

inline Layout layout_8b() {
  Layout layout;
  layout.layers = 32;
  layout.kv_heads = 8;
  layout.head_dim = 128;
  return layout;
}

// 8.25 bits a value, of 64 and of 40 tokens.
inline constexpr std::uint64_t kInt8BlockBytes = 64 * 65'536 * 33 / 32;
inline constexpr std::uint64_t kInt8TailBytes = 40 * 65'536 * 33 / 32;

inline SenderFacts sender_facts() {
  SenderFacts facts;
  facts.layout = layout_8b();
  facts.total_tokens = 1000;
  facts.believed_missing_tokens = 1000;
  facts.receiver_accepts = facts.sender_can = ~MediumMask{0};
  facts.lane_rate_bytes_per_s = 1'250'000'000;
  facts.round_trip_ns = 100'000;
  facts.coded[static_cast<std::size_t>(Medium::int8)] = {kInt8BlockBytes, kInt8TailBytes, 500'000};
  return facts;
}

inline ReceiverFacts receiver_facts() {
  ReceiverFacts facts;
  facts.pair_key = 42;
  facts.total_tokens = 1000;
  facts.missing_full_blocks = 15;
  facts.missing_tail = true;
  facts.missing_tail_bytes = 40 * layout_8b().token_bytes();
  facts.compute = {1'000'000, 40'000, 687'194, 10'000'000};
  facts.decode_ns_per_block[static_cast<std::size_t>(Medium::int8)] = 300'000;
  facts.lease_bytes_free = std::uint64_t{1} << 34;
  facts.block_slot_bytes = layout_8b().block_bytes();
  return facts;
}

inline std::vector<CandidateCost> offer(const SenderFacts& facts) {
  std::array<CandidateCost, kMaxCandidates> out;
  const char* why = nullptr;
  const std::size_t count = candidates(facts, LossProfile::built_in(), out, &why);
  return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count)};
}

inline const CandidateCost* find(const std::vector<CandidateCost>& all, Medium medium) {
  for (const CandidateCost& it : all) {
    if (it.medium == medium) return &it;
  }
  return nullptr;
}
inline const CostLine& line_of(const Pick& pick, Medium medium) {
  for (std::size_t i = 0; i < pick.line_count; ++i) {
    if (pick.lines[i].medium == medium) return pick.lines[i];
  }
  FAIL("no such line");
  return pick.lines[0];
}
inline Medium chosen(const Pick& pick) {
  return pick.index < 0 ? Medium::automatic
                        : pick.lines[static_cast<std::size_t>(pick.index)].medium;
}

// Two media whose costs a test sets directly: both travel as fixed bytes at 1 GB/s.
inline CandidateCost fixed_ns(Medium medium, std::uint64_t ns) {
  CandidateCost it;
  it.medium = medium;
  it.wait_ns = ns;
  it.fixed_bytes = 1;
  it.rate_bytes_per_s = 1'000'000'000;
  return it;
}

}  // namespace kvrail::scheduler::testing
