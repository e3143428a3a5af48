#include "transport/sim/sim_network.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/no_alloc.h"
#include "transport/sim/sim_lane.h"
#include "transport/sim/sim_transport.h"

namespace kvrail::transport::sim {

SimNetwork::SimNetwork(const NetworkOptions& options)
    : options_(options), clock_(options.start_ns), prng_(Prng(options.seed).split("network")) {
  heap_.reserve(std::size_t{1} << 14);
}

SimNetwork::~SimNetwork() {
  KVRAIL_ASSERT_MSG(nodes_.empty(), "a node outlives its network");
}

std::unique_ptr<SimTransport> SimNetwork::add_node(NodeId node, Incarnation incarnation,
                                                   const NodeOptions& options) {
  KVRAIL_ASSERT_MSG(nodes_.count(node) == 0, "a node of this id is up");
  auto* made = new SimTransport(*this, node, incarnation, options);
  nodes_[node] = made;
  note(1, node, incarnation);
  return std::unique_ptr<SimTransport>(made);
}

TimeNs SimNetwork::next_event_ns() const noexcept {
  return heap_.empty() ? kNever : heap_.front().at_ns;
}

void SimNetwork::advance_to(TimeNs to_ns) noexcept {
  KVRAIL_ASSERT_MSG(to_ns >= clock_.now_ns(), "time never runs backwards");
  while (!heap_.empty() && heap_.front().at_ns <= to_ns) {
    std::pop_heap(heap_.begin(), heap_.end(), Later{});
    const NetEvent event = heap_.back();
    heap_.pop_back();
    clock_.set(std::max(event.at_ns, clock_.now_ns()));
    run(event);
    ++events_run_;
  }
  clock_.set(to_ns);
}

void SimNetwork::schedule(NetEvent event) noexcept {
  // Beyond the reserved room only in runs with very many chunks under way.
  const AllowAllocScope allow;
  event.sequence = next_sequence_++;
  event.at_ns = std::max(event.at_ns, clock_.now_ns());
  heap_.push_back(event);
  std::push_heap(heap_.begin(), heap_.end(), Later{});
}

void SimNetwork::run(const NetEvent& event) noexcept {
  SimLane* found = lane(event.lane);
  if (found == nullptr) return;
  const int side = event.side;
  switch (event.kind) {
    case Kind::connect:
      on_connect(*found);
      return;
    case Kind::connected:
      on_connected(*found);
      return;
    case Kind::closed: {
      SimLane::End& end = found->ends[event.side];
      if (!event.local && partitioned(found->ends[0].node, found->ends[1].node)) {
        tell_closed(*found, side, options_.retry_ns);
        return;
      }
      if (end.owner != nullptr && end.state != SimLane::State::closed) {
        const Code code =
            end.state == SimLane::State::opening ? Code::unreachable : Code::lane_lost;
        end.owner->end_lane(*found, side, Status{code, Scope::lane});
      }
      return;
    }
    case Kind::pump:
      found->pump(*this, side, event.lane_class);
      return;
    case Kind::land: {
      ChunkInFlight& chunk = found->directions[event.side]->chunks[event.chunk];
      if (chunk.use == event.chunk_use && chunk.in_use && !chunk.landed) {
        found->land(*this, side, chunk, event.part);
      }
      return;
    }
  }
}

void SimNetwork::note(std::uint64_t a, std::uint64_t b, std::uint64_t c) noexcept {
  for (const std::uint64_t word : {static_cast<std::uint64_t>(clock_.now_ns()), a, b, c}) {
    trace_ = (trace_ ^ word) * 0x9E3779B97F4A7C15ULL;
    trace_ ^= trace_ >> 29;
  }
}

const LinkModel& SimNetwork::link(NodeId from, NodeId to) const noexcept {
  const auto found = links_.find({from, to});
  return found == links_.end() ? options_.link : found->second;
}

bool SimNetwork::partitioned(NodeId a, NodeId b) const noexcept {
  const auto found = partitions_.find({std::min(a, b), std::max(a, b)});
  return found != partitions_.end() && found->second;
}

TimeNs SimNetwork::stuck_until(NodeId node) const noexcept {
  const auto found = stuck_.find(node);
  return found == stuck_.end() ? 0 : found->second;
}

SimTransport* SimNetwork::live(NodeId node) noexcept {
  const auto found = nodes_.find(node);
  return found == nodes_.end() || found->second->dead() ? nullptr : found->second;
}

TimeNs SimNetwork::flight_ns(NodeId from, NodeId to) noexcept {
  const LinkModel& model = link(from, to);
  TimeNs flight = model.latency_ns;
  if (model.jitter_mean_ns > 0) {
    flight += static_cast<TimeNs>(prng_.exponential(static_cast<double>(model.jitter_mean_ns)));
  }
  return flight;
}

SimLane* SimNetwork::lane(std::uint64_t id) noexcept {
  const auto found = lanes_.find(id);
  return found == lanes_.end() ? nullptr : found->second.get();
}

std::uint64_t SimNetwork::open(SimTransport& dialer, NodeId target) {
  auto made = std::make_unique<SimLane>();
  made->id = next_lane_++;
  made->ends[0].owner = &dialer;
  made->ends[0].node = dialer.node_;
  made->ends[0].incarnation = dialer.incarnation_;
  made->ends[1].node = target;
  const SimTransport* peer = live(target);
  const NodeOptions& theirs = peer == nullptr ? dialer.options_ : peer->options_;
  made->directions[0] =
      std::make_unique<Direction>(dialer.options_, theirs, wire(dialer.node_, target));
  made->directions[1] =
      std::make_unique<Direction>(theirs, dialer.options_, wire(target, dialer.node_));
  const std::uint64_t id = made->id;
  lanes_[id] = std::move(made);
  schedule(
      {.at_ns = now_ns() + flight_ns(dialer.node_, target), .kind = Kind::connect, .lane = id});
  return id;
}

void SimNetwork::on_connect(SimLane& lane) noexcept {
  const NodeId from = lane.ends[0].node;
  const NodeId to = lane.ends[1].node;
  if (lane.ends[0].state == SimLane::State::closed) return;
  if (partitioned(from, to) || stuck_until(to) > now_ns()) {
    tell_closed(lane, 0, options_.connect_timeout_ns, true);
    return;
  }
  SimTransport* target = live(to);
  const LaneId id = target == nullptr ? LaneId{} : target->attach(lane, 1);
  if (!id.valid()) {
    tell_closed(lane, 0, flight_ns(to, from));
    return;
  }
  SimLane::End& end = lane.ends[1];
  end.owner = target;
  end.incarnation = target->incarnation_;
  end.id = id;
  end.state = SimLane::State::up;
  target->wake();
  schedule({.at_ns = now_ns() + flight_ns(to, from), .kind = Kind::connected, .lane = lane.id});
}

void SimNetwork::on_connected(SimLane& lane) noexcept {
  SimLane::End& end = lane.ends[0];
  if (end.owner == nullptr || end.state != SimLane::State::opening || lane.cut) return;
  end.state = SimLane::State::up;
  end.owner->wake();
  lane.pump(*this, 1, kControl);
  lane.pump(*this, 1, kBulk);
}

void SimNetwork::tell_closed(SimLane& lane, int side, TimeNs delay_ns, bool local) noexcept {
  schedule({.at_ns = now_ns() + delay_ns,
            .kind = Kind::closed,
            .side = static_cast<std::uint8_t>(side),
            .local = local,
            .lane = lane.id});
}

void SimNetwork::detach(SimTransport& node, bool silent) noexcept {
  note(2, node.node_, silent ? 1 : 0);
  for (auto& [id, one] : lanes_) {
    for (int side = 0; side < 2; ++side) {
      SimLane::End& end = one->ends[static_cast<std::size_t>(side)];
      if (end.owner != &node) continue;
      end.owner = nullptr;
      end.state = SimLane::State::closed;
      end.done = true;
      one->cut_both();
      if (!silent)
        tell_closed(*one, 1 - side,
                    flight_ns(node.node_, one->ends[static_cast<std::size_t>(1 - side)].node));
    }
  }
  for (auto it = lanes_.begin(); it != lanes_.end();) {
    const bool over = it->second->is_over();
    it = over ? lanes_.erase(it) : std::next(it);
  }
  const auto found = nodes_.find(node.node_);
  if (found != nodes_.end() && found->second == &node) nodes_.erase(found);
}

void SimNetwork::forget_if_done(SimLane& lane) noexcept {
  if (lane.is_over()) lanes_.erase(lane.id);
}

void SimNetwork::set_link(NodeId from, NodeId to, const LinkModel& model) {
  KVRAIL_ASSERT(model.rate_bytes_per_s > 0);
  links_[{from, to}] = model;
}
void SimNetwork::set_links(NodeId a, NodeId b, const LinkModel& model) {
  set_link(a, b, model);
  set_link(b, a, model);
}
void SimNetwork::set_partitioned(NodeId a, NodeId b, bool partitioned) {
  note(3, a, b);
  partitions_[{std::min(a, b), std::max(a, b)}] = partitioned;
}
void SimNetwork::set_stuck_until(NodeId node, TimeNs until_ns) {
  stuck_[node] = until_ns;
}

void SimNetwork::lose_lanes(NodeId a, NodeId b) noexcept {
  note(4, a, b);
  for (auto& [id, one] : lanes_) {
    const NodeId x = one->ends[0].node;
    const NodeId y = one->ends[1].node;
    if (!((x == a && y == b) || (x == b && y == a))) continue;
    one->cut_both();
    tell_closed(*one, 0, 0, true);
    tell_closed(*one, 1, 0, true);
  }
}

void SimNetwork::crash(NodeId node, bool silent) noexcept {
  SimTransport* found = live(node);
  if (found == nullptr) return;
  found->dead_ = true;
  detach(*found, silent);
}

}  // namespace kvrail::transport::sim
