// Chunks: each is announced (what it is, its digests), and written with as few work requests as its
// pieces allow, many pieces of ours to one segment of the peer's lease.
//
//   bulk, two pairs   the announcement by SEND on the control pair, then WRITEs on the bulk pair,
//                     the last with an immediate: lease slot (12 bits), number of the chunk (20)
//   else              WRITEs on the control pair, then the announcement by SEND behind them
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "kvrail/base/checked.h"
#include "transport/payload_ops.h"
#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

// How much is written ahead of its completions. One pair for all: little, so that frames and
// critical chunks find little in front of them.
constexpr std::uint64_t kBulkAheadBytes = 4 * 1024 * 1024;
constexpr std::uint64_t kSharedAheadBytes = 512 * 1024;
constexpr std::uint64_t kUnknown = UINT64_MAX;  // bytes of memory that the device does not know
constexpr std::uint32_t kNumberMask = (1u << 20) - 1;

}  // namespace

bool Lane::try_post_chunk(const ChunkPost& post) noexcept {
  KVRAIL_ASSERT(post.source != nullptr && post.bytes > 0);
  KVRAIL_ASSERT(post.bytes <= context_.options.max_chunk_bytes);
  KVRAIL_ASSERT(range_fits(post.offset, post.bytes, post.source->total_bytes));
  ChunkRing& ring = chunks_[post.critical ? kControl : kBulk];
  if (state_ != LaneState::up || fading_ || !announced_ || ring.full()) return false;
  OutChunk& chunk = ring.post();
  chunk.post = post;
  if (context_.options.integrity && !post.source->digests.empty()) {
    const UnitRange units = completed_units(*post.source, post.offset, post.bytes);
    KVRAIL_ASSERT_MSG(units.count <= wire::kMaxChunkDigests, "a chunk of too many tiny pieces");
    chunk.digests = post.source->digests.subspan(units.first, units.count);
  }
  chunk.posted_ns = context_.now_ns;
  return true;
}

void Lane::write_chunks(std::size_t stream) noexcept {
  ChunkRing& ring = chunks_[stream];
  while (state_ == LaneState::up && ring.has_unwritten()) {
    OutChunk& chunk = ring.unwritten();
    if (chunk.stage == OutChunk::Stage::waiting && !begin_chunk(chunk, stream)) return;
    if (chunk.stage == OutChunk::Stage::writing && !write_more(chunk, stream)) return;
    ring.mark_written();
  }
}

Lane::Begin Lane::may_begin(OutChunk& chunk, std::size_t stream) noexcept {
  const LeaseId lease = chunk.post.lease;
  Query& query = queries_[stream];
  switch (peer_leases_.state_of(lease)) {
    case PeerLeases::State::told:
      break;
    case PeerLeases::State::arriving:
      return Begin::wait;
    case PeerLeases::State::withdrawn:
      return Begin::rejected;
    case PeerLeases::State::unknown:
      if (query.lease == lease && query.state == Query::State::refused) return Begin::rejected;
      if (query.lease == lease && query.state == Query::State::asked) return Begin::wait;
      if (query.lease == lease && query.state == Query::State::later &&
          context_.now_ns < query.again_ns)
        return Begin::wait;
      if (append_statement(MessageKind::query, lease)) query = Query{lease, Query::State::asked, 0};
      return Begin::wait;
  }
  const bool shared = !has_bulk_pair();
  const std::uint64_t most = stream == kControl || shared ? kSharedAheadBytes : kBulkAheadBytes;
  const bool room = bytes_ahead_[stream] < most && chunks_[stream].unacked() < kMaxUnacked &&
                    digests_ahead_[stream] + chunk.digests.size() <= kMaxDigestsAhead;
  return room ? Begin::ready : Begin::wait;
}

// False: not now. On true the chunk is being written, or was rejected and is through.
bool Lane::begin_chunk(OutChunk& chunk, std::size_t stream) noexcept {
  const Begin begin = may_begin(chunk, stream);
  if (begin == Begin::wait) return false;
  if (begin == Begin::rejected) {
    chunk.outcome = Code::rejected;
    chunk.completed_ns = context_.now_ns;
    chunk.stage = OutChunk::Stage::written;
    return true;
  }
  const bool with_immediate = stream == kBulk && has_bulk_pair();
  if (with_immediate) {
    if (peer_bulk_posted_ - bulk_sent_ == 0 || !announce(chunk, stream)) return false;
    chunks_[stream].number();
    ++bulk_sent_;
  }
  // The peer closes the lane when it hears of a range that it has not promised.
  chunk.stopped =
      !range_fits(chunk.post.offset, chunk.post.bytes, peer_leases_.total_bytes(chunk.post.lease));
  chunk.stage = OutChunk::Stage::writing;
  chunk.holds_lease = true;
  peer_leases_.begin(chunk.post.lease);
  bytes_ahead_[stream] += chunk.post.bytes;
  return true;
}

// False: the send queue, the ring or the bounce pool is full; this goes on where it stopped.
bool Lane::write_more(OutChunk& chunk, std::size_t stream) noexcept {
  const bool with_immediate = stream == kBulk && has_bulk_pair();
  Doorbell& doorbell = context_.doorbells[with_immediate ? kBulk : kControl];
  if (peer_leases_.state_of(chunk.post.lease) == PeerLeases::State::withdrawn) chunk.stopped = true;
  while (!chunk.stopped && chunk.written < chunk.post.bytes) {
    if (!doorbell.has_room() || !write_one(chunk, doorbell, with_immediate)) return false;
  }
  if (with_immediate && chunk.written < chunk.post.bytes) {
    // Stopped in the middle: the announcement still wants its immediate.
    if (!doorbell.has_room()) return false;
    ibv_send_wr& request = doorbell.add();
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl((chunk.post.lease.slot << 20) |
                             static_cast<std::uint32_t>(chunk.number & kNumberMask));
    chunk.written = chunk.post.bytes;
    chunk.last_work = doorbell.last();
  }
  if (!with_immediate) {
    if (!announce(chunk, stream)) return false;
    chunks_[stream].number();
  }
  stats_.bytes_sent += chunk.post.bytes;
  chunk.stage = OutChunk::Stage::written;
  return true;
}

// One WRITE of as much as is contiguous at the peer and fits into one gather list. False: no memory
// to bounce it through.
bool Lane::write_one(OutChunk& chunk, Doorbell& doorbell, bool with_immediate) noexcept {
  const PeerLeases::Place place =
      peer_leases_.locate(chunk.post.lease, chunk.post.offset + chunk.written,
                          with_immediate ? kBulk : kControl);
  std::array<ibv_sge, kMaxSge> parts;
  std::uint32_t count = 0;
  std::uint32_t bytes =
      gather(chunk, place.bytes, std::span(parts).first(queues_[kControl].most_sge), count);
  if (bytes == 0) {
    if (!bounce(chunk)) return false;
    bytes = gather(chunk, place.bytes, parts, count);
  }
  KVRAIL_ASSERT(bytes > 0 && count > 0);
  ibv_send_wr& request = doorbell.add();
  std::copy_n(parts.begin(), count, doorbell.parts(request).begin());
  request.num_sge = static_cast<int>(count);
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = place.address;
  request.wr.rdma.rkey = place.key;
  chunk.written += bytes;
  if (with_immediate && chunk.written == chunk.post.bytes) {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl((chunk.post.lease.slot << 20) |
                             static_cast<std::uint32_t>(chunk.number & kNumberMask));
  }
  chunk.last_work = doorbell.last();
  return true;
}

// The gather list of the chunk's next bytes, at most `room`; returns how many. 0: of memory that
// the device does not know.
std::uint32_t Lane::gather(const OutChunk& chunk, std::uint64_t room, std::span<ibv_sge> parts,
                           std::uint32_t& count) noexcept {
  const std::uint64_t want = std::min<std::uint64_t>(room, chunk.post.bytes - chunk.written);
  const auto add = [&](std::byte* address, std::uint64_t bytes) {
    while (bytes > 0 && count < parts.size()) {
      const Region* const region = context_.memory.find(address);
      if (region == nullptr) return kUnknown;
      const auto part =
          std::min<std::uint64_t>(bytes, static_cast<std::uint64_t>(region->end - address));
      parts[count++] = {reinterpret_cast<std::uint64_t>(address), static_cast<std::uint32_t>(part),
                        region->keys[device_->index]->lkey};
      address += part;
      bytes -= part;
    }
    return bytes;
  };
  count = 0;
  if (chunk.bounce != kNoBounce) {
    static_cast<void>(add(context_.bounce.at(chunk.bounce) + chunk.written, want));
  } else {
    bool known = true;
    for_each_part(*chunk.post.source, chunk.post.offset + chunk.written, want,
                  [&](std::byte* address, std::uint64_t bytes) {
                    const std::uint64_t left = add(address, bytes);
                    known = left != kUnknown;
                    return left == 0 && count < parts.size();
                  });
    if (!known) return 0;
  }
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < count; ++i) total += parts[i].length;
  return total;
}

bool Lane::bounce(OutChunk& chunk) noexcept {
  chunk.bounce = context_.bounce.take();
  if (chunk.bounce == kNoBounce) {
    if (context_.bounce.is_refused()) end(Status{Code::limit, Scope::lane}, Code::lane_lost);
    return false;
  }
  ++context_.counters.bounced_chunks;
  std::byte* to = context_.bounce.at(chunk.bounce);
  for_each_part(*chunk.post.source, chunk.post.offset, chunk.post.bytes,
                [&](const std::byte* address, std::uint64_t bytes) {
                  std::memcpy(to, address, bytes);
                  to += bytes;
                  return true;
                });
  return true;
}

void Lane::finish_writes(std::size_t stream) noexcept {
  const bool own_pair = stream == kBulk && has_bulk_pair();
  const std::uint64_t completed = queues_[own_pair ? kBulk : kControl].completed;
  while (OutChunk* const chunk = chunks_[stream].next_local(completed)) {
    if (chunk->bounce != kNoBounce) context_.bounce.give(chunk->bounce);
    chunk->bounce = kNoBounce;
    if (!chunk->holds_lease) continue;
    chunk->holds_lease = false;
    bytes_ahead_[stream] -= chunk->post.bytes;
    if (peer_leases_.finish(chunk->post.lease)) to_release_.push(chunk->post.lease);
  }
}

}  // namespace kvrail::transport::verbs
