// A connection that is not yet part of a lane: connecting, or in the handshake. It reads exactly
// the frames of the handshake, so that what follows them is left for the lane.
//
// Thread: owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/handshake.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/socket_io.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::tcp {

class Greeter {
 public:
  enum class State : std::uint8_t {
    unused,
    working,
    greeted,      // listener side: everything is right; accept() or refuse() decides
    established,  // the socket may join its lane; nothing is in flight
    failed,       // status() tells why; nothing is in flight, the socket is still open
  };

  /// Dials `to` with a socket that is not connected yet. `lane`: index of the lane it is for.
  void dial(SocketIo& io, IoSocket& socket, const SocketAddress& to,
            const HandshakeConfig& config, LaneKind kind, std::uint64_t pairing,
            std::uint32_t lane) noexcept;
  /// Listens to what a connection that was just accepted has to say.
  void listen(SocketIo& io, IoSocket& socket, const HandshakeConfig& config) noexcept;

  void on_finished(SocketIo& io, IoOp& op, TcpCounters& counters) noexcept;
  /// greeted: the lane is ready for this socket; the peer is told.
  void accept(SocketIo& io, std::uint32_t lane) noexcept;
  /// greeted: there is no lane for it; the peer is told why, then `failed` follows.
  void refuse(SocketIo& io, Status status) noexcept;
  /// Gives up; `failed` follows once nothing is in flight.
  void abandon(SocketIo& io, Status status) noexcept;
  /// established, but its lane is gone: the socket is to be closed.
  void abandon_established() noexcept {
    KVRAIL_ASSERT(state_ == State::established);
    state_ = State::failed;
    status_ = Status{Code::cancelled, Scope::lane};
  }
  /// Back to unused; the socket is the caller's.
  [[nodiscard]] IoSocket* release() noexcept;

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] bool dialled() const noexcept { return dialled_; }
  [[nodiscard]] std::uint32_t lane() const noexcept { return lane_; }
  [[nodiscard]] const Handshake& handshake() const noexcept { return *handshake_; }
  [[nodiscard]] Status status() const noexcept { return status_; }
  [[nodiscard]] GreetedSocket greeted() const noexcept;

  static constexpr std::uint32_t kNoLane = UINT32_MAX;
  TimeNs deadline_ns = kNever;

 private:
  void begin(IoSocket& socket, const Handshake& handshake, bool dialled,
             std::uint32_t lane) noexcept;
  void go_on(SocketIo& io) noexcept;
  void fail(SocketIo& io, Status status) noexcept;
  [[nodiscard]] Status on_bytes(std::int32_t result, TcpCounters& counters) noexcept;
  void start_send(SocketIo& io) noexcept;

  State state_ = State::unused;
  bool dialled_ = false;
  bool stopping_ = false;  // the outcome is failure; only operations in flight are awaited
  std::uint32_t lane_ = kNoLane;
  IoSocket* socket_ = nullptr;
  std::optional<Handshake> handshake_;
  std::optional<wire::FrameParser> parser_;
  std::uint32_t frames_received_ = 0;
  Status status_;
  std::array<std::byte, wire::kMaxHandshakeBytes> payload_{};
  std::array<std::byte, 4 * Handshake::kMaxFrameBytes> out_{};
  std::size_t out_begin_ = 0;
  std::size_t out_end_ = 0;
  iovec receive_iov_{};
  iovec send_iov_{};
};

}  // namespace kvrail::transport::tcp
