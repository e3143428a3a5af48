// The receiver's choice: which of the offered media is best for this agent now, and whether there is
// memory for it.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kPriorPrefillNs = 200 * kMicrosecondNs;  // per token, of an agent that told nothing
constexpr std::uint32_t kMeanWeight = 4;                         // two agents of the mean role

}  // namespace

// What the agent doesn't take, or what has no meaning for it, is no candidate, whatever was offered.
void Node::Core::filter_candidates(Incoming& in) noexcept {
  const AgentInfo& info = agent(in.to)->info;
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < in.candidate_count; ++i) {
    const Medium medium = in.candidates[i].medium;
    const bool accepted = (info.accepted & mask_of(medium)) != 0;
    const bool kv_means = info.layout == in.layout;
    const bool tokens_mean = info.tokenizer == in.tokenizer;
    const bool known = is_kv(medium) ? kv_means
                       : medium == Medium::tokens || medium == Medium::reference ? tokens_mean
                                                                                 : medium == Medium::summary;
    // What is coded in another basis is never guessed at.
    const wire::LowRankCode readable = medium == Medium::lowrank ? codecs_.lowrank_code(in.layout) : in.lowrank;
    const bool codable = medium != Medium::lowrank || (readable.basis != Hash128{} && readable == in.lowrank);
    if (accepted && known && codable) in.candidates[kept++] = in.candidates[i];
  }
  in.candidate_count = kept;
}

// How much loss what is held may have: none beyond the source's, as much as the least, and as the most
// lossy coded medium that is offered brings (0: there is no such). Never more than the lineage may lose: what is held
// below its floor comes again, or is computed.
void Node::Core::choose_limits(Incoming& in) const noexcept {
  in.floor_ppm = std::max(in.fidelity_floor_ppm, in.floor_waived ? 0 : options_.lineage_floor_ppm);
  const std::uint32_t bound = in.floor_ppm == options_.lineage_floor_ppm ? lineage_most_ppm_ : scheduler::most_loss_ppm(in.floor_ppm);
  in.held_limit_ppm = std::min(in.source_epsilon_ppm, bound);
  std::uint32_t least = 0;
  std::uint32_t most = 0;
  for (std::uint32_t i = 0; i < in.candidate_count; ++i) {
    const std::uint32_t loss = is_coded(in.candidates[i].medium) ? in.candidates[i].epsilon_ppm : 0;
    if (loss == 0 || std::uint64_t{in.source_epsilon_ppm} + loss > bound) continue;
    least = least == 0 ? loss : std::min(least, loss);
    most = std::max(most, loss);
  }
  in.lossy_ppm = {least, most};
  in.have.limits_ppm = {in.held_limit_ppm, in.source_epsilon_ppm + least, in.source_epsilon_ppm + most};
  if (least == 0) in.have.limits_ppm[1] = in.have.limits_ppm[2] = in.held_limit_ppm;
}

void Node::Core::fill_facts(const Incoming& in, scheduler::ReceiverFacts& facts) noexcept {
  const HaveResult& have = in.have.results[0];
  LocalAgent& to = *agent(in.to);
  const std::uint64_t block_tokens = in.layout.block_tokens;
  const std::uint64_t full_blocks = in.tokens.size() / block_tokens;
  const std::uint64_t tail_rows = in.tokens.size() % block_tokens;
  const std::uint64_t blocks = full_blocks + (tail_rows != 0 ? 1 : 0);
  facts.pair_key = codec::hash_of(in.from_name.view()).low * 31 + codec::hash_of(in.to_name.view()).low;
  facts.total_tokens = in.tokens.size();
  facts.missing_full_blocks = full_blocks - std::min<std::uint64_t>(have.leading_blocks, full_blocks);
  facts.missing_tail = tail_rows != 0 && have.held_blocks < blocks;
  const std::uint64_t held_rows = facts.missing_full_blocks == 0 ? std::min<std::uint64_t>(have.tail_rows, tail_rows) : 0;
  facts.missing_tail_bytes = facts.missing_tail ? (tail_rows - held_rows) * in.layout.token_bytes() : 0;
  // A delivery of token ids shows full blocks only, and those only to agents of this Layout.
  facts.held_tokens = to.info.layout == in.layout ? full_blocks - facts.missing_full_blocks : 0;
  facts.held_tokens *= block_tokens;
  facts.held_epsilon_ppm = in.held_limit_ppm;
  for (std::size_t k = 0; k < facts.lossy.size(); ++k) {
    const HaveResult& lossy = in.have.results[k + 1];
    facts.lossy[k] = {in.lossy_ppm[k], full_blocks - std::min<std::uint64_t>(lossy.leading_blocks, full_blocks),
                      tail_rows != 0 && lossy.held_blocks < blocks};
  }
  facts.block_tokens = in.layout.block_tokens;
  facts.compute = to.info.compute;
  if (facts.compute.prefill_per_token_ns == 0 && facts.compute.prefill_fixed_ns == 0) {
    facts.compute.prefill_per_token_ns = kPriorPrefillNs;
  }
  facts.compute_backlog_ns = std::max<TimeNs>(to.compute_backlog_ns, to.idle_until_ns > now_ ? 0 : to.compute_backlog_ns);
  for (std::uint32_t i = 0; i < in.candidate_count; ++i) {
    const Medium medium = is_sparse(in.candidates[i].medium) ? in.candidates[i].values : in.candidates[i].medium;
    if (!is_coded(medium)) continue;
    facts.decode_ns_per_block[static_cast<std::size_t>(medium)] = codecs_.decode_ns(medium, in.layout.block_bytes());
  }
  const Peer& from = peer_at(in.peer);
  const std::uint64_t rate = in.candidate_count == 0 ? 0 : in.candidates[0].rate_bytes_per_s;
  if (through_interface(in.peer)) inflow_.fill(in.peer, rate, facts);
  facts.nic_price_ppm = from.others_price.price_ppm(now_, inflow_.others_ns(in.peer, rate));
  facts.compute_price_ppm = to.compute_price.price_ppm(now_, to.compute_backlog_ns);
  facts.nic_arrivals_milli_per_s = from.others_price.arrivals_milli_per_s(now_);
  facts.compute_arrivals_milli_per_s = to.compute_price.arrivals_milli_per_s(now_);
  facts.block_slot_bytes = in.layout.block_bytes();
  facts.remaining_ns = in.deadline_ns == 0 ? 0 : std::max<TimeNs>(in.deadline_ns - now_, 1);
  facts.fidelity_floor_ppm = in.fidelity_floor_ppm;
  facts.lineage_floor_ppm = in.floor_waived ? 0 : options_.lineage_floor_ppm;
  facts.weight_milli = std::uint32_t{in.weight} * in.criticality_milli / kMeanWeight;
  facts.source_epsilon_ppm = in.source_epsilon_ppm;
}

// All token ids are here. From now on the transfer is the receiver's to decide.
void Node::Core::decide(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  move(in, InState::deciding);
  arm_in(index);
  filter_candidates(in);
  if (in.candidate_count == 0) return close_in(index, Answer::reject, Status{Code::layout_mismatch});
  look(in);
  run_deciding(index);
}

void Node::Core::look(Incoming& in) const noexcept {
  in.decision = Decision::look;
  in.have = Store::HaveScan{};
  // What has come from there is all that there was.
  const bool again = !in.pick_again && !in.restored.valid() && in.restores < kRestoresOfOffer;
  in.have.tier = again ? tier_ : nullptr;
  choose_limits(in);
  // As lossy as a medium that is offered: then it counts for that one.
  in.have.tier_limit_ppm = in.have.limits_ppm.back();
}

void Node::Core::run_deciding(std::uint32_t index) noexcept {
  Steps steps(*this);
  while (in_at(index).state == InState::deciding) {
    if (in_at(index).decision == Decision::restore) return;  // its end goes on
    if (!decide_step(index, steps.left)) return want(Kind::in, index);
  }
}

// False: the budget is used up.
bool Node::Core::decide_step(std::uint32_t index, std::uint64_t& budget) noexcept {
  Incoming& in = in_at(index);
  Store::StagingView view;
  switch (in.decision) {
    case Decision::look:
      if (!store_->scan(in.have, in.tenant_handle, in.layout, in.tokens, budget)) return false;
      if (!restore_first(index)) choose(index);
      return true;
    case Decision::restore: return false;
    case Decision::stage: {
      const AllowAllocScope allow;
      const auto status = store_->advance(in.staging, budget);
      if (!status) return false;
      if (status->ok()) {
        accept_staged(index);
      } else {
        in.staging = StagingHandle{};
        no_memory(index, *status);
      }
      return true;
    }
    case Decision::plan:
      KVRAIL_ASSERT(store_->view(in.staging, view));
      if (!build_payload(shape_of(in), *store_, view.blocks, in.arrays, budget)) return false;
      receive_by_lease(index);
      return true;
  }
  KVRAIL_UNREACHABLE();
}

// Contexts that nobody uses make room when memory is asked for, so the pick first counts on all of it; if
// that fails, on what is free.
void Node::Core::choose(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  const TenantMemory memory = store_->memory(in.tenant_handle);
  const std::uint64_t bytes = in.pick_again ? memory.free_bytes : memory.total_bytes;
  // It would fit later. Asking that is no decision: a full node must not wear hysteresis out by retries.
  if (in.pick_again && !any_medium(in, bytes)) return answer_later(index);
  if (!in.pick_again) in.decided_ns = now_;
  if (!pick_medium(in, bytes)) return close_in(index, Answer::reject, Status{Code::rejected});
  if (!in.pick_again) note_receiving(in);
  if (in.medium == Medium::summary) {
    move(in, InState::summary);
    in.accept_wanted = true;
    arm_in(index);
    return want(Kind::in, index);
  }
  const Status status = begin_stage(in);
  if (!status.ok()) return no_memory(index, status);
  in.decision = Decision::stage;
}

void Node::Core::no_memory(std::uint32_t index, Status status) noexcept {
  Incoming& in = in_at(index);
  if (is_kv(in.medium) && !in.pick_again) {
    in.pick_again = true;
    return look(in);
  }
  const bool passes = !is_kv(in.medium) || status.code == Code::out_of_memory ||
                      status.code == Code::out_of_capacity || status.code == Code::quota_exceeded;
  passes ? answer_later(index) : close_in(index, Answer::done, status);
}

scheduler::ReceiverFacts Node::Core::facts_of(const Incoming& in, std::uint64_t memory_bytes) noexcept {
  scheduler::ReceiverFacts facts;
  fill_facts(in, facts);
  facts.lease_bytes_free = memory_bytes;
  return facts;
}

bool Node::Core::any_medium(const Incoming& in, std::uint64_t memory_bytes) noexcept {
  return chooser_.any_allowed(std::span(in.candidates).first(in.candidate_count), facts_of(in, memory_bytes));
}

// Behind what was offered, where the agent can compute a part of it while the other arrives.
bool Node::Core::add_split(Incoming& in, const scheduler::ReceiverFacts& facts) noexcept {
  const AgentInfo& info = agent(in.to)->info;
  if (in.refresh || (in.shared && in.wish != Medium::split)) return false;  // the others would get no head from it
  return (info.accepted & mask_of(Medium::split)) != 0 && info.tokenizer == in.tokenizer &&
         chooser_.split_of(std::span(in.candidates).first(in.candidate_count), facts, in.candidates[in.candidate_count]);
}

bool Node::Core::pick_medium(Incoming& in, std::uint64_t memory_bytes) noexcept {
  scheduler::ReceiverFacts facts = facts_of(in, memory_bytes);
  facts.split_wished = in.wish == Medium::split;
  const std::uint32_t lane = in.lane == kNoIndex ? 0 : in.lane;
  const bool split = add_split(in, facts);
  if (in.wish == Medium::split && !split) return false;
  const auto weighed = std::span(in.candidates).first(in.candidate_count + (split ? 1 : 0));
  if (options_.choice == scheduler::ChoicePolicy::greedy) scheduler::make_greedy(weighed, facts, in.id);
  in.pick = chooser_.pick(weighed, facts, lane);
  if (in.pick.index < 0 && facts.lineage_floor_ppm > 0) {  // better that than nothing
    facts.lineage_floor_ppm = 0;
    in.pick = chooser_.pick(weighed, facts, lane);
    in.floor_waived = in.pick.index >= 0;
    counters_.lineages_below += in.floor_waived ? 1 : 0;
  }
  if (in.pick.index < 0) return false;
  const scheduler::CandidateCost& chosen = in.candidates[static_cast<std::size_t>(in.pick.index)];
  in.medium = chosen.medium == Medium::split ? chosen.values : chosen.medium;
  // Who wishes for a split lets the agent compute what it can, though it may gain less than it takes.
  in.tail_first = chosen.medium == Medium::split || in.wish == Medium::split;
  if (in.wish == chosen.medium) in.pick.reason = scheduler::PickReason::wished;
  in.epsilon_ppm = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(std::uint64_t{in.source_epsilon_ppm} + chosen.epsilon_ppm, UINT32_MAX));
  return true;
}

}  // namespace kvrail::engine
