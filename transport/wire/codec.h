// Control messages to bytes and back. A message is the payload of one frame: a type byte, then the
// fields in the order of messages.h, little-endian, without padding (docs/wire.md).
//
// Decoding trusts nothing: every count has a bound, names follow the rules of make_name(), enums
// and bools have only their own values, ranges ascend and cannot wrap, and no byte may be left
// over. Encoding a message that decoding would refuse is a programmer error and asserts.
//
// Thread: pure functions. Nothing allocates. Spans of a decoded message point into its frame.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "kvrail/base/status.h"
#include "transport/wire/messages.h"

namespace kvrail::transport::wire {

// Why a message was refused: the `detail` of the Status that decode() returns.
enum class MessageError : std::int32_t {
  none = 0,
  truncated = 1,  // ends inside a field
  trailing = 2,   // bytes left after the last field
  bad_type = 3,   // not the type byte of this message
  bad_name = 4,
  bad_enum = 5,    // medium, dtype, code, scope, state, kind, bool
  bad_count = 6,   // above its bound, or at odds with the bytes that follow
  bad_range = 7,   // empty, wrapping, overlapping or descending ranges
  bad_layout = 8,  // a Layout field outside its documented bounds
  bad_value = 9,   // any other field outside its bounds: a zero id, a lease slot, …
};

// The type of the message in a frame's payload, or nothing if no such type exists.
[[nodiscard]] std::optional<MessageType> peek_type(std::span<const std::byte> payload) noexcept;
[[nodiscard]] const char* name(MessageType type) noexcept;

// The encoded size, or 0 when `out` is too small; `out` then holds garbage.
// decode: ok, or {protocol_error, lane, MessageError}; `out` is then unspecified.
#define KVRAIL_WIRE_MESSAGE(Type)                                                           \
  [[nodiscard]] std::size_t encode(const Type& message, std::span<std::byte> out) noexcept; \
  Status decode(std::span<const std::byte> payload, Type& out) noexcept;

KVRAIL_WIRE_MESSAGE(Keepalive)
KVRAIL_WIRE_MESSAGE(AgentUp)
KVRAIL_WIRE_MESSAGE(AgentDown)
KVRAIL_WIRE_MESSAGE(Offer)
KVRAIL_WIRE_MESSAGE(Tokens)
KVRAIL_WIRE_MESSAGE(Accept)
KVRAIL_WIRE_MESSAGE(Later)
KVRAIL_WIRE_MESSAGE(Reject)
KVRAIL_WIRE_MESSAGE(Done)
KVRAIL_WIRE_MESSAGE(Cancel)
KVRAIL_WIRE_MESSAGE(Query)
KVRAIL_WIRE_MESSAGE(Outcome)
KVRAIL_WIRE_MESSAGE(Fetch)
KVRAIL_WIRE_MESSAGE(State)
KVRAIL_WIRE_MESSAGE(Summary)
KVRAIL_WIRE_MESSAGE(Encodings)
KVRAIL_WIRE_MESSAGE(Eager)
KVRAIL_WIRE_MESSAGE(Workflow)
KVRAIL_WIRE_MESSAGE(TaskNotice)
KVRAIL_WIRE_MESSAGE(TurnNotice)
#undef KVRAIL_WIRE_MESSAGE

// Encoded bytes of an Offer, Tokens, Eager, Summary or Encodings beside its trailing span, at most:
// what a sender leaves free when it cuts tokens or bytes to frames.
inline constexpr std::size_t kMaxOfferOverhead = 1000;
inline constexpr std::size_t kMaxWorkflowBytes = 5 * 1024 + 256;  // of a whole one
inline constexpr std::size_t kMaxTokensOverhead = 32;
inline constexpr std::size_t kMaxEagerOverhead = 32;
inline constexpr std::size_t kMaxSummaryOverhead = 32;
inline constexpr std::size_t kMaxEncodingsOverhead = 32;

}  // namespace kvrail::transport::wire
