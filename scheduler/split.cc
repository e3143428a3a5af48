#include "scheduler/split.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "scheduler/cost.h"

namespace kvrail::scheduler {
namespace {

TimeNs share(TimeNs of_all, std::uint64_t part, std::uint64_t all) noexcept {
  return static_cast<TimeNs>(mul_div(static_cast<std::uint64_t>(std::max<TimeNs>(of_all, 0)), part, all));
}

SplitPoint at(const SplitFacts& facts, std::uint64_t head) noexcept {
  SplitPoint point;
  point.head_blocks = head;
  if (head > 0) {
    point.recompute_ns = std::max<TimeNs>(facts.compute_backlog_ns, 0) +
                         prefill_ns(facts.compute, head * facts.block_tokens, facts.held_tokens);
  }
  if (head < facts.blocks) {
    point.transfer_ns = facts.wait_ns + share(facts.all_blocks_ns, facts.blocks - head, facts.blocks);
  }
  return point;
}

void refuse(CostLine& line, const char* why) noexcept {
  line.allowed = false;
  line.why_not = why;
}

// Whether computing this head takes at least as long as bringing its tail: recompute >= wait + floor(x / n) without the
// division, as floor(x / n) <= y just where x < (y + 1) n.
bool head_is_longer(const SplitFacts& facts, std::uint64_t head) noexcept {
  TimeNs recompute = 0;
  if (head > 0) {
    recompute = std::max<TimeNs>(facts.compute_backlog_ns, 0) +
                prefill_ns(facts.compute, head * facts.block_tokens, facts.held_tokens);
  }
  if (head >= facts.blocks) return true;
  if (recompute < facts.wait_ns) return false;
  const auto all = static_cast<std::uint64_t>(std::max<TimeNs>(facts.all_blocks_ns, 0));
  const auto room = static_cast<std::uint64_t>(recompute - facts.wait_ns) + 1;
  return Wide{all} * (facts.blocks - head) < Wide{room} * facts.blocks;
}

}  // namespace

SplitPoint split_point(const SplitFacts& facts) noexcept {
  KVRAIL_ASSERT(facts.blocks > 0 && facts.block_tokens > 0);
  // The first head that takes at least as long as its tail.
  std::uint64_t low = 0;
  std::uint64_t high = facts.blocks;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (head_is_longer(facts, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const SplitPoint crossed = at(facts, low);
  if (low == 0) return crossed;
  const SplitPoint before = at(facts, low - 1);
  return before.total_ns() <= crossed.total_ns() ? before : crossed;
}

void fill_split_line(const CandidateCost& candidate, const ReceiverFacts& facts, const LossProfile& loss,
                     CostLine& line) noexcept {
  KVRAIL_ASSERT(candidate.medium == Medium::split && may_be_tail(candidate.values));
  CandidateCost whole = candidate;
  whole.medium = candidate.values;
  whole.values = Medium::full;
  fill_line(whole, facts, loss, line);
  line.medium = Medium::split;
  if (!line.allowed) return;
  if (line.blocks < 2 || facts.same_node) return refuse(line, "nothing to divide");
  SplitFacts both;
  both.compute = facts.compute;
  both.compute_backlog_ns = facts.compute_backlog_ns;
  both.block_tokens = facts.block_tokens;
  both.blocks = line.blocks;
  both.held_tokens = facts.total_tokens - std::min(facts.total_tokens, line.blocks * facts.block_tokens);
  both.wait_ns = line.wait_ns;
  both.all_blocks_ns = pipelined_ns(line.encode_ns, line.transmit_ns, line.decode_ns, line.blocks);
  SplitPoint point = split_point(both);
  if (facts.split_wished) point = at(both, std::clamp<std::uint64_t>(point.head_blocks, 1, line.blocks - 1));
  if (point.head_blocks == 0 || point.head_blocks == line.blocks) return refuse(line, "one side alone is faster");
  const std::uint64_t tail = line.blocks - point.head_blocks;
  const TimeNs prefill = prefill_ns(facts.compute, point.head_blocks * facts.block_tokens, both.held_tokens);
  const std::uint64_t compute_price = priced(prefill, facts.compute_price_ppm, facts.compute_arrivals_milli_per_s);
  for (TimeNs* of : {&line.encode_ns, &line.transmit_ns, &line.decode_ns, &line.price_ns}) *of = share(*of, tail, line.blocks);
  line.price_ns += static_cast<TimeNs>(std::min<std::uint64_t>(compute_price, static_cast<std::uint64_t>(kNever) / 8));
  line.bytes = mul_div(line.bytes, tail, line.blocks);
  line.recompute_ns = point.recompute_ns;
  line.head_blocks = point.head_blocks;
}

}  // namespace kvrail::scheduler
