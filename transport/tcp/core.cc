#include "transport/tcp/core.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/tcp/tags.h"

namespace kvrail::transport::tcp {
namespace {

constexpr std::size_t kScratchBytes = 256 * 1024;
// Passes over what is ready in one poll(): enough to answer at once to what arrived at once,
// bounded so that a fast peer can't keep the Worker here.
constexpr int kRoundsPerPoll = 4;
constexpr TimeNs kQuitPatienceNs = kSecondNs;

}  // namespace

Core::Core(const TcpOptions& options, std::unique_ptr<SocketIo> io, std::string warning)
    : options_(options),
      warning_(std::move(warning)),
      scratch_(std::make_unique<std::byte[]>(kScratchBytes)),
      io_(std::move(io)),
      leases_(options.max_leases),
      context_{*io_, leases_, options_, counters_, std::span(scratch_.get(), kScratchBytes)},
      socket_count_(sockets_needed(options)),
      sockets_(std::make_unique<IoSocket[]>(socket_count_)),
      dial_addresses_(options.max_lanes),
      generations_(options.max_lanes, 0),
      active_((options.max_lanes + 63) / 64, 0),
      greeters_(options.max_half_open + options.max_lanes) {
  caps_.name = "tcp";
  caps_.max_frame_bytes = wire::kMaxMessageBytes;
  caps_.max_chunk_bytes = options_.max_chunk_bytes;
  caps_.max_leases = options_.max_leases;
  caps_.max_chunks_in_flight = options_.max_chunks_in_flight;
  caps_.verifies_digests = options_.integrity == Integrity::full;
  free_sockets_.reserve(socket_count_);
  for (std::uint32_t i = socket_count_; i > 0; --i) {
    free_sockets_.push_back(&sockets_[i - 1]);
  }
  lanes_.reserve(options_.max_lanes);
  for (std::uint32_t i = 0; i < options_.max_lanes; ++i) {
    lanes_.push_back(std::make_unique<Lane>(context_, i));
  }
}

Core::~Core() {
  for (std::uint32_t i = 0; i < socket_count_; ++i) {
    if (sockets_[i].is_open()) {
      // Ends operations in flight whoever destroys us, the Worker or, after it, another thread.
      static_cast<void>(::shutdown(sockets_[i].fd, SHUT_RDWR));
    }
  }
  const SteadyClock clock;
  const TimeNs give_up_ns = clock.now_ns() + kQuitPatienceNs;
  bool busy = io_->is_owner();
  while (busy && clock.now_ns() < give_up_ns) {
    busy = false;
    for (std::uint32_t i = 0; i < socket_count_; ++i) {
      io_->cancel(sockets_[i].in);
      io_->cancel(sockets_[i].out);
      busy = busy || sockets_[i].is_busy();
    }
    io_->pump();
    while (io_->reap() != nullptr) {
    }
  }
  io_.reset();  // the kernel has let go of every operation before its memory goes
  for (std::uint32_t i = 0; i < socket_count_; ++i) {
    if (sockets_[i].is_open()) {
      ::close(sockets_[i].fd);
    }
  }
}

Lane* Core::find(LaneId id) const noexcept {
  if (id.index >= lanes_.size() || id.generation == 0 ||
      generations_[id.index] != id.generation) {
    return nullptr;
  }
  Lane* const lane = lanes_[id.index].get();
  return lane->state() == LaneState::unused ? nullptr : lane;
}

std::uint32_t Core::take_lane_slot() noexcept {
  const auto count = static_cast<std::uint32_t>(lanes_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t index = (next_lane_ + i) % count;
    if (lanes_[index]->state() == LaneState::unused) {
      next_lane_ = (index + 1) % count;
      return index;
    }
  }
  return Greeter::kNoLane;
}

LaneId Core::new_id(std::uint32_t index) noexcept {
  std::uint32_t& generation = generations_[index];
  generation = generation == UINT32_MAX ? 1 : generation + 1;
  return LaneId{index, generation};
}

Result<LaneId> Core::open_lane(std::string_view address, std::uint64_t cookie) {
  Result<SocketAddress> parsed = parse_address(address);
  if (!parsed) {
    return std::move(parsed).error();
  }
  if (parsed->is_wildcard()) {
    return Error{{Code::invalid_argument},
                 "address '" + to_string(*parsed) +
                     "' means every interface; dial one that the peer has"};
  }
  const std::uint32_t index = take_lane_slot();
  if (index == Greeter::kNoLane) {
    return Error{{Code::out_of_capacity, Scope::engine},
                 "all " + std::to_string(options_.max_lanes) +
                     " tcp lanes are in use; raise the limit or close one"};
  }
  dial_addresses_[index] = *parsed;
  Lane& lane = *lanes_[index];
  lane.open(new_id(index), true, cookie, random_u64());
  if (const Status status = dial_stream(index, LaneKind::control); !status.ok()) {
    lane.abandon_open();
    return Error{status, "cannot open a socket to " + to_string(*parsed) + ": " +
                             std::strerror(status.detail)};
  }
  return lane.id();
}

void Core::close_lane(LaneId id) noexcept {
  if (Lane* const lane = find(id); lane != nullptr) {
    end_lane(id.index, Status{Code::cancelled, Scope::lane}, Code::cancelled);
  }
}

void Core::end_lane(std::uint32_t index, Status status, Code outcome) noexcept {
  lanes_[index]->end(status, outcome);
  for (Greeter& greeter : greeters_) {
    if (greeter.state() != Greeter::State::unused && greeter.lane() == index) {
      greeter.abandon(*io_, status);
    }
  }
  activate(index);
}

bool Core::try_post_frame(LaneId id, std::span<const std::byte> frame) noexcept {
  Lane* const lane = find(id);
  if (lane == nullptr || !lane->try_post_frame(frame)) {
    return false;
  }
  activate(id.index);
  return true;
}

bool Core::try_post_chunk(LaneId id, const ChunkPost& chunk) noexcept {
  Lane* const lane = find(id);
  if (lane == nullptr || !lane->try_post_chunk(chunk)) {
    return false;
  }
  activate(id.index);
  return true;
}

void Core::expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept {
#if defined(KVRAIL_DEBUG)
  KVRAIL_ASSERT(is_consistent(sink));
#endif
  leases_.expose(lease, peer, sink);
}

void Core::withdraw(LeaseId lease) noexcept {
  for (auto& lane : lanes_) {
    lane->on_withdraw(lease);
  }
  leases_.withdraw(lease);
}

Result<void> Core::register_memory(std::byte* base, std::uint64_t bytes, int) {
  // Sockets copy through the kernel: any mapped memory will do.
  KVRAIL_ASSERT(base != nullptr && bytes > 0);
  return {};
}

void Core::activate(std::uint32_t lane) noexcept {
  active_[lane / 64] |= std::uint64_t{1} << (lane % 64);
}

bool Core::any_active() const noexcept {
  return std::any_of(active_.begin(), active_.end(), [](std::uint64_t word) { return word != 0; });
}

std::size_t Core::poll(TimeNs now_ns, std::span<Event> events) noexcept {
  EventSink sink(events);
  context_.now_ns = now_ns;
  ++context_.epoch;
  if (now_ns >= context_.next_deadline_ns) {
    run_deadlines();
  }
  emit_withdrawn(sink);
  service_lanes(sink);
  int rounds = 0;
  for (; rounds < kRoundsPerPoll; ++rounds) {
    io_->pump();
    if (!reap_all()) {
      send_acks();  // nothing more is here to merge them with
      break;
    }
    service_lanes(sink);
  }
  io_->pump();  // what was started last is under way while the caller works
  emit_withdrawn(sink);
  return sink.count();
}

void Core::service_lanes(EventSink& sink) noexcept {
  for (std::size_t word = 0; word < active_.size(); ++word) {
    std::uint64_t bits = active_[word];
    active_[word] = 0;
    while (bits != 0) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(bits));
      bits &= bits - 1;
      const auto index = static_cast<std::uint32_t>(word * 64) + bit;
      if (lanes_[index]->service(sink)) {
        activate(index);
      }
      if (lanes_[index]->state() == LaneState::ended) {
        retire_lane(index);
      }
    }
  }
}

void Core::send_acks() noexcept {
  for (auto& lane : lanes_) {
    if (lane->owes_acks()) {
      lane->send_acks_now();
    }
  }
}

void Core::retire_lane(std::uint32_t index) noexcept {
  for (const Greeter& greeter : greeters_) {
    if (greeter.state() != Greeter::State::unused && greeter.lane() == index) {
      return;  // its socket is still on the way out; its end activates us again
    }
  }
  for (std::size_t stream : {kControl, kBulk}) {
    if (IoSocket* const socket = lanes_[index]->take_socket(stream); socket != nullptr) {
      give_socket(socket);
    }
  }
  lanes_[index]->retire();
}

void Core::emit_withdrawn(EventSink& sink) noexcept {
  while (leases_.has_withdrawn() && !sink.full()) {
    sink.add(EventKind::lease_withdrawn).lease = *leases_.next_withdrawn();
  }
}

bool Core::reap_all() noexcept {
  bool any = false;
  // Bounded by the operations in flight: none is started here but accepts and greetings.
  for (std::uint32_t i = 0; i < 4 * socket_count_; ++i) {
    IoOp* const op = io_->reap();
    if (op == nullptr) {
      return any;
    }
    any = true;
    dispatch(*op);
  }
  return any;
}

void Core::dispatch(IoOp& op) noexcept {
  const Tag tag = Tag::unpack(op.socket->tag);
  switch (tag.owner) {
    case TagOwner::listener:
      on_accepted(op);
      return;
    case TagOwner::greeter:
      greeters_[tag.index].on_finished(*io_, op, counters_);
      on_greeter(tag.index);
      return;
    case TagOwner::lane:
      lanes_[tag.index]->on_finished(tag.stream, op);
      activate(tag.index);
      return;
  }
  KVRAIL_UNREACHABLE();
}

bool Core::arm() noexcept {
  const bool owes_acks = std::any_of(lanes_.begin(), lanes_.end(),
                                     [](const auto& lane) { return lane->owes_acks(); });
  return !any_active() && !owes_acks && !leases_.has_withdrawn() && io_->arm();
}

LaneStats Core::stats(LaneId id) const noexcept {
  const Lane* const lane = find(id);
  return lane == nullptr ? LaneStats{} : lane->stats();
}

IoSocket* Core::take_socket() noexcept {
  if (free_sockets_.empty()) {
    return nullptr;
  }
  IoSocket* const socket = free_sockets_.back();
  free_sockets_.pop_back();
  KVRAIL_ASSERT(!socket->is_open() && !socket->is_busy());
  return socket;
}

void Core::give_socket(IoSocket* socket) noexcept {
  KVRAIL_ASSERT(!socket->is_open() && !socket->is_busy());
  free_sockets_.push_back(socket);
}

}  // namespace kvrail::transport::tcp
