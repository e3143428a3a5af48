// From a connection to a lane: accepting strangers within bounds, greeting them, and joining the
// two sockets that name the same (node, incarnation, pairing).
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "transport/tcp/core.h"
#include "transport/tcp/tags.h"

namespace kvrail::transport::tcp {
namespace {

// After "too many open files" and the like: time for something to be closed.
constexpr TimeNs kAcceptPauseNs = 100 * kMillisecondNs;

}  // namespace

HandshakeConfig Core::handshake_config() const noexcept {
  HandshakeConfig config;
  config.node = options_.node;
  config.incarnation = options_.incarnation;
  config.psk = &options_.psk;
  return config;
}

Status Core::start_listening(const Listening& listening) noexcept {
  IoSocket* const socket = take_socket();
  KVRAIL_ASSERT(socket != nullptr);
  if (const int failure = io_->adopt(*socket, listening.fd); failure != 0) {
    give_socket(socket);
    return Status{Code::io_error, Scope::engine, failure};
  }
  listener_ = socket;
  listener_->tag = Tag{TagOwner::listener, 0, 0}.pack();
  listen_address_ = to_string(listening.address);
  start_accept();
  return {};
}

void Core::start_accept() noexcept {
  accept_again_ns_ = kNever;
  io_->start(listener_->in, OpKind::accept);
}

void Core::on_accepted(IoOp& op) noexcept {
  if (op.result >= 0) {
    greet(op.result, op.address.is_loopback());
    start_accept();
    return;
  }
  switch (-op.result) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      ++counters_.accept_errors;
      accept_again_ns_ = add_saturating(context_.now_ns, kAcceptPauseNs);
      context_.note_deadline(accept_again_ns_);
      return;
    case ECANCELED:
      return;
    default:  // a connection that died in the queue, EINTR: the next one may be fine
      start_accept();
      return;
  }
}

std::uint32_t Core::free_greeter() const noexcept {
  for (std::uint32_t i = 0; i < greeters_.size(); ++i) {
    if (greeters_[i].state() == Greeter::State::unused) {
      return i;
    }
  }
  return Greeter::kNoLane;
}

void Core::greet(int fd, bool loopback) noexcept {
  ++counters_.accepted;
  const std::uint32_t index = half_open_ < options_.max_half_open ? free_greeter()
                                                                  : Greeter::kNoLane;
  IoSocket* const socket = index == Greeter::kNoLane ? nullptr : take_socket();
  if (socket == nullptr) {
    ++counters_.refused_half_open;
    ::close(fd);
    return;
  }
  if (io_->adopt(*socket, fd) != 0) {
    ++counters_.accept_errors;
    give_socket(socket);
    ::close(fd);
    return;
  }
  tune_connection(fd, loopback, options_);
  socket->tag = Tag{TagOwner::greeter, index, 0}.pack();
  ++half_open_;
  greeters_[index].listen(*io_, *socket, handshake_config());
  greeters_[index].deadline_ns = add_saturating(context_.now_ns, options_.handshake_timeout_ns);
  context_.note_deadline(greeters_[index].deadline_ns);
}

Status Core::dial_stream(std::uint32_t lane, LaneKind kind) noexcept {
  const SocketAddress& to = dial_addresses_[lane];
  const std::uint32_t index = free_greeter();
  IoSocket* const socket = take_socket();
  KVRAIL_ASSERT_MSG(index != Greeter::kNoLane && socket != nullptr,
                    "there is one greeter and two sockets for every lane");
  const NewSocket made = make_dial_socket(to, options_);
  if (made.fd < 0) {
    give_socket(socket);
    return made.status;
  }
  if (const int failure = io_->adopt(*socket, made.fd); failure != 0) {
    give_socket(socket);
    ::close(made.fd);
    return Status{Code::io_error, Scope::lane, failure};
  }
  socket->tag = Tag{TagOwner::greeter, index, 0}.pack();
  Greeter& greeter = greeters_[index];
  greeter.dial(*io_, *socket, to, handshake_config(), kind, lanes_[lane]->pairing(), lane);
  // The first poll after open_lane() may be the first one at all: its clock starts the time-out.
  greeter.deadline_ns = 0;
  context_.note_deadline(0);
  return {};
}

void Core::on_greeter(std::uint32_t index) noexcept {
  Greeter& greeter = greeters_[index];
  if (greeter.state() == Greeter::State::greeted) {
    decide(greeter);
  }
  if (greeter.state() == Greeter::State::established) {
    join(greeter);
  } else if (greeter.state() == Greeter::State::failed) {
    drop(greeter);
  }
}

std::uint32_t Core::find_half_lane(const Handshake& handshake) const noexcept {
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = *lanes_[i];
    if (lane.state() == LaneState::opening && !lane.dialled() && lane.has(kControl) &&
        !lane.bulk_reserved && lane.peer() == handshake.peer() &&
        lane.incarnation() == handshake.peer_incarnation() &&
        lane.pairing() == handshake.pairing()) {
      return i;
    }
  }
  return Greeter::kNoLane;
}

// A stranger proved who it is: is there a lane for this socket?
void Core::decide(Greeter& greeter) noexcept {
  const Handshake& handshake = greeter.handshake();
  if (handshake.kind() == LaneKind::bulk) {
    const std::uint32_t half = find_half_lane(handshake);
    if (half == Greeter::kNoLane) {
      ++counters_.unpaired;
      greeter.refuse(*io_, Status{Code::not_found, Scope::lane});
      return;
    }
    lanes_[half]->bulk_reserved = true;
    greeter.accept(*io_, half);
    return;
  }
  const std::uint32_t index = take_lane_slot();
  if (index == Greeter::kNoLane) {
    ++counters_.refused_lanes;
    greeter.refuse(*io_, Status{Code::out_of_capacity, Scope::lane});
    return;
  }
  Lane& lane = *lanes_[index];
  lane.open(new_id(index), false, 0, handshake.pairing());
  lane.set_peer(handshake.peer(), handshake.peer_incarnation());
  lane.deadline_ns = add_saturating(context_.now_ns, options_.half_lane_timeout_ns);
  context_.note_deadline(lane.deadline_ns);
  greeter.accept(*io_, index);
}

void Core::join(Greeter& greeter) noexcept {
  const std::uint32_t index = greeter.lane();
  Lane& lane = *lanes_[index];
  const Handshake& handshake = greeter.handshake();
  const std::size_t stream = handshake.kind() == LaneKind::control ? kControl : kBulk;
  const bool dialled = greeter.dialled();
  const bool same_peer = lane.peer() == 0 || (lane.peer() == handshake.peer() &&
                                              lane.incarnation() == handshake.peer_incarnation());
  if (lane.state() != LaneState::opening || !same_peer) {
    if (lane.state() == LaneState::opening) {
      end_lane(index, Status{Code::peer_restarted, Scope::lane}, Code::lane_lost);
    }
    greeter.abandon_established();
    drop(greeter);
    return;
  }
  if (lane.peer() == 0) {
    lane.set_peer(handshake.peer(), handshake.peer_incarnation());
  }
  GreetedSocket greeted = greeter.greeted();
  greeted.rules.max_chunk_bytes = wire::kMaxChunkBytes;
  if (stream == kBulk) {
    tune_bulk(greeted.socket->fd, options_);
  }
  greeted.socket->tag = Tag{TagOwner::lane, index, stream}.pack();
  half_open_ -= dialled ? 0 : 1;
  static_cast<void>(greeter.release());
  lane.attach(stream, greeted);
  activate(index);
  if (dialled && stream == kControl) {
    if (const Status status = dial_stream(index, LaneKind::bulk); !status.ok()) {
      end_lane(index, status, Code::lane_lost);
    }
  }
}

void Core::drop(Greeter& greeter) noexcept {
  const Status status = greeter.status();
  const bool dialled = greeter.dialled();
  const std::uint32_t lane = greeter.lane();
  if (!dialled) {
    KVRAIL_ASSERT(half_open_ > 0);
    --half_open_;
    ++(status.code == Code::timed_out ? counters_.handshakes_timed_out
                                      : counters_.handshakes_failed);
  }
  IoSocket* const socket = greeter.release();
  io_->close(*socket);
  give_socket(socket);
  if (lane != Greeter::kNoLane) {
    end_lane(lane, status, Code::lane_lost);
  }
}

void Core::run_deadlines() noexcept {
  const TimeNs now = context_.now_ns;
  context_.next_deadline_ns = kNoDeadline;
  if (now >= accept_again_ns_) {
    start_accept();
  }
  context_.note_deadline(accept_again_ns_);
  for (std::uint32_t i = 0; i < greeters_.size(); ++i) {
    Greeter& greeter = greeters_[i];
    if (greeter.state() == Greeter::State::unused) {
      continue;
    }
    if (greeter.deadline_ns == 0) {
      greeter.deadline_ns = add_saturating(now, options_.handshake_timeout_ns);
    }
    if (now >= greeter.deadline_ns) {
      greeter.deadline_ns = kNever;
      greeter.abandon(*io_, Status{Code::timed_out, Scope::lane});
      on_greeter(i);
    } else {
      context_.note_deadline(greeter.deadline_ns);
    }
  }
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = *lanes_[i];
    if (now >= lane.deadline_ns) {
      lane.on_deadline();
      activate(i);
    } else {
      context_.note_deadline(lane.deadline_ns);
    }
  }
}

}  // namespace kvrail::transport::tcp
