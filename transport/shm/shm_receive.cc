// Polling a shm lane: what the peer's rings hold, checked, copied, acknowledged, reported.
#include <algorithm>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "transport/payload_ops.h"
#include "transport/shm/shm_lane.h"
#include "transport/shm/shm_transport.h"

namespace kvrail::transport::shm {
namespace {

// Sockets carry only connections, deaths and wake-ups; looking costs a system call.
constexpr TimeNs kSocketsEveryNs = 20 * kMicrosecondNs;
// Bytes copied in one poll of one lane and class, so that no lane holds up the others.
constexpr std::uint64_t kBytesPerPoll = 1024 * 1024;

}  // namespace

std::size_t ShmTransport::poll(TimeNs now_ns, std::span<Event> events) noexcept {
  now_ns_ = now_ns;
  frames_used_ = 0;
  if (armed_) {
    armed_ = false;
    lanes_.for_each([](LaneId, std::unique_ptr<Lane>& lane) {
      for (LaneClass& one : lane->classes) {
        if (one.in) one.in->cancel_park();
      }
    });
    poll_sockets();
  } else if (now_ns - sockets_read_ns_ >= kSocketsEveryNs || now_ns < sockets_read_ns_) {
    poll_sockets();
  }
  std::size_t count = 0;
  const std::uint32_t capacity = lanes_.capacity();
  for (std::uint32_t i = 0; i < capacity && count < events.size(); ++i) {
    const LaneId id = lanes_.handle_at((next_lane_ + i) % capacity);
    if (id.valid()) count += poll_lane(id, **lanes_.get(id), events.subspan(count));
  }
  next_lane_ = (next_lane_ + 1) % capacity;
  if (withdrawn_pending_ != 0) count += poll_leases(events.subspan(count));
  return count;
}

std::size_t ShmTransport::poll_lane(LaneId id, Lane& lane, std::span<Event> events) noexcept {
  std::size_t count = 0;
  if (lane.state == Lane::State::up && !lane.announced) {
    lane.announced = true;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::lane_up;
    event.lane = id;
    event.peer = lane.handshake.peer();
    event.incarnation = lane.handshake.peer_incarnation();
    event.cookie = lane.cookie;
  }
  if (lane.state == Lane::State::up) {
    if (!arenas_.empty() && arenas_.back().id >= lane.announced_arenas) announce_arenas(lane);
    for (const std::size_t lane_class : {kControl, kBulk}) {
      count += poll_ring(id, lane, lane_class, events.subspan(count));
    }
    for (const std::size_t lane_class : {kControl, kBulk}) flush_ack(lane, lane_class);
  }
  if (lane.state == Lane::State::up && lane.peer_gone && is_drained(lane)) {
    fail(lane, Status{Code::lane_lost, Scope::lane});
  }
  if (lane.state == Lane::State::down) count += poll_down(id, lane, events.subspan(count));
  return count;
}

bool ShmTransport::is_drained(Lane& lane) noexcept {
  return std::all_of(lane.classes.begin(), lane.classes.end(),
                     [](LaneClass& one) { return !one.has_header && one.in->available() == 0; });
}

std::size_t ShmTransport::poll_ring(LaneId id, Lane& lane, std::size_t lane_class,
                                    std::span<Event> events) noexcept {
  LaneClass& one = lane.classes[lane_class];
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  while (count < events.size() && bytes < kBytesPerPoll && lane.state == Lane::State::up) {
    if (!one.has_header && !take_header(lane, lane_class)) break;
    if (one.header.type == wire::FrameType::ack) {
      count += on_ack(id, lane, events.subspan(count));
      continue;
    }
    Event& event = events[count] = Event{};
    event.lane = id;
    event.peer = lane.handshake.peer();
    if (one.header.type == wire::FrameType::message) {
      const std::size_t cells = div_ceil(one.header.payload_bytes, sizeof(Cell));
      if (cells > frames_.size() - frames_used_) break;  // the next poll has the room
      if (on_message(lane, cells, event)) ++count;
    } else {
      bytes += one.header.payload_bytes;
      if (on_chunk(lane, lane_class, event)) ++count;
    }
  }
  return count;
}

bool ShmTransport::take_header(Lane& lane, std::size_t lane_class) noexcept {
  LaneClass& one = lane.classes[lane_class];
  Cell cell;
  if (!one.in->try_pop(cell)) {
    if (one.in->state() == RingState::corrupt) refuse(lane, wire::FrameError::bad_range);
    return false;
  }
  wire::FrameError error = wire::decode_header(cell.bytes, lane.rules, one.header);
  const bool chunk = one.header.type == wire::FrameType::chunk;
  if (error == wire::FrameError::none && one.header.sequence != one.in_sequence) {
    error = wire::FrameError::bad_sequence;
  }
  // Bulk rings carry bulk chunks and nothing else, control rings anything but them.
  if (error == wire::FrameError::none &&
      (lane_class == kBulk) != (chunk && !one.header.critical())) {
    error = wire::FrameError::unexpected;
  }
  if (error != wire::FrameError::none) {
    refuse(lane, error);
    return false;
  }
  ++one.in_sequence;
  one.has_header = true;
  return true;
}

bool ShmTransport::on_message(Lane& lane, std::size_t cells, Event& event) noexcept {
  LaneClass& one = lane.classes[kControl];
  one.has_header = false;
  const std::span<Cell> room = std::span(frames_).subspan(frames_used_, cells);
  // A frame is published as a whole, so all its cells are there.
  if (one.in->pop_batch(room) != cells) {
    refuse(lane, wire::FrameError::truncated);
    return false;
  }
  event.kind = EventKind::frame;
  event.bytes = std::as_bytes(room).first(one.header.payload_bytes);
  if (wire::payload_digest(event.bytes) != one.header.payload_digest) {
    refuse(lane, wire::FrameError::bad_payload);
    return false;
  }
  frames_used_ += cells;
  ++lane.stats.frames_received;
  lane.stats.bytes_received += event.bytes.size();
  return true;
}

bool ShmTransport::on_chunk(Lane& lane, std::size_t lane_class, Event& event) noexcept {
  LaneClass& one = lane.classes[lane_class];
  const wire::FrameHeader& header = one.header;
  one.has_header = false;
  // The descriptor is taken whole, whatever comes of it: the ring stays in step.
  const std::size_t digest_cells = div_ceil(header.digest_count, kDigestsPerCell);
  if (one.in->pop_batch(std::span(scratch_).first(digest_cells)) != digest_cells) {
    refuse(lane, wire::FrameError::truncated);
    return false;
  }
  const auto digests = std::span(reinterpret_cast<const std::uint64_t*>(scratch_.data()),
                                 std::size_t{header.digest_count});
  if (!read_segments(lane, lane_class, header.payload_bytes)) return false;

  const LeaseSlot& slot = leases_[header.lease.slot];  // the slot's range was checked
  const bool wanted = slot.state == LeaseState::exposed && slot.id == header.lease &&
                      slot.peer == lane.handshake.peer();
  if (!wanted) {
    add_ack(lane, lane_class, Code::rejected);
    return false;
  }
  if (!range_fits(header.offset, header.payload_bytes, slot.sink.total_bytes)) {
    refuse(lane, wire::FrameError::bad_range);
    return false;
  }
  const UnitRange units = completed_units(slot.sink, header.offset, header.payload_bytes);
  if (header.digest_count != 0 && header.digest_count != units.count) {
    refuse(lane, wire::FrameError::bad_lengths);
    return false;
  }
  bool intact = true;
  if (!copy_and_verify(lane, lane_class, header, slot.sink, digests, intact)) {
    if (lane.state == Lane::State::up) refuse(lane, wire::FrameError::bad_range);
    return false;
  }
  // What was read may be newer than the chunk: its owner has closed and uses the memory again.
  if (lane.peer_closed()) return false;
  add_ack(lane, lane_class, intact ? Code::ok : Code::corrupt);
  if (!intact) ++lane.stats.digest_failures;
  lane.stats.bytes_received += header.payload_bytes;
  event.kind = EventKind::chunk_received;
  event.critical = header.critical();
  event.status = Status{intact ? Code::ok : Code::corrupt, Scope::transfer};
  event.lease = header.lease;
  event.transfer = header.transfer;
  event.offset = header.offset;
  event.length = header.payload_bytes;
  return true;
}

bool ShmTransport::read_segments(Lane& lane, std::size_t lane_class, std::uint32_t bytes) noexcept {
  RingConsumer<Cell>& in = *lane.classes[lane_class].in;
  segment_count_ = 0;
  std::uint32_t sum = 0;
  while (sum < bytes) {
    Cell cell;
    if (segment_count_ + kSegmentsPerCell > segments_.size() || !in.try_pop(cell)) {
      refuse(lane, wire::FrameError::truncated);
      return false;
    }
    for (std::uint32_t i = 0; i < kSegmentsPerCell && sum < bytes; ++i) {
      Segment& segment = segments_[segment_count_++];
      std::memcpy(&segment, cell.bytes.data() + i * sizeof(Segment), sizeof(Segment));
      if (segment.bytes == 0 || segment.bytes > bytes - sum) {
        refuse(lane, wire::FrameError::bad_lengths);
        return false;
      }
      sum += segment.bytes;
    }
  }
  return true;
}

// The memory that a segment names, or null. An arena may have been announced just before the chunk.
const std::byte* ShmTransport::resolve(Lane& lane, std::size_t lane_class,
                                       const Segment& segment) noexcept {
  if (segment.arena == 0) {
    if (!range_fits(segment.offset, segment.bytes, kStagingBytes)) return nullptr;
    return lane.memory().staging(1 - lane.side(), lane_class).data() + segment.offset;
  }
  for (int attempt = 0; attempt < 2 && lane.state == Lane::State::up; ++attempt) {
    for (std::size_t i = 0; i < lane.arenas.size(); ++i) {
      const std::size_t index = (lane.last_arena + i) % lane.arenas.size();
      const PeerArena& arena = lane.arenas[index];
      if (arena.id != segment.arena) continue;
      lane.last_arena = index;
      if (!range_fits(segment.offset, segment.bytes, arena.mapping.bytes())) return nullptr;
      return arena.mapping.base() + segment.offset;
    }
    if (attempt == 0 && !lane.peer_gone) read_socket(lane);
  }
  return nullptr;
}

bool ShmTransport::copy_and_verify(Lane& lane, std::size_t lane_class,
                                   const wire::FrameHeader& header, const Payload& sink,
                                   std::span<const std::uint64_t> digests, bool& intact) noexcept {
  std::uint64_t done = 0;
  std::uint64_t verified = 0;
  const auto verify = [&] {
    const std::uint64_t at = header.offset + verified;
    const std::size_t units = completed_units(sink, at, done - verified).count;
    intact = verify_units(sink, at, done - verified, digests.first(units)) && intact;
    digests = digests.subspan(units);
    verified = done;
  };
  for (const Segment& segment : std::span(segments_).first(segment_count_)) {
    const std::byte* from = resolve(lane, lane_class, segment);
    if (from == nullptr) return false;
    for (std::uint64_t left = segment.bytes; left != 0;) {
      const std::uint64_t step = std::min(left, kDigestUnitBytes - (done - verified));
      for_each_part(sink, header.offset + done, step, [&from](std::byte* to, std::uint64_t bytes) {
        std::memcpy(to, from, bytes);
        from += bytes;
        return true;
      });
      done += step;
      left -= step;
      if (done - verified == kDigestUnitBytes && header.digest_count != 0) {
        verify();
      } else if (done - verified == kDigestUnitBytes) {
        verified = done;
      }
    }
  }
  if (header.digest_count != 0 && done != verified) verify();
  return true;
}

std::size_t ShmTransport::on_ack(LaneId id, Lane& lane, std::span<Event> events) noexcept {
  wire::FrameHeader& header = lane.classes[kControl].header;
  LaneClass& one = lane.classes[header.critical() ? kControl : kBulk];
  if (header.ack_first != one.sent_base || header.ack_count > one.sent.size()) {
    refuse(lane, wire::FrameError::bad_ack);
    return 0;
  }
  std::size_t count = 0;
  while (count < events.size() && header.ack_count != 0) {
    report_done(id, lane, one, Status{header.ack_code, Scope::transfer}, events[count++]);
    ++header.ack_first;
    --header.ack_count;
  }
  if (header.ack_count == 0) lane.classes[kControl].has_header = false;
  return count;
}

void ShmTransport::report_done(LaneId id, Lane& lane, LaneClass& one, Status status,
                               Event& event) noexcept {
  const SentChunk& chunk = one.sent.front();
  event = Event{};
  event.kind = EventKind::chunk_done;
  event.lane = id;
  event.peer = lane.handshake.peer();
  event.critical = chunk.post.critical;
  event.status = status;
  event.cookie = chunk.post.cookie;
  event.lease = chunk.post.lease;
  event.transfer = chunk.post.transfer;
  event.offset = chunk.post.offset;
  event.length = chunk.post.bytes;
  event.posted_ns = chunk.posted_ns;
  event.completed_ns = now_ns_;
  one.staging_head = chunk.staging_end;
  one.sent.pop();
  ++one.sent_base;
}

std::size_t ShmTransport::poll_down(LaneId id, Lane& lane, std::span<Event> events) noexcept {
  std::size_t count = 0;
  const Code code = lane.down.code == Code::cancelled ? Code::cancelled : Code::lane_lost;
  for (LaneClass& one : lane.classes) {
    while (!one.sent.empty()) {
      if (count == events.size()) return count;
      report_done(id, lane, one, Status{code, Scope::lane}, events[count++]);
    }
  }
  // A stranger that never got through its handshake is no lane to the owner.
  if (lane.dialer || lane.announced) {
    if (count == events.size()) return count;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::lane_down;
    event.lane = id;
    event.peer = lane.handshake.peer();
    event.incarnation = lane.handshake.peer_incarnation();
    event.status = lane.down;
    event.cookie = lane.cookie;
  }
  lanes_.erase(id);
  return count;
}

std::size_t ShmTransport::poll_leases(std::span<Event> events) noexcept {
  std::size_t count = 0;
  for (LeaseSlot& slot : leases_) {
    if (count == events.size() || withdrawn_pending_ == 0) break;
    if (slot.state != LeaseState::withdrawn) continue;
    Event& event = events[count++] = Event{};
    event.kind = EventKind::lease_withdrawn;
    event.lease = slot.id;
    event.peer = slot.peer;
    slot = LeaseSlot{};
    --withdrawn_pending_;
  }
  return count;
}

}  // namespace kvrail::transport::shm
