// How transfers end: by the agent's cancel, by CANCEL, by time, by their peer; and how what they held
// goes back. The terminal event is pushed once, here; memory follows when no chunk is in flight.
#include <algorithm>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {

Status Node::Core::cancel(AgentHandle handle, TicketId ticket) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  if (ticket == 0) return Status{Code::invalid_argument};
  bool found = false;
  outs_.for_each([&](OutHandle out_handle, Outgoing& out) {
    if (out.from != handle || out.ticket != ticket || out.state == OutState::draining) return;
    found = true;
    cancel_out(out_handle.index, Status{Code::cancelled});
  });
  fetches_.for_each([&](Handle<Fetch> fetch_handle, Fetch& fetch) {
    if (fetch.agent != handle || fetch.ticket != ticket) return;
    found = true;
    const InHandle in = fetch.in;
    end_fetch(fetch_handle.index, Status{Code::cancelled}, nullptr);
    if (ins_.get(in) != nullptr) fail_in(in.index, Status{Code::cancelled});
  });
  local_waits_.for_each([&](Handle<LocalWait> summary, LocalWait& open) {
    const AgentHandle asker = open.request.fetch ? open.request.to : open.request.from;
    if (asker != handle || open.request.ticket != ticket) return;
    found = true;
    end_local_wait(summary.index, Status{Code::cancelled}, VersionHandle{});
  });
  recalls_.for_each([&](Handle<Recall> recall_handle, const Recall& recall) {
    if (recall.agent != handle || recall.ticket != ticket || recall.ended) return;
    found = true;
    end_recall(recall_handle.index, Status{Code::cancelled});
  });
  return found ? Status{} : Status{Code::not_found};
}

void Node::Core::cancel_out(std::uint32_t index, Status status) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(!status.ok() && out.state != OutState::draining);
  out.cancel_wanted = out.offer_posted;  // else the receiver has never heard of it
  out.cancel_status = status;
  end_out(index, status, out.acknowledged_bytes, now_ - out.submitted_ns);
}

void Node::Core::lose_out(std::uint32_t index, Status status) noexcept {
  Outgoing& out = out_at(index);
  out.offer_posted = out.cancel_wanted = false;  // nobody is there to be told
  if (out.state == OutState::draining) return want(Kind::out, index);
  cancel_out(index, status);
}

void Node::Core::push_sent(const Outgoing& out, std::uint64_t bytes, TimeNs observed_ns) noexcept {
  if (out.ticket == 0) return;
  AgentEvent event;
  event.kind = AgentEventKind::sent;
  event.medium = out.medium == Medium::automatic ? out.wish : out.medium;
  event.critical = out.critical;
  event.receiver = out.receiver;
  event.status = out.status;
  event.ticket = out.ticket;
  event.task = out.task;
  event.transfer = out.id;
  event.version = out.version;
  event.version_number = out.version_number;
  event.bytes = bytes;
  event.missing_blocks = out.missing_blocks;
  event.predicted_ns = static_cast<std::int64_t>(out.predicted_ns);
  event.observed_ns = observed_ns;
  push_event(out.from, event);
}

void Node::Core::end_out(std::uint32_t index, Status status, std::uint64_t bytes, TimeNs observed_ns) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT_MSG(out.state != OutState::draining, "one terminal status");
  drop_flow(out);
  if (out.state == OutState::parked) leave_leader(index);
  out.status = status;
  push_sent(out, bytes, observed_ns);
  explain_out(out, bytes, observed_ns);
  ++(status.ok() ? counters_.transfers_out_ok : counters_.transfers_out_failed);
  if (status.ok()) desk_->tasks().count_transfer(out.task, bytes);
  move(out, OutState::draining);
  timers_.cancel(entity(Kind::out, index));
  status_dirty_ = true;
  want(Kind::out, index);
  if (out.leads) release_followers(index);
}

// Those that waited for this transfer go on: all at once if the receiver has the blocks now, else one
// takes the lead.
void Node::Core::release_followers(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  leaders_.erase({out.peer, out.version.packed()});
  out.leads = false;
  std::uint32_t next = out.next_follower;
  out.next_follower = kNoIndex;
  const bool held = out.status.ok() && stays_held(out.medium);
  while (next != kNoIndex) {
    const std::uint32_t follower = next;
    Outgoing& waiting = out_at(follower);
    next = waiting.next_follower;
    waiting.next_follower = kNoIndex;
    if (held) {
      move(waiting, OutState::offering);
      begin_offer(follower);
    } else {
      park_or_offer(follower);
    }
  }
}

void Node::Core::leave_leader(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  const std::uint32_t* leader = leaders_.find({out.peer, out.version.packed()});
  if (leader == nullptr) return;
  for (std::uint32_t* link = &out_at(*leader).next_follower; *link != kNoIndex; link = &out_at(*link).next_follower) {
    if (*link != index) continue;
    *link = out.next_follower;
    out.next_follower = kNoIndex;
    return;
  }
}

void Node::Core::run_draining(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  if (out.cancel_wanted) {
    if (out.lane == kNoIndex) out.lane = best_lane(out.peer);
    if (out.lane == kNoIndex) return;  // goes on when a lane is there, or when the peer is given up
    if (!post(out.lane, wire::Cancel{out.id, out.cancel_status})) return want_later(Kind::out, index);
    out.cancel_wanted = false;
  }
  if (out.chunks_in_flight > 0) return;  // the last completion calls again
  Steps steps(*this);
  const std::uint64_t held = out.planes_held;
  release_planes(out, steps.left);
  steps.left -= held - out.planes_held;
  if (out.planes_held > 0) return want(Kind::out, index);
  free_out(index);
}

void Node::Core::free_out(std::uint32_t index) noexcept {
  Outgoing& out = out_at(index);
  KVRAIL_ASSERT(out.chunks_in_flight == 0 && out.planes_held == 0 && !out.flow.valid() && !out.leads);
  release_payload(scratch_, out.arrays);
  scratch_.give_back(out.summary);
  release_extract(out.extract);
  release_gather(out);
  store_->unpin(out.version);
  out_ids_.erase(out.id);
  Peer& peer = peer_at(out.peer);
  KVRAIL_ASSERT(peer.open > 0);
  --peer.open;
  timers_.cancel(entity(Kind::out, index));
  outs_.erase(outs_.handle_at(index));
}

void Node::Core::on_cancel(std::uint32_t lane, const wire::Cancel& message) noexcept {
  const std::uint32_t index = find_in(lane, message.transfer);
  if (index == kNoIndex) return;
  Incoming& in = in_at(index);
  if (in.state == InState::closing || in.state == InState::failing) return;
  const Status status = message.status.ok() ? Status{Code::cancelled} : message.status;
  // It comes again under another id; who fetches it goes on waiting for that.
  in.superseded = status.code == Code::cancelled && status.detail == kOfferedAnew;
  if (in.superseded) await_offer(in);
  fail_in(index, Status{status.code, Scope::transfer, status.detail}, Answer::none);
}

}  // namespace kvrail::engine
