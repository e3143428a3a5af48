// The frame: what every byte stream between two engines is made of (docs/wire.md has the table).
//
// A frame is a fixed little-endian header of 64 bytes, then 8 bytes for each digest, then the
// payload. Nothing in it is trusted: the header carries a checksum, each field has a bound, and
// every refusal has a reason that is counted. After any refusal the stream is out of step, so the
// lane closes.
//
// Thread: values and pure functions; a FrameParser belongs to the one thread that reads its stream.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/status.h"
#include "kvrail/types.h"
#include "transport/transport.h"

namespace kvrail::transport::wire {

inline constexpr std::uint32_t kFrameMagic = 0x4C52564B;  // the bytes "KVRL"
inline constexpr std::size_t kFrameHeaderBytes = 64;
inline constexpr std::uint8_t kProtocolMin = 1;
inline constexpr std::uint8_t kProtocolMax = 1;
// Handshake frames keep this version for ever, so that nodes of any two versions can negotiate.
inline constexpr std::uint8_t kHandshakeVersion = 1;

inline constexpr std::uint32_t kMaxMessageBytes = 64 * 1024;
inline constexpr std::uint32_t kMaxHandshakeBytes = 512;
inline constexpr std::uint32_t kMaxChunkBytes = 1024 * 1024;
// A chunk that would complete more units (many tiny pieces) must be cut shorter by its poster.
inline constexpr std::uint32_t kMaxChunkDigests = 4096;
inline constexpr std::uint32_t kMaxAckCount = 1u << 20;
inline constexpr std::uint32_t kMaxLeaseSlots = 4096;  // 12 bits: a one-sided transport's immediate

enum class FrameType : std::uint8_t { message = 1, chunk = 2, ack = 3, handshake = 4 };

inline constexpr std::uint16_t kFlagCritical = 1;  // chunk: of the critical class; ack: likewise
inline constexpr std::uint16_t kFlagDigests = 2;   // chunk: one digest per completed unit follows
inline constexpr std::uint16_t kKnownFlags = kFlagCritical | kFlagDigests;

struct FrameHeader {
  std::uint8_t version = kProtocolMax;
  FrameType type = FrameType::message;
  std::uint16_t flags = 0;
  std::uint16_t digest_count = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t session = 0;         // from the handshake; 0 in handshake frames
  std::uint32_t sequence = 0;        // of the frame in this direction of this stream, from 0, wraps
  LeaseId lease;                     // chunk
  TransferId transfer = 0;           // chunk
  std::uint64_t offset = 0;          // chunk: stream offset in the lease
  std::uint64_t payload_digest = 0;  // message, handshake: XXH3-64 of the payload
  // ack: chunks [ack_first, ack_first + ack_count) of one class ended with ack_code at the
  // receiver. Chunks are numbered from 0 for each lane, direction and class; acks go in order.
  std::uint64_t ack_first = 0;
  std::uint32_t ack_count = 0;
  Code ack_code = Code::ok;  // ok, corrupt or rejected

  [[nodiscard]] bool critical() const noexcept { return (flags & kFlagCritical) != 0; }
  friend bool operator==(const FrameHeader&, const FrameHeader&) noexcept = default;
};

// Why a frame was refused. The first group is found by the header alone, the second needs what the
// lane knows; both are counted alike. Append only: docs/wire.md and counters name them.
enum class FrameError : std::uint8_t {
  none = 0,
  bad_magic,
  swapped_magic,  // a big-endian sender
  bad_version,    // another version than the session's, so also a downgrade after the handshake
  bad_checksum,
  bad_type,
  bad_flags,     // unknown flags are mandatory to understand, or a flag of another type
  bad_lengths,   // header, digest and payload lengths contradict each other or the type
  too_large,     // a length above its bound
  bad_range,     // offset + length wraps 64 bits
  bad_reserved,  // a field that must be zero in this type is not
  bad_lease,     // slot out of range
  bad_ack,       // code, count or numbers that no correct peer sends
  wrong_session,
  bad_sequence,  // replayed, lost or reordered frame
  bad_payload,   // payload does not match its digest
  unexpected,    // right in itself, but not at this point (handshake after the handshake, …)
  bad_message,   // the message codec refused the payload
  truncated,     // the stream ended inside a frame
  count_,
};
inline constexpr std::size_t kFrameErrorCount = static_cast<std::size_t>(FrameError::count_);
[[nodiscard]] const char* name(FrameError error) noexcept;

struct FrameCounters {
  std::array<std::uint64_t, kFrameErrorCount> refused{};
  void count(FrameError error) noexcept { ++refused[static_cast<std::size_t>(error)]; }
  [[nodiscard]] std::uint64_t total() const noexcept;
};

// What this end of the stream expects; the same for all frames of an established lane.
struct FrameRules {
  std::uint8_t version = kHandshakeVersion;
  std::uint32_t session = 0;
  bool handshaking = true;  // only handshake frames; afterwards all but them
  std::uint32_t max_message_bytes = kMaxMessageBytes;
  std::uint32_t max_chunk_bytes = kMaxChunkBytes;
  std::uint32_t max_leases = kMaxLeaseSlots;
};

// Writes the 64 bytes, checksum included. Digests and payload are the caller's to append.
void encode_header(const FrameHeader& header, std::span<std::byte, kFrameHeaderBytes> out) noexcept;
// Checks everything that the header alone and `rules` can tell, but not the sequence.
[[nodiscard]] FrameError decode_header(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                       const FrameRules& rules, FrameHeader& out) noexcept;

[[nodiscard]] std::uint64_t payload_digest(std::span<const std::byte> payload) noexcept;

// A whole message or handshake frame into `out`; 0 when it does not fit.
[[nodiscard]] std::size_t encode_frame(FrameType type, std::uint8_t version, std::uint32_t session,
                                       std::uint32_t sequence, std::span<const std::byte> payload,
                                       std::span<std::byte> out) noexcept;

// Takes one direction of a byte stream apart, however it is cut. The caller either reads straight
// into want() and calls advance(), or hands bytes to feed(), which copies. The payload of a chunk
// is not the parser's: after chunk_ready the caller receives header().payload_bytes wherever they
// belong, then calls next().
class FrameParser {
 public:
  enum class Progress : std::uint8_t {
    need_more,
    frame_ready,  // header() and, for a message or handshake, payload() are whole and checked
    chunk_ready,  // header() and digests() are whole; the payload follows in the stream
    refused,      // error() tells why; the parser is done for good
  };

  // Both buffers outlive the parser. payload: rules.max_message_bytes (kMaxHandshakeBytes while
  // only handshakes are expected). digests: kMaxChunkDigests, or empty if no chunk is expected.
  FrameParser(const FrameRules& rules, std::span<std::byte> payload,
              std::span<std::uint64_t> digests) noexcept;

  // Where the next bytes of the stream go. Never empty, except after *_ready or refused.
  [[nodiscard]] std::span<std::byte> want() noexcept;
  // `bytes` (at most want().size()) were written to want().
  [[nodiscard]] Progress advance(std::size_t bytes) noexcept;
  // Copies from the front of `input` and shrinks it; returns at the first ready or refused.
  [[nodiscard]] Progress feed(std::span<const std::byte>& input) noexcept;
  // Begins the next frame, once the caller is done with the ready one.
  void next() noexcept;
  // The handshake is over: from the next frame on, `rules` hold. The sequence goes on.
  void set_rules(const FrameRules& rules) noexcept;

  [[nodiscard]] const FrameHeader& header() const noexcept { return header_; }
  [[nodiscard]] std::span<const std::byte> payload() const noexcept {
    return payload_.first(header_.payload_bytes);
  }
  [[nodiscard]] std::span<const std::uint64_t> digests() const noexcept {
    return digests_.first(header_.digest_count);
  }
  [[nodiscard]] FrameError error() const noexcept { return error_; }
  // True between frames: a stream may end here, elsewhere its end is FrameError::truncated.
  [[nodiscard]] bool idle() const noexcept { return stage_ == Stage::header && filled_ == 0; }

 private:
  enum class Stage : std::uint8_t { header, digests, payload, ready, refused };

  Progress header_complete() noexcept;
  Progress body() noexcept;
  Progress refuse(FrameError error) noexcept;

  FrameRules rules_;
  std::span<std::byte> payload_;
  std::span<std::uint64_t> digests_;
  alignas(8) std::array<std::byte, kFrameHeaderBytes> raw_{};
  FrameHeader header_;
  std::size_t filled_ = 0;  // bytes of the present stage
  std::uint32_t expected_sequence_ = 0;
  Stage stage_ = Stage::header;
  FrameError error_ = FrameError::none;
};

}  // namespace kvrail::transport::wire
