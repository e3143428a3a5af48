#include "transport/tcp/greeter.h"

#include <sys/socket.h>

#include <cerrno>

namespace kvrail::transport::tcp {
namespace {

Status dial_failure(std::int32_t result) noexcept {
  switch (-result) {
    case ETIMEDOUT:
      return Status{Code::timed_out, Scope::lane, ETIMEDOUT};
    case ECANCELED:
      return Status{Code::cancelled, Scope::lane, 0};
    default:
      return Status{Code::unreachable, Scope::lane, -result};
  }
}

}  // namespace

void Greeter::begin(IoSocket& socket, const Handshake& handshake, bool dialled,
                    std::uint32_t lane) noexcept {
  KVRAIL_ASSERT(state_ == State::unused);
  state_ = State::working;
  dialled_ = dialled;
  stopping_ = false;
  lane_ = lane;
  socket_ = &socket;
  handshake_.emplace(handshake);
  parser_.emplace(wire::FrameRules{}, std::span(payload_), std::span<std::uint64_t>{});
  frames_received_ = 0;
  status_ = Status{};
  out_begin_ = out_end_ = 0;
  deadline_ns = kNever;
}

void Greeter::dial(SocketIo& io, IoSocket& socket, const SocketAddress& to,
                   const HandshakeConfig& config, LaneKind kind, std::uint64_t pairing,
                   std::uint32_t lane) noexcept {
  begin(socket, Handshake::dial(config, random_nonce(), kind, pairing), true, lane);
  socket.out.address = to;
  io.start(socket.out, OpKind::connect);
}

void Greeter::listen(SocketIo& io, IoSocket& socket, const HandshakeConfig& config) noexcept {
  begin(socket, Handshake::listen(config, random_nonce()), false, kNoLane);
  go_on(io);
}

// Starts whatever the handshake needs next, and notices when it needs nothing more.
void Greeter::go_on(SocketIo& io) noexcept {
  if (socket_->out.in_flight()) {
    return;
  }
  if (stopping_) {
    state_ = socket_->is_busy() ? State::working : State::failed;
    return;
  }
  if (out_begin_ == out_end_) {
    out_begin_ = out_end_ = 0;
    while (const std::size_t size = handshake_->next_frame(std::span(out_).subspan(out_end_))) {
      out_end_ += size;
    }
  }
  if (out_begin_ < out_end_) {
    start_send(io);
    return;
  }
  switch (handshake_->state()) {
    case Handshake::State::failed:
      fail(io, handshake_->status());
      return;
    case Handshake::State::established:
      KVRAIL_ASSERT(!socket_->is_busy());
      state_ = State::established;
      return;
    case Handshake::State::negotiating:
      break;
  }
  if (!socket_->in.in_flight()) {
    const std::span<std::byte> want = parser_->want();
    KVRAIL_ASSERT(!want.empty());
    receive_iov_ = {want.data(), want.size()};
    socket_->in.message = msghdr{};
    socket_->in.message.msg_iov = &receive_iov_;
    socket_->in.message.msg_iovlen = 1;
    socket_->in.flags = 0;
    io.start(socket_->in, OpKind::receive);
  }
}

void Greeter::start_send(SocketIo& io) noexcept {
  send_iov_ = {out_.data() + out_begin_, out_end_ - out_begin_};
  socket_->out.message = msghdr{};
  socket_->out.message.msg_iov = &send_iov_;
  socket_->out.message.msg_iovlen = 1;
  socket_->out.flags = 0;
  io.start(socket_->out, OpKind::send);
}

void Greeter::fail(SocketIo& io, Status status) noexcept {
  if (!stopping_) {
    stopping_ = true;
    status_ = status;
    io.cancel(socket_->in);
    io.cancel(socket_->out);
  }
  state_ = socket_->is_busy() ? State::working : State::failed;
}

void Greeter::abandon(SocketIo& io, Status status) noexcept {
  if (state_ == State::working || state_ == State::greeted) {
    fail(io, status);
  }
}

// What the peer said; ok to go on.
Status Greeter::on_bytes(std::int32_t result, TcpCounters& counters) noexcept {
  if (result <= 0) {
    if (!parser_->idle()) {
      counters.handshake_frames.count(wire::FrameError::truncated);
    }
    // A peer that closes without a word refuses us: its handshake is not ours.
    return Status{Code::unreachable, Scope::lane, result == 0 ? ECONNRESET : -result};
  }
  switch (parser_->advance(static_cast<std::size_t>(result))) {
    case wire::FrameParser::Progress::need_more:
      return {};
    case wire::FrameParser::Progress::frame_ready:
      ++frames_received_;
      static_cast<void>(handshake_->on_payload(parser_->payload()));
      parser_->next();
      return {};
    case wire::FrameParser::Progress::chunk_ready:
    case wire::FrameParser::Progress::refused:
      break;
  }
  counters.handshake_frames.count(parser_->error());
  return Status{parser_->error() == wire::FrameError::bad_version ? Code::version_mismatch
                                                                  : Code::protocol_error,
                Scope::lane, static_cast<std::int32_t>(parser_->error())};
}

void Greeter::on_finished(SocketIo& io, IoOp& op, TcpCounters& counters) noexcept {
  const bool interrupted = op.result == -EINTR || op.result == -EAGAIN;
  if (stopping_) {
    go_on(io);
    return;
  }
  switch (op.kind) {
    case OpKind::connect:
      if (op.result != 0) {
        fail(io, dial_failure(op.result));
        return;
      }
      break;
    case OpKind::send:
      if (op.result > 0) {
        out_begin_ += static_cast<std::size_t>(op.result);
      } else if (!interrupted) {
        fail(io, Status{Code::unreachable, Scope::lane, -op.result});
        return;
      }
      break;
    case OpKind::receive: {
      if (interrupted) {
        break;
      }
      const Status status = on_bytes(op.result, counters);
      if (!status.ok()) {
        fail(io, status);
        return;
      }
      if (!dialled_ && handshake_->state() == Handshake::State::established) {
        state_ = State::greeted;  // the transport says whether there is a lane for it
        return;
      }
      break;
    }
    case OpKind::accept:
    case OpKind::splice:
    case OpKind::none:
      KVRAIL_UNREACHABLE();
  }
  go_on(io);
}

void Greeter::accept(SocketIo& io, std::uint32_t lane) noexcept {
  KVRAIL_ASSERT(state_ == State::greeted);
  state_ = State::working;
  lane_ = lane;
  go_on(io);
}

void Greeter::refuse(SocketIo& io, Status status) noexcept {
  KVRAIL_ASSERT(state_ == State::greeted);
  state_ = State::working;
  handshake_->refuse(status);
  go_on(io);
}

GreetedSocket Greeter::greeted() const noexcept {
  KVRAIL_ASSERT(state_ == State::established);
  return GreetedSocket{socket_, handshake_->rules(), handshake_->frames_sent(), frames_received_};
}

IoSocket* Greeter::release() noexcept {
  KVRAIL_ASSERT(state_ == State::established || state_ == State::failed);
  KVRAIL_ASSERT(!socket_->is_busy());
  state_ = State::unused;
  deadline_ns = kNever;
  lane_ = kNoLane;
  handshake_.reset();
  parser_.reset();
  IoSocket* const socket = socket_;
  socket_ = nullptr;
  return socket;
}

}  // namespace kvrail::transport::tcp
