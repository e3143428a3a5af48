#include "transport/verbs/lane.h"

#include <algorithm>

#include "kvrail/base/no_alloc.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::uint32_t kMessages = 1024;
constexpr std::uint32_t kAckRanges =
    2 * kMaxUnacked;  // never full: a peer has fewer chunks under way
constexpr std::uint32_t kStatements = 16;
constexpr TimeNs kLeaveNs = 200 * kMillisecondNs;

}  // namespace

Lane::Lane(LaneContext& context, std::uint32_t index)
    : context_(context),
      index_(index),
      ring_(kMessages),
      inbox_(context.options.receive_slots),
      immediates_(kBulkReceives),
      chunks_{ChunkRing(context.options.max_chunks_in_flight),
              ChunkRing(context.options.max_chunks_in_flight)},
      acks_{AckQueue(kAckRanges), AckQueue(kAckRanges)},
      incoming_{FixedRing<InChunk>(kMaxUnacked), FixedRing<InChunk>(kMaxUnacked)},
      in_digests_{DigestRing(kMaxDigestsAhead), DigestRing(kMaxDigestsAhead)},
      peer_leases_(context.segments, wire::kMaxLeaseSlots),
      to_bind_(context.options.max_leases + kStatements),
      to_tell_(context.options.max_leases + kStatements),
      to_revoke_(context.options.max_leases),
      revoking_(context.options.max_leases),
      to_withdraw_(context.options.max_leases),
      to_release_(wire::kMaxLeaseSlots),
      to_deny_(kStatements) {}

Lane::~Lane() {
  destroy_pairs();
  forget_memory();
}

void Lane::reset() noexcept {
  announced_ = connected_ = fading_ = leaving_ = false;
  cookie_ = 0;
  peer_ = 0;
  incarnation_ = 0;
  end_status_ = Status{};
  device_ = nullptr;
  handshake_.reset();
  rules_ = wire::FrameRules{};
  in_sequence_ = out_sequence_ = 0;
  ring_.clear();
  inbox_.clear();
  immediates_.clear();
  control_spent_ = bulk_spent_ = control_received_ = bulk_received_ = 0;
  posted_slot_ = received_slot_ = 0;
  control_posted_ = bulk_posted_ = control_told_ = bulk_told_ = 0;
  peer_control_posted_ = peer_bulk_posted_ = control_sent_ = bulk_sent_ = 0;
  for (const std::size_t stream : {kControl, kBulk}) {
    chunks_[stream].clear();
    acks_[stream].clear();
    bytes_ahead_[stream] = 0;
    digests_ahead_[stream] = 0;
    incoming_[stream].clear();
    in_digests_[stream].clear();
    in_number_[stream] = 0;
    queries_[stream] = Query{};
    queues_[stream] = SendQueue{};
  }
  peer_leases_.clear();
  to_bind_.clear();
  to_tell_.clear();
  tell_at_ = RangeCursor{};
  to_revoke_.clear();
  revoking_.clear();
  late_releases_ = 0;
  to_withdraw_.clear();
  to_release_.clear();
  to_deny_.clear();
  withdraws_owed_ = 0;
  deadline_ns_ = kNever;
  heard_ns_ = said_ns_ = context_.now_ns;
  stats_ = LaneStats{};
}

void Lane::end(Status status, Code outcome) noexcept {
  if (state_ == LaneState::unused || state_ == LaneState::ended) return;
  const AllowAllocScope allow;
  state_ = LaneState::ended;
  end_status_ = status;
  end_outcome_ = outcome;
  deadline_ns_ = kNever;
  const SteadyClock clock;
  const TimeNs from = clock.now_ns();
  destroy_pairs();
  TimeNs& longest = context_.counters.longest_teardown_ns;
  longest = std::max(longest, clock.now_ns() - from);
  // From here on the device neither reads nor writes anything in this lane's name.
  context_.leases.forget_lane(bit());
  peer_leases_.clear();
  for (ChunkRing& ring : chunks_) {
    ring.for_each([&](OutChunk& chunk) {
      if (chunk.bounce != kNoBounce) context_.bounce.give(chunk.bounce);
      chunk.bounce = kNoBounce;
    });
  }
}

void Lane::refuse(wire::FrameError error) noexcept {
  context_.counters.frames.count(error);
  ++stats_.malformed;
  end(Status{Code::protocol_error, Scope::lane, static_cast<std::int32_t>(error)}, Code::lane_lost);
}

void Lane::break_pairs() noexcept {
  for (SendQueue& queue : queues_) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    if (queue.pair != nullptr)
      static_cast<void>(::ibv_modify_qp(queue.pair, &attributes, IBV_QP_STATE));
  }
}

void Lane::emit_up(EventSink& sink) noexcept {
  announced_ = true;
  Event& event = sink.add(EventKind::lane_up);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.cookie = cookie_;
}

void Lane::add_done_event(EventSink& sink, const OutChunk& chunk, Code code) noexcept {
  Event& event = sink.add(EventKind::chunk_done);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.critical = chunk.post.critical;
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
  for (ChunkRing& ring : chunks_) {
    while (ring.has_done()) {
      if (sink.full()) return false;
      const OutChunk& chunk = ring.retire();
      add_done_event(sink, chunk, chunk.outcome);
    }
  }
  return true;
}

// What the handshake has to say is queued; a failed one ends the lane once it is said.
void Lane::greet() noexcept {
  std::array<std::byte, Handshake::kMaxFrameBytes> frame;
  while (const std::size_t size = handshake_->next_frame(frame)) {
    const std::span<std::byte> room = ring_.append(MessageKind::frames, size, 0);
    if (room.empty()) break;  // never: the ring is new
    std::copy_n(frame.begin(), size, room.begin());
    out_sequence_ = handshake_->frames_sent();
  }
  peer_ = handshake_->peer();
  incarnation_ = handshake_->peer_incarnation();
  if (handshake_->state() == Handshake::State::established) {
    state_ = LaneState::up;
    rules_ = handshake_->rules();
    rules_.max_message_bytes = kMaxFramePayload;
    deadline_ns_ = kNever;
    heard_ns_ = said_ns_ = context_.now_ns;
  } else if (handshake_->state() == Handshake::State::failed && !leaving_) {
    ++context_.counters.handshakes_failed;
    leaving_ = true;
    end_status_ = handshake_->status();
    deadline_ns_ = add_saturating(context_.now_ns, kLeaveNs);
  }
}

bool Lane::service(EventSink& sink) noexcept {
  if (state_ == LaneState::unused) return false;  // dialling or accepting failed at once
  bool again = false;
  if (is_alive()) {
    again = !read_inbox(sink);
    if (state_ == LaneState::up && !announced_) {
      if (sink.full()) return true;
      emit_up(sink);
      again = true;  // what came with the last of the handshake
    }
  }
  if (state_ == LaneState::up) {
    for (const std::size_t stream : {kControl, kBulk}) {
      if (state_ == LaneState::up) again = !finish_chunks(stream, sink) || again;
    }
  }
  if (is_alive()) {
    for (const std::size_t stream : {kControl, kBulk}) finish_writes(stream);
    finish_revokes();
    again = !emit_done(sink) || again;
    if (!fading_) flush();
  }
  if (is_alive() && fading_ && !again) {
    const Status lost{Code::lane_lost, Scope::lane, end_status_.detail};
    end(leaving_ ? end_status_ : lost, Code::lane_lost);
  }
  if (is_alive() && leaving_ && !ring_.has_waiting() &&
      queues_[kControl].completed == queues_[kControl].posted) {
    end(end_status_, Code::lane_lost);
  }
  return state_ == LaneState::ended ? service_ended(sink) : again;
}

bool Lane::service_ended(EventSink& sink) noexcept {
  for (ChunkRing& ring : chunks_) {
    while (!ring.empty()) {
      if (sink.full()) return true;
      OutChunk& chunk = ring.retire();
      if (!chunk.acked) chunk.completed_ns = context_.now_ns;
      add_done_event(sink, chunk, chunk.acked ? chunk.outcome : end_outcome_);
    }
  }
  if (announced_ || dialled_) {
    if (sink.full()) return true;
    Event& event = sink.add(EventKind::lane_down);
    event.lane = id_;
    event.peer = peer_;
    event.incarnation = incarnation_;
    event.cookie = cookie_;
    event.status = end_status_;
  }
  state_ = LaneState::unused;
  return false;
}

// Nothing but the end of the queue pairs gives the memory back.
TimeNs Lane::enforce_withdraw() noexcept {
  ++context_.counters.withdraws_enforced;
  end(Status{Code::lane_lost, Scope::lane, ETIMEDOUT}, Code::lane_lost);
  return context_.now_ns;
}

TimeNs Lane::on_time() noexcept {
  const TimeNs now = context_.now_ns;
  if (state_ == LaneState::unused || state_ == LaneState::ended) return kNever;
  if (now >= deadline_ns_) {
    if (!leaving_) {
      ++context_.counters.handshakes_timed_out;
      end_status_ = Status{Code::timed_out, Scope::lane};
    }
    end(end_status_, Code::lane_lost);
    return now;
  }
  TimeNs next = deadline_ns_;
  if (state_ != LaneState::up) return next;
  const TimeNs silent = add_saturating(heard_ns_, context_.options.silent_after_ns);
  if (now >= silent) {
    ++context_.counters.silent_lanes;
    end(Status{Code::lane_lost, Scope::lane, ETIMEDOUT}, Code::lane_lost);
    return now;
  }
  if (withdraws_owed_ != 0) {
    const TimeNs enforced =
        add_saturating(withdraw_since_ns_, context_.options.withdraw_timeout_ns);
    if (now >= enforced && !revoke_overdue()) return enforce_withdraw();
    next = std::min(next, enforced);
  }
  if (!to_revoke_.empty() || !revoking_.empty()) {
    const TimeNs enforced = add_saturating(revoke_since_ns_, context_.options.withdraw_timeout_ns);
    if (now >= enforced) return enforce_withdraw();
    next = std::min(next, to_revoke_.empty() ? enforced : now);
  }
  for (const Query& query : queries_) {
    if (query.state == Query::State::later) next = std::min(next, query.again_ns);
  }
  return std::min({next, silent, add_saturating(said_ns_, context_.options.keepalive_ns)});
}

}  // namespace kvrail::transport::verbs
