// Receiving: a stream is a sequence of frames; headers and messages pass through a staging buffer,
// chunk payloads go from the socket straight into the lease. One receive is in flight per socket.
// It asks for {rest of the digests, rest of the payload, the next header}, so a stream of chunks
// costs one system call each.
#include <algorithm>
#include <cstring>

#include "transport/tcp/lane.h"

namespace kvrail::transport::tcp {
namespace {

// Payload per receive: digests are checked when it returns, while the bytes are still in the cache.
constexpr std::uint32_t kReceivePayloadBytes = 256 * 1024;
// Staging room below which the control stream waits for its views to expire.
constexpr std::size_t kLeastTailBytes = 4096;

}  // namespace

bool Lane::start_receive(std::size_t stream) noexcept {
  InStream& in = in_[stream];
  if (in.socket->in.in_flight() || in.blocked || in.ended) {
    return true;
  }
  std::uint32_t count = 0;
  in.op_digest_bytes = in.op_payload_bytes = in.op_tail_bytes = 0;
  if (in.in_chunk) {
    aim_chunk(in, count);
  }
  const bool reaches_end =
      !in.in_chunk || (in.digest_bytes + in.op_digest_bytes == in.digests_total() &&
                       in.landed + in.op_payload_bytes == in.header.payload_bytes);
  if (reaches_end && count < kMaxIov) {
    aim_tail(stream, count);
  }
  if (count == 0) {
    return false;  // no staging room until the views of this poll have expired
  }
  IoOp& op = in.socket->in;
  op.message = msghdr{};
  op.message.msg_iov = in.iov.data();
  op.message.msg_iovlen = count;
  op.flags = 0;
  context_.io.start(op, OpKind::receive);
  return true;
}

void Lane::aim_chunk(InStream& in, std::uint32_t& count) noexcept {
  if (in.digest_bytes < in.digests_total()) {
    in.op_digest_bytes = in.digests_total() - in.digest_bytes;
    in.iov[count++] = {reinterpret_cast<std::byte*>(in.digests.get()) + in.digest_bytes,
                       in.op_digest_bytes};
  }
  const std::uint32_t most = std::min(in.header.payload_bytes - in.landed, kReceivePayloadBytes);
  if (most == 0) {
    return;
  }
  if (!in.to_lease) {
    in.op_payload_bytes =
        std::min(most, static_cast<std::uint32_t>(context_.scratch.size()));
    in.iov[count++] = {context_.scratch.data(), in.op_payload_bytes};
    return;
  }
  const Payload* const sink = context_.leases.find(in.header.lease, peer_);
  KVRAIL_ASSERT_MSG(sink != nullptr, "on_withdraw() turns such chunks away");
  for_each_part(*sink, in.header.offset + in.landed, most,
                [&](std::byte* address, std::uint64_t bytes) {
                  in.iov[count++] = {address, static_cast<std::size_t>(bytes)};
                  in.op_payload_bytes += static_cast<std::uint32_t>(bytes);
                  return count < kMaxIov;
                });
  context_.leases.add_writer(in.header.lease.slot);
  in.op_writes_lease = true;
  in.op_lease_slot = in.header.lease.slot;
}

void Lane::aim_tail(std::size_t stream, std::uint32_t& count) noexcept {
  InStream& in = in_[stream];
  const bool views_live = in.view_epoch == context_.epoch;
  if (!views_live && in.begin > 0 &&
      (in.begin == in.end || in.capacity - in.end < in.capacity / 2)) {
    std::memmove(in.staging.get(), in.staging.get() + in.begin, in.end - in.begin);
    in.end -= in.begin;
    in.begin = 0;
  }
  const std::size_t room = in.capacity - in.end;
  if (room == 0 || (stream == kControl && room < kLeastTailBytes)) {
    KVRAIL_ASSERT_MSG(views_live || count > 0 || in.blocked || in.begin > 0,
                      "the staging buffer holds more than the largest frame");
    return;
  }
  in.op_tail_bytes = static_cast<std::uint32_t>(room);
  in.iov[count++] = {in.staging.get() + in.end, room};
}

void Lane::on_received(std::size_t stream, std::int32_t result) noexcept {
  InStream& in = in_[stream];
  if (in.op_writes_lease) {
    in.op_writes_lease = false;
    context_.leases.remove_writer(in.op_lease_slot);
  }
  if (state_ != LaneState::up || result == -EINTR || result == -EAGAIN) {
    return;
  }
  if (result == -ECANCELED) {
    return;  // a lease was withdrawn; the next receive aims elsewhere
  }
  if (result <= 0) {
    if (result == 0 && (in.in_chunk || in.end > in.begin)) {
      context_.counters.frames.count(wire::FrameError::truncated);
    }
    in.ended = true;
    fade(-result);
    if (stream == kControl) {
      end(end_status_, Code::lane_lost);
    }
    return;
  }
  auto left = static_cast<std::uint32_t>(result);
  KVRAIL_ASSERT_MSG(left <= in.op_digest_bytes + in.op_payload_bytes + in.op_tail_bytes,
                    "more bytes received than there was room for");
  stats_.bytes_received += left;
  const std::uint32_t digests = std::min(left, in.op_digest_bytes);
  in.digest_bytes += digests;
  left -= digests;
  const std::uint32_t payload = std::min(left, in.op_payload_bytes);
  if (payload > 0) {
    on_landed(in, payload);
    left -= payload;
  }
  in.end += left;
}

// `bytes` more of the payload are in the lease (or in scratch): checks the units they complete.
void Lane::on_landed(InStream& in, std::uint32_t bytes) noexcept {
  const std::uint64_t at = in.header.offset + in.landed;
  in.landed += bytes;
  KVRAIL_ASSERT(in.landed <= in.header.payload_bytes);
  if (!in.to_lease || in.header.digest_count == 0 ||
      context_.options.integrity == Integrity::off) {
    return;
  }
  const Payload& sink = *context_.leases.find(in.header.lease, peer_);
  const UnitRange units = completed_units(sink, at, bytes);
  const std::span digests(in.digests.get() + in.units_checked, units.count);
  KVRAIL_ASSERT(in.units_checked + units.count <= in.header.digest_count);
  in.units_checked += units.count;
  if (!verify_units(sink, at, bytes, digests)) {
    in.corrupt = true;
  }
}

void Lane::parse(std::size_t stream, EventSink& sink) noexcept {
  InStream& in = in_[stream];
  in.blocked = false;
  // A receive in flight may be aimed at what parsing would move, and brings its own parse.
  if (in.socket->in.in_flight()) {
    return;
  }
  while (state_ == LaneState::up && parse_frame(stream, sink)) {
  }
}

// True if something was understood and there may be more.
bool Lane::parse_frame(std::size_t stream, EventSink& sink) noexcept {
  InStream& in = in_[stream];
  if (in.in_chunk) {
    absorb_staging(in);
    return in.chunk_is_whole() && finish_chunk(stream, sink);
  }
  if (in.end - in.begin < wire::kFrameHeaderBytes) {
    return false;
  }
  const std::span<const std::byte, wire::kFrameHeaderBytes> raw(in.staging.get() + in.begin,
                                                                wire::kFrameHeaderBytes);
  wire::FrameHeader header;
  wire::FrameError error = wire::decode_header(raw, in.rules, header);
  if (error == wire::FrameError::none && header.sequence != in.sequence) {
    error = wire::FrameError::bad_sequence;
  }
  const bool belongs_here = header.type == wire::FrameType::chunk
                                ? header.critical() == (stream == kControl)
                                : stream == kControl;
  if (error == wire::FrameError::none && !belongs_here) {
    error = wire::FrameError::unexpected;
  }
  if (error != wire::FrameError::none) {
    refuse(error);
    return false;
  }
  in.header = header;
  if (header.type == wire::FrameType::message) {
    return take_message(in, sink);
  }
  ++in.sequence;
  in.begin += wire::kFrameHeaderBytes;
  if (header.type == wire::FrameType::chunk) {
    begin_chunk(in);
    return true;
  }
  ChunkRing& ring = chunks_[header.critical() ? kControl : kBulk];
  if (!ring.acknowledge(header.ack_first, header.ack_count, header.ack_code, context_.now_ns)) {
    refuse(wire::FrameError::bad_ack);
    return false;
  }
  return true;
}

bool Lane::take_message(InStream& in, EventSink& sink) noexcept {
  const std::size_t size = wire::kFrameHeaderBytes + in.header.payload_bytes;
  if (in.end - in.begin < size) {
    return false;
  }
  const std::span<const std::byte> payload(
      in.staging.get() + in.begin + wire::kFrameHeaderBytes, in.header.payload_bytes);
  if (wire::payload_digest(payload) != in.header.payload_digest) {
    refuse(wire::FrameError::bad_payload);
    return false;
  }
  if (sink.full()) {
    in.blocked = true;
    return false;
  }
  Event& event = sink.add(EventKind::frame);
  event.lane = id_;
  event.peer = peer_;
  event.incarnation = incarnation_;
  event.bytes = payload;
  event.length = in.header.payload_bytes;
  in.view_epoch = context_.epoch;
  in.begin += size;
  ++in.sequence;
  ++stats_.frames_received;
  return true;
}

void Lane::begin_chunk(InStream& in) noexcept {
  const wire::FrameHeader& header = in.header;
  in.in_chunk = true;
  in.corrupt = false;
  in.digest_bytes = in.landed = in.units_checked = 0;
  const Payload* const sink = context_.leases.find(header.lease, peer_);
  if (sink != nullptr && !range_fits(header.offset, header.payload_bytes, sink->total_bytes)) {
    refuse(wire::FrameError::bad_range);  // no correct peer writes past what it was promised
    return;
  }
  in.to_lease = sink != nullptr &&
                ((header.flags & wire::kFlagDigests) == 0 ||
                 completed_units(*sink, header.offset, header.payload_bytes).count ==
                     header.digest_count);
}

// What of the chunk came into staging with its header; only the control stream reads that far.
void Lane::absorb_staging(InStream& in) noexcept {
  const auto take = [&in](std::byte* to, std::size_t most) {
    const std::size_t count = std::min(most, in.end - in.begin);
    std::memcpy(to, in.staging.get() + in.begin, count);
    in.begin += count;
    return static_cast<std::uint32_t>(count);
  };
  in.digest_bytes += take(reinterpret_cast<std::byte*>(in.digests.get()) + in.digest_bytes,
                          in.digests_total() - in.digest_bytes);
  const std::uint64_t rest = in.header.payload_bytes - in.landed;
  const std::uint64_t here = std::min<std::uint64_t>(rest, in.end - in.begin);
  if (here == 0) {
    return;
  }
  if (!in.to_lease) {
    in.begin += here;
  } else {
    const Payload& sink = *context_.leases.find(in.header.lease, peer_);
    for_each_part(sink, in.header.offset + in.landed, here,
                  [&](std::byte* address, std::uint64_t bytes) {
                    static_cast<void>(take(address, bytes));
                    return true;
                  });
  }
  on_landed(in, static_cast<std::uint32_t>(here));
}

bool Lane::finish_chunk(std::size_t stream, EventSink& sink) noexcept {
  InStream& in = in_[stream];
  if (acks_[stream].full() || (in.to_lease && sink.full())) {
    in.blocked = true;
    return false;
  }
  Code code = Code::rejected;
  if (in.to_lease) {
    code = in.corrupt ? Code::corrupt : Code::ok;
    stats_.digest_failures += in.corrupt ? 1 : 0;
    Event& event = sink.add(EventKind::chunk_received);
    event.lane = id_;
    event.peer = peer_;
    event.incarnation = incarnation_;
    event.critical = stream == kControl;
    event.status = Status{code};
    event.lease = in.header.lease;
    event.transfer = in.header.transfer;
    event.offset = in.header.offset;
    event.length = in.header.payload_bytes;
  }
  acks_[stream].push(code);
  unacked_bytes_ += in.header.payload_bytes;
  in.in_chunk = false;
  return true;
}

}  // namespace kvrail::transport::tcp
