// How a shm lane comes up and goes down: sockets, handshake, descriptors.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/no_alloc.h"
#include "transport/shm/shm_lane.h"
#include "transport/shm/shm_transport.h"

namespace kvrail::transport::shm {
namespace {

constexpr int kAcceptsPerPoll = 8;
constexpr int kPacketsPerPoll = 32;

}  // namespace

// A connection is made at most once per peer and loss, never per transfer: it may allocate.
LaneId ShmTransport::add_lane(UniqueFd socket, bool dialer, std::uint64_t cookie) noexcept {
  const AllowAllocScope allow;
  const Handshake machine =
      dialer ? Handshake::dial(handshake_, random_nonce(), LaneKind::control, random_u64())
             : Handshake::listen(handshake_, random_nonce());
  const int fd = socket.get();
  const LaneId id = lanes_.try_emplace(std::make_unique<Lane>(std::move(socket), dialer, machine));
  if (!id.valid()) return id;
  Lane& lane = **lanes_.get(id);
  lane.id = id;
  lane.cookie = cookie;
  // now_ns_ is the last poll's; a transport never polled yet counts from the first.
  lane.deadline_ns = now_ns_ == 0 ? kNever : add_saturating(now_ns_, options_.handshake_ns);
  ++handshaking_;
  if (fd >= 0) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id.packed();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      fail(lane, Status{Code::io_error, Scope::lane, errno});
    }
  }
  return id;
}

void ShmTransport::poll_sockets() noexcept {
  sockets_read_ns_ = now_ns_;
  std::array<epoll_event, 16> ready;
  const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = ready[static_cast<std::size_t>(i)].data.u64;
    if (key == 0) {
      accept_lanes();
    } else if (std::unique_ptr<Lane>* lane = lanes_.get(LaneId::unpack(key)); lane != nullptr) {
      read_socket(**lane);
    }
  }
  if (handshaking_ != 0) expire_handshakes();
}

void ShmTransport::accept_lanes() noexcept {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    // Half-open connections may not take the slots of real lanes.
    const bool crowded = lanes_.full() || handshaking_ >= std::max(1U, lanes_.capacity() / 2);
    if (crowded || (!options_.other_users && !is_same_user(socket.get()))) continue;
    static_cast<void>(add_lane(std::move(socket), false, 0));
  }
}

void ShmTransport::read_socket(Lane& lane) noexcept {
  std::array<std::byte, kMaxPacketBytes> buffer;
  for (int i = 0; i < kPacketsPerPoll && lane.state != Lane::State::down && !lane.peer_gone; ++i) {
    Received received;
    const SocketResult result = receive_packet(lane.socket.get(), buffer, received);
    if (result == SocketResult::again) return;
    if (result == SocketResult::closed) {
      // The rings may still hold what the peer sent before.
      if (lane.state == Lane::State::up) {
        lane.peer_gone = true;
        static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, lane.socket.get(), nullptr));
      } else {
        fail(lane, Status{lane.dialer ? Code::unreachable : Code::lane_lost, Scope::lane});
      }
      return;
    }
    if (result == SocketResult::bad) {
      refuse(lane, wire::FrameError::unexpected);
      return;
    }
    const auto bytes = std::span<const std::byte>(buffer).first(received.bytes);
    if (lane.state == Lane::State::handshake) {
      on_handshake_packet(lane, bytes);
    } else {
      on_packet(lane, bytes, std::move(received.fd));
    }
  }
}

void ShmTransport::on_handshake_packet(Lane& lane, std::span<const std::byte> packet) noexcept {
  const auto progress = lane.parser.feed(packet);
  // One packet is one frame.
  if (progress != wire::FrameParser::Progress::frame_ready || !packet.empty()) {
    const wire::FrameError error = lane.parser.error();
    refuse(lane, error == wire::FrameError::none ? wire::FrameError::truncated : error);
    return;
  }
  lane.handshake.on_payload(lane.parser.payload());
  lane.parser.next();
  flush_handshake(lane);
}

void ShmTransport::flush_handshake(Lane& lane) noexcept {
  std::array<std::byte, Handshake::kMaxFrameBytes> frame;
  while (lane.state == Lane::State::handshake) {
    const std::size_t size = lane.handshake.next_frame(frame);
    if (size == 0) break;
    if (send_packet(lane.socket.get(), std::span(frame).first(size)) != SocketResult::ok) break;
  }
  if (lane.handshake.state() == Handshake::State::failed) {
    fail(lane, lane.handshake.status());
  } else if (lane.handshake.state() == Handshake::State::established) {
    lane.rules = lane.handshake.rules();
    lane.rules.max_message_bytes = kFrameBytes;
    lane.rules.max_chunk_bytes = kChunkBytes;
    lane.rules.max_leases = options_.max_leases;
    lane.state = Lane::State::awaiting_setup;
    if (lane.dialer) begin_dialled(lane);
  }
}

void ShmTransport::begin_dialled(Lane& lane) noexcept {
  UniqueFd fd;
  if (const Status made = make_shared(LaneMemory::kBytes, fd, lane.mapping); !made.ok()) {
    fail(lane, made);
    return;
  }
  lane.memory().create();
  lane.make_rings();
  const Packet packet{.type = PacketType::setup, .bytes = LaneMemory::kBytes};
  if (send_packet(lane.socket.get(), std::as_bytes(std::span(&packet, 1)), fd.get()) !=
      SocketResult::ok) {
    fail(lane, Status{Code::lane_lost, Scope::lane});
    return;
  }
  lane.state = Lane::State::up;
  --handshaking_;
  announce_arenas(lane);
}

void ShmTransport::on_packet(Lane& lane, std::span<const std::byte> bytes, UniqueFd fd) noexcept {
  Packet packet;
  if (bytes.size() != sizeof(packet)) {
    refuse(lane, wire::FrameError::bad_lengths);
    return;
  }
  std::memcpy(&packet, bytes.data(), sizeof(packet));
  if (packet.magic != Packet::kMagic) {
    refuse(lane, wire::FrameError::bad_magic);
    return;
  }
  const bool up = lane.state == Lane::State::up;
  if (packet.type == PacketType::wake && up && !fd.valid()) return;
  if (packet.type == PacketType::setup && !up && !lane.dialer && fd.valid() &&
      packet.bytes == LaneMemory::kBytes) {
    if (!map_foreign(fd.get(), 0, packet.bytes, true, lane.mapping).ok()) {
      refuse(lane, wire::FrameError::unexpected);
      return;
    }
    lane.make_rings();
    lane.state = Lane::State::up;
    --handshaking_;
    announce_arenas(lane);
    return;
  }
  if (packet.type == PacketType::arena && up && fd.valid()) {
    on_arena(lane, packet, fd);
    return;
  }
  if (packet.type == PacketType::arena_gone && up && !fd.valid()) {
    std::erase_if(lane.arenas, [&](const PeerArena& arena) { return arena.id == packet.id; });
    return;
  }
  refuse(lane, wire::FrameError::unexpected);
}

void ShmTransport::on_arena(Lane& lane, const Packet& packet, const UniqueFd& fd) noexcept {
  const bool known = std::any_of(lane.arenas.begin(), lane.arenas.end(),
                                 [&](const PeerArena& arena) { return arena.id == packet.id; });
  PeerArena arena;
  arena.id = packet.id;
  if (packet.id == 0 || known || lane.arenas.size() == kMaxPeerArenas ||
      !map_foreign(fd.get(), packet.offset, packet.bytes, false, arena.mapping).ok()) {
    refuse(lane, wire::FrameError::unexpected);
    return;
  }
  lane.arenas.push_back(std::move(arena));
}

// Ids ascend, so one number tells which arenas a peer knows. Where the socket is full the rest
// waits; chunks of that memory go through staging until then.
void ShmTransport::announce_arenas(Lane& lane) noexcept {
  if (lane.state != Lane::State::up) return;
  for (const OwnArena& arena : arenas_) {
    if (arena.id < lane.announced_arenas) continue;
    const Packet packet{.type = PacketType::arena,
                        .id = arena.id,
                        .bytes = arena.bytes,
                        .offset = 0};
    if (send_packet(lane.socket.get(), std::as_bytes(std::span(&packet, 1)), arena.fd.get()) !=
        SocketResult::ok) {
      return;
    }
    lane.announced_arenas = arena.id + 1;
  }
}

void ShmTransport::expire_handshakes() noexcept {
  lanes_.for_each([this](LaneId, std::unique_ptr<Lane>& lane) {
    if (lane->state != Lane::State::handshake && lane->state != Lane::State::awaiting_setup) return;
    if (lane->deadline_ns == kNever) {
      lane->deadline_ns = add_saturating(now_ns_, options_.handshake_ns);
    }
    if (now_ns_ >= lane->deadline_ns) fail(*lane, Status{Code::timed_out, Scope::lane});
  });
}

void ShmTransport::fail(Lane& lane, Status status) noexcept {
  KVRAIL_ASSERT(lane.state != Lane::State::down && !status.ok());
  if (lane.state != Lane::State::up) --handshaking_;
  lane.close_memory();
  lane.state = Lane::State::down;
  lane.down = status;
  lane.socket.reset();  // leaves epoll, and tells the peer
}

void ShmTransport::refuse(Lane& lane, wire::FrameError error) noexcept {
  refused_.count(error);
  ++lane.stats.malformed;
  fail(lane, Status{Code::protocol_error, Scope::lane, static_cast<std::int32_t>(error)});
}

}  // namespace kvrail::transport::shm
