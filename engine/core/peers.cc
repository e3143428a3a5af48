// Lanes and the peers at their ends: dialling, which of two lanes stays, keepalive, death, restart.
//
// A peer is alive from its first lane until it has been silent for dead_after_ns, whatever its lanes
// do in between: a lane that breaks is a matter of resuming, a peer that is silent one of failing.
#include <algorithm>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kConfirmNs = 2 * kSecondNs;     // for a reconnected peer to announce its agents again
constexpr std::uint32_t kControlCredits = 16;    // frames have their own room in every transport
constexpr TimeNs kBusyKeepaliveNs = 10 * kMillisecondNs;

}  // namespace

std::uint32_t Node::Core::add_transport(transport::Transport& transport) {
  KVRAIL_ASSERT_MSG(transport_count_ < kMaxTransports, "at most 8 transports");
  const transport::Caps& caps = transport.caps();
  KVRAIL_ASSERT(caps.max_leases > 0 && caps.max_frame_bytes >= wire::kMaxOfferOverhead + 4);
  const std::uint32_t index = transport_count_++;
  transports_[index] = &transport;
  wait_fds_[index] = transport.wait_fd();
  wait_fd_count_ = transport_count_;
  // A lease has the same slot on every transport, so the smallest table is the one that counts.
  const auto slots = std::min({caps.max_leases, options_.limits.max_in, wire::kMaxLeaseSlots});
  max_leases_ = index == 0 ? slots : std::min(max_leases_, slots);
  leases_.assign(max_leases_, LeaseSlot{});
  lease_free_head_ = lease_free_tail_ = kNoIndex;
  for (std::uint32_t i = 0; i < max_leases_; ++i) lease_free(i);
  return index;
}

Result<void> Node::Core::connect(std::string_view address, std::uint32_t transport) {
  if (transport >= transport_count_) {
    return Error{Status{Code::invalid_argument}, "no such transport"};
  }
  if (dials_.size() == options_.limits.max_dials) {
    return Error{Status{Code::out_of_capacity, Scope::engine, static_cast<std::int32_t>(options_.limits.max_dials)},
                 "too many addresses to connect to; raise max_dials"};
  }
  dials_.push_back(Dial{std::string(address), transport, 0, LaneId{}, false, options_.first_dial_ns});
  timers_.set(entity(Kind::dial, static_cast<std::uint32_t>(dials_.size() - 1)), now_);
  return {};
}

void Node::Core::run_dial(std::uint32_t index) noexcept {
  Dial& dial = dials_[index];
  if (dial.opening) return;
  const std::uint32_t peer = dial.peer == 0 ? kNoIndex : find_peer(dial.peer);
  if (peer != kNoIndex) {
    for (std::uint64_t mask = peer_at(peer).lanes; mask != 0; mask &= mask - 1) {
      const Lane* lane = lane_at(static_cast<std::uint32_t>(std::countr_zero(mask)));
      if (lane->transport != dial.transport) continue;
      tell_dial(index, kDialUp);
      return;  // there is a lane: nothing to dial for
    }
  }
  const AllowAllocScope allow;  // once per attempt
  auto opened = transports_[dial.transport]->open_lane(dial.address, index + 1);
  if (!opened.ok()) {
    tell_dial(index, opened.status());
    return dial_failed(index);
  }
  dial.lane = opened.value();
  dial.opening = true;
}

void Node::Core::dial_failed(std::uint32_t index) noexcept {
  Dial& dial = dials_[index];
  dial.opening = false;
  timers_.set(entity(Kind::dial, index), now_ + jittered(dial.backoff_ns));
  dial.backoff_ns = std::min(dial.backoff_ns * 2, options_.last_dial_ns);
}

std::uint32_t Node::Core::find_lane(std::uint32_t transport, LaneId id) const noexcept {
  const std::uint32_t* lane = lane_ids_.find({transport, id.packed()});
  return lane == nullptr ? kNoIndex : *lane;
}

std::uint32_t Node::Core::find_peer(NodeId id) const noexcept {
  std::uint32_t found = kNoIndex;
  peers_.for_each([&](Handle<Peer> handle, const Peer& peer) {
    if (peer.id == id) found = handle.index;
  });
  return found;
}

std::uint32_t Node::Core::make_peer(NodeId id) noexcept {
  if (const std::uint32_t found = find_peer(id); found != kNoIndex) return found;
  if (peers_.full()) {
    Handle<Peer> idle;
    peers_.for_each([&](Handle<Peer> handle, const Peer& peer) {
      if (!peer.alive && peer.open == 0 && peer.lanes == 0) idle = handle;
    });
    if (!idle.valid()) return kNoIndex;
    forget_peer(idle.index);
    peers_.erase(idle);
  }
  const Handle<Peer> handle = peers_.try_emplace();
  peers_.get(handle)->id = id;
  return handle.index;
}

// What is known of a life of the peer that is over.
void Node::Core::forget_peer(std::uint32_t peer) noexcept {
  desk_->forget_peer(peer);
  ended_.erase_if([&](const TransferKey& key, const Ended&) { return key.peer == peer; });
  beliefs_.erase_if([&](const BeliefKey& key, const Belief&) { return key.peer == peer; });
}

std::uint32_t Node::Core::best_lane(std::uint32_t index) const noexcept {
  const Peer* peer = peers_.get(peers_.handle_at(index));
  if (peer == nullptr) return kNoIndex;
  std::uint32_t best = kNoIndex;
  bool best_local = false;
  for (std::uint64_t mask = peer->lanes; mask != 0; mask &= mask - 1) {
    const auto at = static_cast<std::uint32_t>(std::countr_zero(mask));
    const Lane* lane = lanes_.get(lanes_.handle_at(at));
    const bool local = transports_[lane->transport]->caps().same_machine;
    if (best == kNoIndex || (local && !best_local)) {
      best = at;
      best_local = local;
    }
  }
  return best;
}

void Node::Core::on_lane_up(std::uint32_t transport, const Event& event) noexcept {
  const std::uint32_t dial = event.cookie == 0 ? kNoIndex : static_cast<std::uint32_t>(event.cookie - 1);
  KVRAIL_ASSERT(dial == kNoIndex || dial < dials_.size());
  const bool ourselves = event.peer == options_.node_id || event.peer == 0;
  const std::uint32_t peer = ourselves ? kNoIndex : make_peer(event.peer);
  if (peer == kNoIndex || lanes_.full()) {
    transports_[transport]->close_lane(event.lane);  // its lane_down does the dial's back-off
    return;
  }
  Peer& p = peer_at(peer);
  if (p.incarnation != 0 && p.incarnation != event.incarnation) {
    ++counters_.peer_restarts;
    fail_peer(peer, Code::peer_restarted);
    forget_peer(peer);
  }
  p.incarnation = event.incarnation;
  p.alive = true;
  p.last_heard_ns = now_;
  const bool first = p.lanes == 0;
  const Handle<Lane> handle = lanes_.try_emplace();
  Lane& lane = *lanes_.get(handle);
  lane.transport = transport;
  lane.id = event.lane;
  lane.peer = peer;
  lane.dial = dial;
  lane.last_heard_ns = lane.last_sent_ns = now_;
  lane.serial = ++lanes_up_;
  p.lanes |= std::uint64_t{1} << handle.index;
  lane_ids_.insert({transport, event.lane.packed()}, handle.index);
  scheduler_.lane_up(handle.index, options_.lane_rate_hint_bytes_per_s, now_, !transports_[transport]->caps().same_machine);
  const std::uint32_t credits = transports_[transport]->caps().max_chunks_in_flight;
  arbiter_.open_lane(handle.index, credits, kControlCredits);
  if (dial != kNoIndex) {
    dials_[dial].opening = false;
    dials_[dial].peer = event.peer;
    dials_[dial].backoff_ns = options_.first_dial_ns;
    tell_dial(dial, kDialUp);
  }
  if (first) {
    p.connected_ns = now_;
    p.confirming = true;
  }
  announce_all(peer);  // on every lane: the peer may not know yet that an older one is lost
  drop_duplicates(peer);
  timers_.set(entity(Kind::peer, peer), now_);
  resume_peer(peer);
}

// Both ends may have dialled. The node with the smaller id alone decides and keeps the oldest lane of
// each transport: two deciders could each close the lane that the other one keeps.
void Node::Core::drop_duplicates(std::uint32_t index) noexcept {
  const Peer& peer = peer_at(index);
  if (options_.node_id > peer.id) return;
  for (std::uint32_t t = 0; t < transport_count_; ++t) {
    std::uint32_t kept = kNoIndex;
    for (std::uint64_t mask = peer.lanes; mask != 0; mask &= mask - 1) {
      const auto at = static_cast<std::uint32_t>(std::countr_zero(mask));
      if (lane_at(at)->transport != t) continue;
      if (kept == kNoIndex) {
        kept = at;
        continue;
      }
      const std::uint32_t newer = lane_at(at)->serial > lane_at(kept)->serial ? at : kept;
      kept = newer == at ? kept : at;
      ++counters_.duplicate_lanes;
      close_lane(newer);
    }
  }
}

// No frame or chunk is posted on the lane any more; chunks in flight and the lane_down still come.
void Node::Core::close_lane(std::uint32_t index) noexcept {
  Lane* lane = lane_at(index);
  if (lane == nullptr || lane->closing) return;
  lane->closing = true;
  peer_at(lane->peer).lanes &= ~(std::uint64_t{1} << index);
  transports_[lane->transport]->close_lane(lane->id);
}

void Node::Core::on_lane_down(std::uint32_t transport, const Event& event) noexcept {
  const std::uint32_t index = find_lane(transport, event.lane);
  if (index == kNoIndex) {
    if (event.cookie != 0 && event.cookie <= dials_.size()) {
      const auto dial = static_cast<std::uint32_t>(event.cookie - 1);
      tell_dial(dial, event.status);
      dial_failed(dial);
    }
    return;
  }
  const Lane lane = *lane_at(index);
  if (!lane.closing) ++counters_.lane_losses;
  Peer& peer = peer_at(lane.peer);
  peer.lanes &= ~(std::uint64_t{1} << index);
  outs_.for_each([&](OutHandle handle, Outgoing& out) {
    if (out.lane == index) out_lane_lost(handle.index);
  });
  ins_.for_each([&](InHandle, Incoming& in) {
    if (in.lane == index) in.lane = best_lane(in.peer);
  });
  fetches_.for_each([&](Handle<Fetch> handle, Fetch& fetch) {
    if (fetch.peer == lane.peer && !fetch.in.valid()) {
      fetch.posted = false;
      want(Kind::fetch, handle.index);
    }
  });
  reservations_lose(index);
  scheduler_.lane_down(index);
  arbiter_.close_lane(index);
  lane_ids_.erase({transport, event.lane.packed()});
  lanes_.erase(lanes_.handle_at(index));
  for (std::uint32_t d = 0; d < dials_.size(); ++d) {
    if (dials_[d].peer != peer.id || dials_[d].transport != transport || dials_[d].opening) continue;
    if (peer.lanes == 0) tell_dial(d, {Code::lane_lost, Scope::lane});
    dial_failed(d);
  }
  timers_.set(entity(Kind::peer, lane.peer), now_);
  if (peer.lanes != 0) announce_all(lane.peer);  // what was announced on the lost lane may be lost
  resume_peer(lane.peer);
}

void Node::Core::resume_peer(std::uint32_t peer) noexcept {
  const std::uint32_t lane = best_lane(peer);
  if (lane == kNoIndex) return;
  admit_again(peer);
  outs_.for_each([&](OutHandle handle, Outgoing& out) {
    if (out.peer == peer && out.lane == kNoIndex && out.chunks_in_flight == 0) out_lane_found(handle.index);
  });
  ins_.for_each([&](InHandle handle, Incoming& in) {
    if (in.peer != peer || in.lane != kNoIndex) return;
    in.lane = lane;
    want(Kind::in, handle.index);
  });
  fetches_.for_each([&](Handle<Fetch> handle, Fetch& fetch) {
    if (fetch.peer == peer) want(Kind::fetch, handle.index);
  });
}

void Node::Core::heard(Lane& lane) noexcept {
  lane.last_heard_ns = now_;
  peer_at(lane.peer).last_heard_ns = now_;
}

void Node::Core::on_keepalive(std::uint32_t, const wire::Keepalive&) noexcept {}

void Node::Core::peer_timer(std::uint32_t index) noexcept {
  if (!peers_.handle_at(index).valid()) return;
  Peer& peer = peer_at(index);
  if (!peer.alive) return;
  TimeNs next = peer.last_heard_ns + options_.dead_after_ns;
  if (now_ >= next) {
    ++counters_.peer_deaths;
    fail_peer(index, Code::peer_down);
    return;
  }
  for (std::uint64_t mask = peer.lanes; mask != 0; mask &= mask - 1) {
    const auto at = static_cast<std::uint32_t>(std::countr_zero(mask));
    Lane& lane = *lane_at(at);
    if (now_ - lane.last_heard_ns >= options_.dead_after_ns) {
      ++counters_.lane_losses;
      close_lane(at);
      continue;
    }
    if (now_ - lane.last_sent_ns >= options_.keepalive_period_ns &&
        !post(at, wire::Keepalive{++lane.keepalives})) {
      next = std::min(next, now_ + kBusyKeepaliveNs);
      continue;
    }
    next = std::min({next, lane.last_sent_ns + options_.keepalive_period_ns,
                     lane.last_heard_ns + options_.dead_after_ns});
  }
  if (peer.confirming && now_ >= peer.connected_ns + kConfirmNs) {
    peer.confirming = false;
    forget_agents_of(index, peer.connected_ns);
  }
  if (peer.confirming) next = std::min(next, peer.connected_ns + kConfirmNs);
  timers_.set(entity(Kind::peer, index), next);
}

void Node::Core::fail_peer(std::uint32_t index, Code code) noexcept {
  Peer& peer = peer_at(index);
  const Status status{code, Scope::peer};
  const auto gone = [&](std::uint32_t p) { return p == index; };
  outs_.for_each([&](OutHandle handle, Outgoing& out) {
    if (gone(out.peer)) lose_out(handle.index, status);
  });
  ins_.for_each([&](InHandle handle, Incoming& in) {
    if (gone(in.peer)) lose_in(handle.index, status, code == Code::peer_restarted);
  });
  fetches_.for_each([&](Handle<Fetch> handle, Fetch& fetch) {
    if (gone(fetch.peer) && !fetch.in.valid()) end_fetch(handle.index, status, nullptr);
  });
  end_reservations_at(index, status);
  forget_agents_of(index, kNever);
  while (peer.lanes != 0) close_lane(static_cast<std::uint32_t>(std::countr_zero(peer.lanes)));
  peer.alive = false;
  peer.state_known = false;
  timers_.cancel(entity(Kind::peer, index));
}

}  // namespace kvrail::engine
