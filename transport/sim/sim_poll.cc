// What poll() of a simulated node reports, and in which order.
#include <unistd.h>

#include "kvrail/base/assert.h"
#include "transport/sim/sim_lane.h"
#include "transport/sim/sim_transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::sim {
namespace {

std::size_t index_of(int side) noexcept {
  return static_cast<std::size_t>(side);
}

}  // namespace

bool SimTransport::has_work() noexcept {
  if (network_.stuck_until(node_) > network_.now_ns()) return false;
  bool found = false;
  lanes_.for_each([&](LaneId, const Attached& at) {
    const SimLane::End& end = at.lane->ends[index_of(at.side)];
    const Direction& incoming = *at.lane->directions[index_of(1 - at.side)];
    found = found || end.state == SimLane::State::closed ||
            (end.state == SimLane::State::up && !end.announced) ||
            incoming.arrived[kControl] != 0 || incoming.arrived[kBulk] != 0;
  });
  for (const LeaseSlot& slot : leases_) {
    if (found || withdrawn_pending_ == 0) break;
    found = slot.state == LeaseState::withdrawn && is_drained(slot);
  }
  return found;
}

std::size_t SimTransport::poll(TimeNs now_ns, std::span<Event> events) noexcept {
  KVRAIL_ASSERT_MSG(now_ns <= network_.now_ns(), "the network's clock is the only one");
  if (dead_ || network_.stuck_until(node_) > network_.now_ns()) return 0;
  armed_ = false;
  if (signalled_) {
    signalled_ = false;
    std::uint64_t count = 0;
    const ssize_t done = ::read(wait_fd_, &count, sizeof(count));
    KVRAIL_ASSERT(done == sizeof(count));
  }
  release_lent();
  std::size_t count = 0;
  const std::uint32_t capacity = lanes_.capacity();
  for (std::uint32_t i = 0; i < capacity && count < events.size(); ++i) {
    const LaneId id = lanes_.handle_at((next_lane_ + i) % capacity);
    if (id.valid()) count += poll_lane(id, *lanes_.get(id), events.subspan(count));
  }
  next_lane_ = (next_lane_ + 1) % capacity;
  if (withdrawn_pending_ != 0) count += poll_leases(events.subspan(count));
  for (const Event& event : events.first(count)) {
    network_.note(20 + static_cast<std::uint64_t>(event.kind), node_ ^ event.offset,
                  event.cookie ^ static_cast<std::uint64_t>(event.status.code));
  }
  return count;
}

void SimTransport::release_lent() noexcept {
  for (; !lent_.empty(); lent_.pop()) {
    const LentFrame& frame = lent_.front();
    SimLane* lane = network_.lane(frame.lane);
    if (lane != nullptr) {
      lane->directions[index_of(frame.from)]->free_frame_bytes(frame.at, frame.size);
    }
  }
  for (const std::uint64_t id : ended_) {
    SimLane* lane = network_.lane(id);
    if (lane == nullptr) continue;
    for (SimLane::End& end : lane->ends) {
      if (end.owner == this) end.done = true;
    }
    network_.forget_if_done(*lane);
  }
  ended_.clear();
}

std::size_t SimTransport::poll_lane(LaneId id, Attached at, std::span<Event> events) noexcept {
  SimLane::End& end = at.lane->ends[index_of(at.side)];
  const SimLane::End& other = at.lane->ends[index_of(1 - at.side)];
  std::size_t count = 0;
  if (end.state == SimLane::State::opening) return 0;
  if (end.state == SimLane::State::up && !end.announced) {
    end.announced = true;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::lane_up;
    event.lane = id;
    event.peer = other.node;
    event.incarnation = other.incarnation;
    event.cookie = end.cookie;
  }
  // What had arrived before the lane was lost is still good; an owner that closed wants no more.
  if (end.announced && end.down.code != Code::cancelled) {
    count += poll_arrived(id, at, events.subspan(count));
  }
  if (end.state == SimLane::State::closed && count < events.size()) {
    count += poll_closed(id, at, events.subspan(count));
  }
  return count;
}

std::size_t SimTransport::poll_arrived(LaneId id, Attached at, std::span<Event> events) noexcept {
  Direction& incoming = *at.lane->directions[index_of(1 - at.side)];
  std::size_t count = 0;
  for (const std::size_t lane_class : {kControl, kBulk}) {
    FixedRing<Item>& queue = incoming.queues[lane_class];
    std::size_t& arrived = incoming.arrived[lane_class];
    while (arrived != 0 && count < events.size() && !lent_.full()) {
      Event& event = events[count] = Event{};
      event.lane = id;
      event.peer = at.lane->ends[index_of(1 - at.side)].node;
      if (deliver(at, queue.front(), event)) ++count;
      queue.pop();
      --arrived;
    }
  }
  return count;
}

bool SimTransport::deliver(Attached at, const Item& item, Event& event) noexcept {
  SimLane& lane = *at.lane;
  SimLane::End& end = lane.ends[index_of(at.side)];
  Direction& incoming = *lane.directions[index_of(1 - at.side)];
  Direction& outgoing = *lane.directions[index_of(at.side)];
  if (item.kind == Item::Kind::frame) {
    lent_.push({lane.id, 1 - at.side, item.frame_at, item.frame_size});
    if (item.lost) return false;
    event.kind = EventKind::frame;
    event.bytes = {incoming.frame_bytes.get() + item.frame_at, item.frame_size};
    ++end.stats.frames_received;
    end.stats.bytes_received += item.frame_size;
    return true;
  }
  if (item.kind == Item::Kind::ack) {
    const ChunkInFlight& chunk = outgoing.chunks[item.chunk];
    KVRAIL_ASSERT(chunk.in_use);
    event.kind = EventKind::chunk_done;
    event.critical = chunk.post.critical;
    event.cookie = chunk.post.cookie;
    event.status = item.status;
    event.lease = chunk.post.lease;
    event.transfer = chunk.post.transfer;
    event.offset = chunk.post.offset;
    event.length = chunk.post.bytes;
    event.posted_ns = chunk.posted_ns;
    event.completed_ns = network_.now_ns();
    outgoing.free_chunk(item.chunk);
    return true;
  }
  ChunkInFlight& chunk = incoming.chunks[item.chunk];
  const LeaseSlot* lease = lease_for(chunk.post.lease, event.peer);
  const bool wanted = !chunk.rejected && lease != nullptr && lease->state == LeaseState::exposed;
  chunk.consumed = true;
  const Code code = !wanted ? Code::rejected : chunk.intact ? Code::ok : Code::corrupt;
  if (end.state == SimLane::State::up) {
    Item ack;
    ack.kind = Item::Kind::ack;
    ack.chunk = item.chunk;
    ack.status = Status{code, Scope::transfer};
    post_item(lane, at.side, kControl, ack, wire::kFrameHeaderBytes);
  }
  if (!wanted) return false;
  event.kind = EventKind::chunk_received;
  event.critical = chunk.post.critical;
  event.status = Status{code, Scope::transfer};
  event.lease = chunk.post.lease;
  event.transfer = chunk.post.transfer;
  event.offset = chunk.post.offset;
  event.length = chunk.post.bytes;
  end.stats.bytes_received += chunk.post.bytes;
  if (code == Code::corrupt) ++end.stats.digest_failures;
  return true;
}

std::size_t SimTransport::poll_closed(LaneId id, Attached at, std::span<Event> events) noexcept {
  SimLane& lane = *at.lane;
  SimLane::End& end = lane.ends[index_of(at.side)];
  Direction& outgoing = *lane.directions[index_of(at.side)];
  const bool own_wish = end.down.code == Code::cancelled;
  const Direction& incoming = *lane.directions[index_of(1 - at.side)];
  // Held back by a full set of frames: they come first.
  if (!own_wish && end.announced && incoming.arrived[kControl] + incoming.arrived[kBulk] != 0) {
    return 0;
  }
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < outgoing.chunks.size(); ++i) {
    const ChunkInFlight& chunk = outgoing.chunks[i];
    if (!chunk.in_use) continue;
    if (count == events.size()) return count;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::chunk_done;
    event.lane = id;
    event.peer = lane.ends[index_of(1 - at.side)].node;
    event.critical = chunk.post.critical;
    event.cookie = chunk.post.cookie;
    event.status = Status{own_wish ? Code::cancelled : Code::lane_lost, Scope::lane};
    event.lease = chunk.post.lease;
    event.transfer = chunk.post.transfer;
    event.offset = chunk.post.offset;
    event.length = chunk.post.bytes;
    event.posted_ns = chunk.posted_ns;
    event.completed_ns = network_.now_ns();
    outgoing.free_chunk(i);
  }
  if (count == events.size()) return count;
  Event& event = events[count++] = Event{};
  event.kind = EventKind::lane_down;
  event.lane = id;
  event.status = end.down;
  event.cookie = end.cookie;
  event.peer = lane.ends[index_of(1 - at.side)].node;
  event.incarnation = lane.ends[index_of(1 - at.side)].incarnation;
  ended_.push_back(lane.id);
  lanes_.erase(id);
  return count;
}

// Nothing that began to land in the lease is still landing.
bool SimTransport::is_drained(const LeaseSlot& slot) noexcept {
  bool landing = false;
  lanes_.for_each([&](LaneId, const Attached& at) {
    landing = landing || at.lane->has_begun(at.side, slot.id);
  });
  return !landing;
}

std::size_t SimTransport::poll_leases(std::span<Event> events) noexcept {
  std::size_t count = 0;
  for (LeaseSlot& slot : leases_) {
    if (count == events.size() || withdrawn_pending_ == 0) break;
    if (slot.state != LeaseState::withdrawn || !is_drained(slot)) continue;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::lease_withdrawn;
    event.lease = slot.id;
    event.peer = slot.peer;
    slot = LeaseSlot{};
    --withdrawn_pending_;
  }
  return count;
}

}  // namespace kvrail::transport::sim
