// Sending: frames, acknowledgements and statements are put into messages in the order of the
// stream; messages are posted as SENDs while the peer has receives for them.
#include <algorithm>

#include "kvrail/base/assert.h"
#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

// Bytes of the ring that frames and announcements leave to acknowledgements and statements.
constexpr std::size_t kFrameSpare = 40 * 1024;
// Receives of the peer that only messages without a body may use: when both sides have spent all
// others at once, these carry the credits that set them going again.
constexpr std::uint32_t kSpareCredits = 4;

}  // namespace

bool Lane::append_frame(wire::FrameHeader& header, std::span<const std::byte> payload,
                        std::size_t spare) noexcept {
  const std::span<std::byte> room =
      ring_.append(MessageKind::frames, wire::kFrameHeaderBytes + payload.size(), spare);
  if (room.empty()) return false;
  header.version = rules_.version;
  header.session = rules_.session;
  header.sequence = out_sequence_++;
  wire::encode_header(header, room.first<wire::kFrameHeaderBytes>());
  std::copy(payload.begin(), payload.end(), room.begin() + wire::kFrameHeaderBytes);
  return true;
}

bool Lane::try_post_frame(std::span<const std::byte> frame) noexcept {
  KVRAIL_ASSERT_MSG(!frame.empty() && frame.size() <= kMaxFramePayload,
                    "the caller splits what is larger than Caps::max_frame_bytes");
  if (state_ != LaneState::up || fading_ || !announced_) return false;
  wire::FrameHeader header;
  header.type = wire::FrameType::message;
  header.payload_bytes = static_cast<std::uint32_t>(frame.size());
  header.payload_digest = wire::payload_digest(frame);
  if (!append_frame(header, frame, kFrameSpare)) return false;
  ++stats_.frames_sent;
  return true;
}

bool Lane::announce(OutChunk& chunk, std::size_t stream) noexcept {
  wire::FrameHeader header;
  header.type = wire::FrameType::chunk;
  header.flags = stream == kControl ? wire::kFlagCritical : std::uint16_t{0};
  if (!chunk.digests.empty())
    header.flags = static_cast<std::uint16_t>(header.flags | wire::kFlagDigests);
  header.digest_count = static_cast<std::uint16_t>(chunk.digests.size());
  header.payload_bytes = chunk.post.bytes;
  header.lease = chunk.post.lease;
  header.transfer = chunk.post.transfer;
  header.offset = chunk.post.offset;
  if (!append_frame(header, std::as_bytes(chunk.digests), kFrameSpare)) return false;
  digests_ahead_[stream] += header.digest_count;
  ++stats_.chunks_sent;
  return true;
}

bool Lane::append_statement(MessageKind kind, LeaseId lease) noexcept {
  const std::span<std::byte> room = ring_.append(kind, kLeaseHeadBytes, 0);
  if (room.empty()) return false;
  LeaseHead head;
  head.lease = lease;
  encode(head, room);
  return true;
}

void Lane::write_acks() noexcept {
  for (const std::size_t stream : {kControl, kBulk}) {
    while (!acks_[stream].empty()) {
      const AckQueue::Range& range = acks_[stream].front();
      wire::FrameHeader header;
      header.type = wire::FrameType::ack;
      header.flags = stream == kControl ? wire::kFlagCritical : std::uint16_t{0};
      header.ack_first = range.first;
      header.ack_count = range.count;
      header.ack_code = range.code;
      if (!append_frame(header, {}, 0)) return;
      acks_[stream].pop();
    }
  }
}

void Lane::write_statements() noexcept {
  while (!to_release_.empty() && append_statement(MessageKind::released, to_release_.front()))
    to_release_.pop();
  while (!to_deny_.empty() && append_statement(MessageKind::no_lease, to_deny_.front()))
    to_deny_.pop();
  // Leases before withdrawals, so that none is told of after it was withdrawn.
  while (bind_next()) {
  }
  while (tell_next()) {
  }
  while (!to_withdraw_.empty() && append_statement(MessageKind::withdrawn, to_withdraw_.front()))
    to_withdraw_.pop();
  while (revoke_next()) {
  }
}

void Lane::flush() noexcept {
  for (const std::size_t stream : {kControl, kBulk}) {
    if (queues_[stream].pair == nullptr) continue;
    const WorkId id{index_, id_.generation, static_cast<std::uint32_t>(stream), WorkId::Kind::send,
                    0};
    context_.doorbells[stream].aim(queues_[stream], id);
  }
  Doorbell& doorbell = context_.doorbells[kControl];
  if (state_ == LaneState::up) {
    write_acks();
    write_statements();
    for (const std::size_t stream : {kControl, kBulk}) write_chunks(stream);
    if (!is_alive()) return;
  }
  while (ring_.has_waiting() && credits() > kSpareCredits && doorbell.has_room()) {
    SendRing::Message& message = ring_.next();
    const std::span<std::byte> bytes = ring_.bytes_of(message);
    const Envelope envelope{message.kind, control_posted_, bulk_posted_,
                            static_cast<std::uint32_t>(bytes.size() - kEnvelopeBytes)};
    encode(envelope, bytes.first<kEnvelopeBytes>());
    ibv_send_wr& request = doorbell.add();
    request.opcode = IBV_WR_SEND;
    request.num_sge = 1;
    request.send_flags =
        bytes.size() <= queues_[kControl].most_inline ? unsigned{IBV_SEND_INLINE} : 0u;
    doorbell.parts(request)[0] = {reinterpret_cast<std::uint64_t>(bytes.data()),
                                  static_cast<std::uint32_t>(bytes.size()), memory_key_->lkey};
    ring_.mark_posted(doorbell.last());
    ++control_sent_;
    control_told_ = control_posted_;
    bulk_told_ = bulk_posted_;
    said_ns_ = context_.now_ns;
    stats_.bytes_sent += bytes.size();
  }
  say_credits();
  if (leaving_) doorbell.want_completion();  // it waits until all is said
  for (const std::size_t stream : {kControl, kBulk}) {
    Doorbell& one = context_.doorbells[stream];
    if (queues_[stream].pair != nullptr && !one.ring()) {
      end(Status{Code::lane_lost, Scope::lane, one.failure()}, Code::lane_lost);
    }
    one.reset();
  }
}

// A message of its own where nothing else has told the peer for long: of receives, or that we live.
void Lane::say_credits() noexcept {
  Doorbell& doorbell = context_.doorbells[kControl];
  const bool owed = control_posted_ - control_told_ >= context_.options.receive_slots / 4 ||
                    bulk_posted_ - bulk_told_ >= kBulkReceives / 4;
  const bool quiet = state_ == LaneState::up &&
                     context_.now_ns >= add_saturating(said_ns_, context_.options.keepalive_ns);
  if ((!owed && !quiet) || credits() == 0 || !doorbell.has_room()) return;
  // Several in turn: where there are no inline sends, the device may still be reading the last one.
  std::byte* const at = memory_.get() + context_.options.receive_slots * kSlotBytes +
                        ring_.capacity() + (next_credit_++ % 8) * kEnvelopeBytes;
  encode(Envelope{MessageKind::credit, control_posted_, bulk_posted_, 0},
         std::span<std::byte, kEnvelopeBytes>(at, kEnvelopeBytes));
  ibv_send_wr& request = doorbell.add();
  request.opcode = IBV_WR_SEND;
  request.num_sge = 1;
  request.send_flags =
      queues_[kControl].most_inline >= kEnvelopeBytes ? unsigned{IBV_SEND_INLINE} : 0u;
  doorbell.parts(request)[0] = {reinterpret_cast<std::uint64_t>(at), kEnvelopeBytes,
                                memory_key_->lkey};
  ++control_sent_;
  control_told_ = control_posted_;
  bulk_told_ = bulk_posted_;
  said_ns_ = context_.now_ns;
}

}  // namespace kvrail::transport::verbs
