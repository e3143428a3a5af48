#include "transport/verbs/core.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kvrail/base/no_alloc.h"

namespace kvrail::transport::verbs {
namespace {

// Passes over what is there in one poll(): enough to answer at once to what arrived at once,
// bounded so that a fast peer can't keep the Worker here.
constexpr int kRoundsPerPoll = 3;
// Connections and ports come and go rarely; looking costs a system call.
constexpr TimeNs kEventsEveryNs = kMillisecondNs;

}  // namespace

Lane* Core::find(LaneId id) const noexcept {
  if (id.index >= lanes_.size() || id.generation == 0 || generations_[id.index] != id.generation)
    return nullptr;
  Lane* const lane = lanes_[id.index].get();
  return lane->state() == LaneState::unused ? nullptr : lane;
}

std::uint32_t Core::take_lane() noexcept {
  const auto count = static_cast<std::uint32_t>(lanes_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t index = (next_lane_ + i) % count;
    if (lanes_[index]->state() != LaneState::unused) continue;
    next_lane_ = (index + 1) % count;
    used_ |= std::uint64_t{1} << index;
    return index;
  }
  return kNoLane;
}

LaneId Core::new_id(std::uint32_t index) noexcept {
  std::uint32_t& generation = generations_[index];
  generation = generation == UINT32_MAX ? 1 : generation + 1;
  return LaneId{index, generation};
}

Result<LaneId> Core::open_lane(std::string_view address, std::uint64_t cookie) {
  Result<SocketAddress> parsed = parse_address(address);
  if (!parsed) return std::move(parsed).error();
  if (parsed->is_wildcard()) {
    return Error{
        {Code::invalid_argument},
        "address '" + to_string(*parsed) + "' means every interface; dial one that the peer has"};
  }
  const std::uint32_t index = take_lane();
  if (index == kNoLane) {
    return Error{{Code::out_of_capacity, Scope::engine},
                 "all " + std::to_string(lanes_.size()) +
                     " verbs lanes are in use; raise the limit or close one"};
  }
  const SteadyClock clock;
  context_.now_ns = std::max(context_.now_ns, clock.now_ns());
  const LaneId id = new_id(index);
  if (const Status status = lanes_[index]->dial(id, cookie, *parsed); !status.ok()) {
    return Error{status, "cannot dial " + to_string(*parsed) + ": " + std::strerror(status.detail)};
  }
  next_deadline_ns_ = 0;
  return id;
}

void Core::close_lane(LaneId id) noexcept {
  if (Lane* const lane = find(id); lane != nullptr) {
    lane->end(Status{Code::cancelled, Scope::lane}, Code::cancelled);
    unfinished_ = true;
  }
}

bool Core::break_lane(LaneId id) noexcept {
  Lane* const lane = find(id);
  if (lane != nullptr) lane->break_pairs();
  return lane != nullptr;
}

bool Core::try_post_frame(LaneId id, std::span<const std::byte> frame) noexcept {
  Lane* const lane = find(id);
  if (lane == nullptr || !lane->try_post_frame(frame)) return false;
  unfinished_ = true;
  return true;
}

bool Core::try_post_chunk(LaneId id, const ChunkPost& chunk) noexcept {
  Lane* const lane = find(id);
  if (lane == nullptr || !lane->try_post_chunk(chunk)) return false;
  unfinished_ = true;
  return true;
}

// A sink that nobody registered is registered for this lease alone, piece by piece.
bool Core::register_sink(LeaseId lease, const Payload& sink) noexcept {
  for (const Piece& piece : sink.pieces) {
    for (std::byte* at = piece.address; at < piece.address + piece.bytes;) {
      const Region* region = memory_.find(at);
      if (region == nullptr) {
        const AllowAllocScope allow;
        if (!memory_.add(piece.address, piece.bytes).ok()) return false;
        lease_ranges_[lease.slot].push_back(piece.address);
        ++counters_.leases_registered;
        region = memory_.find(at);
      }
      if (!region->writable) return false;
      at = region->end;
    }
  }
  return true;
}

void Core::expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept {
#if defined(KVRAIL_DEBUG)
  KVRAIL_ASSERT(is_consistent(sink));
#endif
  leases_.expose(lease, peer, sink, register_sink(lease, sink));
  for (auto& lane : lanes_) {
    if (lane->state() == LaneState::up && lane->peer() == peer) lane->tell_lease(lease.slot);
  }
  unfinished_ = true;
}

void Core::withdraw(LeaseId lease) noexcept {
  for (std::uint64_t told = leases_.withdraw(lease); told != 0; told &= told - 1) {
    lanes_[static_cast<std::size_t>(std::countr_zero(told))]->tell_withdrawn(lease);
  }
  unfinished_ = true;
}

Result<void> Core::register_memory(std::byte* base, std::uint64_t bytes, int fd) {
  const AllowAllocScope allow;
  auto added = memory_.add(base, bytes, fd);
  counters_.regions_by_dmabuf = memory_.by_dmabuf();
  counters_.regions_by_peer_memory = memory_.by_peer_memory();
  return added;
}

std::size_t Core::poll(TimeNs now_ns, std::span<Event> events) noexcept {
  EventSink sink(events);
  context_.now_ns = now_ns;
  const bool woken = std::exchange(armed_, false);
  unfinished_ = false;
  if (woken) drain_notices();
  for_each_used([](Lane& lane) { lane.repost(); });
  if (woken || now_ns - events_read_ns_ >= kEventsEveryNs || now_ns < events_read_ns_) {
    events_read_ns_ = now_ns;
    read_events();
  }
  for (int round = 0; round < kRoundsPerPoll; ++round) {
    const bool any = poll_completions();
    if (!any && round > 0) break;
    emit_withdrawn(sink);
    service_lanes(sink);
  }
  emit_withdrawn(sink);
  // Only now: whoever was not polled for long first hears what its peers have said meanwhile.
  next_deadline_ns_ = kNoDeadline;
  for_each_used(
      [this](Lane& lane) { next_deadline_ns_ = std::min(next_deadline_ns_, lane.on_time()); });
  return sink.count();
}

void Core::service_lanes(EventSink& sink) noexcept {
  for (std::uint64_t left = used_; left != 0; left &= left - 1) {
    Lane& lane = *lanes_[static_cast<std::size_t>(std::countr_zero(left))];
    if (lane.service(sink)) unfinished_ = true;
    if (lane.state() == LaneState::unused) used_ &= ~lane.bit();
  }
}

void Core::emit_withdrawn(EventSink& sink) noexcept {
  while (leases_.has_withdrawn() && !sink.full()) {
    const LeaseId lease = *leases_.next_withdrawn();
    for (std::byte* const base : lease_ranges_[lease.slot]) memory_.remove(base);
    lease_ranges_[lease.slot].clear();
    sink.add(EventKind::lease_withdrawn).lease = lease;
  }
}

bool Core::arm() noexcept {
  const bool waiting = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->has_spent() || lane->state() == LaneState::ended;
  });
  if (unfinished_ || waiting || leases_.has_withdrawn()) return false;
  armed_ = true;
  for (Device& device : devices_.all()) {
    if (device.completions == nullptr) continue;
    if (::ibv_req_notify_cq(device.completions, 0) != 0) return false;
  }
  // What came before the queue was armed raises no notice.
  if (poll_completions()) {
    unfinished_ = true;
    return false;
  }
  return true;
}

LaneStats Core::stats(LaneId id) const noexcept {
  const Lane* const lane = find(id);
  return lane == nullptr ? LaneStats{} : lane->stats();
}

}  // namespace kvrail::transport::verbs
