// The sender's half of a transfer: what it offers, its codec, the order of its lanes.
#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "perf/sim/world.h"
#include "scheduler/cost.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint64_t kFrameBytes = 256;    // of an offer without its token ids
constexpr std::uint64_t kTokenIdBytes = 4;
constexpr std::uint64_t kEagerBytes = 16 * 1024;  // that go right behind their offer, as in the engine
constexpr std::uint64_t kEncodePieces = 32;
constexpr TimeNs kSlotNs = 2 * kMillisecondNs;  // strict priority's turn of a class, of three

}  // namespace

void World::submit(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  open.submitted_ns = now();
  if (job.sender == place_of(job).node) {  // a reference: nothing moves
    open.medium = Medium::reference;
    return events_.push(now(), EventKind::finished, index);
  }
  if (job.opaque_bytes == 0) return offer_context(index);
  open.medium = open.rows = Medium::full;
  open.total_bytes = job.opaque_bytes;
  if (job.opaque_bytes <= kEagerBytes) return begin_sending(index);
  const std::uint32_t lane = lane_between(job.sender, place_of(job).node);
  events_.push(control(lane, kFrameBytes) + scenario_.cluster.round_trip_ns / 2, EventKind::accept, index);
}

void World::offer_context(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const std::uint32_t lane = lane_between(job.sender, place_of(job).node);
  scheduler::SenderFacts facts = sender_facts(index, lanes_[lane]);
  open.offer = take_offer();
  Offer& offer = offers_[open.offer];
  const char* why = "";
  std::array<scheduler::CandidateCost, scheduler::kMaxCandidates> made;
  offer.count = static_cast<std::uint32_t>(scheduler::candidates(facts, loss_, made, &why));
  if (offer.count == 0) {  // a policy forces only where that is possible
    facts.wish = Medium::automatic;
    offer.count = static_cast<std::uint32_t>(scheduler::candidates(facts, loss_, made, &why));
  }
  std::copy_n(made.begin(), offer.count, offer.candidates.begin());
  KVRAIL_ASSERT_MSG(offer.count > 0, why);
  open.kv_offered = std::any_of(offer.candidates.begin(), offer.candidates.begin() + offer.count,
                                [](const scheduler::CandidateCost& it) { return is_kv(it.medium); });
  const std::uint64_t ids = facts.believed_missing_tokens * kTokenIdBytes;
  result_.bytes += ids;
  events_.push(control(lane, kFrameBytes + ids), EventKind::offer, index);
}

// Control frames go behind what is posted, and before all that waits to be.
TimeNs World::control(std::uint32_t lane, std::uint64_t bytes) {
  return lanes_[lane].path.send(now(), bytes) + scenario_.cluster.round_trip_ns / 2;
}

scheduler::SenderFacts World::sender_facts(std::uint32_t index, const Lane& lane) {
  const Job& job = workload_.jobs[index];
  SenderNode& node = senders_[job.sender];
  const RunModel& model = model_of(job);
  const scheduler::LaneEstimate estimate = node.order->estimate(lane.index);
  scheduler::SenderFacts facts;
  facts.layout = model.layout;
  facts.total_tokens = job.tokens;
  facts.believed_missing_tokens = job.tokens - held_tokens(job);
  facts.layouts_equal = !model.foreign;
  for (const Medium medium : scenario_.media) facts.sender_can |= mask_of(medium);
  facts.sender_can |= mask_of(Medium::tokens);  // what every engine can
  facts.receiver_accepts = facts.sender_can;
  facts.wish = policy_.choice == Choice::fixed && !open_[index].refused ? policy_.medium : Medium::automatic;
  facts.fidelity_floor_ppm = scenario_.fidelity_floor_ppm;
  const bool kv_possible = facts.layouts_equal && facts.wish == Medium::automatic;
  facts.lane_backlog_ns = backlog_ns(lane, job.critical);
  facts.round_trip_ns = estimate.round_trip_ns;
  fill_coded(job, facts);
  facts.lane_rate_bytes_per_s = kv_possible ? node.order->rate_for_choice(lane.index, scheduler::least_kv_bytes(facts), now())
                                            : estimate.planning_bytes_per_s;
  if (policy_.choice == Choice::priced) {
    facts.nic_price_ppm = node.price.price_ppm(now(), sending_backlog_ns(node));
    facts.nic_arrivals_milli_per_s = node.price.arrivals_milli_per_s(now());
  }
  return facts;
}

void World::fill_coded(const Job& job, scheduler::SenderFacts& facts) const {
  const Layout& layout = facts.layout;
  const auto plain = static_cast<double>(layout.block_bytes());
  const double tail = static_cast<double>(job.tokens % layout.block_tokens) / layout.block_tokens;
  for (const Medium medium : {Medium::lossless, Medium::int8, Medium::int4}) {
    const MediumClass& it = scenario_.profile.media[static_cast<std::size_t>(medium)];
    scheduler::CodedFacts& coded = facts.coded[static_cast<std::size_t>(medium)];
    coded.block_bytes = static_cast<std::uint64_t>(plain / it.ratio);
    coded.tail_bytes = static_cast<std::uint64_t>(plain / it.ratio * tail);
    if (scenario_.cluster.codec_takes_time && it.encode_bytes_per_s > 0)
      coded.encode_ns_per_block = static_cast<std::uint64_t>(plain / it.encode_bytes_per_s * 1e9);
  }
}

TimeNs World::backlog_ns(const Lane& lane, bool critical) const {
  const scheduler::Scheduler& order = *senders_[lane.sender].order;
  const TimeNs shown = order.backlog_ns(lane.index, critical);
  if (critical || lane.gate.hidden_bytes == 0) return shown;
  return shown + scheduler::sending_ns(lane.gate.hidden_bytes, order.estimate(lane.index).planning_bytes_per_s);
}

TimeNs World::sending_backlog_ns(const SenderNode& node) const {
  TimeNs backlog = 0;
  for (const std::uint32_t lane : node.lanes) backlog += backlog_ns(lanes_[lane], false);
  return backlog;
}

// ---- after the answer ----

// What the engine notes when an answer comes: also token ids might have gone as KV, had there been less to wait for.
void World::on_accept(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  SenderNode& node = senders_[job.sender];
  if (open.medium == Medium::automatic) return offer_context(index);  // LATER or refused: offered again
  if (!job.critical && open.kv_offered) {
    TimeNs use_ns = 0;
    if (is_kv(open.rows)) {
      const std::uint32_t lane = lanes_[lane_between(job.sender, place_of(job).node)].index;
      use_ns = scheduler::sending_ns(open.total_bytes, node.order->estimate(lane).planning_bytes_per_s);
    }
    node.price.arrival(now(), sending_backlog_ns(node) + use_ns);
  }
  if (is_kv(open.rows)) begin_sending(index);
}

void World::begin_sending(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  open.accepted_ns = now();
  if (open.total_bytes == 0) return events_.push(now() + scenario_.cluster.round_trip_ns / 2, EventKind::delivered, index);
  if (job.opaque_bytes > kEagerBytes) {
    ReceiverNode& to = receivers_[place_of(job).node];
    to.inflow->open(to.peers.at(job.sender).place, open.total_bytes);
  }
  result_.bytes += open.total_bytes;
  if (open.ready_bytes == 0) begin_encoding(index);
  const std::uint32_t lane = lane_between(job.sender, place_of(job).node);
  if (policy_.order == Order::scheduled) {
    add_flow(index, 0);
  } else {
    lanes_[lane].gate.waiting[job.critical ? 0 : 1].push_back(index);
    lanes_[lane].gate.hidden_bytes += open.total_bytes;
    refresh_gate(lane);
  }
  pump(job.sender);
}

// A codec that keeps up with the lane is ahead of it after its first block; a slower one gives out pieces.
void World::begin_encoding(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const double speed = scenario_.profile.media[static_cast<std::size_t>(open.rows)].encode_bytes_per_s;
  const bool coded = job.opaque_bytes == 0 && is_coded(open.rows) && scenario_.cluster.codec_takes_time && speed > 0;
  if (!coded) {
    open.ready_bytes = open.total_bytes;
    return;
  }
  const auto total_ns = static_cast<TimeNs>(static_cast<double>(open.raw_bytes) / speed * 1e9);
  const TimeNs sending = scheduler::sending_ns(open.total_bytes, scenario_.cluster.link_bytes_per_s);
  SenderNode& node = senders_[job.sender];
  const TimeNs start = std::max(now(), node.encoder_free_ns);
  node.encoder_free_ns = start + total_ns;
  const std::uint64_t pieces = total_ns <= sending ? 1 : kEncodePieces;
  open.encode_piece_ns = pieces == 1 ? total_ns / std::max<TimeNs>(open.blocks, 1) : total_ns / static_cast<TimeNs>(kEncodePieces);
  events_.push(start + open.encode_piece_ns, EventKind::ready, index);
}

void World::on_ready(std::uint32_t index) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const double speed = scenario_.profile.media[static_cast<std::size_t>(open.rows)].encode_bytes_per_s;
  const auto total_ns = static_cast<TimeNs>(static_cast<double>(open.raw_bytes) / speed * 1e9);
  const bool ahead = total_ns <= scheduler::sending_ns(open.total_bytes, scenario_.cluster.link_bytes_per_s);
  const std::uint64_t piece = div_ceil(open.total_bytes, kEncodePieces);
  open.ready_bytes = ahead ? open.total_bytes : std::min(open.ready_bytes + piece, open.total_bytes);
  if (open.ready_bytes < open.total_bytes) events_.push(now() + open.encode_piece_ns, EventKind::ready, index);
  if (open.flow.valid()) senders_[job.sender].order->set_ready(open.flow, open.ready_bytes, now());
  pump(job.sender);
}

void World::add_flow(std::uint32_t index, std::uint64_t start_offset) {
  const Job& job = workload_.jobs[index];
  Open& open = open_[index];
  const Lane& lane = lanes_[lane_between(job.sender, place_of(job).node)];
  scheduler::FlowSpec spec;
  spec.lane = lane.index;
  spec.cookie = index;
  spec.total_bytes = open.total_bytes;
  spec.ready_bytes = std::max(open.ready_bytes, start_offset);
  spec.start_offset = start_offset;
  spec.weight = job.weight;
  spec.base_milli = job.criticality_milli * job.weight;
  spec.submitted_ns = open.submitted_ns;
  spec.deadline_ns = job.deadline_ns == 0 ? 0 : open.submitted_ns + job.deadline_ns;
  if (job.beat) spec.budget = lane.budget;
  spec.critical = job.critical && !spec.budget.valid() && policy_.order == Order::scheduled;
  open.flow = senders_[job.sender].order->add_flow(spec, now());
  KVRAIL_ASSERT_MSG(open.flow.valid(), "more flows at once than the simulator has room for");
}

// ---- the order of the baselines ----

std::uint32_t World::next_at_gate(const Gate& gate) const {
  const auto& [critical, ordinary] = gate.waiting;
  if (critical.empty() || ordinary.empty()) {
    const auto& only = critical.empty() ? ordinary : critical;
    return only.empty() ? kNone : only.front();
  }
  const std::uint32_t first = critical.front(), second = ordinary.front();
  if (policy_.order == Order::fifo) return open_[first].accepted_ns <= open_[second].accepted_ns ? first : second;
  return now() / kSlotNs % 3 == 1 ? second : first;
}

void World::refresh_gate(std::uint32_t index) {
  Lane& lane = lanes_[index];
  Gate& gate = lane.gate;
  scheduler::Scheduler& order = *senders_[lane.sender].order;
  for (auto& queue : gate.waiting) {  // only the exposed one can have been posted to its end
    if (!queue.empty() && open_[queue.front()].posted_bytes == open_[queue.front()].total_bytes) queue.pop_front();
  }
  const std::uint32_t next = next_at_gate(gate);
  // First come is first served to its end.
  const bool stays = policy_.order == Order::fifo && gate.exposed != kNone;
  if (next != gate.exposed && !stays) {
    if (gate.exposed != kNone) {
      Open& left = open_[gate.exposed];
      order.remove_flow(left.flow);
      left.flow = {};
      gate.hidden_bytes += left.total_bytes - left.posted_bytes;
    }
    gate.exposed = next;
    if (next != kNone) {
      gate.hidden_bytes -= open_[next].total_bytes - open_[next].posted_bytes;
      add_flow(next, open_[next].posted_bytes);
    }
  }
  const bool both = !gate.waiting[0].empty() && !gate.waiting[1].empty();
  if (policy_.order == Order::slots && both && !gate.turn_armed) {
    gate.turn_armed = true;
    events_.push((now() / kSlotNs + 1) * kSlotNs, EventKind::turn, index);
  }
}

// ---- chunks ----

void World::pump(std::uint32_t node) {
  std::array<scheduler::PostAction, 64> actions;
  while (true) {
    const std::size_t count = senders_[node].order->step(now(), actions);
    for (std::size_t i = 0; i < count; ++i) post(actions[i], senders_[node].lanes[actions[i].lane]);
    if (count == 0) return;
  }
}

void World::post(const scheduler::PostAction& action, std::uint32_t index) {
  Lane& lane = lanes_[index];
  const auto job = static_cast<std::uint32_t>(action.cookie);
  Open& open = open_[job];
  if (open.posted_bytes == 0) open.first_post_ns = now();
  open.posted_bytes = action.offset + action.bytes;
  Chunk chunk{action.bytes, now(), 0, kNone};
  const std::uint64_t opaque = workload_.jobs[job].opaque_bytes;
  chunk.announced = opaque == 0 || opaque > kEagerBytes;
  TimeNs at = now();
  if (senders_[lane.sender].nic.limits()) at = senders_[lane.sender].nic.send(at, action.bytes);
  at = lane.path.send(at, action.bytes);
  if (open.posted_bytes == action.bytes) open.first_arrival_ns = at;
  if (open.posted_bytes == open.total_bytes) {
    chunk.last_of = job;
    senders_[lane.sender].order->remove_flow(open.flow);
    open.flow = {};
  }
  lane.flight.push_back(chunk);
  if (receivers_[lane.receiver].nic.limits()) {
    events_.push(at, EventKind::at_nic, index);
  } else {
    arrive(lane.flight.back(), at);
    events_.push(at + scenario_.cluster.round_trip_ns, EventKind::ack, index);
  }
  if (chunk.last_of != kNone && lane.gate.exposed == job) {
    lane.gate.exposed = kNone;
    refresh_gate(index);
  }
}

void World::arrive(const Chunk& chunk, TimeNs at_ns) {
  if (chunk.last_of != kNone) events_.push(at_ns + scenario_.cluster.round_trip_ns / 2, EventKind::delivered, chunk.last_of);
}

void World::on_nic(std::uint32_t index) {
  Lane& lane = lanes_[index];
  const Chunk& chunk = lane.flight[lane.at_nic++];
  const TimeNs at = receivers_[lane.receiver].nic.send(now(), chunk.bytes);
  arrive(chunk, at);
  events_.push(at + scenario_.cluster.round_trip_ns, EventKind::ack, index);
}

void World::on_ack(std::uint32_t index) {
  Lane& lane = lanes_[index];
  const Chunk chunk = lane.flight.front();
  lane.flight.pop_front();
  if (lane.at_nic > 0) --lane.at_nic;
  // Noted a round trip after it came, for there is no event in between.
  ReceiverNode& to = receivers_[lane.receiver];
  if (chunk.announced) to.inflow->arrived(to.peers.at(lane.sender).place, chunk.bytes, now());
  senders_[lane.sender].order->chunk_done(lane.index, chunk.bytes, chunk.posted_ns, now(), true, now());
  pump(lane.sender);
}

}  // namespace kvrail::simulation
