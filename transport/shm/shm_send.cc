// Posting on a shm lane: frames, chunk descriptors, acknowledgements.
#include <algorithm>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "kvrail/base/byte_order.h"
#include "transport/payload_ops.h"
#include "transport/shm/shm_lane.h"
#include "transport/shm/shm_transport.h"

namespace kvrail::transport::shm {
namespace {

std::uint32_t cells_for(std::size_t items, std::size_t per_cell) noexcept {
  return static_cast<std::uint32_t>(div_ceil(items, per_cell));
}

void push_cell(LaneClass& one, const Cell& cell) noexcept {
  const bool pushed = one.out->try_push(cell);
  KVRAIL_ASSERT_MSG(pushed, "room was counted before");
}

void push_header(LaneClass& one, const Lane& lane, wire::FrameHeader& header) noexcept {
  header.version = lane.rules.version;
  header.session = lane.rules.session;
  header.sequence = one.out_sequence++;
  Cell cell;
  wire::encode_header(header, cell.bytes);
  push_cell(one, cell);
}

void push_bytes(LaneClass& one, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    Cell cell{};
    const std::size_t count = std::min(bytes.size(), sizeof(Cell));
    std::memcpy(cell.bytes.data(), bytes.data(), count);
    push_cell(one, cell);
    bytes = bytes.subspan(count);
  }
}

}  // namespace

void ShmTransport::publish(Lane& lane, std::size_t lane_class) noexcept {
  if (lane.classes[lane_class].out->publish()) lane.wake_peer();
}

bool ShmTransport::has_room(Lane& lane, std::size_t lane_class, std::uint32_t cells) noexcept {
  RingProducer<Cell>& out = *lane.classes[lane_class].out;
  const std::uint32_t reserved = lane_class == kControl ? kReservedCells : 0;
  if (out.free_slots() >= cells + reserved) return true;
  if (out.state() == RingState::corrupt) refuse(lane, wire::FrameError::bad_range);
  return false;
}

bool ShmTransport::try_post_frame(LaneId id, std::span<const std::byte> frame) noexcept {
  KVRAIL_ASSERT_MSG(!frame.empty() && frame.size() <= kFrameBytes,
                    "a frame must have 1 to max_frame_bytes bytes");
  std::unique_ptr<Lane>* found = lanes_.get(id);
  if (found == nullptr) return false;
  Lane& lane = **found;
  if (lane.state != Lane::State::up || lane.peer_gone) return false;
  if (!has_room(lane, kControl, 1 + cells_for(frame.size(), sizeof(Cell)))) return false;
  wire::FrameHeader header;
  header.type = wire::FrameType::message;
  header.payload_bytes = static_cast<std::uint32_t>(frame.size());
  header.payload_digest = wire::payload_digest(frame);
  LaneClass& one = lane.classes[kControl];
  push_header(one, lane, header);
  push_bytes(one, frame);
  ++lane.stats.frames_sent;
  lane.stats.bytes_sent += frame.size();
  publish(lane, kControl);
  return true;
}

bool ShmTransport::try_post_chunk(LaneId id, const ChunkPost& post) noexcept {
  KVRAIL_ASSERT(post.source != nullptr && post.bytes > 0 && post.bytes <= kChunkBytes);
  KVRAIL_ASSERT_MSG(range_fits(post.offset, post.bytes, post.source->total_bytes),
                    "the chunk is not in its payload");
  const UnitRange units = completed_units(*post.source, post.offset, post.bytes);
  KVRAIL_ASSERT_MSG(units.count <= wire::kMaxChunkDigests, "too many tiny pieces in one chunk");
  std::unique_ptr<Lane>* found = lanes_.get(id);
  if (found == nullptr) return false;
  Lane& lane = **found;
  if (lane.state != Lane::State::up || lane.peer_gone || lane.in_flight() == kMaxInFlight) {
    return false;
  }
  const std::size_t lane_class = post.critical ? kControl : kBulk;
  LaneClass& one = lane.classes[lane_class];
  const std::uint32_t digests = post.source->digests.empty() ? 0 : units.count;
  // Every part but the first and the last is a whole piece, which completes a unit; one more may
  // be cut at the end of the staging area.
  const std::uint32_t most_cells = 1 + cells_for(digests, kDigestsPerCell) +
                                   cells_for(std::size_t{units.count} + 3, kSegmentsPerCell);
  if (!has_room(lane, lane_class, most_cells)) return false;
  const std::size_t count = build_segments(lane, lane_class, post);
  if (count == 0) return false;

  wire::FrameHeader header;
  header.type = wire::FrameType::chunk;
  header.flags = static_cast<std::uint16_t>((post.critical ? wire::kFlagCritical : 0) |
                                            (digests != 0 ? wire::kFlagDigests : 0));
  header.digest_count = static_cast<std::uint16_t>(digests);
  header.payload_bytes = post.bytes;
  header.lease = post.lease;
  header.transfer = post.transfer;
  header.offset = post.offset;
  push_header(one, lane, header);
  if (digests != 0) {
    push_bytes(one, std::as_bytes(post.source->digests.subspan(units.first, digests)));
  }
  push_bytes(one, std::as_bytes(std::span(segments_).first(count)));
  one.sent.push(SentChunk{post, now_ns_, one.staging_tail});
  ++lane.stats.chunks_sent;
  lane.stats.bytes_sent += post.bytes;
  publish(lane, lane_class);
  return true;
}

const ShmTransport::OwnArena* ShmTransport::own_arena(const std::byte* at,
                                                      std::uint64_t bytes) const noexcept {
  for (const OwnArena& arena : arenas_) {
    if (at >= arena.base &&
        range_fits(static_cast<std::uint64_t>(at - arena.base), bytes, arena.bytes)) {
      return &arena;
    }
  }
  return nullptr;
}

// Fills segments_ with where the chunk's bytes are, copying what the peer cannot map into the
// staging area. Returns their number, 0 if the staging area is full.
std::size_t ShmTransport::build_segments(Lane& lane, std::size_t lane_class,
                                         const ChunkPost& post) noexcept {
  LaneClass& one = lane.classes[lane_class];
  const std::span<std::byte> staging = lane.memory().staging(lane.side(), lane_class);
  std::size_t count = 0;
  std::uint64_t tail = one.staging_tail;
  bool full = false;
  const auto add = [&](std::uint32_t arena, std::uint64_t offset, std::uint64_t bytes) {
    if (count != 0) {
      Segment& last = segments_[count - 1];
      if (last.arena == arena && last.offset + last.bytes == offset) {
        last.bytes += static_cast<std::uint32_t>(bytes);
        return;
      }
    }
    segments_[count++] = Segment{arena, static_cast<std::uint32_t>(bytes), offset};
  };
  for_each_part(*post.source, post.offset, post.bytes,
                [&](const std::byte* address, std::uint64_t bytes) {
                  const OwnArena* arena = own_arena(address, bytes);
                  if (arena != nullptr && arena->id < lane.announced_arenas) {
                    add(arena->id, static_cast<std::uint64_t>(address - arena->base), bytes);
                    return true;
                  }
                  if (bytes > kStagingBytes - (tail - one.staging_head)) {
                    full = true;
                    return false;
                  }
                  while (bytes != 0) {
                    const std::uint64_t at = tail % kStagingBytes;
                    const std::uint64_t here = std::min(bytes, kStagingBytes - at);
                    std::memcpy(staging.data() + at, address, here);
                    add(0, at, here);
                    address += here;
                    bytes -= here;
                    tail += here;
                  }
                  return true;
                });
  if (full) return 0;
  one.staging_tail = tail;
  return count;
}

// Chunks are acknowledged in runs of one class and code, at the latest when the poll ends.
void ShmTransport::add_ack(Lane& lane, std::size_t lane_class, Code code) noexcept {
  LaneClass& one = lane.classes[lane_class];
  if (one.ack.count != 0 && one.ack.code != code) flush_ack(lane, lane_class);
  if (one.ack.count == 0) one.ack = PendingAck{one.received, 0, code};
  ++one.ack.count;
  ++one.received;
}

void ShmTransport::flush_ack(Lane& lane, std::size_t lane_class) noexcept {
  PendingAck& ack = lane.classes[lane_class].ack;
  if (ack.count == 0 || lane.state != Lane::State::up) return;
  LaneClass& control = lane.classes[kControl];
  if (control.out->free_slots() == 0) {
    // A correct peer cannot have that many chunks unacknowledged.
    refuse(lane, wire::FrameError::bad_ack);
    return;
  }
  wire::FrameHeader header;
  header.type = wire::FrameType::ack;
  header.flags = lane_class == kControl ? wire::kFlagCritical : std::uint16_t{0};
  header.ack_first = ack.first;
  header.ack_count = ack.count;
  header.ack_code = ack.code;
  push_header(control, lane, header);
  ack = PendingAck{};
  publish(lane, kControl);
}

}  // namespace kvrail::transport::shm
