// The arithmetic that sender and receiver share; docs/scheduling.md, "Cost", has the formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "scheduler/exp_table.h"
#include "scheduler/medium_choice.h"

namespace kvrail::scheduler {

inline constexpr std::uint64_t kPpm = 1'000'000;

// A delta: its size follows from the blocks that the receiver lacks.
[[nodiscard]] constexpr bool is_delta(Medium medium) noexcept {
  return !is_sparse(medium) && medium != Medium::summary && medium != Medium::reference;
}
// What the values of topk and window lose beside what is left out; of others nothing.
[[nodiscard]] inline MediumLoss values_loss(const LossProfile& loss, Medium medium, Medium values) noexcept {
  return is_sparse(medium) && is_coded(values) ? loss.media[static_cast<std::size_t>(values)] : MediumLoss{};
}

// λ = exp(-κ ε) in millionths.
[[nodiscard]] inline std::uint64_t fidelity_ppm(const MediumLoss& loss,
                                                std::uint64_t epsilon_ppm) noexcept {
  const std::uint64_t exponent = mul_div(std::uint64_t{loss.kappa_milli} * epsilon_ppm,
                                         static_cast<std::uint64_t>(kOneQ32), 1000 * kPpm);
  return scaled_exp(
      kPpm, -static_cast<std::int64_t>(std::min<std::uint64_t>(exponent, std::uint64_t{1} << 40)));
}

// Why the medium must not leave the receiver with that loss, by the transfer's own floor or by its lineage's; nullptr: it
// may. What is made of a terminal delivery has its loss, and is computed anew where it is handed on.
template <class Facts>
[[nodiscard]] const char* under_floor(const Facts& facts, const MediumLoss& loss, Medium medium, std::uint64_t epsilon_ppm) noexcept {
  const bool stays = !is_sparse(medium) && medium != Medium::summary;
  const std::uint32_t lineage = stays ? facts.lineage_floor_ppm : 0;
  if (std::max(facts.fidelity_floor_ppm, lineage) == 0) return nullptr;
  const std::uint64_t fidelity = fidelity_ppm(loss, epsilon_ppm);
  if (fidelity < facts.fidelity_floor_ppm) return "below the fidelity floor";
  return fidelity < lineage ? "below the lineage's floor" : nullptr;
}

// What `use_ns` of a resource costs the others: s λ (V + 0.3 s). price_ppm is λ V in millionths, the arrivals are λ.
// Of what a transfer adds itself less counts than of what is there: who comes later may still choose otherwise.
[[nodiscard]] inline std::uint64_t priced(std::int64_t use_ns, std::uint64_t price_ppm,
                                          std::uint64_t arrivals_milli_per_s) noexcept {
  const auto use =
      static_cast<std::uint64_t>(std::clamp<std::int64_t>(use_ns, 0, std::int64_t{1} << 50));
  const std::uint64_t own_ppm =
      std::min(mul_div(use, arrivals_milli_per_s, 1'000'000), kLargest / 4) / 10 * 3;
  return mul_div(use, std::min(price_ppm, kLargest / 4) + own_ppm, kPpm);
}

// Prefill of x tokens on top of p held: c0 + c x + a x (x + 2p).
[[nodiscard]] TimeNs prefill_ns(const ComputeProfile& compute, std::uint64_t tokens,
                                std::uint64_t held) noexcept;

// Stages that work on `pieces` pieces one behind the other: the longest stage in full, the others
// for one piece.
[[nodiscard]] TimeNs pipelined_ns(TimeNs encode_ns, TimeNs transmit_ns, TimeNs decode_ns,
                                  std::uint64_t pieces) noexcept;

// Of the receiver's pool, while the transfer is under way.
[[nodiscard]] std::uint64_t lease_bytes(const CandidateCost& candidate, const ReceiverFacts& facts) noexcept;
// How long the receiver's compute is taken from the decision on, by what waits there and by what was picked.
[[nodiscard]] TimeNs compute_taken_ns(const CostLine& picked, TimeNs backlog_ns) noexcept;

// Into a line as it was made: one that is returned and then copied waits for its own narrow stores at each wide load.
// The terms of T_m and cost_m for one candidate at the receiver, and the hard constraints. The
// deadline is not looked at: it binds only while some other medium meets it.
void fill_line(const CandidateCost& candidate, const ReceiverFacts& facts, const LossProfile& loss,
               CostLine& fresh) noexcept;
[[nodiscard]] inline CostLine cost_line(const CandidateCost& candidate, const ReceiverFacts& facts,
                                        const LossProfile& loss) noexcept {
  CostLine line;
  fill_line(candidate, facts, loss, line);
  return line;
}
// total_ns and cost_ns from the terms and the residual factor 2^residual_q32.
void finish_cost(CostLine& line, const ReceiverFacts& facts, std::int64_t residual_q32) noexcept;

// What names the situation of a choice, for hysteresis: the pair, quarter octaves of the context's size and of the lane's
// rate, octaves of the blocks missing, of the lane's wait and of the compute backlog.
[[nodiscard]] std::uint64_t choice_key(std::span<const CandidateCost> candidates, const ReceiverFacts& facts) noexcept;

}  // namespace kvrail::scheduler
