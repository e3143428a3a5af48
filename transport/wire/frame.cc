#include "transport/wire/frame.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/checked.h"

namespace kvrail::transport::wire {
namespace {

// Offsets in the header; docs/wire.md shows the same table.
constexpr std::size_t kAtMagic = 0;
constexpr std::size_t kAtVersion = 4;
constexpr std::size_t kAtType = 5;
constexpr std::size_t kAtFlags = 6;
constexpr std::size_t kAtHeaderBytes = 8;
constexpr std::size_t kAtDigestCount = 10;
constexpr std::size_t kAtPayloadBytes = 12;
constexpr std::size_t kAtSession = 16;
constexpr std::size_t kAtSequence = 20;
constexpr std::size_t kAtLeaseSlot = 24;  // ack: count
constexpr std::size_t kAtLeaseGeneration = 28;
constexpr std::size_t kAtTransfer = 32;
constexpr std::size_t kAtOffset = 40;  // ack: first chunk number
constexpr std::size_t kAtExtra = 48;   // message, handshake: payload digest; ack: code
constexpr std::size_t kAtChecksum = 56;
static_assert(kAtChecksum + 8 == kFrameHeaderBytes);
static_assert(kFrameHeaderBytes + 8 * std::size_t{kMaxChunkDigests} <= 0xFFFF,
              "header_bytes is 16 bits wide");

std::uint64_t header_checksum(const std::byte* bytes) noexcept {
  return XXH3_64bits(bytes, kAtChecksum);
}

FrameError check_magic(const std::byte* bytes) noexcept {
  const std::uint32_t magic = load_le32(bytes + kAtMagic);
  if (magic == kFrameMagic) return FrameError::none;
  return magic == __builtin_bswap32(kFrameMagic) ? FrameError::swapped_magic
                                                 : FrameError::bad_magic;
}

bool all_zero(const std::byte* from, std::size_t count) noexcept {
  return std::all_of(from, from + count, [](std::byte b) { return b == std::byte{0}; });
}

FrameError read_chunk(const std::byte* bytes, const FrameRules& rules, FrameHeader& out) noexcept {
  out.lease = LeaseId{load_le32(bytes + kAtLeaseSlot), load_le32(bytes + kAtLeaseGeneration)};
  out.transfer = load_le64(bytes + kAtTransfer);
  out.offset = load_le64(bytes + kAtOffset);
  if (out.payload_bytes > rules.max_chunk_bytes || out.digest_count > kMaxChunkDigests) {
    return FrameError::too_large;
  }
  if (out.payload_bytes == 0) return FrameError::bad_lengths;
  if ((out.flags & kFlagDigests) == 0 && out.digest_count != 0) return FrameError::bad_flags;
  if (!checked_add(out.offset, out.payload_bytes)) return FrameError::bad_range;
  if (out.lease.slot >= rules.max_leases) return FrameError::bad_lease;
  return all_zero(bytes + kAtExtra, 8) ? FrameError::none : FrameError::bad_reserved;
}

FrameError read_ack(const std::byte* bytes, FrameHeader& out) noexcept {
  out.ack_count = load_le32(bytes + kAtLeaseSlot);
  out.ack_first = load_le64(bytes + kAtOffset);
  const std::uint64_t code = load_le64(bytes + kAtExtra);
  if (out.payload_bytes != 0 || out.digest_count != 0) return FrameError::bad_lengths;
  if ((out.flags & kFlagDigests) != 0) return FrameError::bad_flags;
  if (!all_zero(bytes + kAtLeaseGeneration, 12)) return FrameError::bad_reserved;
  if (code != static_cast<std::uint64_t>(Code::ok) &&
      code != static_cast<std::uint64_t>(Code::corrupt) &&
      code != static_cast<std::uint64_t>(Code::rejected)) {
    return FrameError::bad_ack;
  }
  out.ack_code = static_cast<Code>(code);
  if (out.ack_count == 0 || out.ack_count > kMaxAckCount ||
      !checked_add(out.ack_first, out.ack_count)) {
    return FrameError::bad_ack;
  }
  return FrameError::none;
}

FrameError read_message(const std::byte* bytes, std::uint32_t limit, FrameHeader& out) noexcept {
  out.payload_digest = load_le64(bytes + kAtExtra);
  if (out.payload_bytes > limit) return FrameError::too_large;
  if (out.payload_bytes == 0 || out.digest_count != 0) return FrameError::bad_lengths;
  if (out.flags != 0) return FrameError::bad_flags;
  return all_zero(bytes + kAtLeaseSlot, 24) ? FrameError::none : FrameError::bad_reserved;
}

// Everything up to the point where the layout depends on the type.
FrameError read_common(const std::byte* bytes, const FrameRules& rules, FrameHeader& out) noexcept {
  if (const FrameError error = check_magic(bytes); error != FrameError::none) return error;
  out.version = static_cast<std::uint8_t>(bytes[kAtVersion]);
  // Before the checksum: another version may place it elsewhere.
  if (out.version != rules.version) return FrameError::bad_version;
  if (load_le64(bytes + kAtChecksum) != header_checksum(bytes)) return FrameError::bad_checksum;
  const auto type = static_cast<std::uint8_t>(bytes[kAtType]);
  if (type < 1 || type > static_cast<std::uint8_t>(FrameType::handshake)) {
    return FrameError::bad_type;
  }
  out.type = static_cast<FrameType>(type);
  out.flags = load_le16(bytes + kAtFlags);
  if ((out.flags & ~kKnownFlags) != 0) return FrameError::bad_flags;
  out.digest_count = load_le16(bytes + kAtDigestCount);
  out.payload_bytes = load_le32(bytes + kAtPayloadBytes);
  if (load_le16(bytes + kAtHeaderBytes) != kFrameHeaderBytes + 8 * std::size_t{out.digest_count}) {
    return FrameError::bad_lengths;
  }
  out.session = load_le32(bytes + kAtSession);
  out.sequence = load_le32(bytes + kAtSequence);
  if (out.session != rules.session) return FrameError::wrong_session;
  if ((out.type == FrameType::handshake) != rules.handshaking) return FrameError::unexpected;
  return FrameError::none;
}

}  // namespace

const char* name(FrameError error) noexcept {
  constexpr std::array<const char*, kFrameErrorCount> names{
      "none",         "bad_magic",  "swapped_magic", "bad_version",   "bad_checksum",
      "bad_type",     "bad_flags",  "bad_lengths",   "too_large",     "bad_range",
      "bad_reserved", "bad_lease",  "bad_ack",       "wrong_session", "bad_sequence",
      "bad_payload",  "unexpected", "bad_message",   "truncated"};
  const auto index = static_cast<std::size_t>(error);
  return index < names.size() ? names[index] : "invalid";
}

std::uint64_t FrameCounters::total() const noexcept {
  std::uint64_t sum = 0;
  for (const std::uint64_t one : refused) sum += one;
  return sum;
}

void encode_header(const FrameHeader& header,
                   std::span<std::byte, kFrameHeaderBytes> out) noexcept {
  KVRAIL_ASSERT(header.digest_count <= kMaxChunkDigests);
  std::byte* at = out.data();
  std::memset(at, 0, kFrameHeaderBytes);
  store_le32(at + kAtMagic, kFrameMagic);
  at[kAtVersion] = std::byte{header.version};
  at[kAtType] = static_cast<std::byte>(header.type);
  store_le16(at + kAtFlags, header.flags);
  store_le16(at + kAtHeaderBytes,
             static_cast<std::uint16_t>(kFrameHeaderBytes + 8u * header.digest_count));
  store_le16(at + kAtDigestCount, header.digest_count);
  store_le32(at + kAtPayloadBytes, header.payload_bytes);
  store_le32(at + kAtSession, header.session);
  store_le32(at + kAtSequence, header.sequence);
  switch (header.type) {
    case FrameType::chunk:
      store_le32(at + kAtLeaseSlot, header.lease.slot);
      store_le32(at + kAtLeaseGeneration, header.lease.generation);
      store_le64(at + kAtTransfer, header.transfer);
      store_le64(at + kAtOffset, header.offset);
      break;
    case FrameType::ack:
      store_le32(at + kAtLeaseSlot, header.ack_count);
      store_le64(at + kAtOffset, header.ack_first);
      store_le64(at + kAtExtra, static_cast<std::uint64_t>(header.ack_code));
      break;
    case FrameType::message:
    case FrameType::handshake:
      store_le64(at + kAtExtra, header.payload_digest);
      break;
  }
  store_le64(at + kAtChecksum, header_checksum(at));
}

FrameError decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                         const FrameRules& rules, FrameHeader& out) noexcept {
  out = FrameHeader{};
  if (const FrameError error = read_common(bytes.data(), rules, out); error != FrameError::none) {
    return error;
  }
  switch (out.type) {
    case FrameType::chunk:
      return read_chunk(bytes.data(), rules, out);
    case FrameType::ack:
      return read_ack(bytes.data(), out);
    case FrameType::message:
      return read_message(bytes.data(), rules.max_message_bytes, out);
    case FrameType::handshake:
      return read_message(bytes.data(), kMaxHandshakeBytes, out);
  }
  return FrameError::bad_type;
}

std::uint64_t payload_digest(std::span<const std::byte> payload) noexcept {
  return XXH3_64bits(payload.data(), payload.size());
}

std::size_t encode_frame(FrameType type, std::uint8_t version, std::uint32_t session,
                         std::uint32_t sequence, std::span<const std::byte> payload,
                         std::span<std::byte> out) noexcept {
  KVRAIL_ASSERT(type == FrameType::message || type == FrameType::handshake);
  if (payload.empty() || payload.size() > kMaxMessageBytes ||
      out.size() < kFrameHeaderBytes + payload.size()) {
    return 0;
  }
  FrameHeader header;
  header.version = version;
  header.type = type;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.session = session;
  header.sequence = sequence;
  header.payload_digest = payload_digest(payload);
  encode_header(header, out.first<kFrameHeaderBytes>());
  std::memcpy(out.data() + kFrameHeaderBytes, payload.data(), payload.size());
  return kFrameHeaderBytes + payload.size();
}

FrameParser::FrameParser(const FrameRules& rules, std::span<std::byte> payload,
                         std::span<std::uint64_t> digests) noexcept
    : rules_(rules), payload_(payload), digests_(digests) {
  KVRAIL_ASSERT(payload.size() >= kMaxHandshakeBytes);
}

std::span<std::byte> FrameParser::want() noexcept {
  switch (stage_) {
    case Stage::header:
      return std::span(raw_).subspan(filled_);
    case Stage::digests:
      return std::as_writable_bytes(digests_.first(header_.digest_count)).subspan(filled_);
    case Stage::payload:
      return payload_.first(header_.payload_bytes).subspan(filled_);
    case Stage::ready:
    case Stage::refused:
      break;
  }
  return {};
}

FrameParser::Progress FrameParser::advance(std::size_t bytes) noexcept {
  const std::size_t wanted = want().size();
  KVRAIL_ASSERT_MSG(bytes <= wanted, "more bytes than the parser asked for");
  if (stage_ == Stage::refused) return Progress::refused;
  if (bytes < wanted) {
    filled_ += bytes;
    return Progress::need_more;
  }
  filled_ = 0;
  switch (stage_) {
    case Stage::header:
      return header_complete();
    case Stage::digests:
      return body();
    case Stage::payload:
      if (payload_digest(payload()) != header_.payload_digest) {
        return refuse(FrameError::bad_payload);
      }
      stage_ = Stage::ready;
      return Progress::frame_ready;
    case Stage::ready:
    case Stage::refused:
      break;
  }
  KVRAIL_ASSERT_MSG(false, "next() must follow a ready frame");
  return Progress::refused;
}

FrameParser::Progress FrameParser::header_complete() noexcept {
  const FrameError error = decode_header(raw_, rules_, header_);
  if (error != FrameError::none) return refuse(error);
  if (header_.sequence != expected_sequence_) return refuse(FrameError::bad_sequence);
  ++expected_sequence_;
  // The buffers bound what this stream may carry, whatever the header says.
  if (header_.digest_count > digests_.size()) return refuse(FrameError::unexpected);
  if (header_.type != FrameType::chunk && header_.payload_bytes > payload_.size()) {
    return refuse(FrameError::too_large);
  }
  if (header_.digest_count != 0) {
    stage_ = Stage::digests;
    return Progress::need_more;
  }
  return body();
}

FrameParser::Progress FrameParser::body() noexcept {
  if (header_.type == FrameType::message || header_.type == FrameType::handshake) {
    stage_ = Stage::payload;
    return Progress::need_more;
  }
  stage_ = Stage::ready;
  return header_.type == FrameType::chunk ? Progress::chunk_ready : Progress::frame_ready;
}

FrameParser::Progress FrameParser::refuse(FrameError error) noexcept {
  error_ = error;
  stage_ = Stage::refused;
  return Progress::refused;
}

FrameParser::Progress FrameParser::feed(std::span<const std::byte>& input) noexcept {
  KVRAIL_ASSERT_MSG(stage_ != Stage::ready, "next() must follow a ready frame");
  if (stage_ == Stage::refused) return Progress::refused;
  while (!input.empty()) {
    const std::span<std::byte> to = want();
    const std::size_t count = std::min(to.size(), input.size());
    std::memcpy(to.data(), input.data(), count);
    input = input.subspan(count);
    if (const Progress progress = advance(count); progress != Progress::need_more) return progress;
  }
  return Progress::need_more;
}

void FrameParser::next() noexcept {
  KVRAIL_ASSERT_MSG(stage_ == Stage::ready, "next() without a ready frame");
  stage_ = Stage::header;
  filled_ = 0;
}

void FrameParser::set_rules(const FrameRules& rules) noexcept {
  KVRAIL_ASSERT_MSG(stage_ == Stage::ready || idle(), "rules change between frames only");
  KVRAIL_ASSERT(payload_.size() >= kMaxHandshakeBytes);
  rules_ = rules;
}

}  // namespace kvrail::transport::wire
