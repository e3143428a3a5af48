#include "transport/tcp/lane.h"

#include <sys/socket.h>

namespace kvrail::transport::tcp {
namespace {

// Control: room for several large messages, so that views handed out rarely stop the receiving.
constexpr std::size_t kControlStagingBytes =
    4 * (std::size_t{wire::kMaxMessageBytes} + wire::kFrameHeaderBytes);
// Bulk: exactly the next header. One byte more would be payload and would have to be copied.
constexpr std::size_t kBulkStagingBytes = wire::kFrameHeaderBytes;
constexpr std::uint32_t kQueuedFrames = 2048;
constexpr std::uint32_t kSendItems = 256;
constexpr std::uint32_t kAckRanges = 1024;
// A peer that closes or dies ends both sockets at about the same time.
constexpr TimeNs kFadeNs = 200 * kMillisecondNs;

}  // namespace

Lane::Lane(LaneContext& context, std::uint32_t index)
    : context_(context),
      index_(index),
      frames_(context.options.frame_queue_bytes, kQueuedFrames),
      chunks_{ChunkRing(context.options.max_chunks_in_flight),
              ChunkRing(context.options.max_chunks_in_flight)},
      acks_{AckQueue(kAckRanges), AckQueue(kAckRanges)},
      out_{OutStream(kSendItems), OutStream(kSendItems)} {
  for (std::size_t stream : {kControl, kBulk}) {
    InStream& in = in_[stream];
    in.capacity = stream == kControl ? kControlStagingBytes : kBulkStagingBytes;
    in.staging = std::make_unique<std::byte[]>(in.capacity);
    in.digests = std::make_unique<std::uint64_t[]>(wire::kMaxChunkDigests);
  }
}

void Lane::reset() noexcept {
  announced_ = false;
  fading_ = false;
  unacked_bytes_ = 0;
  bulk_reserved = false;
  deadline_ns = kNever;
  peer_ = 0;
  incarnation_ = 0;
  end_status_ = Status{};
  stats_ = LaneStats{};
  frames_.clear();
  for (std::size_t stream : {kControl, kBulk}) {
    chunks_[stream].clear();
    acks_[stream].clear();
    out_[stream].items.clear();
    out_[stream].queued_bytes = 0;
    InStream& in = in_[stream];
    KVRAIL_ASSERT(in.socket == nullptr && !in.op_writes_lease);
    in.begin = in.end = 0;
    in.view_epoch = 0;
    in.ended = in.blocked = in.in_chunk = false;
    in.op_digest_bytes = in.op_payload_bytes = in.op_tail_bytes = 0;
  }
}

void Lane::open(LaneId id, bool dialled, std::uint64_t cookie, std::uint64_t pairing) noexcept {
  KVRAIL_ASSERT(state_ == LaneState::unused);
  reset();
  state_ = LaneState::opening;
  id_ = id;
  dialled_ = dialled;
  cookie_ = cookie;
  pairing_ = pairing;
}

void Lane::abandon_open() noexcept {
  KVRAIL_ASSERT(state_ == LaneState::opening && !has(kControl) && !has(kBulk));
  state_ = LaneState::unused;
}

void Lane::retire() noexcept {
  KVRAIL_ASSERT(state_ == LaneState::ended && !has(kControl) && !has(kBulk));
  state_ = LaneState::unused;
}

void Lane::set_peer(NodeId peer, Incarnation incarnation) noexcept {
  KVRAIL_ASSERT(state_ == LaneState::opening && peer != 0);
  peer_ = peer;
  incarnation_ = incarnation;
}

void Lane::attach(std::size_t stream, const GreetedSocket& greeted) noexcept {
  KVRAIL_ASSERT(state_ == LaneState::opening && !has(stream));
  InStream& in = in_[stream];
  in.socket = greeted.socket;
  in.rules = greeted.rules;
  in.sequence = greeted.frames_received;
  out_[stream].sequence = greeted.frames_sent;
  if (stream == kBulk && context_.options.zero_copy == ZeroCopy::vmsplice) {
    // Without a pipe (no descriptors left) sends are copied.
    static_cast<void>(out_[stream].pipe.open());
  }
  if (has(kControl) && has(kBulk)) {
    state_ = LaneState::up;
    deadline_ns = kNever;
  }
}

IoSocket* Lane::take_socket(std::size_t stream) noexcept {
  IoSocket* const socket = in_[stream].socket;
  KVRAIL_ASSERT(socket == nullptr || !socket->is_busy());
  in_[stream].socket = nullptr;
  return socket;
}

void Lane::end(Status status, Code outcome) noexcept {
  if (state_ != LaneState::opening && state_ != LaneState::up) {
    return;
  }
  state_ = LaneState::ending;
  end_status_ = status;
  end_outcome_ = outcome;
  deadline_ns = kNever;
  for (InStream& in : in_) {
    if (in.socket == nullptr) {
      continue;
    }
    // The peer hears of it at once, and operations in flight end.
    static_cast<void>(::shutdown(in.socket->fd, SHUT_RDWR));
    context_.io.cancel(in.socket->in);
    context_.io.cancel(in.socket->out);
  }
}

// One socket broke. What the peer had said on the control socket before may still wait there, say
// the end of a transfer; so nothing is sent any more, and the lane ends with the control stream.
void Lane::fade(int failure) noexcept {
  if (fading_) {
    return;
  }
  fading_ = true;
  end_status_ = Status{Code::lane_lost, Scope::lane, failure};
  deadline_ns = add_saturating(context_.now_ns, kFadeNs);
  context_.note_deadline(deadline_ns);
}

void Lane::on_deadline() noexcept {
  if (state_ == LaneState::opening) {
    ++context_.counters.unpaired;
    end(Status{Code::timed_out, Scope::lane}, Code::lane_lost);
  } else if (state_ == LaneState::up && fading_) {
    end(end_status_, Code::lane_lost);
  }
}

void Lane::refuse(wire::FrameError error) noexcept {
  context_.counters.frames.count(error);
  ++stats_.malformed;
  end(Status{Code::protocol_error, Scope::lane, static_cast<std::int32_t>(error)},
      Code::lane_lost);
}

bool Lane::is_busy() const noexcept {
  for (const InStream& in : in_) {
    if (in.socket != nullptr && in.socket->is_busy()) {
      return true;
    }
  }
  return false;
}

void Lane::on_finished(std::size_t stream, IoOp& op) noexcept {
  if (op.kind == OpKind::send || op.kind == OpKind::splice) {
    on_sent(stream, op.result);
  } else {
    KVRAIL_ASSERT(op.kind == OpKind::receive);
    on_received(stream, op.result);
  }
}

void Lane::on_withdraw(LeaseId lease) noexcept {
  for (InStream& in : in_) {
    if (in.in_chunk && in.to_lease && in.header.lease == lease) {
      in.to_lease = false;  // the rest goes to scratch
      if (in.op_writes_lease) {
        context_.io.cancel(in.socket->in);
      }
    }
  }
}

void Lane::add_done_event(EventSink& sink, const OutChunk& chunk, Code code,
                          bool critical) noexcept {
  Event& event = sink.add(EventKind::chunk_done);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.critical = critical;
  event.cookie = chunk.post.cookie;
  event.status = Status{code, code == Code::lane_lost ? Scope::lane : Scope::transfer};
  event.lease = chunk.post.lease;
  event.transfer = chunk.post.transfer;
  event.offset = chunk.post.offset;
  event.length = chunk.post.bytes;
  event.posted_ns = chunk.posted_ns;
  event.completed_ns = chunk.completed_ns;
}

bool Lane::emit_done(EventSink& sink) noexcept {
  for (std::size_t stream : {kControl, kBulk}) {
    while (chunks_[stream].has_done()) {
      if (sink.full()) {
        return false;
      }
      const OutChunk& chunk = chunks_[stream].retire();
      add_done_event(sink, chunk, chunk.outcome, stream == kControl);
    }
  }
  return true;
}

bool Lane::service(EventSink& sink) noexcept {
  if (state_ == LaneState::up && !announced_) {
    if (sink.full()) {
      return true;
    }
    announced_ = true;
    Event& event = sink.add(EventKind::lane_up);
    event.lane = id_;
    event.peer = peer_;
    event.incarnation = incarnation_;
    event.cookie = cookie_;
  }
  bool again = false;
  if (state_ == LaneState::up) {
    for (std::size_t stream : {kControl, kBulk}) {
      parse(stream, sink);
    }
  }
  if (state_ == LaneState::up) {
    again = !emit_done(sink);
    for (std::size_t stream : {kControl, kBulk}) {
      again = !start_receive(stream) || again;
      again = again || in_[stream].blocked;
      if (!fading_) {
        start_send(stream);
      }
    }
  }
  return state_ == LaneState::ending ? service_ending(sink) : again;
}

bool Lane::service_ending(EventSink& sink) noexcept {
  if (is_busy()) {
    return false;  // the operations were asked to end; their reaping calls us again
  }
  for (InStream& in : in_) {
    if (in.socket != nullptr && in.socket->is_open()) {
      if (out_[kBulk].pipe.is_open()) {
        // The kernel lets go of pages that it has not sent: they are about to be the caller's.
        const linger at_once{1, 0};
        static_cast<void>(::setsockopt(in.socket->fd, SOL_SOCKET, SO_LINGER, &at_once,
                                       sizeof(at_once)));
      }
      context_.io.close(*in.socket);
    }
  }
  out_[kBulk].pipe.close();
  for (std::size_t stream : {kControl, kBulk}) {
    ChunkRing& ring = chunks_[stream];
    while (!ring.empty()) {
      if (sink.full()) {
        return true;
      }
      const bool acked = ring.front_is_acked();
      OutChunk& chunk = ring.retire();
      if (!acked) {
        chunk.completed_ns = context_.now_ns;
      }
      add_done_event(sink, chunk, acked ? chunk.outcome : end_outcome_, stream == kControl);
    }
  }
  if (announced_ || dialled_) {
    if (sink.full()) {
      return true;
    }
    Event& event = sink.add(EventKind::lane_down);
    event.lane = id_;
    event.peer = peer_;
    event.incarnation = incarnation_;
    event.cookie = cookie_;
    event.status = end_status_;
  }
  state_ = LaneState::ended;
  return false;
}

}  // namespace kvrail::transport::tcp
