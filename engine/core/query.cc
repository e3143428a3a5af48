// What happens when an answer was lost or a lane broke: QUERY asks the receiver how a transfer stands,
// OUTCOME says what is still missing, and the sender goes on from there on any lane to the peer.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kFirstQueryNs = 100 * kMillisecondNs;
constexpr TimeNs kLastQueryNs = 2 * kSecondNs;
constexpr std::uint32_t kMaxReoffers = 8;

}  // namespace

// ---- the sender ------------------------------------------------------------------------------------

void Node::Core::begin_query(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(out.chunks_in_flight == 0);
  drop_flow(out);
  move(out, OutState::querying);
  out.query_since_ns = now_;
  out.retry_ns = 0;
  arm_out(index);
  want(Kind::out, index);
}

void Node::Core::run_querying(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.lane == kNoIndex) return;
  if (now_ - out.query_since_ns >= options_.accept_timeout_ns) return cancel_out(index, Status{Code::unknown});
  if (!post(out.lane, wire::Query{out.id, options_.incarnation})) return want_later(Kind::out, index);
  ++counters_.queries;
  out.retry_ns = out.retry_ns == 0 ? kFirstQueryNs : std::min(2 * out.retry_ns, kLastQueryNs);
  out.state_due_ns = now_ + jittered(out.retry_ns);
  arm_out(index);
}

void Node::Core::on_outcome(std::uint32_t lane, const wire::Outcome& message) noexcept {
  const std::uint32_t index = find_out(lane, message.transfer);
  if (index == kNoIndex) return;
  Outgoing& out = out_at(index);
  if (message.state == wire::TransferState::ended) {
    if (out.state == OutState::parked) return;
    if (message.status.ok()) note_belief(out);
    return end_out(index, message.status, out.acknowledged_bytes, now_ - out.submitted_ns);
  }
  if (out.state == OutState::sending) {
    // Unasked: units were corrupt. They are asked for by themselves once the rest has arrived.
    out.outcome_pending = message.state == wire::TransferState::receiving;
    return;
  }
  if (out.state == OutState::finishing && message.state == wire::TransferState::receiving) {
    return resume_spans(index, message);
  }
  if (out.state != OutState::querying) {
    ++counters_.unknown_messages;
    return;
  }
  switch (message.state) {
    case wire::TransferState::unknown: return offer_again(index);
    case wire::TransferState::offered:
      if (out.accepted_ns != 0) return offer_again(index);
      move(out, OutState::offered);
      out.state_due_ns = now_ + kLastQueryNs;
      return arm_out(index);
    case wire::TransferState::receiving: return resume_spans(index, message);
    case wire::TransferState::ended: return;
  }
}

// The receiver knows nothing of it and would remember if it had ended: it is offered from the start.
void Node::Core::offer_again(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (++out.reoffers > kMaxReoffers) return cancel_out(index, Status{Code::unknown});
  restart(index);
}

void Node::Core::resume_spans(std::uint32_t index, const wire::Outcome& message) noexcept {
  Outgoing& out = out_at(index);
  if (out.cut) return;  // nothing more is posted: the receiver's DONE is due, or the time runs out
  if (out.medium == Medium::summary) {
    if (out.state != OutState::querying) return;
    out.summary_posted = false;
    move(out, OutState::summarising);
    arm_out(index);
    return want(Kind::out, index);
  }
  if (!is_kv(out.medium)) {  // the receiver kept bytes that it never asked us for
    return cancel_out(index, Status{Code::protocol_error});
  }
  out.lease = message.lease;
  const std::uint64_t total = out.arrays.payload.total_bytes;
  if (out.payload_built) {
    if (message.range_count == 0) {
      out.retry_ns = 0;
      return out.state == OutState::finishing ? arm_out(index) : begin_finishing(index);
    }
    for (std::uint32_t i = 0; i < message.range_count; ++i) {
      const wire::ByteRange& range = message.missing[i];
      if (range.offset >= total || range.bytes > total - range.offset) {
        return cancel_out(index, Status{Code::protocol_error});
      }
      out.spans[i] = {range.offset, range.offset + range.bytes};
    }
    out.span_count = message.range_count;
    out.span_at = 0;
    out.posted_end = out.spans[0].begin;
  }
  out.chunk_failed = out.outcome_pending = false;
  out.resumed = true;
  ++counters_.resumes;
  move(out, OutState::sending);
  arm_out(index);
  want(Kind::out, index);
}

void Node::Core::out_lane_lost(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT_MSG(out.chunks_in_flight == 0, "a lane's chunks complete before it goes down");
  drop_flow(out);
  out.lane = kNoIndex;
}

void Node::Core::out_lane_found(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.state == OutState::parked || out.state == OutState::restoring) return;  // chooses one when it is its turn
  out.lane = best_lane(out.peer);
  switch (out.state) {
    case OutState::offered:
      move(out, OutState::offering);
      return begin_offer(index);
    case OutState::offering: return begin_offer(index);
    case OutState::summarising:
      if (!out.summary_posted) return want(Kind::out, index);
      return begin_query(index);
    case OutState::sending:
    case OutState::finishing: return begin_query(index);
    case OutState::querying:
    case OutState::draining: return want(Kind::out, index);
    case OutState::waiting:
    case OutState::restoring:
    case OutState::parked: return;
  }
}

// ---- the receiver ----------------------------------------------------------------------------------

void Node::Core::on_query(std::uint32_t lane_index, const wire::Query& message) noexcept {
  const std::uint32_t peer = lane_at(lane_index)->peer;
  wire::Outcome outcome;
  outcome.transfer = message.transfer;
  const TransferKey key{peer, message.transfer};
  const std::uint32_t* found = in_ids_.find(key);
  if (message.incarnation != peer_at(peer).incarnation) {
    ++counters_.unknown_messages;  // of an older life
  } else if (found != nullptr) {
    Incoming& in = in_at(*found);
    in.lane = lane_index;
    if (in.state == InState::receiving) expose_on(*found, lane_at(lane_index)->transport);
    in.resumed = true;
    in.last_activity_ns = now_;
    in.outcome_wanted = true;
    return want(Kind::in, *found);
  } else if (const Ended* ended = ended_.find(key); ended != nullptr) {
    outcome.state = wire::TransferState::ended;
    outcome.status = ended->status;
  }
  (void)post(lane_index, outcome);  // when the lane is full the sender asks again
}

void Node::Core::fill_outcome(const Incoming& in, wire::Outcome& message) const noexcept {
  message.transfer = in.id;
  switch (in.state) {
    case InState::gathering:
    case InState::deciding:
    case InState::eager: message.state = wire::TransferState::offered; return;
    case InState::failing:
    case InState::closing:
      // A LATER or REJECT that is still to be posted answers the offer, not the query.
      message.state = in.answer == Answer::done || in.state == InState::failing ? wire::TransferState::ended
                                                                               : wire::TransferState::offered;
      message.status = in.status;
      return;
    case InState::summary:
    case InState::sealing:
    case InState::decoding: message.state = wire::TransferState::receiving; break;
    case InState::receiving: message.state = wire::TransferState::receiving; break;
  }
  if (in.lease_slot != kNoIndex) message.lease = {in.lease_slot, leases_[in.lease_slot].generation};
  if (in.state != InState::receiving) return;
  in.received.for_each_gap(needed_bytes(in), [&](std::uint64_t begin, std::uint64_t end) {
    if (message.range_count < message.missing.size()) message.missing[message.range_count++] = {begin, end - begin};
  });
}

}  // namespace kvrail::engine
