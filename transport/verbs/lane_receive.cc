// Receiving: messages are taken apart in their slots, frames are handed out as views of them, and
// chunks are checked where the WRITEs have put them.
#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kvrail/base/checked.h"
#include "transport/payload_ops.h"
#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::uint32_t kPostMost = 32;  // receives for one call

}  // namespace

// Receives complete in the order of their posts, and are read in that order: slots go round.
std::uint32_t Lane::take_slot(std::uint32_t& next) noexcept {
  return std::exchange(next, (next + 1) % context_.options.receive_slots);
}

std::span<std::byte> Lane::slot_memory(std::uint32_t slot) noexcept {
  return {memory_.get() + slot * kSlotBytes, kSlotBytes};
}

// Whether this is the first completion of something that is under way; notes that it is done.
// A device that tells of one twice, or late, must not have us use a receive or a buffer twice.
bool Lane::is_expected(WorkId id) noexcept {
  if (id.kind == WorkId::Kind::send) return queues_[id.stream].complete(id.number);
  std::uint32_t& received = id.stream == kBulk ? bulk_received_ : control_received_;
  const auto ahead = static_cast<std::int32_t>(id.number - received);
  // They complete in order: the device has lost the ones between.
  if (ahead > 0) end(Status{Code::lane_lost, Scope::device}, Code::lane_lost);
  if (ahead != 0) return false;
  ++received;
  return true;
}

void Lane::on_completion(WorkId id, const ibv_wc& completion) noexcept {
  if (state_ == LaneState::unused || state_ == LaneState::ended ||
      (id_.generation & 0xffffu) != id.generation) {
    ++context_.counters.stale_completions;
    return;
  }
  if (!is_expected(id)) {
    ++context_.counters.stale_completions;
    return;
  }
  if (id.kind == WorkId::Kind::send) {
    if (id.stream == kControl) ring_.release(queues_[kControl].completed);
    return;
  }
  if (id.stream == kBulk) {
    ++bulk_spent_;
    if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
        !immediates_.try_push(ntohl(completion.imm_data))) {
      refuse(wire::FrameError::unexpected);
    }
    return;
  }
  if (completion.opcode != IBV_WC_RECV || completion.byte_len > kSlotBytes) {
    refuse(wire::FrameError::unexpected);
    return;
  }
  heard_ns_ = context_.now_ns;
  inbox_.push(InMessage{take_slot(received_slot_), completion.byte_len, 0, MessageKind::credit});
}

void Lane::repost() noexcept {
  if (queues_[kControl].pair == nullptr) return;
  std::array<ibv_recv_wr, kPostMost> requests;
  std::array<ibv_sge, kPostMost> parts;
  ibv_recv_wr* refused = nullptr;
  WorkId id{index_, id_.generation, static_cast<std::uint32_t>(kControl), WorkId::Kind::receive, 0};
  while (control_spent_ > 0) {
    const std::uint32_t count = std::min(control_spent_, kPostMost);
    for (std::uint32_t i = 0; i < count; ++i) {
      id.number = control_posted_ + i;
      parts[i] = {reinterpret_cast<std::uint64_t>(slot_memory(take_slot(posted_slot_)).data()),
                  kSlotBytes, memory_key_->lkey};
      requests[i] = {id.pack(), i + 1 < count ? &requests[i + 1] : nullptr, &parts[i], 1};
    }
    control_spent_ -= count;
    control_posted_ += count;
    // A pair that is broken refuses; its completions tell.
    static_cast<void>(::ibv_post_recv(queues_[kControl].pair, requests.data(), &refused));
  }
  id.stream = static_cast<std::uint32_t>(kBulk);
  while (bulk_spent_ > 0 && has_bulk_pair()) {
    const std::uint32_t count = std::min(bulk_spent_, kPostMost);
    for (std::uint32_t i = 0; i < count; ++i) {
      id.number = bulk_posted_ + i;
      requests[i] = {id.pack(), i + 1 < count ? &requests[i + 1] : nullptr, nullptr, 0};
    }
    bulk_spent_ -= count;
    bulk_posted_ += count;
    static_cast<void>(::ibv_post_recv(queues_[kBulk].pair, requests.data(), &refused));
  }
}

// True: all that has arrived is read. False: the sink is full.
bool Lane::read_inbox(EventSink& sink) noexcept {
  while (is_alive() && !inbox_.empty()) {
    InMessage& message = inbox_.front();
    if (message.at == 0 && !read_envelope(message)) return true;
    while (is_alive() && message.at < message.bytes) {
      if (state_ == LaneState::up && !announced_) return false;
      if (message.kind == MessageKind::frames) {
        if (!read_frame(message, sink)) return !is_alive();
      } else {
        if (state_ != LaneState::up) return refuse(wire::FrameError::unexpected), true;
        on_statement(message, std::span<const std::byte>(slot_memory(message.slot))
                                  .first(message.bytes)
                                  .subspan(kEnvelopeBytes));
        message.at = message.bytes;
      }
    }
    if (!is_alive()) return true;
    ++control_spent_;
    inbox_.pop();
  }
  return true;
}

bool Lane::read_envelope(InMessage& message) noexcept {
  Envelope envelope;
  if (!decode(std::span<const std::byte>(slot_memory(message.slot)).first(message.bytes),
              envelope)) {
    refuse(wire::FrameError::bad_magic);
    return false;
  }
  // Counters only grow, and never by more than the peer has receives.
  const std::uint32_t fresh = envelope.control_posted - peer_control_posted_;
  const std::uint32_t fresh_bulk = envelope.bulk_posted - peer_bulk_posted_;
  if (fresh > peer_greeting_.receive_slots || fresh_bulk > kBulkReceives) {
    refuse(wire::FrameError::bad_ack);
    return false;
  }
  peer_control_posted_ = envelope.control_posted;
  peer_bulk_posted_ = envelope.bulk_posted;
  message.kind = envelope.kind;
  message.at = kEnvelopeBytes;
  stats_.bytes_received += message.bytes;
  return true;
}

// False: refused, or the sink is full and the frame waits.
bool Lane::read_frame(InMessage& message, EventSink& sink) noexcept {
  const std::span<const std::byte> rest = std::span<const std::byte>(slot_memory(message.slot))
                                              .first(message.bytes)
                                              .subspan(message.at);
  wire::FrameHeader header;
  wire::FrameError error = wire::FrameError::truncated;
  if (rest.size() >= wire::kFrameHeaderBytes)
    error = wire::decode_header(rest.first<wire::kFrameHeaderBytes>(), rules_, header);
  if (error == wire::FrameError::none && header.sequence != in_sequence_)
    error = wire::FrameError::bad_sequence;
  const bool chunk = header.type == wire::FrameType::chunk;
  const std::size_t body =
      chunk ? header.digest_count * sizeof(std::uint64_t) : header.payload_bytes;
  if (error == wire::FrameError::none && body > rest.size() - wire::kFrameHeaderBytes)
    error = wire::FrameError::truncated;
  if (error != wire::FrameError::none) {
    refuse(error);
    return false;
  }
  const std::span<const std::byte> payload = rest.subspan(wire::kFrameHeaderBytes, body);
  if (header.type == wire::FrameType::message && !take_message(header, payload, sink)) return false;
  ++in_sequence_;
  message.at += static_cast<std::uint32_t>(wire::kFrameHeaderBytes + body);
  if (header.type == wire::FrameType::handshake) {
    if (wire::payload_digest(payload) != header.payload_digest) {
      refuse(wire::FrameError::bad_payload);
    } else {
      take_handshake(payload);
    }
  } else if (chunk) {
    take_announcement(header, payload);
  } else if (header.type == wire::FrameType::ack) {
    const std::size_t stream = header.critical() ? kControl : kBulk;
    if (!chunks_[stream].acknowledge(header.ack_first, header.ack_count, header.ack_code,
                                     context_.now_ns, digests_ahead_[stream])) {
      refuse(wire::FrameError::bad_ack);
    }
  }
  return is_alive();
}

bool Lane::take_message(const wire::FrameHeader& header, std::span<const std::byte> payload,
                        EventSink& sink) noexcept {
  if (wire::payload_digest(payload) != header.payload_digest) {
    refuse(wire::FrameError::bad_payload);
    return false;
  }
  if (sink.full()) return false;
  Event& event = sink.add(EventKind::frame);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.bytes = payload;
  event.length = header.payload_bytes;
  ++stats_.frames_received;
  return true;
}

void Lane::take_handshake(std::span<const std::byte> payload) noexcept {
  static_cast<void>(handshake_->on_payload(payload));
  greet();
}

void Lane::take_announcement(const wire::FrameHeader& header,
                             std::span<const std::byte> digests) noexcept {
  const std::size_t stream = header.critical() ? kControl : kBulk;
  InChunk chunk;
  chunk.header = header;
  chunk.number = in_number_[stream]++;
  chunk.landed = stream == kControl || !has_bulk_pair();
  if (incoming_[stream].full() || !in_digests_[stream].take(header.digest_count, chunk.digests)) {
    return refuse(wire::FrameError::too_large);
  }
  std::copy(digests.begin(), digests.end(),
            std::as_writable_bytes(in_digests_[stream].at(chunk.digests)).begin());
  if (const OwnLeases::Slot* const slot = context_.leases.find(header.lease, peer_);
      slot != nullptr) {
    if (!range_fits(header.offset, header.payload_bytes, slot->sink.total_bytes)) {
      return refuse(
          wire::FrameError::bad_range);  // no correct peer writes past what it was promised
    }
    chunk.rejected = (header.flags & wire::kFlagDigests) != 0 &&
                     completed_units(slot->sink, header.offset, header.payload_bytes).count !=
                         header.digest_count;
  }
  incoming_[stream].push(chunk);
}

// True: no chunk that has landed waits. False: the sink is full.
bool Lane::finish_chunks(std::size_t stream, EventSink& sink) noexcept {
  FixedRing<InChunk>& incoming = incoming_[stream];
  while (state_ == LaneState::up && !incoming.empty()) {
    InChunk& chunk = incoming.front();
    if (!chunk.landed) {
      if (immediates_.empty()) return true;
      const std::uint32_t expected =
          (chunk.header.lease.slot << 20) | static_cast<std::uint32_t>(chunk.number & 0xfffffu);
      if (immediates_.front() != expected) return refuse(wire::FrameError::bad_lease), true;
      immediates_.pop();
      chunk.landed = true;
    }
    if (sink.full()) return false;
    finish_chunk(stream, chunk, sink);
    in_digests_[stream].give(chunk.digests);
    incoming.pop();
  }
  return true;
}

void Lane::finish_chunk(std::size_t stream, InChunk& chunk, EventSink& sink) noexcept {
  const wire::FrameHeader& header = chunk.header;
  // Found anew: it may have been withdrawn since.
  const OwnLeases::Slot* const slot = context_.leases.find(header.lease, peer_);
  if (slot == nullptr || chunk.rejected) {
    acks_[stream].push(Code::rejected);
    return;
  }
  const bool checked = context_.options.integrity && (header.flags & wire::kFlagDigests) != 0;
  const bool intact = !checked || verify_units(slot->sink, header.offset, header.payload_bytes,
                                               in_digests_[stream].at(chunk.digests));
  const Code code = intact ? Code::ok : Code::corrupt;
  stats_.digest_failures += intact ? 0 : 1;
  stats_.bytes_received += header.payload_bytes;
  acks_[stream].push(code);
  Event& event = sink.add(EventKind::chunk_received);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.critical = header.critical();
  event.status = Status{code};
  event.lease = header.lease;
  event.transfer = header.transfer;
  event.offset = header.offset;
  event.length = header.payload_bytes;
}

}  // namespace kvrail::transport::verbs
