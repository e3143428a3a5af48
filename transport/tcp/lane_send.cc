// Sending: what is queued becomes a list of items in the order of the stream, and the front of that
// list becomes the gather list of one sendmsg. One send is in flight per socket.
#include <algorithm>

#include "transport/tcp/lane.h"

namespace kvrail::transport::tcp {
namespace {

// How far the order is decided ahead. Control: little, so that a new message does not find much
// critical data in front of it. Bulk: enough that one system call is worth its cost.
constexpr std::uint64_t kControlAheadBytes = 256 * 1024;
constexpr std::uint64_t kBulkAheadBytes = 1024 * 1024;
// While more chunks arrive at once, acknowledgements wait for each other up to this many bytes;
// when nothing more is there, they go at once (send_acks_now).
constexpr std::uint64_t kAckEveryBytes = 512 * 1024;

class GatherList {
 public:
  explicit GatherList(std::array<iovec, kMaxIov>& iov) noexcept : iov_(iov) {}
  [[nodiscard]] bool full() const noexcept { return count_ == kMaxIov; }
  void add(const void* from, std::uint64_t bytes) noexcept {
    KVRAIL_ASSERT(!full() && bytes > 0);
    iov_[count_++] = iovec{const_cast<void*>(from), static_cast<std::size_t>(bytes)};
    bytes_ += bytes;
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::array<iovec, kMaxIov>& iov_;
  std::uint32_t count_ = 0;
  std::uint64_t bytes_ = 0;
};

// The chunk's bytes on the wire from `skip` on: header, digests, payload. False if the list is full
// before the chunk ends.
bool gather_chunk(GatherList& list, const OutChunk& chunk, std::uint64_t skip) noexcept {
  if (skip < chunk.header.size()) {
    if (list.full()) {
      return false;
    }
    list.add(chunk.header.data() + skip, chunk.header.size() - skip);
    skip = 0;
  } else {
    skip -= chunk.header.size();
  }
  const auto digests = std::as_bytes(chunk.digests);
  if (skip < digests.size()) {
    if (list.full()) {
      return false;
    }
    list.add(digests.data() + skip, digests.size() - skip);
    skip = 0;
  } else {
    skip -= digests.size();
  }
  bool whole = true;
  for_each_part(*chunk.post.source, chunk.post.offset + skip, chunk.post.bytes - skip,
                [&](const std::byte* address, std::uint64_t bytes) {
                  whole = !list.full();
                  if (whole) {
                    list.add(address, bytes);
                  }
                  return whole;
                });
  return whole;
}

}  // namespace

bool Lane::try_post_frame(std::span<const std::byte> frame) noexcept {
  KVRAIL_ASSERT_MSG(!frame.empty() && frame.size() <= wire::kMaxMessageBytes,
                    "the caller splits what is larger than Caps::max_frame_bytes");
  if (state_ != LaneState::up || fading_) {
    return false;
  }
  wire::FrameHeader header;
  header.version = in_[kControl].rules.version;
  header.session = in_[kControl].rules.session;
  header.type = wire::FrameType::message;
  header.payload_bytes = static_cast<std::uint32_t>(frame.size());
  header.payload_digest = wire::payload_digest(frame);
  if (!frames_.try_push(header, frame)) {
    return false;
  }
  ++stats_.frames_sent;
  return true;
}

bool Lane::try_post_chunk(const ChunkPost& post) noexcept {
  KVRAIL_ASSERT(post.source != nullptr && post.bytes > 0);
  KVRAIL_ASSERT(post.bytes <= context_.options.max_chunk_bytes);
  KVRAIL_ASSERT(range_fits(post.offset, post.bytes, post.source->total_bytes));
  const std::size_t stream = post.critical ? kControl : kBulk;
  if (state_ != LaneState::up || fading_ || chunks_[stream].full()) {
    return false;
  }
  OutChunk& chunk = chunks_[stream].post();
  chunk.post = post;
  chunk.digests = {};
  if (context_.options.integrity == Integrity::full && !post.source->digests.empty()) {
    const UnitRange units = completed_units(*post.source, post.offset, post.bytes);
    KVRAIL_ASSERT_MSG(units.count <= wire::kMaxChunkDigests, "a chunk of too many tiny pieces");
    chunk.digests = post.source->digests.subspan(units.first, units.count);
  }
  chunk.wire_bytes = static_cast<std::uint32_t>(wire::kFrameHeaderBytes +
                                                chunk.digests.size_bytes() + post.bytes);
  chunk.posted_ns = context_.now_ns;
  chunk.completed_ns = 0;
  chunk.outcome = Code::ok;
  return true;
}

void Lane::send_acks_now() noexcept {
  KVRAIL_ASSERT(owes_acks());
  write_acks();
  start_send(kControl);
}

void Lane::write_acks() noexcept {
  unacked_bytes_ = 0;
  for (std::size_t stream : {kControl, kBulk}) {
    while (!acks_[stream].empty()) {
      const AckQueue::Range& range = acks_[stream].front();
      wire::FrameHeader header;
      header.version = in_[kControl].rules.version;
      header.session = in_[kControl].rules.session;
      header.type = wire::FrameType::ack;
      header.flags = stream == kControl ? wire::kFlagCritical : std::uint16_t{0};
      header.ack_first = range.first;
      header.ack_count = range.count;
      header.ack_code = range.code;
      if (!frames_.try_push(header, {})) {
        unacked_bytes_ = kAckEveryBytes;  // the ring drains by itself, and that calls us again
        return;
      }
      acks_[stream].pop();
    }
  }
}

void Lane::start_chunk(std::size_t stream) noexcept {
  const std::uint64_t number = chunks_[stream].start();
  OutChunk& chunk = chunks_[stream].at(number);
  wire::FrameHeader header;
  header.version = in_[stream].rules.version;
  header.session = in_[stream].rules.session;
  header.type = wire::FrameType::chunk;
  header.flags = stream == kControl ? wire::kFlagCritical : std::uint16_t{0};
  if (!chunk.digests.empty()) {
    header.flags = static_cast<std::uint16_t>(header.flags | wire::kFlagDigests);
  }
  header.digest_count = static_cast<std::uint16_t>(chunk.digests.size());
  header.payload_bytes = chunk.post.bytes;
  header.sequence = out_[stream].sequence++;
  header.lease = chunk.post.lease;
  header.transfer = chunk.post.transfer;
  header.offset = chunk.post.offset;
  wire::encode_header(header, chunk.header);
  out_[stream].items.push(SendItem{true, number, chunk.wire_bytes});
  out_[stream].queued_bytes += chunk.wire_bytes;
}

void Lane::top_up(std::size_t stream) noexcept {
  OutStream& out = out_[stream];
  if (stream == kControl) {
    if (unacked_bytes_ >= kAckEveryBytes) {
      write_acks();
    }
    if (frames_.uncommitted_bytes() > 0 && !out.items.full()) {
      const std::uint64_t bytes = frames_.commit(out.sequence);
      if (!out.items.empty() && !out.items.back().is_chunk) {
        out.items.back().bytes += bytes;
      } else {
        out.items.push(SendItem{false, 0, bytes});
      }
      out.queued_bytes += bytes;
    }
  }
  const std::uint64_t ahead = stream == kControl ? kControlAheadBytes : kBulkAheadBytes;
  while (chunks_[stream].has_unstarted() && out.queued_bytes < ahead && !out.items.full()) {
    start_chunk(stream);
  }
}

std::uint32_t Lane::gather(std::size_t stream, std::uint32_t& bytes) noexcept {
  OutStream& out = out_[stream];
  GatherList list(out.iov);
  const std::uint64_t most = stream == kControl ? kControlAheadBytes : kBulkAheadBytes;
  bool room = true;
  for (std::uint32_t i = 0; room && i < out.items.size() && list.bytes() < most; ++i) {
    const SendItem& item = out.items.at(i);
    if (item.is_chunk) {
      const OutChunk& chunk = chunks_[stream].at(item.number);
      room = gather_chunk(list, chunk, chunk.wire_bytes - item.bytes);
      continue;
    }
    // The frames of a later item follow those of an earlier one in the ring.
    std::uint64_t at = frames_.head();
    for (std::uint32_t before = 0; before < i; ++before) {
      at += out.items.at(before).is_chunk ? 0 : out.items.at(before).bytes;
    }
    for (std::uint64_t left = item.bytes; left > 0 && room;) {
      room = !list.full();
      if (room) {
        const iovec part = frames_.view(at, left);
        list.add(part.iov_base, part.iov_len);
        at += part.iov_len;
        left -= part.iov_len;
      }
    }
  }
  bytes = static_cast<std::uint32_t>(list.bytes());
  return list.count();
}

void Lane::start_send(std::size_t stream) noexcept {
  IoSocket& socket = *in_[stream].socket;
  if (socket.out.in_flight()) {
    return;
  }
  top_up(stream);
  OutStream& out = out_[stream];
  if (out.items.empty()) {
    return;
  }
  const std::uint32_t count = gather(stream, out.op_bytes);
  KVRAIL_ASSERT(count > 0 && out.op_bytes > 0);
  socket.out.message = msghdr{};
  socket.out.message.msg_iov = out.iov.data();
  socket.out.message.msg_iovlen = count;
  if (may_splice(stream)) {
    socket.out.pipe = &out.pipe;
    context_.io.start(socket.out, OpKind::splice);
    return;
  }
  // Bulk: the kernel goes on by itself when the socket has room again.
  socket.out.flags = stream == kBulk ? MSG_WAITALL : 0;
  context_.io.start(socket.out, OpKind::send);
}

// Pages that the socket still holds when a lane dies may reach the peer changed. Digests make that
// harmless, so chunks without them are copied.
bool Lane::may_splice(std::size_t stream) noexcept {
  OutStream& out = out_[stream];
  if (!out.pipe.is_open()) {
    return false;
  }
  for (std::uint32_t i = 0; i < out.items.size(); ++i) {
    if (chunks_[stream].at(out.items.at(i).number).digests.empty()) {
      return false;
    }
  }
  return true;
}

void Lane::on_sent(std::size_t stream, std::int32_t result) noexcept {
  if (state_ != LaneState::up) {
    return;
  }
  if (result <= 0) {
    if (result != -EINTR && result != -EAGAIN) {
      fade(-result);
    }
    return;
  }
  OutStream& out = out_[stream];
  auto left = static_cast<std::uint64_t>(result);
  KVRAIL_ASSERT_MSG(left <= out.op_bytes, "more bytes sent than were given");
  stats_.bytes_sent += left;
  out.queued_bytes -= left;
  while (left > 0) {
    SendItem& item = out.items.front();
    const std::uint64_t taken = std::min(left, item.bytes);
    item.bytes -= taken;
    left -= taken;
    if (!item.is_chunk) {
      frames_.release(taken);
    }
    if (item.bytes == 0) {
      if (item.is_chunk) {
        chunks_[stream].mark_sent();
        ++stats_.chunks_sent;
      }
      out.items.pop();
    }
  }
}

}  // namespace kvrail::transport::tcp
