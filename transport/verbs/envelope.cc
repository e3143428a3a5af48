#include "transport/verbs/envelope.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::byte kMagic{0x4B};
constexpr std::uint32_t kGreetingMagic = 0x5652564B;  // the bytes "KVRV"
constexpr std::uint32_t kGreetingVersion = 2;
constexpr std::uint32_t kFirst = 1;
constexpr std::uint32_t kLast = 2;

bool has_body_of_lease(MessageKind kind) noexcept {
  return kind != MessageKind::credit && kind != MessageKind::frames;
}

}  // namespace

void encode(const Envelope& envelope, std::span<std::byte, kEnvelopeBytes> out) noexcept {
  out[0] = kMagic;
  out[1] = static_cast<std::byte>(envelope.kind);
  out[2] = out[3] = std::byte{0};
  store_le32(out.data() + 4, envelope.control_posted);
  store_le32(out.data() + 8, envelope.bulk_posted);
  store_le32(out.data() + 12, envelope.body_bytes);
}

bool decode(std::span<const std::byte> message, Envelope& out) noexcept {
  if (message.size() < kEnvelopeBytes || message[0] != kMagic || message[2] != std::byte{0} ||
      message[3] != std::byte{0} ||
      std::to_integer<std::uint8_t>(message[1]) >= static_cast<std::uint8_t>(MessageKind::count_)) {
    return false;
  }
  out.kind = static_cast<MessageKind>(message[1]);
  out.control_posted = load_le32(message.data() + 4);
  out.bulk_posted = load_le32(message.data() + 8);
  out.body_bytes = load_le32(message.data() + 12);
  if (out.body_bytes != message.size() - kEnvelopeBytes) return false;
  if (out.kind == MessageKind::credit) return out.body_bytes == 0;
  return out.body_bytes >=
         (has_body_of_lease(out.kind) ? kLeaseHeadBytes : wire::kFrameHeaderBytes);
}

void encode(const Segment& one, std::span<std::byte, kSegmentBytes> out) noexcept {
  store_le64(out.data(), one.address);
  store_le32(out.data() + 8, one.bytes);
  store_le32(out.data() + 12, one.keys[0]);
  store_le32(out.data() + 16, one.keys[1]);
}

void encode(const LeaseHead& head, std::span<std::byte> body) noexcept {
  KVRAIL_ASSERT(body.size() == kLeaseHeadBytes + head.count * kSegmentBytes);
  store_le32(body.data(), head.lease.slot);
  store_le32(body.data() + 4, head.lease.generation);
  store_le64(body.data() + 8, head.total_bytes);
  store_le32(body.data() + 16, head.pieces);
  store_le32(body.data() + 20, head.count);
  store_le64(body.data() + 24, (head.first ? kFirst : 0) | (head.last ? kLast : 0));
  // Over the segments first, then the fields: both decide where a WRITE lands.
  const std::uint64_t segments = wire::payload_digest(body.subspan(kLeaseHeadBytes));
  store_le64(body.data() + 32, segments);
  store_le64(body.data() + 32, wire::payload_digest(body.first(kLeaseHeadBytes)));
}

bool decode(std::span<const std::byte> body, LeaseHead& out) noexcept {
  if (body.size() < kLeaseHeadBytes) return false;
  out.lease = {load_le32(body.data()), load_le32(body.data() + 4)};
  out.total_bytes = load_le64(body.data() + 8);
  out.pieces = load_le32(body.data() + 16);
  out.count = load_le32(body.data() + 20);
  const std::uint64_t flags = load_le64(body.data() + 24);
  out.first = (flags & kFirst) != 0;
  out.last = (flags & kLast) != 0;
  if (flags > (kFirst | kLast) || out.count > kMaxSegmentsPerMessage ||
      out.lease.slot >= wire::kMaxLeaseSlots ||
      body.size() != kLeaseHeadBytes + out.count * kSegmentBytes) {
    return false;
  }
  std::array<std::byte, kLeaseHeadBytes> head;
  std::copy_n(body.begin(), head.size(), head.begin());
  store_le64(head.data() + 32, wire::payload_digest(body.subspan(kLeaseHeadBytes)));
  return wire::payload_digest(head) == load_le64(body.data() + 32);
}

Segment segment(std::span<const std::byte> body, std::uint32_t i) noexcept {
  const std::byte* const at = body.data() + kLeaseHeadBytes + i * kSegmentBytes;
  return {load_le64(at), load_le32(at + 8), {load_le32(at + 12), load_le32(at + 16)}};
}

void encode(const Greeting& greeting, std::span<std::byte, kGreetingBytes> out) noexcept {
  store_le32(out.data(), kGreetingMagic);
  store_le32(out.data() + 4, kGreetingVersion);
  store_le32(out.data() + 8, greeting.receive_slots);
  store_le32(out.data() + 12, greeting.bulk_receives);
  store_le32(out.data() + 16, greeting.bulk_queue);
  store_le32(out.data() + 20, greeting.bulk_packet);
  store_le32(out.data() + 24, greeting.mtu_bytes);
  store_le32(out.data() + 28, 0);
}

bool decode(std::span<const std::byte> bytes, Greeting& out) noexcept {
  if (bytes.size() < kGreetingBytes || load_le32(bytes.data()) != kGreetingMagic ||
      load_le32(bytes.data() + 4) != kGreetingVersion) {
    return false;
  }
  out.receive_slots = load_le32(bytes.data() + 8);
  out.bulk_receives = load_le32(bytes.data() + 12);
  out.bulk_queue = load_le32(bytes.data() + 16);
  out.bulk_packet = load_le32(bytes.data() + 20);
  out.mtu_bytes = load_le32(bytes.data() + 24);
  return out.receive_slots >= 8 && out.receive_slots <= 1024 && out.bulk_receives <= 256 &&
         out.bulk_queue < (1u << 24) && out.bulk_packet < (1u << 24);
}

}  // namespace kvrail::transport::verbs
