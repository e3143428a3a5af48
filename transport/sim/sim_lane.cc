#include "transport/sim/sim_lane.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "transport/payload_ops.h"
#include "transport/sim/sim_transport.h"

namespace kvrail::transport::sim {
namespace {

constexpr std::size_t kMaxFramesUnderWay = 1024;

}  // namespace

// The control queue never refuses an acknowledgement: there are at most as many as the other
// direction has chunks, beside this direction's own critical chunks and frames.
Direction::Direction(const NodeOptions& sender, const NodeOptions& receiver, WireState& shared)
    : queues{FixedRing<Item>(kMaxFramesUnderWay + sender.max_chunks_in_flight +
                             receiver.max_chunks_in_flight),
             FixedRing<Item>(sender.max_chunks_in_flight)},
      wire(&shared),
      chunks(sender.max_chunks_in_flight),
      frame_bytes(std::make_unique<std::byte[]>(sender.frame_queue_bytes)),
      frame_capacity(sender.frame_queue_bytes) {
  free_chunks.reserve(chunks.size());
  for (std::size_t i = chunks.size(); i > 0; --i) {
    free_chunks.push_back(static_cast<std::uint32_t>(i - 1));
  }
}

std::uint32_t Direction::take_chunk() noexcept {
  if (free_chunks.empty()) return UINT32_MAX;
  const std::uint32_t index = free_chunks.back();
  free_chunks.pop_back();
  const std::uint32_t use = chunks[index].use + 1;
  chunks[index] = ChunkInFlight{};
  chunks[index].use = use;
  chunks[index].in_use = true;
  return index;
}

void Direction::free_chunk(std::uint32_t index) noexcept {
  KVRAIL_ASSERT(chunks[index].in_use);
  chunks[index].in_use = false;
  free_chunks.push_back(index);
}

std::uint32_t Direction::take_frame_bytes(std::uint32_t size) noexcept {
  if (frames_held >= kMaxFramesUnderWay) return UINT32_MAX;
  if (frames_held == 0) frame_head = frame_tail = 0;
  std::uint32_t at = frame_tail;
  if (frame_tail >= frame_head) {
    if (frame_capacity - frame_tail < size) {
      if (frame_head <= size) return UINT32_MAX;
      at = 0;
    }
  } else if (frame_head - frame_tail <= size) {
    return UINT32_MAX;
  }
  frame_tail = at + size;
  ++frames_held;
  return at;
}

void Direction::free_frame_bytes(std::uint32_t at, std::uint32_t size) noexcept {
  KVRAIL_ASSERT(frames_held > 0);
  frame_head = at + size;
  --frames_held;
}

bool SimLane::is_over() const noexcept {
  return ends[0].done && (ends[1].done || !ends[1].id);
}

void SimLane::cut_both() noexcept {
  cut = true;
}

bool SimLane::has_begun(int receiver, LeaseId lease) const noexcept {
  if (cut) return false;
  const auto& chunks = directions[static_cast<std::size_t>(1 - receiver)]->chunks;
  return std::any_of(chunks.begin(), chunks.end(), [&](const ChunkInFlight& chunk) {
    return chunk.in_use && chunk.begun && !chunk.consumed && !chunk.rejected &&
           chunk.post.lease == lease;
  });
}

void SimLane::pump(SimNetwork& network, int from, std::size_t lane_class) noexcept {
  Direction& direction = *directions[static_cast<std::size_t>(from)];
  FixedRing<Item>& queue = direction.queues[lane_class];
  std::size_t& arrived = direction.arrived[lane_class];
  const End& receiver = ends[static_cast<std::size_t>(1 - from)];
  bool any = false;
  if (receiver.state == State::opening) return;  // on_connected() pumps what came early
  while (!cut && arrived < queue.size() && queue[arrived].arrival_ns <= network.now_ns()) {
    if (network.partitioned(ends[0].node, ends[1].node)) {
      network.schedule({.at_ns = network.now_ns() + network.options_.retry_ns,
                        .kind = SimNetwork::Kind::pump,
                        .side = static_cast<std::uint8_t>(from),
                        .lane_class = static_cast<std::uint8_t>(lane_class),
                        .lane = id});
      break;
    }
    const Item& item = queue[arrived];
    if (item.kind == Item::Kind::chunk) {
      arrive(network, from, direction.chunks[item.chunk]);
      if (cut) return;  // the chunk was malformed
    }
    ++arrived;
    any = true;
  }
  if (any && receiver.owner != nullptr) receiver.owner->wake();
}

bool SimLane::begin(int from, ChunkInFlight& chunk) noexcept {
  chunk.begun = true;
  const std::size_t to = static_cast<std::size_t>(1 - from);
  KVRAIL_ASSERT(ends[to].owner != nullptr);
  const auto* lease =
      ends[to].owner->lease_for(chunk.post.lease, ends[static_cast<std::size_t>(from)].node);
  if (lease == nullptr || lease->state != SimTransport::LeaseState::exposed) {
    chunk.rejected = true;
    return true;
  }
  const Payload& source = *chunk.post.source;
  if (!range_fits(chunk.post.offset, chunk.post.bytes, lease->sink.total_bytes)) return false;
  if (source.digests.empty()) return true;
  const UnitRange here = completed_units(lease->sink, chunk.post.offset, chunk.post.bytes);
  const UnitRange there = completed_units(source, chunk.post.offset, chunk.post.bytes);
  return here.count == there.count;
}

void SimLane::land(SimNetwork& network, int from, ChunkInFlight& chunk, std::size_t part) noexcept {
  const std::size_t to = static_cast<std::size_t>(1 - from);
  const auto bit = static_cast<std::uint8_t>(1u << part);
  if (cut || ends[to].owner == nullptr || ends[to].state != State::up ||
      network.partitioned(ends[0].node, ends[1].node) || (chunk.parts_landed & bit) != 0) {
    return;
  }
  if (!chunk.begun && !begin(from, chunk)) {
    ++ends[to].stats.malformed;
    ends[to].owner->end_lane(*this, static_cast<int>(to),
                             Status{Code::protocol_error, Scope::lane});
    return;
  }
  chunk.parts_landed = static_cast<std::uint8_t>(chunk.parts_landed | bit);
  if (chunk.rejected) return;
  const auto* lease =
      ends[to].owner->lease_for(chunk.post.lease, ends[static_cast<std::size_t>(from)].node);
  KVRAIL_ASSERT_MSG(lease != nullptr, "a lease went while a chunk was landing in it");
  copy_range(*chunk.post.source, lease->sink, chunk.post.offset + chunk.cuts[part],
             chunk.cuts[part + 1] - chunk.cuts[part]);
}

void SimLane::arrive(SimNetwork& network, int from, ChunkInFlight& chunk) noexcept {
  const std::size_t to = static_cast<std::size_t>(1 - from);
  Direction& direction = *directions[static_cast<std::size_t>(from)];
  direction.queued_bytes -= chunk.post.bytes;
  for (std::size_t part = 0; part < chunk.part_count; ++part) {
    land(network, from, chunk, part);
    if (cut) return;
  }
  chunk.landed = true;
  if (chunk.rejected || ends[to].owner == nullptr) return;
  const auto* lease =
      ends[to].owner->lease_for(chunk.post.lease, ends[static_cast<std::size_t>(from)].node);
  KVRAIL_ASSERT(lease != nullptr);
  const LinkModel& model = network.link(ends[static_cast<std::size_t>(from)].node, ends[to].node);
  if (model.chunk_flip > 0 && network.prng_.chance(model.chunk_flip)) {
    const std::uint64_t at = chunk.post.offset + network.prng_.uniform(chunk.post.bytes);
    const auto bit = std::byte{1} << network.prng_.uniform(8);
    for_each_part(lease->sink, at, 1, [bit](std::byte* address, std::uint64_t) {
      *address ^= bit;
      return true;
    });
  }
  const Payload& source = *chunk.post.source;
  if (source.digests.empty()) return;
  const UnitRange units = completed_units(source, chunk.post.offset, chunk.post.bytes);
  chunk.intact = verify_units(lease->sink, chunk.post.offset, chunk.post.bytes,
                              source.digests.subspan(units.first, units.count));
}

}  // namespace kvrail::transport::sim
