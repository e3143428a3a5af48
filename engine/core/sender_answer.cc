// The sender's side of what the receiver answers: ACCEPT, LATER, REJECT, DONE.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kFirstDoneNs = 200 * kMillisecondNs;   // QUERY when DONE is not here by then
constexpr TimeNs kMostRetryAfterNs = 500 * kMillisecondNs;

}  // namespace

void Node::Core::on_accept(std::uint32_t lane, const wire::Accept& message) noexcept {
  const std::uint32_t index = find_out(lane, message.transfer);
  if (index == kNoIndex) return;
  Outgoing& out = out_at(index);
  // An ACCEPT may overtake our own bookkeeping: the last frame of a repeated offer is not posted yet.
  if (out.state == OutState::offering && out.offer_posted) move(out, OutState::offered);
  if (out.state != OutState::offered) {
    ++counters_.unknown_messages;
    return;
  }
  const auto end = out.candidates.begin() + out.candidate_count;
  const auto picked = std::find_if(out.candidates.begin(), end, [&](const scheduler::CandidateCost& it) { return it.medium == message.medium; });
  if (picked == end) return cancel_out(index, Status{Code::protocol_error});
  out.medium = message.medium;
  if (!take_coding(out, *picked)) return cancel_out(index, Status{Code::internal});
  out.predicted_ns = message.predicted_ns;
  out.accepted_ns = now_;
  out.retry_ns = 0;
  out.laters = 0;
  out.eager_failed |= out.eager;
  note_sending(out, sending_use_ns(out, message));
  if (is_kv(message.medium)) {
    out.lease = message.lease;
    out.tail_from_row = message.tail_from_row;
    out.first_plane = message.first_plane;
    out.encodings = message.encodings;
    out.tail_first = message.tail_first;
    out.encodings_checked = message.first_plane == 0;
    out.range_count = message.range_count;
    std::copy_n(message.missing.begin(), message.range_count, out.ranges.begin());
    return begin_sending(index);
  }
  if (message.medium == Medium::summary) return begin_summary(index);
  begin_finishing(index);
}

// The coding with the sizes that were offered: the receiver has made room for just these.
bool Node::Core::take_coding(Outgoing& out, const scheduler::CandidateCost& offered) noexcept {
  VersionView view;
  KVRAIL_ASSERT(store_->view(out.version, view));
  out.coding = coding_of(offered, view.layout, view.tokens.size());
  out.rows = out.medium == Medium::topk ? offered.rows : 0;
  if (!out.coding.coded()) return true;
  const std::uint64_t tokens = out.rows > 0 ? out.rows : view.tokens.size();
  return codecs_.take_offered(view.layout, offered.block_bytes, offered.tail_bytes,
                              static_cast<std::uint32_t>(tokens % view.layout.block_tokens), out.coding);
}

void Node::Core::begin_finishing(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  move(out, OutState::finishing);
  out.retry_ns = out.retry_ns == 0 ? kFirstDoneNs : out.retry_ns;
  out.state_due_ns = now_ + jittered(out.retry_ns);
  arm_out(index);
}

void Node::Core::on_later(std::uint32_t lane, const wire::Later& message) noexcept {
  const std::uint32_t index = find_out(lane, message.transfer);
  if (index == kNoIndex) return;
  Outgoing& out = out_at(index);
  if (out.state == OutState::offering && out.offer_posted) move(out, OutState::offered);
  if (out.state != OutState::offered) {
    ++counters_.unknown_messages;
    return;
  }
  ++counters_.laters;
  move(out, OutState::waiting);
  out.retry_ns = 0;
  // Doubled each time, so that a receiver that stays full is not asked hundreds of times a second.
  const auto wanted = static_cast<TimeNs>(std::min<std::uint64_t>(message.retry_after_ns, kMostRetryAfterNs));
  const TimeNs wait = std::max<TimeNs>(wanted, kMillisecondNs) << std::min<std::uint32_t>(out.laters++, 6);
  out.state_due_ns = now_ + jittered(std::min(wait, kMostRetryAfterNs));
  arm_out(index);
}

void Node::Core::on_reject(std::uint32_t lane, const wire::Reject& message) noexcept {
  if (message.transfer == 0) {
    const std::uint32_t fetch = find_fetch(message.fetch_id);
    const bool asked = fetch != kNoIndex && fetches_.get(fetches_.handle_at(fetch))->peer == lane_at(lane)->peer;
    if (asked && !message.status.ok()) end_fetch(fetch, message.status, nullptr);
    return;
  }
  const std::uint32_t index = find_out(lane, message.transfer);
  if (index == kNoIndex) return;
  Outgoing& out = out_at(index);
  if (message.status.ok()) return cancel_out(index, Status{Code::protocol_error});
  const bool base_gone = message.status.code == Code::not_found && message.status.detail == kBaseGone;
  if (base_gone && out.base_tokens > 0 && !out.base_refused && out.state == OutState::offered) {
    out.base_refused = true;
    out.retry_ns = 0;
    move(out, OutState::offering);
    return begin_offer(index);
  }
  ++counters_.rejects;
  end_out(index, Status{message.status.code, Scope::transfer, message.status.detail}, 0, now_ - out.submitted_ns);
}

void Node::Core::on_done(std::uint32_t lane, const wire::Done& message) noexcept {
  const std::uint32_t index = find_out(lane, message.transfer);
  if (index == kNoIndex) return;
  Outgoing& out = out_at(index);
  if (out.state == OutState::parked) {
    ++counters_.unknown_messages;
    return;
  }
  if (message.status.ok() && message.bytes > 0 && out.accepted_ns == 0) note_sending(out, 0);
  if (message.medium != Medium::automatic) out.medium = message.medium;
  if (message.status.ok()) note_belief(out);
  end_out(index, message.status, message.bytes, static_cast<TimeNs>(message.observed_ns));
}

// Under a new id, as if just submitted but for its age: for what turned out after the ACCEPT.
void Node::Core::restart(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(out.chunks_in_flight == 0);
  drop_flow(out);
  release_payload(scratch_, out.arrays);
  release_planes(out, UINT64_MAX);
  release_gather(out);
  (void)post(out.lane, wire::Cancel{out.id, Status{Code::cancelled, Scope::transfer, kOfferedAnew}});  // else its lease expires idle
  out_ids_.erase(out.id);
  out.id = next_transfer_++;
  KVRAIL_ASSERT(out_ids_.insert(out.id, index) != nullptr);
  out.medium = Medium::automatic;
  out.payload_built = out.chunk_failed = out.outcome_pending = false;
  out.range_count = out.span_count = out.span_at = 0;
  out.prepare_at = out.prepare_piece = 0;
  out.ready_bytes = out.posted_end = out.acknowledged_bytes = 0;
  out.accepted_ns = 0;
  out.first_plane = 0;
  out.tail_first = false;
  out.retry_ns = 0;
  move(out, OutState::offering);
  begin_offer(index);
}

}  // namespace kvrail::engine
