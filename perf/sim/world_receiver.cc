// The receiver's half of a transfer: the pick, its memory, its codec and GPU, and who goes on when it is there.
#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "perf/sim/world.h"
#include "scheduler/cost.h"
#include "scheduler/keyed_table.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint32_t kMeanWeight = 4;  // two agents of the mean role, as in the engine
constexpr TimeNs kKvMustWinBy = 100 * kMillisecondNs;
constexpr TimeNs kFirstLaterNs = 10 * kMillisecondNs, kMostLaterNs = 500 * kMillisecondNs;
constexpr TimeNs kLeaseNs = 3600 * kSecondNs;  // nobody dies here

std::int32_t index_of(const scheduler::Pick& pick, Medium medium) {
  for (std::size_t i = 0; i < pick.line_count; ++i) {
    if (pick.lines[i].medium == medium && pick.lines[i].allowed) return static_cast<std::int32_t>(i);
  }
  return -1;
}

}  // namespace

void World::on_offer(std::uint32_t index) {
  Open& open = open_[index];
  const Job& job = workload_.jobs[index];
  const scheduler::PoolCounts pool = arbiter_->pool(place_of(job).node);
  ++result_.decisions;
  // As in the engine: contexts that nobody uses could make room, so the first pick counts on all of it.
  scheduler::ReceiverFacts facts = receiver_facts(index, pool.total);
  scheduler::Pick picked = pick(index, facts);
  const auto offered = std::span(offers_[open.offer].candidates).first(offers_[open.offer].count);
  const auto memory_for = [&] {
    scheduler::CandidateCost of = weighed(index)[static_cast<std::size_t>(picked.index)];
    if (of.medium == Medium::split) of.medium = of.values;  // the head is computed into slots, too
    return scheduler::lease_bytes(of, facts);
  };
  if (picked.index < 0) return refuse(index);
  if (memory_for() > pool.free) {
    facts.lease_bytes_free = pool.free;
    if (!receivers_[place_of(job).node].chooser->any_allowed(offered, facts)) return answer_later(index);
    picked = pick(index, facts);
  }
  const scheduler::CostLine chosen = picked.lines[static_cast<std::size_t>(picked.index)];
  open.decided_ns = now();
  open.predicted_ns = picked.predicted_ns;
  open.pick_bytes = chosen.bytes;
  open.lease_bytes = memory_for();
  const scheduler::CandidateCost& candidate = weighed(index)[static_cast<std::size_t>(picked.index)];
  open.rows = chosen.medium == Medium::split ? candidate.values : chosen.medium;
  note_flap(index, facts, chosen.medium);
  note_receiving(index, chosen);
  answer(index, chosen);
}

scheduler::ReceiverFacts World::receiver_facts(std::uint32_t index, std::uint64_t memory_bytes) {
  const Job& job = workload_.jobs[index];
  const Open& open = open_[index];
  const RunModel& model = model_of(job);
  const std::uint64_t block = model.layout.block_tokens;
  const std::uint64_t held = model.foreign ? 0 : held_tokens(job) / block * block;
  const std::uint64_t tail = job.tokens % block;
  scheduler::ReceiverFacts facts;
  facts.pair_key = scheduler::mix_key((std::uint64_t{job.sender_agent} << 32) | job.receiver);
  facts.total_tokens = job.tokens;
  facts.missing_full_blocks = job.tokens / block - held / block;
  facts.missing_tail = tail != 0;
  facts.missing_tail_bytes = tail * model.layout.token_bytes();
  facts.held_tokens = held;
  facts.block_tokens = model.layout.block_tokens;
  facts.compute = model.compute;
  facts.block_slot_bytes = model.layout.block_bytes();
  facts.lease_bytes_free = memory_bytes;
  facts.fidelity_floor_ppm = scenario_.fidelity_floor_ppm;
  facts.weight_milli = job.weight * job.criticality_milli / kMeanWeight;
  if (job.deadline_ns != 0) facts.remaining_ns = std::max<TimeNs>(open.submitted_ns + job.deadline_ns - now(), 1);
  for (const Medium medium : {Medium::lossless, Medium::int8, Medium::int4}) {
    const double speed = scenario_.profile.media[static_cast<std::size_t>(medium)].decode_bytes_per_s;
    if (speed <= 0 || !scenario_.cluster.codec_takes_time) continue;
    facts.decode_ns_per_block[static_cast<std::size_t>(medium)] =
        static_cast<std::uint64_t>(static_cast<double>(model.layout.block_bytes()) / speed * 1e9);
  }
  const Agent& agent = agents_[job.receiver];
  facts.compute_backlog_ns = std::max<TimeNs>(agent.gpu_free_ns - now(), 0);
  if (policy_.choice != Choice::priced) return facts;
  const ReceiverNode& node = receivers_[place_of(job).node];
  const Peer& from = node.peers.at(job.sender);
  const std::uint64_t rate = offers_[open.offer].candidates[0].rate_bytes_per_s;
  node.inflow->fill(from.place, rate, facts);
  facts.nic_price_ppm = from.others_price.price_ppm(now(), node.inflow->others_ns(from.place, rate));
  facts.nic_arrivals_milli_per_s = from.others_price.arrivals_milli_per_s(now());
  facts.compute_price_ppm = agent.price.price_ppm(now(), facts.compute_backlog_ns);
  facts.compute_arrivals_milli_per_s = agent.price.arrivals_milli_per_s(now());
  return facts;
}

std::span<const scheduler::CandidateCost> World::weighed(std::uint32_t index) const {
  const Offer& offer = offers_[open_[index].offer];
  return std::span(offer.candidates).first(offer.count + (offer.split ? 1 : 0));
}

scheduler::Pick World::pick(std::uint32_t index, scheduler::ReceiverFacts& facts) {
  const Job& job = workload_.jobs[index];
  Offer& offer = offers_[open_[index].offer];
  const std::uint32_t lane = lane_between(job.sender, place_of(job).node);
  scheduler::MediumChooser& chooser = *receivers_[place_of(job).node].chooser;
  scheduler::ReceiverFacts asked = facts;
  // Under a key that never comes again nothing is kept.
  if (!policy_.hysteresis) asked.pair_key = scheduler::mix_key(facts.pair_key ^ (result_.decisions << 20));
  const bool splits = std::find(scenario_.media.begin(), scenario_.media.end(), Medium::split) != scenario_.media.end();
  offer.split = splits && policy_.choice != Choice::fixed &&
                chooser.split_of(std::span(offer.candidates).first(offer.count), facts, offer.candidates[offer.count]);
  scheduler::Pick picked = chooser.pick(weighed(index), asked, lane);
  if (policy_.choice != Choice::text_or_kv) return picked;
  const std::int32_t text = index_of(picked, Medium::tokens), kv = index_of(picked, Medium::full);
  if (text < 0 || kv < 0) return picked;
  const auto total = [&picked](std::int32_t i) { return picked.lines[static_cast<std::size_t>(i)].total_ns; };
  picked.index = total(kv) + kKvMustWinBy <= total(text) ? kv : text;
  picked.predicted_ns = total(picked.index);
  return picked;
}

// ---- what the engine notes for its prices ----

void World::note_receiving(std::uint32_t index, const scheduler::CostLine& chosen) {
  const Job& job = workload_.jobs[index];
  if (job.critical || chosen.bytes == 0) return;
  Agent& agent = agents_[job.receiver];
  const TimeNs backlog = std::max<TimeNs>(agent.gpu_free_ns - now(), 0);
  agent.price.arrival(now(), scheduler::compute_taken_ns(chosen, backlog));
  if (!open_[index].kv_offered) return;
  ReceiverNode& node = receivers_[place_of(job).node];
  const std::uint64_t rate = offers_[open_[index].offer].candidates[0].rate_bytes_per_s;
  const TimeNs use = is_kv(open_[index].rows) ? chosen.transmit_ns : 0;
  for (const std::uint32_t other : node.peer_order) {
    Peer& peer = node.peers.at(other);
    if (other != job.sender) peer.others_price.arrival(now(), node.inflow->others_ns(peer.place, rate) + use);
  }
}

void World::note_flap(std::uint32_t index, const scheduler::ReceiverFacts& facts, Medium medium) {
  note(index, static_cast<std::uint64_t>(medium));
  ++result_.chosen[static_cast<std::size_t>(medium)];
  const Offer& offer = offers_[open_[index].offer];
  const std::uint64_t key = scheduler::choice_key(std::span(offer.candidates).first(offer.count), facts);
  const auto [it, fresh] = last_medium_.try_emplace(key, medium);
  if (!fresh && it->second != medium) ++result_.flaps;
  it->second = medium;
}

// ---- the answer ----

void World::answer(std::uint32_t index, const scheduler::CostLine& chosen) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const RunModel& model = model_of(job);
  const scheduler::MediumLoss& loss = loss_.at(job.tokens).media[static_cast<std::size_t>(open.rows)];
  open.medium = chosen.medium;
  open.loss_ns = static_cast<TimeNs>(loss.extra_tokens_milli * model.compute.decode_per_token_ns / 1000);
  if (chosen.medium == Medium::tokens) {
    events_.push(compute(index, job.tokens), EventKind::finished, index);
  } else {
    if (chosen.head_blocks > 0) open.computed_ns = compute(index, held_tokens(job) + chosen.head_blocks * model.layout.block_tokens);
    KVRAIL_ASSERT_MSG(take_memory(index, open.lease_bytes), "memory that was free is there");
    open.total_bytes = chosen.bytes;
    ReceiverNode& node = receivers_[place_of(job).node];
    node.inflow->open(node.peers.at(job.sender).place, chosen.bytes);
    open.blocks = static_cast<std::uint32_t>(std::max<std::uint64_t>(chosen.blocks, 1));
    open.raw_bytes = (chosen.blocks - chosen.head_blocks) * model.layout.block_bytes();
  }
  give_offer(index);
  events_.push(now() + scenario_.cluster.round_trip_ns / 2, EventKind::accept, index);
}

bool World::take_memory(std::uint32_t index, std::uint64_t bytes) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const scheduler::LeaseAnswer lease = arbiter_->grant(place_of(job).node, bytes, now(), kLeaseNs);
  open.lease = lease.lease;
  open.lease_bytes = bytes;
  return lease.lease.valid();
}

// It would never fit: the sender offers all that it has.
void World::refuse(std::uint32_t index) {
  open_[index].refused = true;
  give_offer(index);
  events_.push(now() + scenario_.cluster.round_trip_ns / 2, EventKind::accept, index);
}

void World::answer_later(std::uint32_t index) {
  Open& open = open_[index];
  ++result_.laters;
  give_offer(index);
  const TimeNs wait = std::min(kFirstLaterNs << std::min<std::uint32_t>(open.laters++, 6), kMostLaterNs);
  events_.push(now() + scenario_.cluster.round_trip_ns / 2 + wait, EventKind::accept, index);
}

// The context up to so many tokens, behind what the GPU has.
TimeNs World::compute(std::uint32_t index, std::uint64_t tokens) {
  const Job& job = workload_.jobs[index];
  const RunModel& model = model_of(job);
  Agent& agent = agents_[job.receiver];
  const std::uint64_t held = model.foreign ? 0 : held_tokens(job);
  const TimeNs takes = scheduler::prefill_ns(model.compute, std::min<std::uint64_t>(tokens, job.tokens) - held, held);
  const TimeNs start = std::max(now(), agent.gpu_free_ns);
  result_.jobs[index].queued_ns = start - now();
  agent.gpu_free_ns = start + takes;
  agent.gpu_busy_ns += takes;
  result_.prefill_ns += takes;
  return agent.gpu_free_ns;
}

// ---- the delivery ----

// Blocks are decoded as they come; what the decoder is behind is left at the end.
void World::on_delivered(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const double speed = scenario_.profile.media[static_cast<std::size_t>(open.rows)].decode_bytes_per_s;
  const bool decodes = job.opaque_bytes == 0 && is_coded(open.rows) && scenario_.cluster.codec_takes_time && speed > 0;
  result_.jobs[index].queued_ns = open.first_post_ns - open.accepted_ns;
  TimeNs ready = now();
  if (decodes) {
    ReceiverNode& node = receivers_[place_of(job).node];
    const auto takes = static_cast<TimeNs>(static_cast<double>(open.raw_bytes) / speed * 1e9);
    const TimeNs start = std::max(open.first_arrival_ns, node.decoder_free_ns);
    ready = std::max(now() + takes / open.blocks, start + takes);
    // Of transfers that arrive together each has the decoder for its own share of the time.
    node.decoder_free_ns = std::max(node.decoder_free_ns, open.first_arrival_ns) + takes;
  }
  events_.push(std::max(ready, open.computed_ns), EventKind::finished, index);
}

void World::on_finished(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  JobResult& result = result_.jobs[index];
  result.submitted_ns = open.submitted_ns;
  result.latency_ns = now() - open.submitted_ns + open.loss_ns;
  result.medium = open.medium;
  result.rows = open.rows;
  note(index, static_cast<std::uint64_t>(now()));
  if (open.predicted_ns > 0 && open.pick_bytes > 0) {
    const std::uint32_t lane = lane_between(job.sender, place_of(job).node);
    receivers_[place_of(job).node].chooser->observe(lane, open.medium, open.pick_bytes, open.predicted_ns,
                                                    now() - open.decided_ns);
  }
  for (std::uint32_t i = 0; i < job.hash_count; ++i) agents_[job.receiver].held.insert(workload_.hashes[job.first_hash + i]);
  if (open.lease.valid()) {
    // The slots stay, the planes that they were decoded from don't.
    arbiter_->shrink(open.lease, std::min(open.lease_bytes, open.blocks * model_of(job).layout.block_bytes()));
    events_.push(now() + scenario_.cluster.keep_ns, EventKind::release, index);
  }
  if (job.task == kNone) return;
  const TimeNs end = now() + open.loss_ns;
  result_.task_ns[job.task] = std::max(result_.task_ns[job.task], end - workload_.task_starts[job.task]);
  start_successors(index);
}

void World::start_successors(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  for (std::uint32_t i = 0; i < job.successor_count; ++i) {
    const std::uint32_t next = workload_.successors[job.first_successor + i];
    KVRAIL_ASSERT(open_[next].predecessors > 0);
    if (--open_[next].predecessors == 0)
      events_.push(now() + open_[index].loss_ns + workload_.jobs[next].think_ns, EventKind::submit, next);
  }
}

void World::on_release(std::uint32_t index) {
  arbiter_->release(open_[index].lease);
  open_[index].lease = {};
}

}  // namespace kvrail::simulation
