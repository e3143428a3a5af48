#include "scheduler/cost.h"

#include "kvrail/base/bits.h"
#include "scheduler/split.h"

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kMostNs =
    static_cast<std::uint64_t>(kNever) / 8;  // eight terms still add up
constexpr std::uint64_t kSummaryBytesPerToken = 4;

TimeNs bounded(std::uint64_t ns) noexcept {
  return static_cast<TimeNs>(std::min(ns, kMostNs));
}
TimeNs product_ns(std::uint64_t a, std::uint64_t b) noexcept {
  return bounded(mul_div(a, b, 1));
}

bool takes_lease(Medium medium) noexcept {
  return medium != Medium::tokens && medium != Medium::summary && medium != Medium::reference;
}

struct Missing {
  std::uint64_t full_blocks = 0;
  bool tail = false;
  [[nodiscard]] std::uint64_t blocks() const noexcept { return full_blocks + (tail ? 1 : 0); }
};

// What the rows are coded as.
Medium rows_medium(const CandidateCost& it) noexcept { return is_sparse(it.medium) ? it.values : it.medium; }

Missing missing_for(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  if (is_sparse(it.medium)) return {it.rows / facts.block_tokens, it.rows % facts.block_tokens != 0};
  const ReceiverFacts::Lossy* best = nullptr;
  for (const ReceiverFacts::Lossy& entry : facts.lossy) {
    const bool fits = is_coded(it.medium) && entry.epsilon_ppm != 0 && entry.epsilon_ppm <= it.epsilon_ppm;
    if (fits && (best == nullptr || entry.epsilon_ppm > best->epsilon_ppm)) best = &entry;
  }
  if (best != nullptr) return {best->missing_full_blocks, best->missing_tail};
  return {facts.missing_full_blocks, facts.missing_tail};
}

std::uint64_t moved_bytes(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  // Same node: a descriptor and a reference count.
  if (it.medium == Medium::full && facts.same_node) return 0;
  if (!is_delta(it.medium)) return it.fixed_bytes;
  const Missing missing = missing_for(it, facts);
  if (missing.blocks() == 0 && is_coded(it.medium)) return 0;
  std::uint64_t bytes = it.fixed_bytes + mul_div(it.block_bytes, missing.full_blocks, 1);
  if (missing.tail)
    bytes += it.medium == Medium::full ? facts.missing_tail_bytes : it.tail_bytes;
  return bytes;
}

// ε of the context after delivery. Independent losses add; what is held already counts by the
// larger, as its tokens are other ones. Recomputing from tokens inherits only the held prefix.
std::uint64_t resulting_epsilon(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  const std::uint64_t held =
      facts.held_tokens > 0 && is_delta(it.medium) ? facts.held_epsilon_ppm : 0;
  const bool from_text = it.medium == Medium::tokens || it.medium == Medium::summary;
  return std::max(held, std::uint64_t{it.epsilon_ppm} + (from_text ? 0 : facts.source_epsilon_ppm));
}

// Tokens that the receiver must compute before it can use the delivery, on top of `held`.
std::uint64_t recomputed_tokens(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  if (it.medium == Medium::tokens)
    return facts.total_tokens - std::min(facts.held_tokens, facts.total_tokens);
  if (it.medium == Medium::summary) return div_ceil(it.fixed_bytes, kSummaryBytesPerToken);
  return 0;
}

std::uint64_t whole_bytes(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  if (!is_delta(it.medium)) return it.fixed_bytes;
  return it.fixed_bytes + it.tail_bytes +
         mul_div(it.block_bytes, facts.total_tokens / facts.block_tokens, 1);
}

// What others bring before our last byte, for lanes share the interface evenly: of each no more than ours has. So much
// later our transfer ends, and in sum theirs, which go on beside it.
std::uint64_t bytes_between(const ReceiverFacts& facts, std::uint64_t bytes) noexcept {
  return std::min(facts.others_left_bytes, mul_div(bytes, facts.others_bringing, 1));
}

// How much later than by its own lane alone the last byte comes. What waits on the sender's lane waits while the others'
// pass, and the lane's rate may have been learned while it shared: so it counts only as far as it is longer.
TimeNs interface_wait_ns(const ReceiverFacts& facts, const CostLine& line) noexcept {
  const std::uint64_t passes = line.bytes + bytes_between(facts, line.bytes);
  const TimeNs shared = bounded(static_cast<std::uint64_t>(sending_ns(passes, facts.inflow_bytes_per_s)));
  return std::max<TimeNs>(shared - line.wait_ns - line.transmit_ns, 0);
}

}  // namespace

std::uint64_t lease_bytes(const CandidateCost& it, const ReceiverFacts& facts) noexcept {
  if (!takes_lease(it.medium) || (it.medium == Medium::full && facts.same_node)) return 0;
  if (is_sparse(it.medium)) {
    const std::uint64_t planes = is_coded(it.values) ? it.fixed_bytes : 0;
    return planes + mul_div(facts.block_slot_bytes, missing_for(it, facts).blocks(), 1);
  }
  if (!is_delta(it.medium)) return it.fixed_bytes;
  // Coded rows are decoded into slots, beside the planes that they come in.
  const std::uint64_t planes = is_coded(it.medium) ? it.block_bytes : 0;
  return it.fixed_bytes + mul_div(facts.block_slot_bytes + planes, missing_for(it, facts).blocks(), 1);
}

TimeNs prefill_ns(const ComputeProfile& compute, std::uint64_t tokens,
                  std::uint64_t held) noexcept {
  if (tokens == 0) return 0;
  const std::uint64_t span = mul_div(tokens, tokens + 2 * held, 1);
  const std::uint64_t quadratic =
      mul_div(compute.prefill_quadratic_ns_q20, span, std::uint64_t{1} << 20);
  return bounded(compute.prefill_fixed_ns) + product_ns(compute.prefill_per_token_ns, tokens) +
         bounded(quadratic);
}

TimeNs pipelined_ns(TimeNs encode_ns, TimeNs transmit_ns, TimeNs decode_ns,
                    std::uint64_t pieces) noexcept {
  const TimeNs longest = std::max({encode_ns, transmit_ns, decode_ns});
  const TimeNs others = encode_ns + transmit_ns + decode_ns - longest;
  return longest +
         others / static_cast<TimeNs>(std::clamp<std::uint64_t>(pieces, 1, 1'000'000'000));
}

// recompute_ns holds what is left of the backlog when the tokens are there, and is 0 where nothing is computed.
TimeNs compute_taken_ns(const CostLine& picked, TimeNs backlog_ns) noexcept {
  if (picked.recompute_ns == 0) return backlog_ns;
  // The head of a split is computed from now on, whatever is still to come.
  if (picked.head_blocks > 0) return picked.recompute_ns;
  return picked.wait_ns + picked.transmit_ns + picked.recompute_ns;
}

void fill_line(const CandidateCost& it, const ReceiverFacts& facts, const LossProfile& loss, CostLine& line) noexcept {
  KVRAIL_ASSERT(facts.block_tokens > 0 && static_cast<std::size_t>(it.medium) < kMediumCount);
  if (it.medium == Medium::split) return fill_split_line(it, facts, loss, line);
  const MediumLoss& of = loss.media[static_cast<std::size_t>(it.medium)];
  const std::uint64_t blocks = missing_for(it, facts).blocks();
  line.medium = it.medium;
  line.blocks = blocks;
  line.bytes = moved_bytes(it, facts);
  // Where nothing is missing there is nothing to ask for.
  const bool moves = line.bytes > 0 || !is_delta(it.medium);
  line.wait_ns = moves ? bounded(it.wait_ns) : 0;
  // Token ids came with the offer, whatever is picked.
  if (it.medium != Medium::tokens)
    line.transmit_ns =
        bounded(static_cast<std::uint64_t>(sending_ns(line.bytes, it.rate_bytes_per_s)));
  TimeNs others_delay = 0;
  if (facts.others_left_bytes > 0 && line.transmit_ns > 0) {
    others_delay = bounded(static_cast<std::uint64_t>(sending_ns(bytes_between(facts, line.bytes), facts.inflow_bytes_per_s)));
    line.wait_ns += interface_wait_ns(facts, line);
  }
  line.encode_ns = product_ns(it.encode_ns_per_block, blocks);
  if (is_coded(rows_medium(it)))
    line.decode_ns =
        product_ns(facts.decode_ns_per_block[static_cast<std::size_t>(rows_medium(it))], blocks);
  TimeNs prefill = 0;
  if (const std::uint64_t tokens = recomputed_tokens(it, facts); tokens > 0) {
    prefill =
        prefill_ns(facts.compute, tokens, it.medium == Medium::tokens ? facts.held_tokens : 0);
    // The machine works off its own queue while the ids travel.
    const TimeNs arrived = line.wait_ns + line.transmit_ns;
    line.recompute_ns = std::max<TimeNs>(facts.compute_backlog_ns - arrived, 0) + prefill;
  }
  const std::uint64_t extra_tokens_milli =
      std::uint64_t{of.extra_tokens_milli} + values_loss(loss, it.medium, it.values).extra_tokens_milli;
  line.loss_ns = product_ns(extra_tokens_milli, facts.compute.decode_per_token_ns) / 1000;
  // The sender priced the whole context; we know how much of it will move.
  const std::uint64_t whole = std::max<std::uint64_t>(whole_bytes(it, facts), 1);
  const TimeNs sender_price = bounded(mul_div(it.price_ns, std::min(line.bytes, whole), whole));
  const TimeNs nic_price =
      bounded(priced(line.transmit_ns, facts.nic_price_ppm, facts.nic_arrivals_milli_per_s));
  const TimeNs compute_price =
      bounded(priced(prefill, facts.compute_price_ppm, facts.compute_arrivals_milli_per_s));
  line.price_ns = sender_price + nic_price + compute_price + others_delay;

  line.allowed = true;
  if (const char* const why = under_floor(facts, of, it.medium, resulting_epsilon(it, facts))) {
    line.allowed = false;
    line.why_not = why;
  } else if (lease_bytes(it, facts) > facts.lease_bytes_free) {
    line.allowed = false;
    line.why_not = "not enough free receive memory";
  }
}

void finish_cost(CostLine& line, const ReceiverFacts& facts, std::int64_t residual_q32) noexcept {
  const bool planes = line.encode_ns > 0 || line.decode_ns > 0;
  const std::uint64_t pieces = planes ? line.blocks : 1;
  const TimeNs arrived = line.wait_ns + pipelined_ns(line.encode_ns, line.transmit_ns, line.decode_ns, pieces);
  // The head of a split is computed while its tail arrives.
  const TimeNs raw = line.head_blocks > 0 ? std::max(arrived, line.recompute_ns) : arrived + line.recompute_ns;
  line.total_ns = bounded(scaled_exp2(static_cast<std::uint64_t>(raw), residual_q32));
  const TimeNs weighed =
      product_ns(static_cast<std::uint64_t>(line.total_ns + line.loss_ns), facts.weight_milli) /
      1000;
  line.cost_ns = weighed + line.price_ns;
}

}  // namespace kvrail::scheduler
