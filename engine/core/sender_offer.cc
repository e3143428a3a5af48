// The sender's first half: from a send command (or a FETCH) to an accepted offer.
#include <algorithm>
#include <cstring>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr std::size_t kMaxReceivers = 64;
constexpr TimeNs kFirstAnswerNs = 500 * kMillisecondNs;  // an OFFER is repeated after that, doubled
constexpr TimeNs kLastAnswerNs = 4 * kSecondNs;
constexpr TimeNs kCutAnswerNs = 500 * kMillisecondNs;  // how long past its deadline a cut transfer may take to end

constexpr MediumMask kEngineCan = mask_of(Medium::tokens) | mask_of(Medium::full) | mask_of(Medium::lossless) |
                                  mask_of(Medium::int8) | mask_of(Medium::int4) | mask_of(Medium::exact) |
                                  mask_of(Medium::lowrank) | mask_of(Medium::topk) | mask_of(Medium::window) |
                                  mask_of(Medium::reference) | mask_of(Medium::summary) | mask_of(Medium::split);

}  // namespace

// ---- states ----------------------------------------------------------------------------------------

void Node::Core::move(Outgoing& out, OutState to) noexcept {
  KVRAIL_ASSERT_MSG(may_move(out.state, to), "no such move of an outgoing transfer");
  out.state = to;
  out.state_due_ns = kNever;
}

void Node::Core::arm_out(std::uint32_t index) noexcept {
  const Outgoing& out = out_at(index);
  const TimeNs deadline = out.deadline_ns == 0 || out.state == OutState::draining ? kNever : out.deadline_ns;
  const bool accepted = out.accepted_ns != 0 || out.state == OutState::draining;
  timers_.set(entity(Kind::out, index), std::min({out.state_due_ns, deadline, accepted ? kNever : out.give_up_ns}));
}

namespace {

// A deadline that passed is the caller's own; else it is told what was missing: memory, so many times in a row.
Status late_status(const Outgoing& out) noexcept {
  if (out.deadline_ns != 0 || out.laters == 0) return Status{Code::timed_out};
  return Status{Code::out_of_memory, Scope::transfer, static_cast<std::int32_t>(std::min<std::uint32_t>(out.laters, INT32_MAX))};
}

}  // namespace

void Node::Core::out_timer(std::uint32_t index) noexcept {
  if (!outs_.handle_at(index).valid()) return;
  Outgoing& out = out_at(index);
  if (out.state == OutState::draining) return want(Kind::out, index);
  const bool late = (out.deadline_ns != 0 && now_ >= out.deadline_ns) ||
                    (out.accepted_ns == 0 && now_ >= out.give_up_ns);
  if (late && await_cut(index)) return;
  if (late) return cancel_out(index, late_status(out));
  if (now_ >= out.state_due_ns) {
    out.state_due_ns = kNever;
    switch (out.state) {
      case OutState::offered:   // no answer: OFFERs are idempotent
      case OutState::waiting:
        move(out, OutState::offering);
        begin_offer(index);
        break;
      case OutState::summarising:  // the agent gave no summary
        if (!out.summary_posted) return cancel_out(index, Status{Code::timed_out});
        [[fallthrough]];
      case OutState::finishing: begin_query(index); break;
      case OutState::querying:
      case OutState::offering:
      case OutState::sending: want(Kind::out, index); break;
      case OutState::parked:
      case OutState::restoring:
      case OutState::draining: break;
    }
  }
  if (outs_.handle_at(index).valid()) arm_out(index);
}

// Of planes that refine each other the receiver can use the first ones alone, of a split the tail that has come: it
// decides by its own clock.
bool Node::Core::await_cut(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (is_sparse(out.medium)) return false;
  const bool under_way = out.state == OutState::sending || out.state == OutState::finishing ||
                         out.state == OutState::querying;
  if (out.cut || !under_way || !(out.coding.refines() || out.tail_first)) return false;
  out.cut = true;
  const TimeNs round_trip_ns = out.lane == kNoIndex ? 0 : scheduler_.estimate(out.lane).round_trip_ns;  // it may have lost its lane
  out.deadline_ns = add_saturating(now_, kCutAnswerNs + 2 * round_trip_ns);
  drop_flow(out);
  arm_out(index);
  return true;
}

std::uint32_t Node::Core::find_out(std::uint32_t lane, TransferId id) noexcept {
  const std::uint32_t* found = out_ids_.find(id);
  if (found == nullptr || out_at(*found).peer != lane_at(lane)->peer ||
      out_at(*found).state == OutState::draining) {
    ++counters_.unknown_messages;  // late, or of another's transfer
    return kNoIndex;
  }
  return *found;
}

// ---- the command -----------------------------------------------------------------------------------

Status Node::Core::send(AgentHandle handle, TicketId ticket, const Name& name, std::uint64_t version_number,
                        std::span<const Name> receivers, const SendOptions& options) noexcept {
  LocalAgent* from = agent(handle);
  if (from == nullptr) return Status{Code::not_found};
  if (draining_) return Status{Code::shutting_down, Scope::engine};
  if (ticket == 0 || receivers.empty() || receivers.size() > kMaxReceivers || options.deadline_ns < 0 ||
      options.fidelity_floor_ppm > 1'000'000) {
    return Status{Code::invalid_argument};
  }
  if (options.reservation != 0 && !find_reservation(handle, options.reservation).valid()) return Status{Code::not_found};
  const VersionHandle version = store_->find_for(handle, name, version_number);
  VersionView view;
  if (!version.valid() || !store_->view(version, view)) return Status{Code::not_found};
  const auto count = static_cast<std::uint32_t>(receivers.size());
  if (outs_.capacity() - outs_.size() < count || local_waits_.full()) return Status{Code::out_of_capacity};
  if (!reserve_events(handle, count)) return Status{Code::out_of_capacity};
  for (std::uint32_t i = 0; i < count; ++i) {
    ++counters_.sends;
    ++from->sends;
    send_to(handle, ticket, name, version, view, receivers[i], static_cast<std::uint16_t>(i), options);
  }
  note_used(handle, view.tenant, view.owner, name);
  desk_->turn_leads(options.task, handle, receivers, view.owner, name);
  return Status{};
}

void Node::Core::send_to(AgentHandle handle, TicketId ticket, const Name& name, VersionHandle version,
                         const VersionView& view, const Name& receiver, std::uint16_t at,
                         const SendOptions& options) noexcept {
  const AgentInfo& from = agent(handle)->info;
  const AgentWhere* to = where(from.tenant, receiver);
  if (to == nullptr) {
    AgentEvent event;
    event.kind = AgentEventKind::sent;
    event.ticket = ticket;
    event.receiver = at;
    event.task = options.task;
    event.status = Status{Code::not_found};
    return push_event(handle, event);
  }
  if (to->local.valid()) {
    return deliver_locally({next_transfer_++, handle, to->local, ticket, false, at, name, version, options, now_}, view);
  }
  const RemoteAgent& remote = *remotes_.get(remotes_.handle_at(to->remote));
  OutRequest request;
  request.from = handle;
  request.ticket = ticket;
  request.receiver = at;
  request.tenant = from.tenant;
  request.from_name = from.name;
  request.to_name = receiver;
  request.context = name;
  request.version = version;
  request.version_number = view.number;
  request.peer = remote.peer;
  request.weight = static_cast<std::uint16_t>(std::min(from.role + remote.role, 0xffff));
  request.options = options;
  const Handle<OpenReservation> reserved = find_reservation(handle, options.reservation);
  if (reserved.valid() && reservations_.get(reserved)->to == receiver) request.reservation = reserved;
  begin_out(start_out(request).index, view);
}

OutHandle Node::Core::start_out(const OutRequest& request) noexcept {
  const OutHandle handle = outs_.try_emplace();
  KVRAIL_ASSERT_MSG(handle.valid(), "room was looked for before");
  Outgoing& out = *outs_.get(handle);
  out.id = next_transfer_++;
  out.from = request.from;
  out.ticket = request.ticket;
  out.fetch_id = request.fetch_id;
  out.receiver = request.receiver;
  out.tenant = request.tenant;
  out.from_name = request.from_name;
  out.to_name = request.to_name;
  out.context = request.context;
  out.task = request.options.task;
  out.version = request.version;
  out.version_number = request.version_number;
  out.peer = request.peer;
  out.critical = request.options.critical;
  out.background = request.options.background;
  out.reservation = request.reservation;
  out.wish = request.options.medium == Medium::automatic ? options_.policy : request.options.medium;
  out.wish_is_policy = request.options.medium == Medium::automatic;
  out.fidelity_floor_ppm = request.options.fidelity_floor_ppm;
  out.weight = std::max<std::uint16_t>(request.weight, 1);
  out.submitted_ns = now_;
  out.deadline_ns = request.options.deadline_ns == 0 ? 0 : add_saturating(now_, request.options.deadline_ns);
  out.give_up_ns = out.deadline_ns != 0 ? out.deadline_ns : now_ + options_.accept_timeout_ns;
  if (!out.background) yield_refresh();
  desk_->weigh_hand_over(out);
  store_->pin(out.version);
  ++peer_at(out.peer).open;
  KVRAIL_ASSERT(out_ids_.insert(out.id, handle.index) != nullptr);
  status_dirty_ = true;
  return handle;
}

// One copy per node: while a version is on its way to a peer, other transfers of it to that peer wait;
// then the receiver has it, and they move nothing.
void Node::Core::park_or_offer(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  const TransferKey key{out.peer, out.version.packed()};
  if (const std::uint32_t* leader = leaders_.find(key); leader != nullptr) {
    out.state = OutState::parked;
    out.next_follower = out_at(*leader).next_follower;
    out_at(*leader).next_follower = index;
    return arm_out(index);
  }
  out.leads = leaders_.insert(key, index) != nullptr;
  out.state = OutState::offering;
  begin_offer(index);
}

// ---- the offer -------------------------------------------------------------------------------------

// (Re)starts the offer from its first frame.
void Node::Core::begin_offer(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(out.state == OutState::offering);
  if (out.lane == kNoIndex) out.lane = best_lane(out.peer);
  out.offer_posted = out.eager_posted = out.eager = false;
  arm_out(index);
  if (out.lane == kNoIndex) return;  // resumes when there is one, or ends with the peer
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  const AgentWhere* to = where(out.tenant, out.to_name);
  if (to == nullptr || to->local.valid()) return cancel_out(index, Status{Code::not_found});
  const RemoteAgent& remote = *remotes_.get(remotes_.handle_at(to->remote));
  if (remote.peer != out.peer) return cancel_out(index, Status{Code::not_found});
  const Status status = choose_candidates(out, view, remote);
  if (!status.ok()) return cancel_out(index, status);
  choose_base(out, view);
  choose_eager(out, view);
  out.tokens_posted = out.base_tokens;
  want(Kind::out, index);
}

Status Node::Core::choose_candidates(Outgoing& out, const VersionView& view, const RemoteAgent& to) noexcept {
  scheduler::SenderFacts facts;
  facts.layout = view.layout;
  facts.total_tokens = view.tokens.size();
  facts.believed_missing_tokens = view.tokens.size();
  facts.layouts_equal = to.layout == view.layout;
  const LocalAgent* from = agent(out.from);
  facts.tokenizers_equal = from == nullptr || from->info.tokenizer == to.tokenizer;
  facts.source_has_kv = !view.blocks.empty() && !is_partial(view.medium);
  facts.receiver_accepts = to.accepted;
  facts.sender_can = kEngineCan & ~out.excluded;
  facts.wish = out.wish;
  facts.source_epsilon_ppm = view.epsilon_ppm;
  facts.fidelity_floor_ppm = out.fidelity_floor_ppm;
  // Who wishes for a medium by name has it.
  facts.lineage_floor_ppm = out.wish_is_policy ? options_.lineage_floor_ppm : 0;
  const scheduler::LaneEstimate lane = scheduler_.estimate(out.lane);
  const bool kv_possible = facts.layouts_equal && facts.source_has_kv && out.wish == Medium::automatic;
  facts.lane_backlog_ns = scheduler_.backlog_ns(out.lane, out.critical || budget_of(out).valid());
  facts.round_trip_ns = lane.round_trip_ns;
  if (facts.source_has_kv) fill_coded(view, to, facts);
  if (facts.source_has_kv) fill_sparse(out, view, facts);
  facts.lane_rate_bytes_per_s = lane.planning_bytes_per_s;
  if (kv_possible) facts.lane_rate_bytes_per_s = scheduler_.rate_for_choice(out.lane, scheduler::least_kv_bytes(facts), now_);
  if (from != nullptr) {
    facts.summary_bytes = from->info.summary_bytes;
    facts.summary_ns = from->info.summary_ns;
  }
  if (const std::uint32_t tokens = extract_tokens(out.from, view); tokens > 0 && facts.tokenizers_equal) {
    facts.summary_bytes = tokens * sizeof(TokenId);
    facts.summary_ns = codecs_.encode_ns(Medium::summary, view.tokens.size_bytes());
  }
  facts.nic_price_ppm = sending_price_ppm();
  facts.nic_arrivals_milli_per_s = sending_price_.arrivals_milli_per_s(now_);
  const Belief* belief = beliefs_.find(belief_key(out));
  if (belief != nullptr && belief->has_kv && belief->tokens <= view.tokens.size()) {
    facts.believed_missing_tokens = view.tokens.size() - belief->tokens;
  }
  const char* why = "";
  out.candidate_count = static_cast<std::uint32_t>(scheduler::candidates(facts, loss_, out.candidates, &why));
  if (out.candidate_count == 0 && out.wish_is_policy) {  // a policy forces only where that is possible
    facts.wish = out.wish = Medium::automatic;
    out.candidate_count = static_cast<std::uint32_t>(scheduler::candidates(facts, loss_, out.candidates, &why));
  }
  const std::uint32_t most_lossy = loss_.at(facts.total_tokens).media[static_cast<std::size_t>(Medium::int4)].epsilon_ppm;
  counters_.lineages_kept += facts.lineage_floor_ppm > 0 && std::uint64_t{view.epsilon_ppm} + most_lossy > lineage_most_ppm_ ? 1 : 0;
  if (out.candidate_count == 0 && facts.lineage_floor_ppm > 0) {  // the receiver will see, and has no other way either
    facts.lineage_floor_ppm = 0;
    out.candidate_count = static_cast<std::uint32_t>(scheduler::candidates(facts, loss_, out.candidates, &why));
  }
  if (out.candidate_count > 0) return Status{};
  out.why_none = why;
  return Status{facts.layouts_equal ? Code::rejected : Code::layout_mismatch};
}

void Node::Core::choose_base(Outgoing& out, const VersionView& view) noexcept {
  out.base_tokens = 0;
  if (out.base_refused) return;
  const Belief* belief = beliefs_.find(belief_key(out));
  if (belief == nullptr || belief->tokens == 0) return;
  const std::uint64_t block = belief->tokens / view.layout.block_tokens;
  if (belief->tokens % view.layout.block_tokens != 0 || belief->tokens > view.tokens.size()) return;
  // The chain hash names all that comes before it, so one comparison covers the whole prefix.
  if (block <= view.hashes.size() && view.hashes[block - 1] == belief->hash) out.base_tokens = belief->tokens;
}

BeliefKey Node::Core::belief_key(const Outgoing& out) noexcept {
  std::array<char, 3 * (kMaxNameBytes + 1)> text{};
  std::memcpy(text.data(), out.tenant.bytes.data(), kMaxNameBytes + 1);
  std::memcpy(text.data() + 64, out.from_name.bytes.data(), kMaxNameBytes + 1);
  std::memcpy(text.data() + 128, out.context.bytes.data(), kMaxNameBytes + 1);
  return {out.peer, codec::hash_of({text.data(), text.size()})};
}

// After an ok DONE the peer holds the token ids, and, but for some media, the KV. What is terminal is found by
// nobody, so it is no base.
void Node::Core::note_belief(const Outgoing& out) noexcept {
  VersionView view;
  if (out.medium == Medium::summary || is_partial(out.medium) || !store_->view(out.version, view)) return;
  const std::uint64_t blocks = view.tokens.size() / view.layout.block_tokens;
  if (blocks == 0 || blocks > view.hashes.size()) return;
  if (beliefs_.full()) beliefs_.clear();  // only a hint: it is built up again
  beliefs_.insert(belief_key(out), Belief{blocks * view.layout.block_tokens, view.hashes[blocks - 1],
                                          stays_held(out.medium)});
}

void Node::Core::run_offering(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.lane == kNoIndex) return;
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  const bool posted = (out.offer_posted || (desk_->tell(out.task, out.peer, out.lane) && post_offer(out, view))) && post_tokens(out, view) &&
                      (!out.eager || out.eager_posted || post_eager(out, view));
  if (!posted) return want_later(Kind::out, index);
  move(out, OutState::offered);
  out.retry_ns = out.retry_ns == 0 ? kFirstAnswerNs : std::min(2 * out.retry_ns, kLastAnswerNs);
  out.state_due_ns = now_ + jittered(out.retry_ns);
  arm_out(index);
}

std::uint64_t Node::Core::message_limit(const Lane& lane) const noexcept {
  return std::min<std::uint64_t>(transports_[lane.transport]->caps().max_frame_bytes, frame_.size());
}

namespace {

wire::Candidate to_wire(const scheduler::CandidateCost& cost) noexcept {
  wire::Candidate candidate;
  candidate.medium = cost.medium;
  candidate.fixed_bytes = cost.fixed_bytes;
  candidate.block_bytes = cost.block_bytes;
  candidate.tail_bytes = cost.tail_bytes;
  candidate.wait_ns = cost.wait_ns;
  candidate.encode_ns_per_block = cost.encode_ns_per_block;
  candidate.rate_bytes_per_s = cost.rate_bytes_per_s;
  candidate.price_ns = cost.price_ns;
  candidate.epsilon_ppm = cost.epsilon_ppm;
  candidate.values = cost.values;
  candidate.rows = cost.rows;
  candidate.first_blocks = cost.first_blocks;
  candidate.last_blocks = cost.last_blocks;
  return candidate;
}

}  // namespace

bool Node::Core::post_offer(Outgoing& out, const VersionView& view) noexcept {
  wire::Offer offer;
  offer.transfer = out.id;
  offer.task = out.task;
  offer.fetch_id = out.fetch_id;
  offer.tenant = out.tenant;
  offer.from_agent = out.from_name;
  offer.to_agent = out.to_name;
  offer.context = out.context;
  offer.version = out.version_number;
  offer.layout = view.layout;
  if (const LocalAgent* from = agent(out.from); from != nullptr) offer.tokenizer = from->info.tokenizer;
  offer.total_tokens = view.tokens.size();
  offer.base_tokens = out.base_tokens;
  if (out.base_tokens > 0) offer.base_hash = view.hashes[out.base_tokens / view.layout.block_tokens - 1];
  offer.remaining_ns = out.deadline_ns == 0 ? 0 : static_cast<std::uint64_t>(std::max<TimeNs>(out.deadline_ns - now_, 1));
  const TimeNs way_ns = scheduler_.estimate(out.lane).round_trip_ns / 2;  // it is older when it arrives
  offer.age_ns = static_cast<std::uint64_t>(now_ - out.submitted_ns + way_ns);
  offer.fidelity_floor_ppm = out.fidelity_floor_ppm;
  offer.epsilon_ppm = view.epsilon_ppm;
  offer.weight = out.weight;
  offer.criticality_milli = out.criticality_milli;
  offer.critical = out.critical;
  offer.background = out.background;
  offer.wish = out.wish;
  offer.eager = out.eager;
  offer.whole_planes = out.whole_planes;
  offer.shared = out.next_follower != kNoIndex;
  offer.lowrank = codecs_.lowrank_code(view.layout);
  offer.candidate_count = static_cast<std::uint8_t>(out.candidate_count);
  for (std::uint32_t i = 0; i < out.candidate_count; ++i) offer.candidates[i] = to_wire(out.candidates[i]);
  const std::uint64_t room = (message_limit(*lane_at(out.lane)) - wire::kMaxOfferOverhead) / sizeof(TokenId);
  const std::uint64_t count = std::min(room, offer.total_tokens - offer.base_tokens);
  offer.token_count_here = static_cast<std::uint32_t>(count);
  offer.token_bytes = std::as_bytes(view.tokens.subspan(out.base_tokens, count));
  if (!post(out.lane, offer)) return false;
  out.offer_posted = true;
  out.tokens_posted = out.base_tokens + count;
  return true;
}

bool Node::Core::post_tokens(Outgoing& out, const VersionView& view) noexcept {
  const std::uint64_t room = (message_limit(*lane_at(out.lane)) - wire::kMaxTokensOverhead) / sizeof(TokenId);
  while (out.tokens_posted < view.tokens.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(room, view.tokens.size() - out.tokens_posted);
    const wire::Tokens message{out.id, out.tokens_posted, std::as_bytes(view.tokens.subspan(out.tokens_posted, count))};
    if (!post(out.lane, message)) return false;
    out.tokens_posted += count;
  }
  return true;
}

}  // namespace kvrail::engine
