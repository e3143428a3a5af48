#include "transport/sim/sim_transport.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/no_alloc.h"
#include "transport/payload_ops.h"
#include "transport/sim/sim_lane.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::sim {
namespace {

constexpr std::size_t kMaxLent = 1024;

std::size_t index_of(int side) noexcept {
  return static_cast<std::size_t>(side);
}

}  // namespace

SimTransport::SimTransport(SimNetwork& network, NodeId node, Incarnation incarnation,
                           const NodeOptions& options)
    : network_(network),
      node_(node),
      incarnation_(incarnation),
      options_(options),
      lanes_(options.max_lanes),
      leases_(options.max_leases),
      lent_(kMaxLent) {
  KVRAIL_ASSERT(node != 0 && incarnation != 0);
  KVRAIL_ASSERT(options.frame_queue_bytes > options.max_frame_bytes);
  caps_.name = "sim";
  caps_.max_frame_bytes = options.max_frame_bytes;
  caps_.max_chunk_bytes = wire::kMaxChunkBytes;
  caps_.max_leases = options.max_leases;
  caps_.max_chunks_in_flight = options.max_chunks_in_flight;
  caps_.verifies_digests = true;
  ended_.reserve(options.max_lanes);
  wait_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  KVRAIL_ASSERT_MSG(wait_fd_ >= 0, "no file descriptor left for an eventfd");
}

SimTransport::~SimTransport() {
  if (!dead_) {
    dead_ = true;
    network_.detach(*this, false);
  }
  ::close(wait_fd_);
}

Result<LaneId> SimTransport::open_lane(std::string_view address, std::uint64_t cookie) {
  const AllowAllocScope allow;
  constexpr std::string_view kScheme = "sim:";
  NodeId target = 0;
  if (address.substr(0, kScheme.size()) == kScheme) {
    const std::string_view digits = address.substr(kScheme.size());
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), target);
    if (parsed.ec != std::errc{} || parsed.ptr != digits.data() + digits.size()) target = 0;
  }
  if (target == 0 || target == node_) {
    return Error{Status{Code::invalid_argument, Scope::lane},
                 "sim address " + std::string(address) + ": must be sim:<id of another node>"};
  }
  if (dead_) return Error{Status{Code::shutting_down, Scope::lane}, "this node has crashed"};
  if (lanes_.full()) {
    return Error{Status{Code::out_of_capacity, Scope::lane}, "all lanes of the node are in use"};
  }
  SimLane& lane = *network_.lane(network_.open(*this, target));
  lane.ends[0].cookie = cookie;
  lane.ends[0].id = attach(lane, 0);
  return lane.ends[0].id;
}

LaneId SimTransport::attach(SimLane& lane, int side) noexcept {
  return lanes_.try_emplace(Attached{&lane, side});
}

void SimTransport::close_lane(LaneId id) noexcept {
  const Attached* at = lanes_.get(id);
  if (at == nullptr || dead_) return;
  if (at->lane->ends[index_of(at->side)].state == SimLane::State::closed) return;
  end_lane(*at->lane, at->side, Status{Code::cancelled, Scope::lane});
}

void SimTransport::end_lane(SimLane& lane, int side, Status status) noexcept {
  SimLane::End& end = lane.ends[index_of(side)];
  KVRAIL_ASSERT(end.state != SimLane::State::closed);
  end.state = SimLane::State::closed;
  end.down = status;
  lane.cut_both();
  network_.note(10, lane.id, static_cast<std::uint64_t>(status.code));
  const SimLane::End& other = lane.ends[index_of(1 - side)];
  if (other.state != SimLane::State::closed && other.owner != nullptr) {
    network_.tell_closed(lane, 1 - side, network_.flight_ns(end.node, other.node));
  }
  wake();
}

bool SimTransport::try_post_frame(LaneId id, std::span<const std::byte> frame) noexcept {
  KVRAIL_ASSERT_MSG(!frame.empty() && frame.size() <= caps_.max_frame_bytes,
                    "a frame must have 1 to max_frame_bytes bytes");
  const Attached* at = lanes_.get(id);
  if (at == nullptr || dead_) return false;
  SimLane& lane = *at->lane;
  SimLane::End& end = lane.ends[index_of(at->side)];
  if (end.state != SimLane::State::up) return false;
  const SimLane::End& other = lane.ends[index_of(1 - at->side)];
  Direction& direction = *lane.directions[index_of(at->side)];
  Item item;
  item.kind = Item::Kind::frame;
  item.frame_size = static_cast<std::uint32_t>(frame.size());
  item.frame_at = direction.take_frame_bytes(item.frame_size);
  if (item.frame_at == UINT32_MAX) return false;
  const std::span<std::byte> copy{direction.frame_bytes.get() + item.frame_at, frame.size()};
  std::memcpy(copy.data(), frame.data(), frame.size());
  ++end.stats.frames_sent;
  end.stats.bytes_sent += frame.size();
  const LinkModel& model = network_.link(node_, other.node);
  item.lost = (model.frame_drop > 0 && network_.prng_.chance(model.frame_drop)) ||
              (network_.filter_ && network_.filter_(node_, other.node, copy));
  network_.note(11, lane.id, frame.size() * 2 + (item.lost ? 1 : 0));
  post_item(lane, at->side, kControl, item, frame.size());
  return true;
}

bool SimTransport::try_post_chunk(LaneId id, const ChunkPost& post) noexcept {
  KVRAIL_ASSERT(post.source != nullptr && post.bytes > 0 && post.bytes <= caps_.max_chunk_bytes);
  KVRAIL_ASSERT_MSG(range_fits(post.offset, post.bytes, post.source->total_bytes),
                    "the chunk is not in its payload");
  KVRAIL_ASSERT(completed_units(*post.source, post.offset, post.bytes).count <=
                wire::kMaxChunkDigests);
  const Attached* at = lanes_.get(id);
  if (at == nullptr || dead_) return false;
  SimLane& lane = *at->lane;
  SimLane::End& end = lane.ends[index_of(at->side)];
  if (end.state != SimLane::State::up) return false;
  const SimLane::End& other = lane.ends[index_of(1 - at->side)];
  Direction& direction = *lane.directions[index_of(at->side)];
  const LinkModel& model = network_.link(node_, other.node);
  if (direction.queued_bytes != 0 && direction.queued_bytes + post.bytes > model.queue_bytes) {
    return false;
  }
  const std::uint32_t index = direction.take_chunk();
  if (index == UINT32_MAX) return false;
  direction.queued_bytes += post.bytes;
  ChunkInFlight& chunk = direction.chunks[index];
  chunk.post = post;
  chunk.posted_ns = network_.now_ns();
  ++end.stats.chunks_sent;
  end.stats.bytes_sent += post.bytes;
  network_.note(12, lane.id, post.offset ^ post.bytes);
  Item item;
  item.kind = Item::Kind::chunk;
  item.chunk = index;
  const TimeNs arrival =
      post_item(lane, at->side, post.critical ? kControl : kBulk, item, post.bytes);
  cut_into_parts(lane, at->side, index, arrival);
  return true;
}

// A chunk lands in up to kMaxParts parts at random times before it arrives as a whole.
void SimTransport::cut_into_parts(SimLane& lane, int side, std::uint32_t index,
                                  TimeNs arrival_ns) noexcept {
  ChunkInFlight& chunk = lane.directions[index_of(side)]->chunks[index];
  Prng& prng = network_.prng_;
  const std::uint32_t bytes = chunk.post.bytes;
  const std::size_t inner = std::min<std::size_t>(prng.uniform(kMaxParts), bytes - 1);
  std::array<std::uint32_t, kMaxParts + 1>& cuts = chunk.cuts;
  for (std::size_t i = 1; i <= inner; ++i) {
    cuts[i] = static_cast<std::uint32_t>(prng.between(1, bytes - 1));
  }
  std::sort(cuts.begin() + 1, cuts.begin() + 1 + static_cast<std::ptrdiff_t>(inner));
  cuts[inner + 1] = bytes;
  chunk.part_count = static_cast<std::uint8_t>(inner + 1);
  for (std::size_t part = 0; part < chunk.part_count; ++part) {
    const TimeNs span = arrival_ns - chunk.posted_ns;
    const TimeNs at =
        arrival_ns - static_cast<TimeNs>(prng.uniform(static_cast<std::uint64_t>(span) / 2 + 1));
    network_.schedule({.at_ns = at,
                       .kind = SimNetwork::Kind::land,
                       .side = static_cast<std::uint8_t>(side),
                       .part = static_cast<std::uint8_t>(part),
                       .chunk = index,
                       .chunk_use = chunk.use,
                       .lane = lane.id});
  }
}

// Control traffic goes first on the wire and pushes bulk back by its own sending time.
TimeNs SimTransport::post_item(SimLane& lane, int side, std::size_t lane_class, Item item,
                               std::uint64_t bytes) noexcept {
  Direction& direction = *lane.directions[index_of(side)];
  const NodeId from = lane.ends[index_of(side)].node;
  const NodeId to = lane.ends[index_of(1 - side)].node;
  const std::uint64_t rate = network_.link(from, to).rate_bytes_per_s;
  const auto sending = static_cast<TimeNs>(bytes * static_cast<std::uint64_t>(kSecondNs) / rate);
  TimeNs* free_at = direction.wire->free_at_ns;
  free_at[lane_class] = std::max(free_at[lane_class], network_.now_ns()) + sending;
  if (lane_class == kControl)
    free_at[kBulk] = std::max(free_at[kBulk], network_.now_ns()) + sending;
  TimeNs& last = direction.last_arrival_ns[lane_class];
  item.arrival_ns = std::max(last, free_at[lane_class] + network_.flight_ns(from, to));
  last = item.arrival_ns;
  direction.queues[lane_class].push(item);
  network_.schedule({.at_ns = item.arrival_ns,
                     .kind = SimNetwork::Kind::pump,
                     .side = static_cast<std::uint8_t>(side),
                     .lane_class = static_cast<std::uint8_t>(lane_class),
                     .lane = lane.id});
  return item.arrival_ns;
}

void SimTransport::expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept {
  KVRAIL_ASSERT(lease.slot < leases_.size());
  LeaseSlot& slot = leases_[lease.slot];
  KVRAIL_ASSERT_MSG(slot.state == LeaseState::unused, "the lease slot is in use");
  KVRAIL_ASSERT(is_consistent(sink));
  slot = LeaseSlot{LeaseState::exposed, lease, peer, sink};
}

void SimTransport::withdraw(LeaseId lease) noexcept {
  KVRAIL_ASSERT(lease.slot < leases_.size());
  LeaseSlot& slot = leases_[lease.slot];
  KVRAIL_ASSERT_MSG(slot.state == LeaseState::exposed && slot.id == lease,
                    "the lease is not exposed");
  slot.state = LeaseState::withdrawn;
  ++withdrawn_pending_;
  wake();
}

const SimTransport::LeaseSlot* SimTransport::lease_for(LeaseId lease, NodeId peer) const noexcept {
  if (lease.slot >= leases_.size()) return nullptr;
  const LeaseSlot& slot = leases_[lease.slot];
  const bool same = slot.state != LeaseState::unused && slot.id == lease && slot.peer == peer;
  return same ? &slot : nullptr;
}

Result<void> SimTransport::register_memory(std::byte* base, std::uint64_t bytes, int /*fd*/) {
  if (base == nullptr || bytes == 0) {
    return Error{Status{Code::invalid_argument, Scope::transfer}, "an empty range of memory"};
  }
  return {};
}

void SimTransport::wake() noexcept {
  if (!armed_) return;
  armed_ = false;
  signalled_ = true;
  const std::uint64_t one = 1;
  const ssize_t done = ::write(wait_fd_, &one, sizeof(one));
  KVRAIL_ASSERT(done == sizeof(one));
}

bool SimTransport::arm() noexcept {
  if (!dead_ && has_work()) return false;
  armed_ = true;
  return true;
}

LaneStats SimTransport::stats(LaneId id) const noexcept {
  const Attached* at = lanes_.get(id);
  return at == nullptr || dead_ ? LaneStats{} : at->lane->ends[index_of(at->side)].stats;
}

}  // namespace kvrail::transport::sim
