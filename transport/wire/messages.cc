#include "transport/wire/messages.h"

#include <bit>

#include "kvrail/base/assert.h"
#include "kvrail/base/checked.h"
#include "transport/wire/codec.h"
#include "transport/wire/frame.h"
#include "transport/wire/message_fields.h"

namespace kvrail::transport::wire {
namespace {

constexpr std::uint32_t kMillion = 1'000'000;
constexpr std::uint64_t kMaxBlocks = kMaxContextTokens / 16;  // 16: the smallest block

constexpr MessageType type_of(const Keepalive&) {
  return MessageType::keepalive;
}
constexpr MessageType type_of(const AgentUp&) {
  return MessageType::agent_up;
}
constexpr MessageType type_of(const AgentDown&) {
  return MessageType::agent_down;
}
constexpr MessageType type_of(const Offer&) {
  return MessageType::offer;
}
constexpr MessageType type_of(const Tokens&) {
  return MessageType::tokens;
}
constexpr MessageType type_of(const Accept&) {
  return MessageType::accept;
}
constexpr MessageType type_of(const Later&) {
  return MessageType::later;
}
constexpr MessageType type_of(const Reject&) {
  return MessageType::reject;
}
constexpr MessageType type_of(const Done&) {
  return MessageType::done;
}
constexpr MessageType type_of(const Cancel&) {
  return MessageType::cancel;
}
constexpr MessageType type_of(const Query&) {
  return MessageType::query;
}
constexpr MessageType type_of(const Outcome&) {
  return MessageType::outcome;
}
constexpr MessageType type_of(const Fetch&) {
  return MessageType::fetch;
}
constexpr MessageType type_of(const State&) {
  return MessageType::state;
}
constexpr MessageType type_of(const Summary&) {
  return MessageType::summary;
}
constexpr MessageType type_of(const Encodings&) {
  return MessageType::encodings;
}
constexpr MessageType type_of(const Eager&) {
  return MessageType::eager;
}

constexpr MessageType type_of(const Workflow&) {
  return MessageType::workflow;
}
constexpr MessageType type_of(const TaskNotice&) {
  return MessageType::task;
}
constexpr MessageType type_of(const TurnNotice&) {
  return MessageType::turn;
}

bool is_finite(float value) noexcept {
  return (std::bit_cast<std::uint32_t>(value) & 0x7F800000U) != 0x7F800000U;
}

MessageError check(const Layout& layout) noexcept {
  const bool good = layout.layers >= 1 && layout.layers <= 1024 && layout.kv_heads >= 1 &&
                    layout.kv_heads <= 1024 && layout.head_dim >= 1 && layout.head_dim <= 576 &&
                    layout.block_tokens >= 16 && layout.block_tokens <= 512 &&
                    layout.block_tokens % 16 == 0 && dtype_bytes(layout.dtype) != 0 &&
                    is_finite(layout.rope_base) && is_finite(layout.rope_scale);
  return good ? MessageError::none : MessageError::bad_layout;
}

MessageError first_of(std::initializer_list<MessageError> errors) noexcept {
  for (const MessageError error : errors) {
    if (error != MessageError::none) return error;
  }
  return MessageError::none;
}

MessageError unless(bool good, MessageError error) noexcept {
  return good ? MessageError::none : error;
}

// What the field reader cannot see in one field alone.
MessageError check(const Keepalive&) noexcept {
  return MessageError::none;
}
MessageError check(const AgentDown&) noexcept {
  return MessageError::none;
}
MessageError check(const AgentUp& m) noexcept {
  constexpr MediumMask kAllMedia = (MediumMask{1} << kMediumCount) - 1;
  return first_of({check(m.layout), unless(m.role != 0, MessageError::bad_value),
                   unless((m.accepted & ~kAllMedia) == 0, MessageError::bad_enum)});
}

MessageError check(const Offer& m) noexcept {
  if (const MessageError error = check(m.layout); error != MessageError::none) return error;
  if (m.transfer == 0 || m.weight == 0 || m.criticality_milli == 0 || m.criticality_milli > 1000 || m.fidelity_floor_ppm > kMillion) {
    return MessageError::bad_value;
  }
  if (m.total_tokens > kMaxContextTokens || m.base_tokens > m.total_tokens ||
      m.base_tokens % m.layout.block_tokens != 0) {
    return MessageError::bad_range;
  }
  if (m.token_count_here > m.total_tokens - m.base_tokens ||
      m.token_bytes.size() != std::size_t{4} * m.token_count_here) {
    return MessageError::bad_count;
  }
  for (std::size_t i = 0; i < m.candidate_count; ++i) {
    if (m.candidates[i].medium == Medium::automatic) return MessageError::bad_enum;
  }
  return MessageError::none;
}

MessageError check(const Tokens& m) noexcept {
  if (m.transfer == 0) return MessageError::bad_value;
  if (m.token_bytes.empty()) return MessageError::bad_count;
  return unless(range_fits(m.first, m.token_bytes.size() / 4, kMaxContextTokens),
                MessageError::bad_range);
}
MessageError check(const Eager& m) noexcept {
  if (m.transfer == 0) return MessageError::bad_value;
  return unless(!m.bytes.empty() && m.bytes.size() <= kMaxEagerBytes, MessageError::bad_count);
}

// Ascending, disjoint, not empty, inside [0, limit).
template <class Range, class First, class Count>
MessageError check_ranges(std::span<const Range> ranges, First first, Count count,
                          std::uint64_t limit) noexcept {
  std::uint64_t end = 0;
  for (const Range& range : ranges) {
    const std::uint64_t at = range.*first;
    const std::uint64_t length = range.*count;
    if (length == 0 || at < end || !range_fits(at, length, limit)) return MessageError::bad_range;
    end = at + length;
  }
  return MessageError::none;
}

MessageError check(const Accept& m) noexcept {
  if (m.medium == Medium::automatic) return MessageError::bad_enum;
  if (m.transfer == 0 || m.lease.slot >= kMaxLeaseSlots || m.tail_from_row >= 512 ||
      m.first_plane >= kMaxPlanes) {
    return MessageError::bad_value;
  }
  return check_ranges(std::span(m.missing).first(m.range_count), &BlockRange::first,
                      &BlockRange::count, kMaxBlocks);
}
MessageError check(const Later& m) noexcept {
  return unless(m.transfer != 0, MessageError::bad_value);
}
MessageError check(const Reject& m) noexcept {
  return unless(m.transfer != 0 || m.fetch_id != 0, MessageError::bad_value);
}
MessageError check(const Done& m) noexcept {
  return unless(m.transfer != 0, MessageError::bad_value);
}
MessageError check(const Cancel& m) noexcept {
  return unless(m.transfer != 0, MessageError::bad_value);
}
MessageError check(const Query& m) noexcept {
  return unless(m.transfer != 0 && m.incarnation != 0, MessageError::bad_value);
}
MessageError check(const Outcome& m) noexcept {
  if (m.transfer == 0 || m.lease.slot >= kMaxLeaseSlots) return MessageError::bad_value;
  return check_ranges(std::span(m.missing).first(m.range_count), &ByteRange::offset,
                      &ByteRange::bytes, UINT64_MAX);
}
MessageError check(const Fetch& m) noexcept {
  return unless(m.fetch_id != 0 && m.fidelity_floor_ppm <= kMillion, MessageError::bad_value);
}
MessageError check(const State& m) noexcept {
  return unless(m.receive_bytes_free <= m.receive_bytes_total, MessageError::bad_value);
}
MessageError check(const Summary& m) noexcept {
  if (m.transfer == 0) return MessageError::bad_value;
  if (m.kind > 2) return MessageError::bad_enum;
  return unless(m.kind == 0 || m.bytes.size() % 4 == 0, MessageError::bad_count);
}
MessageError check(const Encodings& m) noexcept {
  if (m.transfer == 0) return MessageError::bad_value;
  if (m.count == 0 || m.ids.size() != std::size_t{16} * m.count) return MessageError::bad_count;
  return unless(range_fits(m.first, m.count, kMaxBlocks), MessageError::bad_range);
}

MessageError check(const Workflow& m) noexcept {
  if (m.step_count == 0) return MessageError::bad_count;
  for (std::uint32_t i = 0; i < m.edge_count; ++i) {
    if (m.edges[i].from >= m.step_count || m.edges[i].to >= m.step_count) return MessageError::bad_range;
  }
  return MessageError::none;
}
MessageError check(const TaskNotice& m) noexcept {
  return unless(m.task != 0, MessageError::bad_value);
}
MessageError check(const TurnNotice& m) noexcept {
  return unless(m.probability_ppm <= kMillion, MessageError::bad_value);
}

// A writer is handed names by value, so it checks them here; a reader has done so already.
bool names_good(std::initializer_list<const Name*> names) noexcept {
  for (const Name* one : names) {
    const std::string_view text = one->view();
    if (text.empty()) return false;
    for (const char raw : text) {
      const auto c = static_cast<unsigned char>(raw);
      if (c <= 0x20 || c == 0x7F) return false;
    }
  }
  return true;
}
template <class M>
bool names_good(const M&) noexcept {
  return true;
}
bool names_good(const AgentUp& m) noexcept {
  return names_good({&m.tenant, &m.agent});
}
bool names_good(const AgentDown& m) noexcept {
  return names_good({&m.tenant, &m.agent});
}
bool names_good(const Offer& m) noexcept {
  return names_good({&m.tenant, &m.from_agent, &m.to_agent, &m.context});
}
bool names_good(const Fetch& m) noexcept {
  return names_good({&m.tenant, &m.requester, &m.owner, &m.context});
}
bool names_good(const Workflow& m) noexcept {
  for (std::size_t i = 0; i < m.step_count; ++i) {
    if (!names_good({&m.steps[i].agent})) return false;
  }
  return names_good({&m.tenant, &m.workflow});
}
bool names_good(const TaskNotice& m) noexcept {
  return names_good({&m.tenant, &m.workflow});
}
bool names_good(const TurnNotice& m) noexcept {
  return names_good({&m.tenant, &m.workflow, &m.agent});
}

template <class M>
std::size_t encode_any(const M& message, std::span<std::byte> out) noexcept {
  if constexpr (requires { message.range_count; }) {
    KVRAIL_ASSERT(message.range_count <= message.missing.size());
  }
  if constexpr (requires { message.candidate_count; }) {
    KVRAIL_ASSERT(message.candidate_count <= kMaxCandidates);
  }
  if constexpr (requires { message.step_count; }) {
    KVRAIL_ASSERT(message.step_count <= kMaxWorkflowSteps && message.edge_count <= kMaxWorkflowEdges);
  }
  KVRAIL_ASSERT_MSG(names_good(message), "a name of the message is empty or has bad characters");
  KVRAIL_ASSERT_MSG(check(message) == MessageError::none, "the receiver would refuse this message");
  FieldWriter writer(out);
  writer.u8(static_cast<std::uint8_t>(type_of(message)));
  fields(writer, message);
  return writer.size();
}

template <class M>
Status decode_any(std::span<const std::byte> payload, M& out) noexcept {
  const auto refused = [](MessageError error) {
    return Status{Code::protocol_error, Scope::lane, static_cast<std::int32_t>(error)};
  };
  FieldReader reader(payload);
  std::uint8_t type = 0;
  reader.u8(type);
  if (payload.empty()) return refused(MessageError::truncated);
  if (type != static_cast<std::uint8_t>(type_of(out))) return refused(MessageError::bad_type);
  fields(reader, out);
  MessageError error = reader.finish();
  if (error == MessageError::none) error = check(out);
  return error == MessageError::none ? Status::ok_status() : refused(error);
}

}  // namespace

std::optional<MessageType> peek_type(std::span<const std::byte> payload) noexcept {
  if (payload.empty()) return std::nullopt;
  const auto raw = static_cast<std::uint8_t>(payload[0]);
  if (raw < 1 || raw > static_cast<std::uint8_t>(MessageType::turn)) return std::nullopt;
  return static_cast<MessageType>(raw);
}

const char* name(MessageType type) noexcept {
  switch (type) {
    case MessageType::keepalive:
      return "KEEPALIVE";
    case MessageType::agent_up:
      return "AGENT_UP";
    case MessageType::agent_down:
      return "AGENT_DOWN";
    case MessageType::offer:
      return "OFFER";
    case MessageType::tokens:
      return "TOKENS";
    case MessageType::accept:
      return "ACCEPT";
    case MessageType::later:
      return "LATER";
    case MessageType::reject:
      return "REJECT";
    case MessageType::done:
      return "DONE";
    case MessageType::cancel:
      return "CANCEL";
    case MessageType::query:
      return "QUERY";
    case MessageType::outcome:
      return "OUTCOME";
    case MessageType::fetch:
      return "FETCH";
    case MessageType::state:
      return "STATE";
    case MessageType::summary:
      return "SUMMARY";
    case MessageType::encodings:
      return "ENCODINGS";
    case MessageType::eager:
      return "EAGER";
    case MessageType::workflow:
      return "WORKFLOW";
    case MessageType::task:
      return "TASK";
    case MessageType::turn:
      return "TURN";
  }
  return "?";
}

#define KVRAIL_WIRE_MESSAGE(Type)                                              \
  std::size_t encode(const Type& message, std::span<std::byte> out) noexcept { \
    return encode_any(message, out);                                           \
  }                                                                            \
  Status decode(std::span<const std::byte> payload, Type& out) noexcept {      \
    return decode_any(payload, out);                                           \
  }

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

}  // namespace kvrail::transport::wire
