#include "transport/shm/shm_transport.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/checked.h"
#include "kvrail/base/no_alloc.h"
#include "transport/payload_ops.h"
#include "transport/shm/shm_lane.h"

namespace kvrail::transport::shm {
namespace {

constexpr std::size_t kMaxOwnArenas = kMaxPeerArenas;
constexpr std::string_view kScheme = "shm:";
// What frame events of one poll may take together, beside the largest frame.
constexpr std::size_t kFramesPerPollBytes = 256 * 1024;

}  // namespace

ShmTransport::ShmTransport(const ShmOptions& options)
    : options_(options),
      lanes_(options.max_lanes),
      leases_(options.max_leases),
      segments_(kMaxSegments),
      scratch_(wire::kMaxChunkDigests / kDigestsPerCell),
      frames_((kFramesPerPollBytes + kFrameBytes) / sizeof(Cell)) {
  caps_.name = "shm";
  caps_.max_frame_bytes = kFrameBytes;
  caps_.max_chunk_bytes = kChunkBytes;
  caps_.max_leases = options.max_leases;
  caps_.max_chunks_in_flight = kMaxInFlight;
  caps_.same_machine = true;
  caps_.registers_memory = true;
  caps_.verifies_digests = true;
  handshake_.node = options.node;
  handshake_.incarnation = options.incarnation;
  handshake_.psk = options.psk;
  arenas_.reserve(kMaxOwnArenas);
}

Result<std::unique_ptr<ShmTransport>> ShmTransport::open(const ShmOptions& options) {
  KVRAIL_ASSERT(options.max_lanes > 0 && options.max_leases <= wire::kMaxLeaseSlots);
  std::unique_ptr<ShmTransport> made(new ShmTransport(options));
  made->epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!made->epoll_.valid()) {
    return Error{Status{Code::limit, Scope::device, errno}, "shm: no file descriptor for epoll"};
  }
  if (options.listen_path.empty()) return made;
  Result<UniqueFd> listener = listen_on(options.listen_path);
  if (!listener.ok()) return std::move(listener).error();
  made->listener_ = std::move(*listener);
  made->socket_file_ = socket_file_at(made->options_.listen_path);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;  // no LaneId packs to 0
  if (::epoll_ctl(made->epoll_.get(), EPOLL_CTL_ADD, made->listener_.get(), &event) != 0) {
    return Error{Status{Code::io_error, Scope::device, errno}, "shm: epoll refuses the socket"};
  }
  return made;
}

ShmTransport::~ShmTransport() {
  lanes_.for_each([](LaneId, std::unique_ptr<Lane>& lane) { lane->close_memory(); });
  if (listener_.valid()) unlink_own(options_.listen_path, socket_file_);
}

Result<LaneId> ShmTransport::open_lane(std::string_view address, std::uint64_t cookie) {
  const bool mine = address.substr(0, kScheme.size()) == kScheme;
  const std::string_view path = mine ? address.substr(kScheme.size()) : std::string_view{};
  if (!mine || !is_valid_path(path)) {
    return Error{Status{Code::invalid_argument, Scope::lane},
                 "shm address " + std::string(address) + ": must be shm:@name or shm:/path"};
  }
  if (lanes_.full()) {
    return Error{Status{Code::out_of_capacity, Scope::lane}, "shm: all lanes are in use"};
  }
  UniqueFd socket;
  const Status connected = connect_to(path, socket);
  const LaneId id = add_lane(std::move(socket), true, cookie);
  KVRAIL_ASSERT(id.valid());
  Lane& lane = **lanes_.get(id);
  if (!connected.ok()) {
    fail(lane, connected);
  } else {
    flush_handshake(lane);
  }
  return id;
}

void ShmTransport::close_lane(LaneId id) noexcept {
  std::unique_ptr<Lane>* lane = lanes_.get(id);
  if (lane == nullptr || (*lane)->state == Lane::State::down) return;
  fail(**lane, Status{Code::cancelled, Scope::lane});
}

void ShmTransport::expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept {
  KVRAIL_ASSERT(lease.slot < leases_.size());
  LeaseSlot& slot = leases_[lease.slot];
  KVRAIL_ASSERT_MSG(slot.state == LeaseState::unused, "the lease slot is in use");
  KVRAIL_ASSERT(is_consistent(sink));
  slot = LeaseSlot{LeaseState::exposed, lease, peer, sink};
}

// Chunks are copied whole within one poll, so nothing is half-written between two of them.
void ShmTransport::withdraw(LeaseId lease) noexcept {
  KVRAIL_ASSERT(lease.slot < leases_.size());
  LeaseSlot& slot = leases_[lease.slot];
  KVRAIL_ASSERT_MSG(slot.state == LeaseState::exposed && slot.id == lease,
                    "the lease is not exposed");
  slot.state = LeaseState::withdrawn;
  ++withdrawn_pending_;
}

Result<void> ShmTransport::register_memory(std::byte* base, std::uint64_t bytes, int fd) {
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  if (base == nullptr || bytes == 0 || !checked_add(start, bytes)) {
    return Error{Status{Code::invalid_argument, Scope::transfer}, "shm: an empty range of memory"};
  }
  // What was registered here before is gone, or the range could not be new.
  for (std::size_t i = arenas_.size(); i > 0; --i) {
    const OwnArena& old = arenas_[i - 1];
    if (old.base < base + bytes && base < old.base + old.bytes) unregister_memory(old.base);
  }
  if (fd < 0) return {};  // goes through staging
  UniqueFd copy = read_only_copy(fd);
  // What cannot be shared safely, or is one range too many, goes through staging as well.
  if (!copy.valid() || arenas_.size() == kMaxOwnArenas) return {};
  OwnArena arena;
  arena.id = next_arena_++;
  arena.base = base;
  arena.bytes = bytes;
  arena.fd = std::move(copy);
  arenas_.push_back(std::move(arena));
  lanes_.for_each([this](LaneId, std::unique_ptr<Lane>& lane) { announce_arenas(*lane); });
  return {};
}

void ShmTransport::unregister_memory(std::byte* base) noexcept {
  const auto found = std::find_if(arenas_.begin(), arenas_.end(), [base](const OwnArena& arena) {
    return arena.base <= base && base < arena.base + arena.bytes;
  });
  if (found == arenas_.end()) return;
  const Packet packet{.type = PacketType::arena_gone, .id = found->id};
  lanes_.for_each([&](LaneId, std::unique_ptr<Lane>& lane) {
    if (lane->state == Lane::State::up && found->id < lane->announced_arenas) {
      // Where the socket is full the peer only keeps a mapping for longer.
      static_cast<void>(send_packet(lane->socket.get(), std::as_bytes(std::span(&packet, 1))));
    }
  });
  arenas_.erase(found);
}

bool ShmTransport::arm() noexcept {
  if (withdrawn_pending_ != 0) return false;
  bool work = false;
  lanes_.for_each([&work](LaneId, std::unique_ptr<Lane>& lane) {
    if (lane->state == Lane::State::down) work = true;
    if (lane->state != Lane::State::up || work) return;
    if (!lane->announced || lane->peer_gone) work = true;
    for (LaneClass& one : lane->classes) {
      work = work || one.has_header || !one.in->prepare_park();
    }
  });
  if (work) {
    lanes_.for_each([](LaneId, std::unique_ptr<Lane>& lane) {
      for (LaneClass& one : lane->classes) {
        if (one.in) one.in->cancel_park();
      }
    });
    return false;
  }
  armed_ = true;
  return true;
}

TimeNs ShmTransport::next_deadline_ns() const noexcept {
  TimeNs next = kNoDeadline;
  if (handshaking_ == 0) return next;
  lanes_.for_each([&next](LaneId, const std::unique_ptr<Lane>& lane) {
    if (lane->state == Lane::State::handshake || lane->state == Lane::State::awaiting_setup) {
      next = std::min(next, lane->deadline_ns);
    }
  });
  return next;
}

LaneStats ShmTransport::stats(LaneId id) const noexcept {
  const std::unique_ptr<Lane>* lane = lanes_.get(id);
  return lane == nullptr ? LaneStats{} : (*lane)->stats;
}

}  // namespace kvrail::transport::shm
