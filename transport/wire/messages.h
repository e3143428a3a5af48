// The control messages that engines exchange in lane frames (docs/wire.md has the byte tables).
// Structs here are decoded, host-order values. Spans point into the frame they were decoded from,
// or, for encoding, into memory of the caller; nothing allocates.
//
// Life of a transfer: OFFER (+ TOKENS) -> ACCEPT | LATER | REJECT -> chunks -> DONE. The offer
// carries the token ids, so the receiver computes block hashes itself (a sender can't lie about
// meaning), and the medium `tokens` is complete with the offer. A lost DONE is resolved by QUERY ->
// OUTCOME, which also tells what is still missing, so it serves for resuming after a lane loss.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvrail/base/status.h"
#include "kvrail/types.h"
#include "transport/transport.h"

namespace kvrail::transport::wire {

enum class MessageType : std::uint8_t {
  keepalive = 1,
  agent_up = 2,
  agent_down = 3,
  offer = 4,
  tokens = 5,
  accept = 6,
  later = 7,
  reject = 8,
  done = 9,
  cancel = 10,
  query = 11,
  outcome = 12,
  fetch = 13,
  state = 14,
  summary = 15,
  encodings = 16,
  eager = 17,
  workflow = 18,
  task = 19,
  turn = 20,
};

inline constexpr std::size_t kMaxCandidates = 8;
inline constexpr std::uint8_t kMaxPlanes = 3;  // of a coded medium
inline constexpr std::size_t kMaxRanges = 1024;       // of blocks or bytes in one message
inline constexpr std::uint64_t kMaxContextTokens = std::uint64_t{1} << 24;
inline constexpr std::uint32_t kMaxEagerBytes = 16 * 1024;
inline constexpr std::size_t kMaxWorkflowSteps = 64;
inline constexpr std::size_t kMaxWorkflowEdges = 256;

struct Keepalive {
  std::uint64_t sequence = 0;
};

// How rows are coded as lowrank: in the basis of that id, components having the bits that gain at least the
// threshold of that index (docs/codecs.md). Who has not just this can't read what it made. Basis 0: not at all.
struct LowRankCode {
  Hash128 basis;
  std::uint16_t theta = 0;
  friend bool operator==(const LowRankCode&, const LowRankCode&) noexcept = default;
};

// An agent of the sending node exists (sent for each when a lane comes up, and at attach).
struct AgentUp {
  Name tenant;
  Name agent;
  RoleWeight role = kRoleExecutor;
  MediumMask accepted = 0;      // media that the agent can receive
  Hash128 tokenizer;            // equal tokenizers may exchange tokens
  Layout layout;
  ComputeProfile compute;
  LowRankCode lowrank;          // that this node can read for the Layout
};
struct AgentDown {
  Name tenant;
  Name agent;
};

// What sending by one medium would take, as far as the sender knows. The receiver knows which
// blocks it lacks and adds its own costs: bytes = fixed + per_block * missing full blocks + tail.
struct Candidate {
  Medium medium = Medium::tokens;
  std::uint64_t fixed_bytes = 0;
  std::uint64_t block_bytes = 0;      // of one full block
  std::uint64_t tail_bytes = 0;       // of the partial tail block
  std::uint64_t wait_ns = 0;          // from the pick until the first byte arrives: backlog of the
                                      // lane, a round trip, callback; 0 for what came with the offer
  std::uint64_t encode_ns_per_block = 0;
  std::uint64_t rate_bytes_per_s = 0; // planning rate of the sender's lane
  std::uint64_t price_ns = 0;         // price of the sender's resources for the whole context
  std::uint32_t epsilon_ppm = 0;      // loss that this medium adds, in millionths
  Medium values = Medium::full;       // topk, window: what their rows are coded as; blocks and tail are of these
  std::uint32_t rows = 0;             // topk, window: of how many tokens
  std::uint16_t first_blocks = 0;     // int4: so many at either end of the context come as int8
  std::uint16_t last_blocks = 0;
};

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// Token ids travel as little-endian u32 in the frame (token_bytes); never assume alignment.
struct Offer {
  TransferId transfer = 0;
  TaskId task = 0;
  std::uint64_t fetch_id = 0;        // non-zero: answers that FETCH
  Name tenant;
  Name from_agent;
  Name to_agent;
  Name context;
  std::uint64_t version = 0;         // sender's version number of the context
  Layout layout;
  Hash128 tokenizer;
  std::uint64_t total_tokens = 0;    // of the whole context
  std::uint64_t base_tokens = 0;     // the receiver is believed to hold this many (multiple of T)
  Hash128 base_hash;                 // block hash at base_tokens; a receiver without it says
                                     // REJECT base_gone (Code::not_found), the sender offers from 0
  std::uint64_t remaining_ns = 0;    // until the deadline, 0 = none
  std::uint64_t age_ns = 0;          // since submit, when it arrives: latency counts from there
  std::uint32_t fidelity_floor_ppm = 0;   // lowest λ allowed, millionths; 0 = no floor
  std::uint32_t epsilon_ppm = 0;     // loss already in the source
  std::uint16_t weight = 2;          // role_i + role_j
  std::uint16_t criticality_milli = 1000;  // of the hand-over within its task's workflow, 1 to 1000
  bool critical = false;
  bool background = false;
  Medium wish = Medium::automatic;   // forced by the caller when not automatic
  bool eager = false;                // an EAGER frame follows the last token ids
  bool shared = false;               // others of the same node wait for what this one brings
  bool whole_planes = false;         // what the receiver holds is of another encoding: it must not build on it
  LowRankCode lowrank;               // of the candidate lowrank
  std::uint32_t token_count_here = 0;     // ids in this frame, starting at base_tokens
  std::uint8_t candidate_count = 0;
  std::array<Candidate, kMaxCandidates> candidates;
  std::span<const std::byte> token_bytes;  // 4 * token_count_here bytes
};

// More token ids of an offer too large for one frame; in order, before anything else of it.
struct Tokens {
  TransferId transfer = 0;
  std::uint64_t first = 0;
  std::span<const std::byte> token_bytes;
};

// A whole small transfer in one or two frames: OFFER with candidate full, then EAGER with its bytes.
struct Eager {
  TransferId transfer = 0;
  std::uint64_t digest = 0;          // XXH3-64 of bytes, 0 with integrity off
  std::span<const std::byte> bytes;  // valid rows of the blocks from base on, stream order
};

struct Accept {
  TransferId transfer = 0;
  Medium medium = Medium::tokens;
  LeaseId lease;                     // unused by tokens, summary, reference
  std::uint64_t lease_remaining_ns = 0;
  std::uint64_t predicted_ns = 0;    // from submit to usable, by the receiver's model
  std::uint32_t tail_from_row = 0;   // rows of the tail block held already (full medium only)
  std::uint8_t first_plane = 0;      // coded media: planes before it are held, of these encodings:
  Hash128 encodings;                 // digest over the encoding ids of the missing blocks, zero if none is held
  bool tail_first = false;           // order of the stream: block after block from the last one down
  std::uint32_t range_count = 0;
  std::array<BlockRange, 64> missing; // blocks to send, ascending; more holes than fit are merged
};

struct Later {
  TransferId transfer = 0;
  std::uint64_t retry_after_ns = 0;
  std::uint64_t bytes_free = 0;
};
struct Reject {
  TransferId transfer = 0;   // or 0 with fetch_id
  std::uint64_t fetch_id = 0;
  Status status;
};
struct Done {
  TransferId transfer = 0;
  Status status;
  Medium medium = Medium::tokens;
  std::uint64_t bytes = 0;        // payload bytes received
  std::uint64_t observed_ns = 0;  // from submit to usable, recompute excluded until known
};
struct Cancel {
  TransferId transfer = 0;
  Status status;
};
struct Query {
  TransferId transfer = 0;
  Incarnation incarnation = 0;    // of the querying node: transfers of an older life are unknown
};
enum class TransferState : std::uint8_t { unknown = 0, offered = 1, receiving = 2, ended = 3 };
struct Outcome {
  TransferId transfer = 0;
  TransferState state = TransferState::unknown;
  Status status;                  // of an ended one
  LeaseId lease;                  // of a receiving one
  std::uint32_t range_count = 0;
  std::array<ByteRange, 64> missing;
};

// The receiver asks: send me that agent's context (owner answers with an OFFER or a REJECT).
struct Fetch {
  std::uint64_t fetch_id = 0;
  TaskId task = 0;
  Name tenant;
  Name requester;
  Name owner;
  Name context;
  std::uint64_t version = 0;      // 0 = newest
  std::uint64_t remaining_ns = 0;
  std::uint32_t fidelity_floor_ppm = 0;
  bool critical = false;
  bool background = false;
  Medium wish = Medium::automatic;
};

// Once per slice to peers with open transfers.
struct State {
  std::uint64_t receive_bytes_free = 0;
  std::uint64_t receive_bytes_total = 0;
  std::uint64_t nic_backlog_ns = 0;
  std::uint64_t nic_price_ppm = 0;     // λ̂·V of the NIC, ns of delay to others per ns of use, ppm
  std::uint64_t compute_price_ppm = 0;
};

struct Summary {
  TransferId transfer = 0;
  std::uint8_t kind = 0;               // 0 text (UTF-8), 1 token ids (u32), 2 vector (f32)
  std::span<const std::byte> bytes;
};

// Encoding ids of the blocks of a lossy transfer, in stream order; sent before DONE can be.
struct Encodings {
  TransferId transfer = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::span<const std::byte> ids;      // 16 * count bytes
};

// Who hands over to whom in a workflow of that tenant: what its agents have said of it. Sent before the first TASK of it.
struct Workflow {
  struct Step {
    Name agent;
    std::uint64_t duration_ns = 0;     // 0: not known
  };
  struct Edge {
    std::uint8_t from = 0, to = 0;     // indices of steps
  };
  Name tenant;
  Name workflow;
  std::uint8_t step_count = 0;
  std::uint32_t edge_count = 0;
  std::array<Step, kMaxWorkflowSteps> steps;
  std::array<Edge, kMaxWorkflowEdges> edges;
};

// What a task's id stands for; sent before the first OFFER or FETCH that names it. The node that hears it says it on.
struct TaskNotice {
  TaskId task = 0;
  Name tenant;
  Name workflow;
  std::uint64_t remaining_ns = 0;      // until its deadline, 0 = none
};

// An agent of the receiving node will probably have its turn in a task of that workflow: a hint, never answered.
struct TurnNotice {
  Name tenant;
  Name workflow;
  Name agent;
  std::uint64_t in_ns = 0;             // the earliest that is likely
  std::uint64_t spread_ns = 0;         // by which it may be later
  std::uint32_t probability_ppm = 0;
};

}  // namespace kvrail::transport::wire
