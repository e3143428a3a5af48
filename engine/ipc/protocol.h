// Bytes between an agent and its engine: the messages of the attach socket, and the records of the
// shared control memory. docs/ipc.md has the same as tables; the static_asserts below pin both.
//
// Every struct is plain, without padding, little-endian, and written whole, so that no uninitialised
// byte crosses the boundary. Whoever reads one copies it first and then validates the copy.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kvrail/base/bits.h"
#include "kvrail/base/shared_ring.h"
#include "kvrail/base/status.h"
#include "kvrail/types.h"
#include "scheduler/workflow.h"

namespace kvrail::engine::ipc {

inline constexpr std::uint32_t kMessageMagic = 0x5049564bU;  // "KVIP"
inline constexpr std::uint16_t kProtocolVersion = 1;         // newest this build speaks
inline constexpr std::uint16_t kProtocolOldest = 1;          // oldest it still understands

// ---- the attach socket (SOCK_SEQPACKET: one send is one message) ---------------------------------

// The bell of the other direction is a message on this socket and not a second eventfd: the agent
// could clear O_NONBLOCK on an eventfd that both hold, and a write to a full one would then stop the
// engine. A send with MSG_DONTWAIT never waits, and one descriptor tells of news and of death.
enum class MessageType : std::uint16_t {
  attach = 1,       // agent -> engine
  attached = 2,     // engine -> agent, with kAttachedFds descriptors
  refused = 3,      // engine -> agent: the answer to whatever could not be done, one line of text
  get_arena = 4,    // agent -> engine
  arena = 5,        // engine -> agent, with one read-only descriptor when ok
  get_status = 6,   // anyone the policy admits, attached or not
  status_page = 7,  // engine -> asker, with one read-only descriptor when ok
  import = 8,       // agent -> engine, with one descriptor
  imported = 9,     // engine -> agent
  detach = 10,      // agent -> engine
  detached = 11,    // engine -> agent, then the socket closes
  bell = 12,        // engine -> agent: completions were published while the agent slept
  goodbye = 13,     // engine -> agent: the engine drains, or the agent was dropped; status says why
};
inline constexpr std::uint16_t kMessageTypeCount = 14;

struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::uint16_t version = kProtocolVersion;
  MessageType type{};
  std::uint32_t bytes = 0;     // of the whole message, header included
  std::uint32_t sequence = 0;  // chosen by the asker, repeated in the answer
};
static_assert(sizeof(MessageHeader) == 16);

struct LayoutRecord {
  Hash128 model_id;
  std::uint32_t layers = 0, kv_heads = 0, head_dim = 0, block_tokens = 0;
  std::uint32_t dtype = 0;
  float rope_base = 0, rope_scale = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(LayoutRecord) == 48);

// Bits of AttachMessage::flags.
inline constexpr std::uint16_t kFlagAcceptsMask = 1;  // can use per-head bitmaps of the medium topk
inline constexpr std::uint16_t kKnownAttachFlags = kFlagAcceptsMask;

struct AttachMessage {
  MessageHeader header;
  std::uint16_t oldest_version = kProtocolOldest;
  std::uint16_t flags = 0;
  RoleWeight role = kRoleExecutor;
  std::uint16_t reserved = 0;
  MediumMask accepted = 0;
  std::uint32_t scratch_bytes = 0;  // 0: the engine's default
  std::uint64_t arena_bytes = 0;    // 0: the engine's default
  std::uint64_t summary_bytes = 0;  // size of a summary that it can make; 0: it makes none
  std::uint64_t summary_ns = 0;     // what one takes it
  Name agent;
  Name tenant;                      // a wish, empty for what the policy gives
  LayoutRecord layout;
  Hash128 tokenizer;
  ComputeProfile compute;
};
static_assert(sizeof(AttachMessage) == 16 + 40 + 64 + 64 + 48 + 16 + 32);

// Where the parts of the control memory lie. Offsets are multiples of 128.
struct ControlLayout {
  std::uint32_t bytes = 0;
  std::uint32_t shared_offset = 0;      // SharedWords
  std::uint32_t probe_offset = 0;       // ProbeRecord
  std::uint32_t submit_offset = 0;      // RingMemory + SubmitRecord[submit_capacity]
  std::uint32_t submit_capacity = 0;
  std::uint32_t completion_offset = 0;  // RingMemory + CompletionRecord[completion_capacity]
  std::uint32_t completion_capacity = 0;
  std::uint32_t scratch_offset = 0;
  std::uint32_t scratch_bytes = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(ControlLayout) == 40);

// Descriptors that come with ATTACHED, in this order.
enum class AttachedFd : std::uint8_t {
  control = 0,  // sealed memfd, read-write: the parts above
  arena = 1,    // sealed memfd, read-write: the agent's own blocks
  receive = 2,  // read-only: where the tenant's deliveries and manifests lie
  submit = 3,   // eventfd that the agent writes when the engine has parked; the engine never reads it
};
inline constexpr std::size_t kAttachedFds = 4;

struct AttachedMessage {
  MessageHeader header;
  std::uint64_t agent = 0;        // packed AgentHandle, for people and logs
  std::uint64_t node = 0;         // NodeId
  std::uint64_t incarnation = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t receive_bytes = 0;
  std::uint32_t arena_id = 0;
  std::uint32_t receive_id = 0;
  ControlLayout control;
  Name tenant;
};
static_assert(sizeof(AttachedMessage) == 16 + 48 + 40 + 64);

inline constexpr std::size_t kRefusalTextBytes = 232;
struct RefusedMessage {
  MessageHeader header;
  Status status;
  std::array<char, kRefusalTextBytes> text{};  // zero-terminated
};
static_assert(sizeof(RefusedMessage) == 256);

struct GetArenaMessage {
  MessageHeader header;
  std::uint32_t arena_id = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(GetArenaMessage) == 24);

// Absent and forbidden arenas give the same not_found, without a descriptor.
struct ArenaMessage {
  MessageHeader header;
  Status status;
  std::uint32_t arena_id = 0;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(ArenaMessage) == 40);

struct StatusPageMessage {
  MessageHeader header;
  Status status;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(StatusPageMessage) == 32);

struct ImportMessage {
  MessageHeader header;
  std::uint64_t offset = 0;  // in the descriptor's file, a multiple of 4,096
  std::uint64_t bytes = 0;   // whole block slots
};
static_assert(sizeof(ImportMessage) == 32);

struct ImportedMessage {
  MessageHeader header;
  Status status;
  std::uint32_t arena_id = 0;
  std::uint32_t count = 0;   // block slots
  std::uint64_t offset = 0;  // of the first slot in that arena
};
static_assert(sizeof(ImportedMessage) == 40);

// get_status, detach, detached and bell are a bare header; goodbye carries a status.
struct GoodbyeMessage {
  MessageHeader header;
  Status status;
};
static_assert(sizeof(GoodbyeMessage) == 24);

inline constexpr std::size_t kMaxMessageBytes = sizeof(AttachMessage);
static_assert(kMaxMessageBytes >= sizeof(RefusedMessage));
static_assert(kMaxMessageBytes >= sizeof(AttachedMessage));

// ---- the control memory --------------------------------------------------------------------------

enum class Command : std::uint16_t {
  allocate = 1,      // count = blocks                                             -> allocated
  free_blocks = 2,   // extent in (arena, offset, count)
  commit = 3,        // name; payload = count extents, then tokens; a = prefix      -> committed
  send = 4,          // name; payload = count names; a = version, options           -> sent, each
  fetch = 5,         // name = context; payload = 1 name (owner); a = version       -> fetched
  cancel = 6,        // ticket = what to cancel
  release = 7,       // a = delivery, b = recompute_ns
  drop_context = 8,  // name
  summary = 9,       // a = request, kind, payload = bytes
  begin_task = 10,   // name = workflow, b = deadline_ns                            -> task
  end_task = 11,     // a = task
  set_importance = 12,  // name; a = version, d = first token; payload = count floats
  claim = 13,        // a = delivery (split), count = most tokens                    -> claimed
  reserve = 14,      // name = receiver; a = bytes, b = period_ns, c = offset_ns     -> reserved
  unreserve = 15,    // a = reservation
  will_need = 16,    // name; payload = 1 name (owner); b = ns from now, d = probability in ppm
  describe_workflow = 17,  // name = workflow; count = steps; payload = these, then hand-overs
};
inline constexpr std::uint16_t kCommandCount = 18;

// Bits of SubmitRecord::flags.
inline constexpr std::uint16_t kFlagAnswer = 1;      // report the command's own status as well
inline constexpr std::uint16_t kFlagCritical = 2;    // send, fetch
inline constexpr std::uint16_t kFlagBackground = 4;  // send, fetch
inline constexpr std::uint16_t kKnownSubmitFlags = kFlagAnswer | kFlagCritical | kFlagBackground;

struct SubmitRecord {
  Command command{};
  std::uint16_t flags = 0;
  std::uint32_t count = 0;
  std::uint64_t ticket = 0;           // never 0 where an event or an answer is to come
  std::uint32_t payload_offset = 0;   // in the scratch area
  std::uint32_t payload_bytes = 0;
  std::int64_t submitted_ns = 0;      // CLOCK_MONOTONIC; deadlines run from here
  std::uint64_t a = 0;
  std::int64_t b = 0;                 // send, fetch, begin_task: deadline_ns, 0 = none
  std::uint64_t c = 0;                // send, fetch: task; free_blocks: offset
  std::uint8_t medium = 0;            // send, fetch: wish
  std::uint8_t kind = 0;              // summary
  std::uint16_t reservation = 0;      // send: by which, 0: none; else 0
  std::uint32_t d = 0;                // send, fetch: fidelity floor in ppm; free_blocks: arena; commit: first block;
                                      // set_importance: first token
  Name name;
};
static_assert(sizeof(SubmitRecord) == 128 && alignof(SubmitRecord) == 8);
static_assert(offsetof(SubmitRecord, ticket) == 8 && offsetof(SubmitRecord, submitted_ns) == 24);
static_assert(offsetof(SubmitRecord, a) == 32 && offsetof(SubmitRecord, medium) == 56);
static_assert(offsetof(SubmitRecord, name) == 64);

struct ExtentRecord {
  std::uint32_t arena = 0;
  std::uint32_t count = 0;
  std::uint64_t offset = 0;
};
static_assert(sizeof(ExtentRecord) == 16);

// Of describe_workflow. An agent has as many steps as it has turns.
struct WorkflowStepRecord {
  Name agent;
  std::int64_t duration_ns = 0;       // 0: not known
};
static_assert(sizeof(WorkflowStepRecord) == 72);
struct WorkflowEdgeRecord {
  std::uint8_t from = 0, to = 0;      // indices of steps
};
static_assert(sizeof(WorkflowEdgeRecord) == 2);
inline constexpr std::uint32_t kMaxWorkflowSteps = scheduler::WorkflowGraph::kMostSteps;
inline constexpr std::uint32_t kMaxWorkflowEdges = scheduler::WorkflowGraph::kMostEdges;

enum class CompletionKind : std::uint8_t {
  answer = 0,  // a command was refused, or was done and asked for an answer; `command` says which
  allocated = 1,
  committed = 2,
  sent = 3,
  delivery = 4,
  fetched = 5,
  summary_request = 6,
  task = 7,
  imported = 8,
  reserved = 10,  // transfer = reservation; also when refused: bytes = needed, missing_blocks = available,
                  // version_number = half of the lane, bytes/s
  reservation_ended = 11,  // transfer = reservation, status = why
  claimed = 9,  // delivery 0: offset = first token, count = tokens to compute; else as delivery, the tail is there
};

// What a sleeping agent waits for, as kinds of the completion ring (kvrail/base/shared_ring.h). Outcomes
// and deliveries that it does not wait for are there when it looks next; waking it for each would double
// the wake-ups of agents that talk in turns.
inline constexpr std::uint32_t kWakeOutcome = 1;
inline constexpr std::uint32_t kWakeDelivery = 2;
inline constexpr std::uint32_t kWakeReply = 4;     // answers, and what asks for one; always waited for
[[nodiscard]] constexpr std::uint32_t wake_kind(CompletionKind kind) noexcept {
  switch (kind) {
    case CompletionKind::sent:
    case CompletionKind::fetched: return kWakeOutcome;
    case CompletionKind::delivery: return kWakeDelivery;
    default: return kWakeReply;
  }
}
inline constexpr std::uint8_t kCompletionKindCount = 12;

inline constexpr std::uint8_t kCompletionCritical = 1;  // bit of CompletionRecord::flags

struct CompletionRecord {
  CompletionKind kind{};
  std::uint8_t medium = 0;
  std::uint8_t flags = 0;
  std::uint8_t command = 0;       // answer: the Command
  std::uint16_t receiver = 0;
  std::uint16_t reserved = 0;
  Status status;
  std::uint64_t ticket = 0;
  std::uint64_t task = 0;
  std::uint64_t transfer = 0;     // summary_request: the request
  std::uint32_t arena = 0;        // of the extent or the manifest
  std::uint32_t count = 0;        // of the extent
  std::uint64_t offset = 0;       // of the extent or the manifest
  std::uint64_t manifest_bytes = 0;
  std::uint64_t version = 0;      // packed VersionHandle
  std::uint64_t version_number = 0;
  std::uint64_t delivery = 0;     // packed DeliveryHandle
  std::uint64_t bytes = 0;
  std::uint64_t missing_blocks = 0;
  std::int64_t predicted_ns = 0;
  std::int64_t observed_ns = 0;
  std::uint64_t reserved2 = 0;
};
static_assert(sizeof(CompletionRecord) == 128 && alignof(CompletionRecord) == 8);
static_assert(offsetof(CompletionRecord, status) == 8 && offsetof(CompletionRecord, arena) == 40);
static_assert(offsetof(CompletionRecord, delivery) == 80);

// Words beside the rings. `processed` lets the agent reuse scratch; it counts every submit record
// that the engine is through with, its payload included. The engine writes it and never reads it.
struct SharedWords {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> processed;
  // The agent found ring or scratch full and sleeps: the engine takes the flag and rings the bell.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> room_wanted;
  // The engine has completions that found the ring full, and sleeps: the agent, having emptied the
  // ring, takes the flag and signals the submit eventfd.
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> reading_wanted;
};
static_assert(sizeof(SharedWords) == 3 * kCacheLineBytes);

// What the agent says of itself (design: Probe). A seqlock: sequence is odd while the agent writes.
// Words are relaxed atomics, so a torn read is a wrong number for one cycle and never undefined.
inline constexpr std::size_t kProbeWords = 15;
struct ProbeRecord {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> sequence;
  std::array<std::atomic<std::uint64_t>, kProbeWords> words;
};
static_assert(sizeof(ProbeRecord) == 2 * kCacheLineBytes);
enum class ProbeWord : std::uint8_t {
  updated_ns = 0,      // CLOCK_MONOTONIC
  queue_length = 1,
  cache_bytes = 2,
  compute_load_ppm = 3,
  idle_until_ns = 4,
  prefill_fixed_ns = 5,
  prefill_per_token_ns = 6,
  prefill_quadratic_ns_q20 = 7,
  decode_per_token_ns = 8,
  accepted = 9,        // MediumMask
  tokenizer_low = 10,
  tokenizer_high = 11,
  copied_bytes = 12,   // bytes that imports had to copy
  backlog_ns = 13,     // work that waits in the agent, as time of its compute
};

// ---- limits --------------------------------------------------------------------------------------

inline constexpr std::uint32_t kSubmitCapacity = 256;
inline constexpr std::uint32_t kCompletionCapacity = 1024;
inline constexpr std::uint32_t kDefaultScratchBytes = 1U << 20;
inline constexpr std::uint32_t kMinScratchBytes = 64U << 10;
inline constexpr std::uint32_t kMaxScratchBytes = 16U << 20;
inline constexpr std::uint32_t kMaxReceivers = 64;          // of one send
inline constexpr std::uint32_t kMaxExtents = 1U << 16;      // of one commit
inline constexpr std::uint32_t kMaxSummaryBytes = 1U << 20;
static_assert(is_power_of_two(kSubmitCapacity) && is_power_of_two(kCompletionCapacity));

static_assert(std::is_trivially_copyable_v<AttachMessage> &&
              std::is_trivially_copyable_v<AttachedMessage> &&
              std::is_trivially_copyable_v<RefusedMessage> &&
              std::is_trivially_copyable_v<SubmitRecord> &&
              std::is_trivially_copyable_v<CompletionRecord>);
static_assert(std::has_unique_object_representations_v<CompletionRecord> &&
              std::has_unique_object_representations_v<SubmitRecord>,
              "padding would carry bytes of one process into another");

}  // namespace kvrail::engine::ipc
