// What every SEND of a lane begins with, and the messages about leases. docs/wire.md has the bytes.
//
// A message is an envelope of 16 bytes and a body: whole frames of wire/frame.h, or one statement
// about a lease. The envelope carries how many receives its sender has posted so far, which is the
// other side's credit; so it rides on everything, and alone only when nothing else is to be said.
//
// Thread: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace kvrail::transport::verbs {

inline constexpr std::size_t kEnvelopeBytes = 16;
// A slot holds the largest frame (32 KiB of message, or a chunk's 4,096 digests) and its heads.
inline constexpr std::size_t kSlotBytes = 33 * 1024;
inline constexpr std::size_t kMaxBodyBytes = kSlotBytes - kEnvelopeBytes;
inline constexpr std::uint32_t kMaxFramePayload = 32 * 1024;

enum class MessageKind : std::uint8_t {
  credit = 0,     // no body
  frames = 1,     // one or more whole frames
  lease = 2,      // LeaseHead and a part of the lease's segments
  withdrawn = 3,  // LeaseHead: stop writing, then say `released`
  released = 4,   // LeaseHead: no WRITE of ours for it is under way, and none will come
  query = 5,      // LeaseHead: tell me this lease
  no_lease = 6,   // LeaseHead: there is none
  count_,
};

struct Envelope {
  MessageKind kind = MessageKind::credit;
  std::uint32_t control_posted = 0;  // receives posted on the control queue pair so far, wraps
  std::uint32_t bulk_posted = 0;     // and on the bulk one
  std::uint32_t body_bytes = 0;
};
void encode(const Envelope& envelope, std::span<std::byte, kEnvelopeBytes> out) noexcept;
/// False: no correct peer sends this. `message` is all that arrived.
[[nodiscard]] bool decode(std::span<const std::byte> message, Envelope& out) noexcept;

/// One contiguous range of the receiver's memory that a lease lets its peer write.
struct Segment {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;               // > 0
  std::array<std::uint32_t, 2> keys{};   // for WRITEs on the control pair, and on the bulk pair
};
inline constexpr std::size_t kSegmentBytes = 20;

struct LeaseHead {
  LeaseId lease;
  std::uint64_t total_bytes = 0;  // of the whole lease
  std::uint32_t pieces = 0;       // of the whole lease: at most so many segments, unless > 4 GiB
  std::uint32_t count = 0;        // segments in this message
  bool first = false;             // begins the description
  bool last = false;              // and ends it
};
inline constexpr std::size_t kLeaseHeadBytes = 40;
inline constexpr std::uint32_t kMaxSegmentsPerMessage =
    static_cast<std::uint32_t>((kMaxBodyBytes - kLeaseHeadBytes) / kSegmentBytes);

void encode(const Segment& segment, std::span<std::byte, kSegmentBytes> out) noexcept;
/// Writes the head in front of the segments that are in `body` already; adds their digest.
void encode(const LeaseHead& head, std::span<std::byte> body) noexcept;
/// False: not such a body. On true, segment(body, i) reads the i-th of head.count.
[[nodiscard]] bool decode(std::span<const std::byte> body, LeaseHead& out) noexcept;
[[nodiscard]] Segment segment(std::span<const std::byte> body, std::uint32_t i) noexcept;

/// What travels in the private data of the connection request and its answer.
struct Greeting {
  std::uint32_t receive_slots = 0;
  std::uint32_t bulk_receives = 0;  // 0: one queue pair, WRITE then SEND
  std::uint32_t bulk_queue = 0;     // number of the bulk queue pair
  std::uint32_t bulk_packet = 0;    // its first packet's sequence number
  std::uint32_t mtu_bytes = 0;
};
inline constexpr std::size_t kGreetingBytes = 32;
void encode(const Greeting& greeting, std::span<std::byte, kGreetingBytes> out) noexcept;
[[nodiscard]] bool decode(std::span<const std::byte> bytes, Greeting& out) noexcept;

}  // namespace kvrail::transport::verbs
