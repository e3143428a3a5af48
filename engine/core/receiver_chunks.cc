// The receiver's second half: bytes into the lease, planes into slots, publish, DONE; and every way in
// which an incoming transfer ends.
#include <algorithm>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"
#include "transport/payload_ops.h"

namespace kvrail::engine {

void Node::Core::on_chunk_received(std::uint32_t transport, const Event& event) noexcept {
  if (const std::uint32_t lane = find_lane(transport, event.lane); lane != kNoIndex) heard(*lane_at(lane));
  const bool known = event.lease.slot < leases_.size() && leases_[event.lease.slot].generation == event.lease.generation;
  const Incoming* found = known ? ins_.get(leases_[event.lease.slot].in) : nullptr;
  if (found == nullptr || found->state != InState::receiving || found->id != event.transfer) {
    ++counters_.unknown_messages;  // late: the lease is on its way out
    return;
  }
  const std::uint32_t index = leases_[event.lease.slot].in.index;
  Incoming& in = in_at(index);
  const std::uint64_t total = in.arrays.payload.total_bytes;
  KVRAIL_ASSERT(event.offset <= total && event.length <= total - event.offset);
  in.last_activity_ns = now_;
  counters_.payload_bytes_in += event.length;
  note_arrival(index, event.length);
  if (!event.status.ok()) return on_corrupt(index, event.offset, event.length);
  in.received.add(event.offset, event.offset + event.length);
  in.bad.remove(event.offset, event.offset + event.length);
  check_complete(index);
}

// The chunk told that a unit it completes is wrong; the unit's head may have come with the chunk
// before, so whole units are taken back.
void Node::Core::on_corrupt(std::uint32_t index, std::uint64_t offset, std::uint64_t length) noexcept {
  Incoming& in = in_at(index);
  ++counters_.corrupt_units;
  ++in.corrupt_units;
  if (in.asked_again) return fail_in(index, Status{Code::corrupt});
  in.received.add(offset, offset + length);
  const transport::Payload& payload = in.arrays.payload;
  const transport::UnitRange units = transport::completed_units(payload, offset, length);
  std::uint64_t begin = offset;
  std::uint64_t end = offset + length;
  if (units.count > 0) {
    const auto bounds = unit_bounds(payload, units.first, units.count);
    begin = std::min(begin, bounds.begin);
    end = bounds.end;
  }
  in.received.remove(begin, end);
  in.bad.add(begin, end);
  check_complete(index);
}

ByteSpan Node::Core::unit_bounds(const transport::Payload& payload, std::uint32_t first, std::uint32_t count) noexcept {
  const auto piece_of = [&](std::uint32_t unit) {
    const auto after = std::upper_bound(payload.first_unit.begin(), payload.first_unit.end(), unit);
    return static_cast<std::size_t>(after - payload.first_unit.begin()) - 1;
  };
  const auto offset_of = [&](std::uint32_t unit) {
    const std::size_t piece = piece_of(unit);
    return payload.starts[piece] + std::uint64_t{unit - payload.first_unit[piece]} * kDigestUnitBytes;
  };
  const std::uint32_t last = first + count - 1;
  const std::size_t piece = piece_of(last);
  const std::uint64_t piece_end = payload.starts[piece] + payload.pieces[piece].bytes;
  return {offset_of(first), std::min(offset_of(last) + kDigestUnitBytes, piece_end)};
}

void Node::Core::check_complete(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (Split* split = splits_.get(in.split); split != nullptr) {
    move_tail(in, *split);
    if (split->tail == split->claimed) return seal(index);
  }
  const std::uint64_t total = needed_bytes(in);
  const std::uint64_t here = in.received.bytes();
  if (here == in.arrays.payload.total_bytes) return seal(index);
  if (in.coding.coded()) want(Kind::in, index);
  // Once the rest has arrived, the corrupt units are asked for, one time.
  if (in.bad.count() > 0 && !in.asked_again && here + in.bad.bytes() >= total) {
    in.asked_again = in.outcome_wanted = true;
    want(Kind::in, index);
  }
}

void Node::Core::seal(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  move(in, InState::sealing);
  arm_in(index);
  withdraw(index);
}

void Node::Core::withdraw(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  LeaseSlot& lease = leases_[in.lease_slot];
  KVRAIL_ASSERT(lease.withdrawing == 0);
  if (lease.exposed == 0) return lease_returned(index);  // there was no lane yet to expose it on
  lease.withdrawing = lease.exposed;
  lease.exposed = 0;
  for (std::uint32_t mask = lease.withdrawing; mask != 0; mask &= mask - 1) {
    transports_[static_cast<std::size_t>(std::countr_zero(mask))]->withdraw({in.lease_slot, lease.generation});
  }
}

void Node::Core::on_lease_withdrawn(std::uint32_t transport, const Event& event) noexcept {
  KVRAIL_ASSERT(event.lease.slot < leases_.size());
  LeaseSlot& lease = leases_[event.lease.slot];
  KVRAIL_ASSERT_MSG(lease.generation == event.lease.generation && (lease.withdrawing & (1U << transport)) != 0,
                    "withdrawn once, and only when asked");
  lease.withdrawing &= ~(1U << transport);
  if (lease.withdrawing == 0) lease_returned(lease.in.index);
}

// The deadline has come. What arrived in whole planes is delivered at the fidelity that these give; the
// sender, whose deadline comes a little earlier, posts no more and waits for what we say.
bool Node::Core::cut_in(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.state != InState::receiving || !is_coded(in.medium)) return false;
  const PayloadShape shape = shape_of(in);
  const transport::Payload& payload = in.arrays.payload;
  std::uint32_t whole = 0;  // planes; the last one is not, or the transfer would be complete
  while (whole + 1 < shape.plane_count() && in.received.covers(0, payload.starts[shape.first_piece(whole + 1)])) ++whole;
  if (whole == 0) return false;
  const Medium reached = shape.first_plane + whole == 1 ? Medium::int4 : Medium::int8;
  const scheduler::MediumLoss& loss = loss_.at(in.tokens.size()).media[static_cast<std::size_t>(reached)];
  const std::uint64_t epsilon = std::uint64_t{in.source_epsilon_ppm} + loss.epsilon_ppm;
  if (scheduler::fidelity_ppm(loss, epsilon) < in.fidelity_floor_ppm) return false;
  in.medium = in.coding.medium = reached;
  in.coding.ends = {};
  in.epsilon_ppm = static_cast<std::uint32_t>(std::min<std::uint64_t>(epsilon, UINT32_MAX));
  in.cut_at_bytes = in.received.bytes();
  in.deadline_ns = 0;
  store_->cut(in.staging, reached, in.epsilon_ppm);
  ++counters_.transfers_cut;
  seal(index);
  return true;
}

// Nothing can write into the memory any more: it goes on to the reader, or back.
void Node::Core::lease_returned(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  LeaseSlot& lease = leases_[in.lease_slot];
  KVRAIL_ASSERT(lease.in == ins_.handle_at(index) && lease.exposed == 0 && lease.withdrawing == 0);
  leased_bytes_ -= lease.bytes;
  inflow_.close(in.peer, lease.announced);
  lease.announced = 0;
  arbiter_.release(lease.granted);
  lease_free(in.lease_slot);
  in.lease_slot = kNoIndex;
  if (in.state == InState::failing) return close_in(index, in.answer, in.status);
  move(in, InState::decoding);
  arm_in(index);
  want(Kind::in, index);
}

// First in, first out: a slot rests as long as possible before it names another lease.
void Node::Core::lease_free(std::uint32_t slot) noexcept {
  LeaseSlot& lease = leases_[slot];
  lease.in = InHandle{};
  lease.bytes = 0;
  lease.generation = lease.generation == 0xffffffffU ? 1 : lease.generation + 1;
  lease.next_free = kNoIndex;
  (lease_free_tail_ == kNoIndex ? lease_free_head_ : leases_[lease_free_tail_].next_free) = slot;
  lease_free_tail_ = slot;
}

// ---- planes to slots -------------------------------------------------------------------------------

void Node::Core::run_decoding(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.coding.coded() && in.range_count > 0) {
    const std::uint64_t runs = needed_runs(in);
    while (in.decode_at < runs) {
      if (!decode_step(in)) return want(Kind::in, index);
    }
  }
  if (in.decode_failed) return close_in(index, Answer::done, Status{Code::corrupt});
  publish(index);
}

// The next layer of a block whose planes are here. The lease is apart from the slots that are decoded
// into, so this runs while later bytes still arrive.
bool Node::Core::decode_step(Incoming& in) noexcept {
  if (budget_ == 0) return false;
  const transport::Payload& payload = in.arrays.payload;
  const PayloadShape shape = shape_of(in);
  const auto here = [&](std::uint64_t piece) {
    return in.received.covers(payload.starts[piece], payload.starts[piece] + payload.pieces[piece].bytes);
  };
  const std::uint32_t number = shape.run_block(in.decode_at);
  for (std::uint32_t n = 0; n < shape.plane_count(); ++n) {
    if (shape.in_plane(n, number) && !here(shape.piece_of(n, in.decode_at))) return false;
  }
  Store::StagingView view;
  KVRAIL_ASSERT(store_->view(in.staging, view));
  const Coding coding = in.coding.of_block(number);
  const BlockHandle handle = view.blocks[number];
  const std::uint32_t layer = shape.run_layer(in.decode_at);
  const BlockView block = store_->block(handle);
  const std::uint64_t bytes = 2 * std::uint64_t{in.layout.block_tokens} * in.layout.row_bytes();
  const TimeNs before = clock_.now_ns();
  in.decode_failed |= !codecs_.decode(in.layout, coding, block, number, layer);
  codecs_.learn_decode(coding.rows(), clock_.now_ns() - before, bytes);
  store_->planes_written(handle, coding.planes(), layer + 1);
  counters_.decoded_bytes += bytes;
  budget_ -= std::min(budget_, bytes);
  ++in.decode_at;
  return true;
}

// ---- the end ---------------------------------------------------------------------------------------

void Node::Core::publish(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  if (in.medium == Medium::topk && !in.positions_taken) {
    const Status read = store_->take_positions(in.staging);
    if (!read.ok()) return close_in(index, Answer::done, Status{read.code});
    in.positions_taken = true;
  }
  leave_head(in);
  Steps steps(*this);
  const auto version = store_->advance_publish(in.staging, steps.left);
  if (!version) return want(Kind::in, index);
  in.staging = StagingHandle{};
  if (!version->ok()) return close_in(index, Answer::done, version->status());
  if (stays_held(in.medium) && in.missing_blocks * in.layout.block_tokens < in.tokens.size()) ++counters_.delta_transfers;
  deliver(index, version->value());
}

void Node::Core::deliver(std::uint32_t index, VersionHandle version) noexcept {
  Incoming& in = in_at(index);
  if (in.refresh) {  // it is found from now on
    counters_.refreshed_bytes += payload_bytes(in);
    return close_in(index, Answer::done, Status{});
  }
  const DeliveryHandle delivery = store_->deliver(in.to, version);
  if (!delivery.valid()) return close_in(index, Answer::done, Status{Code::out_of_capacity});
  in.observed_ns = now_ - in.submitted_ns;
  AgentEvent event;
  event.kind = AgentEventKind::delivery;
  event.medium = in.medium;
  event.critical = in.critical;
  event.task = in.task;
  event.transfer = in.id;
  event.version = version;
  event.version_number = in.version_number;
  event.delivery = delivery;
  event.manifest = store_->manifest(delivery);
  event.bytes = payload_bytes(in);
  event.missing_blocks = in.missing_blocks;
  event.predicted_ns = predicted_ns(in);
  event.observed_ns = in.observed_ns;
  const bool divided = in.split.valid();
  if (divided) {
    end_split(in, event);
  } else {
    KVRAIL_ASSERT(in.event_reserved);
    in.event_reserved = false;
    push_event(in.to, event);
  }
  ++agent(in.to)->deliveries;
  if (in.fetch == kNoIndex) desk_->turn_begins(in.task, in.to, &in.from_name, &in.context);
  const std::uint32_t lane = in.lane == kNoIndex ? 0 : in.lane;
  if (in.medium != Medium::tokens && in.medium != Medium::reference && in.pick.bytes > 0 && in.pick.predicted_ns > 0) {
    chooser_.observe(lane, divided ? Medium::split : in.medium, in.pick.bytes, in.pick.predicted_ns, now_ - in.decided_ns);
  }
  in.delivered = true;
  note_lossy(in);
  close_in(index, Answer::done, Status{});
  OpenDelivery open{lane, in.medium, in.pick.bytes, in.pick.predicted_ns, now_ - in.decided_ns, rows_};
  (void)open_deliveries_.insert(delivery.packed(), open);  // when full, this one teaches nothing
}

// From submit to usable; the pick looks ahead from the decision on.
TimeNs Node::Core::predicted_ns(const Incoming& in) noexcept {
  if (in.pick.index < 0) return 0;
  return add_saturating(in.decided_ns - in.submitted_ns, in.pick.predicted_ns);
}

std::uint64_t Node::Core::payload_bytes(const Incoming& in) noexcept {
  if (in.eager_bytes > 0) return in.eager_bytes;
  if (in.cut_at_bytes > 0) return in.cut_at_bytes;
  // Of these the ids themselves are the payload; they came with the OFFER.
  if (in.medium == Medium::tokens || in.medium == Medium::reference) {
    return (in.tokens.size() - std::min<std::uint64_t>(in.base_tokens, in.tokens.size())) * sizeof(TokenId);
  }
  return in.summary_bytes > 0 ? in.summary_bytes : in.arrays.payload.total_bytes;
}

void Node::Core::fail_in(std::uint32_t index, Status status, Answer answer) noexcept {
  Incoming& in = in_at(index);
  KVRAIL_ASSERT(!status.ok());
  if (in.state == InState::closing || in.state == InState::failing) return;
  if (in.lease_slot == kNoIndex) return close_in(index, answer, status);
  const bool withdrawing = in.state == InState::sealing;
  move(in, InState::failing);
  in.status = status;
  in.answer = answer;
  timers_.cancel(entity(Kind::in, index));
  if (!withdrawing) withdraw(index);
}

void Node::Core::lose_in(std::uint32_t index, Status status, bool restarted) noexcept {
  Incoming& in = in_at(index);
  if (in.state == InState::closing || in.state == InState::failing) {
    in.answer = Answer::none;
    if (in.state == InState::closing) want(Kind::in, index);
  } else {
    fail_in(index, status, Answer::none);
  }
  if (restarted && in.listed) {  // the new life counts its transfers anew
    in_ids_.erase({in.peer, in.id});
    in.listed = false;
  }
}

// Memory and promises go back now; only the answer is still to be posted.
void Node::Core::close_in(std::uint32_t index, Answer answer, Status status) noexcept {
  Incoming& in = in_at(index);
  KVRAIL_ASSERT(in.lease_slot == kNoIndex);
  move(in, InState::closing);
  in.answer = answer;
  in.status = status;
  timers_.cancel(entity(Kind::in, index));
  in.payload_bytes = status.ok() ? payload_bytes(in) : in.received.bytes();
  if (!status.ok() && in.tail_first) in.medium = Medium::split;
  AgentEvent failure;
  failure.status = status;
  end_split(in, failure);  // one that has been delivered has ended before
  if (in.staging.valid()) {
    store_->abandon(in.staging);
    in.staging = StagingHandle{};
  }
  release_payload(scratch_, in.arrays);
  if (in.event_reserved) {
    release_reserved(in.to, 1);
    in.event_reserved = false;
  }
  if (answer != Answer::later && !in.superseded) {
    ++(status.ok() ? counters_.transfers_in_ok : counters_.transfers_in_failed);
    explain_in(in);
    if (in.fetch != kNoIndex) end_fetch(in.fetch, status, &in);   // takes the fetch from `in`
  }
  await_offer(in);
  if (status.ok()) desk_->tasks().count_transfer(in.task, in.payload_bytes);
  if (answer == Answer::done || answer == Answer::none) remember_ended(in);
  scratch_.give_back(in.tokens);
  status_dirty_ = true;
  want(Kind::in, index);
}

void Node::Core::run_closing(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.answer != Answer::none) {
    if (in.lane == kNoIndex) in.lane = best_lane(in.peer);
    if (in.lane == kNoIndex) return;  // goes on when there is a lane, or when the peer is given up
    bool posted = false;
    switch (in.answer) {
      case Answer::done:
        posted = post(in.lane, wire::Done{in.id, in.status, in.medium, in.payload_bytes,
                                          static_cast<std::uint64_t>(std::max<TimeNs>(in.observed_ns, 0))});
        break;
      case Answer::reject: posted = post(in.lane, wire::Reject{in.id, 0, in.status}); break;
      case Answer::later:
        posted = post(in.lane, wire::Later{in.id, in.retry_after_ns, store_->memory(in.tenant_handle).free_bytes});
        break;
      case Answer::none: break;
    }
    if (!posted) return want_later(Kind::in, index);
  }
  free_in(index);
}

// Nothing is decided yet: forgets it as if it had never come.
void Node::Core::drop_in(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  KVRAIL_ASSERT(in.state == InState::gathering);
  await_offer(in);
  if (in.event_reserved) release_reserved(in.to, 1);
  scratch_.give_back(in.tokens);
  free_in(index);
}

void Node::Core::free_in(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  KVRAIL_ASSERT(in.lease_slot == kNoIndex && !in.staging.valid() && in.tokens.empty());
  if (in.listed) in_ids_.erase({in.peer, in.id});
  Peer& peer = peer_at(in.peer);
  KVRAIL_ASSERT(peer.open > 0);
  --peer.open;
  timers_.cancel(entity(Kind::in, index));
  forget_restore(in);
  if (in.delivered) note_used(in.to, in.tenant_handle, in.from_name, in.context);
  ins_.erase(ins_.handle_at(index));
}

void Node::Core::remember_ended(const Incoming& in) noexcept {
  if (!in.listed) return;
  if (ended_.full() || ended_tail_ - ended_head_ == ended_order_.size()) {
    const EndedAt& oldest = ended_order_[ended_head_ % ended_order_.size()];
    ended_.erase(oldest.key);
    ++ended_head_;
  }
  const TransferKey key{in.peer, in.id};
  ended_.insert(key, Ended{in.status, in.medium, in.payload_bytes, static_cast<std::uint64_t>(std::max<TimeNs>(in.observed_ns, 0)), now_});
  ended_order_[ended_tail_++ % ended_order_.size()] = {key, now_};
}

void Node::Core::forget_ended(TimeNs before) noexcept {
  while (ended_head_ != ended_tail_) {
    const EndedAt& oldest = ended_order_[ended_head_ % ended_order_.size()];
    if (oldest.at_ns > before) return;
    const Ended* known = ended_.find(oldest.key);
    if (known != nullptr && known->at_ns == oldest.at_ns) ended_.erase(oldest.key);  // not of a newer life
    ++ended_head_;
  }
}

}  // namespace kvrail::engine
