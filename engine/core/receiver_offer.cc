// The receiver's first half: an OFFER with its token ids, memory for what was picked, and the answer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kFirstLaterNs = 5 * kMillisecondNs;
constexpr TimeNs kEagerWaitNs = 100 * kMillisecondNs;      // then the bytes are asked for

}  // namespace

// ---- states ----------------------------------------------------------------------------------------

void Node::Core::move(Incoming& in, InState to) noexcept {
  KVRAIL_ASSERT_MSG(may_move(in.state, to), "no such move of an incoming transfer");
  in.state = to;
}

void Node::Core::arm_in(std::uint32_t index) noexcept {
  const Incoming& in = in_at(index);
  TimeNs due = in.deadline_ns == 0 ? kNever : in.deadline_ns;
  if (in.state == InState::eager) due = std::min(due, in.last_activity_ns + kEagerWaitNs);
  if (in.state == InState::gathering || in.state == InState::receiving) {
    due = std::min(due, in.last_activity_ns + options_.receive_idle_ns);
  }
  if (in.state == InState::failing || in.state == InState::closing) due = kNever;
  timers_.set(entity(Kind::in, index), due);
}

void Node::Core::in_timer(std::uint32_t index) noexcept {
  if (!ins_.handle_at(index).valid()) return;
  Incoming& in = in_at(index);
  if (in.state == InState::failing || in.state == InState::closing) return;
  const bool late = in.deadline_ns != 0 && now_ >= in.deadline_ns;
  const bool idle = now_ - in.last_activity_ns >= options_.receive_idle_ns;
  if (late && (in.tail_first ? cut_split(index) : cut_in(index))) return;
  if (late) return fail_in(index, Status{Code::timed_out});
  if (in.state == InState::eager && now_ - in.last_activity_ns >= kEagerWaitNs) {
    in.eager_announced = false;
    return plan_lease(index);
  }
  if (idle && in.state == InState::gathering) return fail_in(index, Status{Code::timed_out}, Answer::none);
  if (idle && in.state == InState::receiving) return fail_in(index, Status{Code::timed_out});
  arm_in(index);
}

std::uint32_t Node::Core::find_in(std::uint32_t lane, TransferId id) noexcept {
  const std::uint32_t* found = in_ids_.find({lane_at(lane)->peer, id});
  if (found != nullptr) return *found;
  ++counters_.unknown_messages;
  return kNoIndex;
}

// ---- OFFER -----------------------------------------------------------------------------------------

// Answers that need no record: if the lane is full the sender offers again.
void Node::Core::refuse(std::uint32_t lane, TransferId id, std::uint64_t fetch_id, Status status) noexcept {
  ++counters_.rejects;
  (void)post(lane, wire::Reject{id, fetch_id, status});
}

bool Node::Core::answer_from_memory(std::uint32_t lane, const wire::Offer& message) noexcept {
  const Ended* ended = ended_.find({lane_at(lane)->peer, message.transfer});
  if (ended == nullptr) return false;
  (void)post(lane, wire::Done{message.transfer, ended->status, ended->medium, ended->bytes, ended->observed_ns});
  return true;
}

void Node::Core::on_offer(std::uint32_t lane, const wire::Offer& message) noexcept {
  const std::uint32_t peer = lane_at(lane)->peer;
  const TransferKey key{peer, message.transfer};
  if (const std::uint32_t* known = in_ids_.find(key);
      known != nullptr && on_duplicate_offer(*known, lane, message)) {
    return;
  }
  if (answer_from_memory(lane, message)) return;
  const AgentWhere* to = where(message.tenant, message.to_agent);
  if (to == nullptr || !to->local.valid()) return refuse(lane, message.transfer, 0, Status{Code::not_found});
  std::uint32_t fetch = kNoIndex;
  if (message.fetch_id != 0) {
    fetch = find_fetch(message.fetch_id);
    if (fetch == kNoIndex) return refuse(lane, message.transfer, 0, Status{Code::cancelled});
    // Only who was asked may answer, to the agent that asks, and once at a time.
    const Fetch& asked = *fetches_.get(fetches_.handle_at(fetch));
    if (asked.peer != peer || asked.agent != to->local || ins_.get(asked.in) != nullptr) {
      return refuse(lane, message.transfer, 0, Status{Code::already_exists});
    }
  }
  if (draining_) return refuse(lane, message.transfer, 0, Status{Code::shutting_down, Scope::engine});
  if (!message.background && fetch == kNoIndex) yield_refresh();
  if (message.total_tokens == 0) return refuse(lane, message.transfer, 0, Status{Code::invalid_argument});
  const bool refresh = fetch != kNoIndex && fetches_.get(fetches_.handle_at(fetch))->refresh;
  const bool room = !ins_.full() && (refresh || reserve_events(to->local, 1));
  if (!room) {
    (void)post(lane, wire::Later{message.transfer, kFirstLaterNs, 0});
    return;
  }
  const InHandle handle = ins_.try_emplace();
  Incoming& in = *ins_.get(handle);
  in.to = to->local;
  in.event_reserved = !refresh;
  in.refresh = refresh;
  in.fetch = fetch;
  fill_incoming(in, lane, message);
  ++peer_at(peer).open;
  KVRAIL_ASSERT(in_ids_.insert(key, handle.index) != nullptr);
  if (fetch != kNoIndex) fetches_.get(fetches_.handle_at(fetch))->in = handle;
  in.tokens = scratch_.try_array<TokenId>(message.total_tokens);
  if (in.tokens.empty()) return answer_later(handle.index);
  if (!copy_base(in, message)) {
    await_offer(in);   // it comes again, from the first token
    return close_in(handle.index, Answer::reject, Status{Code::not_found, Scope::transfer, kBaseGone});
  }
  arm_in(handle.index);
  take_tokens(handle.index, message.base_tokens, message.token_bytes);
}

// True: dealt with. False: what was known of it is gone, and the offer is to be taken as a new one.
bool Node::Core::on_duplicate_offer(std::uint32_t index, std::uint32_t lane, const wire::Offer& message) noexcept {
  Incoming& in = in_at(index);
  in.lane = lane;
  in.last_activity_ns = now_;
  switch (in.state) {
    case InState::gathering:
      drop_in(index);
      return false;
    case InState::deciding: return true;  // the answer is under way
    case InState::eager:
      if (!message.eager) plan_lease(index);
      return true;
    case InState::receiving:
      expose_on(index, lane_at(lane)->transport);
      [[fallthrough]];
    case InState::summary: in.accept_wanted = true; break;
    case InState::sealing:
    case InState::decoding:
    case InState::failing: return true;   // DONE is under way
    case InState::closing: break;
  }
  want(Kind::in, index);
  return true;
}

void Node::Core::fill_incoming(Incoming& in, std::uint32_t lane, const wire::Offer& message) noexcept {
  in.id = message.transfer;
  in.peer = lane_at(lane)->peer;
  in.lane = lane;
  in.tenant_handle = agent(in.to)->tenant;
  in.tenant = message.tenant;
  in.from_name = message.from_agent;
  in.to_name = message.to_agent;
  in.context = message.context;
  in.task = message.task;
  in.version_number = message.version;
  in.layout = message.layout;
  in.tokenizer = message.tokenizer;
  in.fidelity_floor_ppm = message.fidelity_floor_ppm;
  in.source_epsilon_ppm = in.epsilon_ppm = message.epsilon_ppm;
  in.weight = message.weight;
  in.criticality_milli = message.criticality_milli;
  in.critical = message.critical;
  in.background = message.background;
  in.eager_announced = message.eager;
  in.wish = message.wish;
  in.whole_planes = message.whole_planes;
  in.shared = message.shared;
  in.lowrank = message.lowrank;
  in.submitted_ns = now_ - static_cast<TimeNs>(std::min<std::uint64_t>(message.age_ns, INT64_MAX / 4));
  const auto remaining = static_cast<TimeNs>(std::min<std::uint64_t>(message.remaining_ns, INT64_MAX / 4));
  in.deadline_ns = message.remaining_ns == 0 ? 0 : add_saturating(now_, remaining);
  in.last_activity_ns = now_;
  in.base_tokens = message.base_tokens;
  in.candidate_count = message.candidate_count;
  for (std::uint32_t i = 0; i < in.candidate_count; ++i) {
    const wire::Candidate& from = message.candidates[i];
    in.candidates[i] = {from.medium,  from.fixed_bytes,         from.block_bytes,      from.tail_bytes,
                        from.wait_ns, from.encode_ns_per_block, from.rate_bytes_per_s, from.price_ns,
                        from.epsilon_ppm, from.values,      from.rows,             from.first_blocks,
                        from.last_blocks};
  }
}

// The ids that the sender believes to be here, from the version of the same context that came before.
bool Node::Core::copy_base(Incoming& in, const wire::Offer& message) noexcept {
  in.tokens_here = 0;
  if (message.base_tokens == 0) return true;
  const VersionHandle version = store_->find(in.tenant_handle, in.from_name, in.context, 0);
  VersionView view;
  if (!version.valid() || !store_->view(version, view)) return false;
  const std::uint64_t block = message.base_tokens / in.layout.block_tokens;
  if (view.layout != in.layout || view.tokens.size() < message.base_tokens || view.hashes.size() < block ||
      view.hashes[block - 1] != message.base_hash) {
    return false;
  }
  std::copy_n(view.tokens.begin(), message.base_tokens, in.tokens.begin());
  in.tokens_here = message.base_tokens;
  return true;
}

void Node::Core::on_tokens(std::uint32_t lane, const wire::Tokens& message) noexcept {
  const std::uint32_t index = find_in(lane, message.transfer);
  if (index == kNoIndex) return;
  if (in_at(index).state != InState::gathering) return;  // of a repeated offer
  take_tokens(index, message.first, message.token_bytes);
}

void Node::Core::take_tokens(std::uint32_t index, std::uint64_t first, std::span<const std::byte> bytes) noexcept {
  Incoming& in = in_at(index);
  const std::uint64_t count = bytes.size() / sizeof(TokenId);
  if (first != in.tokens_here || count > in.tokens.size() - in.tokens_here) {
    ++counters_.unknown_messages;  // a gap: the sender offers again
    return;
  }
  if (count > 0) std::memcpy(in.tokens.data() + first, bytes.data(), bytes.size());
  in.tokens_here += count;
  in.last_activity_ns = now_;
  if (in.tokens_here == in.tokens.size()) decide(index);
}

// ---- what was picked ---------------------------------------------------------------------------

Status Node::Core::begin_stage(Incoming& in) noexcept {
  StageRequest request;
  request.tenant = in.tenant_handle;
  request.owner = in.from_name;
  request.context = in.context;
  request.version = in.version_number;
  request.layout = in.layout;
  request.tokens = in.tokens;
  if (!take_coding(in)) return Status{Code::protocol_error};
  request.coding = in.coding;
  request.build_on_planes = !in.whole_planes;
  request.whole_blocks = in.tail_first;
  request.epsilon_ppm = in.epsilon_ppm;
  if (!is_kv(in.medium)) {  // what is here need not be recomputed, if it means anything to the agent
    request.epsilon_ppm = 0;
    request.held_limit_ppm = in.held_limit_ppm;
    request.show_held = agent(in.to)->info.layout == in.layout;
  }
  if (in.medium == Medium::window) {
    const std::uint32_t rows = in.candidates[static_cast<std::size_t>(in.pick.index)].rows;
    request.window_first_block = window_first_block(in.layout, in.tokens.size(), rows);
  }
  request.kept_tokens = in.rows;
  const AllowAllocScope allow;
  const auto staging = store_->begin_stage(request);
  if (staging.ok()) in.staging = staging.value();
  return staging.status();
}

// The sizes that the sender offered. Those of media whose size is not fixed are its own to choose, within
// what such a code can take at all.
bool Node::Core::take_coding(Incoming& in) noexcept {
  scheduler::CandidateCost offered = in.candidates[static_cast<std::size_t>(in.pick.index)];
  if (offered.medium == Medium::split) offered.medium = std::exchange(offered.values, Medium::full);
  in.coding = coding_of(offered, in.layout, in.tokens.size());
  in.rows = in.medium == Medium::topk ? offered.rows : 0;
  if (in.medium == Medium::topk && (in.rows == 0 || in.rows > in.tokens.size())) return false;
  if (is_sparse(in.medium) && !may_be_values(offered.values)) return false;
  if (!in.coding.coded()) return true;
  const std::uint64_t tokens = in.rows > 0 ? in.rows : in.tokens.size();
  return codecs_.take_offered(in.layout, offered.block_bytes, offered.tail_bytes,
                              static_cast<std::uint32_t>(tokens % in.layout.block_tokens), in.coding);
}

void Node::Core::accept_staged(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (!is_kv(in.medium)) {
    move(in, InState::decoding);
    return run_decoding(index);
  }
  if (!list_missing(in)) return close_in(index, Answer::done, Status{Code::out_of_capacity});
  if (in.range_count == 0) {  // all is held: nothing moves
    move(in, InState::decoding);
    return run_decoding(index);
  }
  const std::uint64_t base_block = in.base_tokens / in.layout.block_tokens;
  in.tail_first = in.tail_first && can_split(in);
  if (in.eager_announced && in.medium == Medium::full && in.ranges[0].first >= base_block && !in.tail_first) {
    move(in, InState::eager);
    return arm_in(index);
  }
  plan_lease(index);
}

// Held blocks are the prefix of the context but for rare cases, so ranges are few.
bool Node::Core::list_missing(Incoming& in) noexcept {
  Store::StagingView view;
  KVRAIL_ASSERT(store_->view(in.staging, view));
  in.range_count = 0;
  in.missing_blocks = 0;
  in.tail_from_row = view.tail_from_row;
  in.tail_block = view.tail_block;
  in.first_plane = view.first_plane;
  for (std::uint32_t b = 0; b < view.block_count; ++b) {
    if (view.missing[b] == 0) continue;
    ++in.missing_blocks;
    wire::BlockRange* last = in.range_count == 0 ? nullptr : &in.ranges[in.range_count - 1];
    if (last != nullptr && last->first + last->count == b) {
      ++last->count;
    } else {
      if (in.range_count == in.ranges.size()) return false;
      in.ranges[in.range_count++] = {b, 1};
    }
  }
  KVRAIL_ASSERT(in.tail_from_row == 0 || (in.range_count > 0 && in.tail_block == in.ranges[0].first));
  return true;
}

PayloadShape Node::Core::shape_of(const Incoming& in) const noexcept {
  PayloadShape shape{in.layout, in.rows > 0 ? in.rows : in.tokens.size(), in.coding, in.tail_from_row,
                     std::span(in.ranges).first(in.range_count), in.first_plane};
  Store::StagingView staged;
  if (in.rows > 0 && store_->view(in.staging, staged)) shape.positions = staged.positions;
  shape.tail_first = in.tail_first;
  return shape;
}

// Order of taking: memory is staged, then the piece lists, then a lease slot; what fails gives all back.
void Node::Core::plan_lease(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.state == InState::eager) move(in, InState::deciding);
  in.decision = Decision::plan;
  if (!begin_payload(shape_of(in), false, scratch_, in.arrays)) return answer_later(index);
  arm_in(index);
  want(Kind::in, index);
}

void Node::Core::receive_by_lease(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (!open_lease(index)) return answer_later(index);
  move(in, InState::receiving);
  if (in.tail_first) begin_split(in, ins_.handle_at(index));
  for (std::uint64_t mask = peer_at(in.peer).lanes; mask != 0; mask &= mask - 1) {
    expose_on(index, lane_at(static_cast<std::uint32_t>(std::countr_zero(mask)))->transport);
  }
  in.accept_wanted = true;
  in.last_activity_ns = now_;
  arm_in(index);
  want(Kind::in, index);
}

bool Node::Core::open_lease(std::uint32_t index) noexcept {
  if (lease_free_head_ == kNoIndex) return false;
  const std::uint32_t slot = lease_free_head_;
  LeaseSlot& lease = leases_[slot];
  KVRAIL_ASSERT(!lease.in.valid() && lease.exposed == 0 && lease.withdrawing == 0);
  Incoming& in = in_at(index);
  const scheduler::LeaseAnswer answer =
      arbiter_.grant(in.tenant_handle.index, in.arrays.payload.total_bytes, now_, kNever - now_);
  if (!answer.lease.valid()) return false;
  lease.granted = answer.lease;
  lease_free_head_ = lease.next_free;
  if (lease_free_head_ == kNoIndex) lease_free_tail_ = kNoIndex;
  lease.in = ins_.handle_at(index);
  lease.bytes = in.arrays.payload.total_bytes;
  leased_bytes_ += lease.bytes;
  lease.announced = through_interface(in.peer) ? lease.bytes : 0;
  inflow_.open(in.peer, lease.announced);
  in.lease_slot = slot;
  return true;
}

void Node::Core::expose_on(std::uint32_t index, std::uint32_t transport) noexcept {
  Incoming& in = in_at(index);
  KVRAIL_ASSERT(in.state == InState::receiving);
  LeaseSlot& lease = leases_[in.lease_slot];
  const std::uint32_t one = 1U << transport;
  if ((lease.exposed & one) != 0) return;
  lease.exposed |= one;
  transports_[transport]->expose({in.lease_slot, lease.generation}, peer_at(in.peer).id, in.arrays.payload);
}

void Node::Core::answer_later(std::uint32_t index) noexcept {
  if (in_at(index).refresh) return close_in(index, Answer::reject, Status{Code::out_of_memory});  // it is worth no waiting
  ++counters_.laters;
  in_at(index).retry_after_ns = kFirstLaterNs;
  close_in(index, Answer::later, Status{Code::out_of_memory});
}

void Node::Core::run_answers(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.lane == kNoIndex) return;
  if (in.accept_wanted) {
    wire::Accept accept;
    accept.transfer = in.id;
    accept.medium = in.medium;
    if (in.lease_slot != kNoIndex) accept.lease = {in.lease_slot, leases_[in.lease_slot].generation};
    const TimeNs remaining = in.deadline_ns == 0 ? options_.receive_idle_ns : std::max<TimeNs>(in.deadline_ns - now_, 0);
    accept.lease_remaining_ns = static_cast<std::uint64_t>(remaining);
    accept.predicted_ns = static_cast<std::uint64_t>(predicted_ns(in));
    accept.tail_from_row = in.tail_from_row;
    if (in.first_plane > 0) {
      Store::StagingView view;
      KVRAIL_ASSERT(store_->view(in.staging, view));
      accept.first_plane = static_cast<std::uint8_t>(in.first_plane);
      accept.encodings = encodings_of(view.blocks, shape_of(in));
    }
    accept.tail_first = in.tail_first;
    accept.range_count = in.range_count;
    std::copy_n(in.ranges.begin(), in.range_count, accept.missing.begin());
    if (!post(in.lane, accept)) return want_later(Kind::in, index);
    in.accept_wanted = false;
  }
  if (in.outcome_wanted) {
    wire::Outcome outcome;
    fill_outcome(in, outcome);
    if (!post(in.lane, outcome)) return want_later(Kind::in, index);
    in.outcome_wanted = false;
  }
}

}  // namespace kvrail::engine
