// One transfer as each side keeps it, and which moves between its states are legal. A move that the
// tables don't allow is a programmer error and asserts: no message of a peer can cause one, because
// handlers look at the state first and count what doesn't fit it as late.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "codec/extract.h"
#include "codec/sparse.h"
#include "engine/core/agent_port.h"
#include "engine/core/range_set.h"
#include "engine/store/store.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "scheduler/medium_choice.h"
#include "scheduler/scheduler.h"
#include "transport/payload.h"
#include "transport/wire/messages.h"

namespace kvrail::engine {

namespace wire = transport::wire;

inline constexpr std::uint32_t kNoIndex = 0xffffffffU;
struct OpenReservation;
inline constexpr std::size_t kMaxMissingRanges = 64;   // as many as an ACCEPT holds

// ---- the sender's side -----------------------------------------------------------------------------

enum class OutState : std::uint8_t {
  parked,       // another transfer brings the same version to the same node: ours then moves nothing
  offering,     // OFFER, TOKENS, EAGER are being posted, or wait for a lane
  offered,      // waiting for ACCEPT, LATER, REJECT or DONE
  waiting,      // LATER: the receiver was full, the offer is repeated at a time
  summarising,  // the agent was asked for a summary, or it is on its way
  sending,      // payload is prepared and posted
  finishing,    // every byte was acknowledged (or none is needed); waiting for DONE
  querying,     // QUERY posted or to be posted; waiting for OUTCOME
  draining,     // ended: waits for chunks in flight and for its CANCEL to be posted
  restoring,    // the version's blocks, or finer planes of them, are on their way here; then it is parked or offered
};
inline constexpr std::size_t kOutStates = 10;

[[nodiscard]] constexpr std::uint32_t bit(OutState s) noexcept {
  return 1U << static_cast<unsigned>(s);
}
[[nodiscard]] constexpr bool may_move(OutState from, OutState to) noexcept {
  using enum OutState;
  constexpr std::array<std::uint32_t, kOutStates> kTable{
      /* parked      */ bit(offering) | bit(draining),
      /* offering    */ bit(offered) | bit(finishing) | bit(querying) | bit(draining),
      /* offered     */ bit(offering) | bit(waiting) | bit(summarising) | bit(sending) | bit(finishing) |
          bit(querying) | bit(draining),
      /* waiting     */ bit(offering) | bit(draining),
      /* summarising */ bit(offering) | bit(finishing) | bit(querying) | bit(draining),
      /* sending     */ bit(offering) | bit(finishing) | bit(querying) | bit(draining),
      /* finishing   */ bit(offering) | bit(sending) | bit(querying) | bit(draining),
      /* querying    */ bit(offering) | bit(offered) | bit(summarising) | bit(sending) | bit(finishing) |
          bit(draining),
      /* draining    */ 0,
      /* restoring   */ bit(draining),
  };
  return (kTable[static_cast<std::size_t>(from)] & bit(to)) != 0;
}

struct ByteSpan {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The arrays behind a transport::Payload, from the node's scratch memory.
struct PayloadArrays {
  std::span<transport::Piece> pieces;
  std::span<std::uint64_t> starts;
  std::span<std::uint32_t> first_unit;
  std::span<std::uint64_t> digests;     // sender with integrity only
  transport::Payload payload;           // views over the above, once all are filled in
  std::uint64_t built_runs = 0, built_pieces = 0, built_bytes = 0;  // how far build_payload() has come
  std::uint32_t built_units = 0;
};

// topk, at its sender: rows of the tokens that are kept, gathered into blocks of their own. Scratch memory,
// and a staging.
struct GatherWork {
  codec::TopkChoice choice;
  std::span<std::uint32_t> places;      // of every token; in front, in the end, the positions that are kept
  bool chosen = false, staged = false, ready = false;
  StagingHandle staging;
  std::uint64_t at = 0;                 // n-th (block, layer)
};

// A summary that the engine makes, while it does; all of it scratch memory.
struct ExtractWork {
  codec::Extractor extractor;
  std::span<codec::TextSpan> spans;
  std::span<TokenId> ids;
  TimeNs spent_ns = 0;
  [[nodiscard]] bool open() const noexcept { return !spans.empty(); }
};

struct Restore;
struct Fetch;

struct Outgoing {
  TransferId id = 0;
  AgentHandle from;                     // invalid once the agent is gone: no events then
  TicketId ticket = 0;                  // 0: answers a FETCH, no event is due
  std::uint64_t fetch_id = 0;
  std::uint16_t receiver = 0;           // index in the receiver list of the send
  Name tenant, from_name, to_name, context;
  TaskId task = 0;
  VersionHandle version;                // pinned while this exists
  std::uint64_t version_number = 0;
  std::uint32_t peer = kNoIndex;        // index in the peer table; its transfers end with it
  std::uint32_t lane = kNoIndex;        // where frames and chunks go; none: waiting for one
  OutState state = OutState::offering;
  Handle<Restore> restore;              // that it waits for, or has waited for
  Handle<Fetch> refresh;                // likewise

  bool critical = false, background = false;
  Handle<OpenReservation> reservation;  // or none; may have ended
  Medium wish = Medium::automatic;
  bool wish_is_policy = false;          // the node's, not the caller's
  std::uint32_t fidelity_floor_ppm = 0;
  std::uint16_t weight = 2;
  std::uint16_t criticality_milli = 1000;  // within its task
  TimeNs urgent_by_ns = 0;              // its share of the task's deadline; 0: none
  TimeNs submitted_ns = 0;
  TimeNs deadline_ns = 0;               // 0: none
  TimeNs give_up_ns = 0;                // accepted by then, or timed out
  TimeNs state_due_ns = kNever;         // the state's own timer; the deadline is checked beside it
  TimeNs retry_ns = 0;                  // back-off of the present question
  TimeNs accepted_ns = 0;
  TimeNs query_since_ns = 0;
  std::uint32_t laters = 0;             // in a row
  std::uint32_t reoffers = 0;           // after an OUTCOME of unknown

  // The offer.
  MediumMask excluded = 0;              // media that turned out to be impossible here
  std::uint64_t base_tokens = 0;
  bool base_refused = false;
  bool eager = false;
  bool eager_failed = false;            // it was asked for by ACCEPT all the same
  bool offer_posted = false, eager_posted = false;
  std::uint64_t tokens_posted = 0;      // ids posted, base included
  std::uint32_t candidate_count = 0;
  std::array<scheduler::CandidateCost, scheduler::kMaxCandidates> candidates;

  // The answer.
  Medium medium = Medium::automatic;
  Coding coding;                        // of a coded medium, with the sizes that were offered
  std::uint32_t rows = 0;               // topk: tokens that are kept
  bool raw_values = false;              // of topk and window: their rows could not be coded
  std::span<GatherWork> gather;         // topk, one of it
  transport::LeaseId lease;
  std::uint32_t tail_from_row = 0;
  std::size_t first_plane = 0;
  Hash128 encodings;                    // of the planes that the receiver holds
  bool encodings_checked = false, whole_planes = false;
  bool tail_first = false;              // order of the stream
  std::uint32_t range_count = 0;
  std::array<wire::BlockRange, kMaxMissingRanges> ranges;
  std::uint64_t missing_blocks = 0;
  std::uint64_t predicted_ns = 0;

  // The bytes.
  PayloadArrays arrays;
  bool payload_built = false;
  std::uint64_t prepare_at = 0;         // n-th (layer, block) that digests or planes are made for
  std::uint64_t prepare_piece = 0;      // its first piece
  std::uint64_t planes_held = 0;        // coded media: as many of the missing blocks keep their planes for us
  std::uint64_t ready_bytes = 0;
  scheduler::FlowHandle flow;
  std::uint32_t span_count = 0, span_at = 0;   // what is (still) to be sent, in order
  std::array<ByteSpan, kMaxMissingRanges> spans;
  std::uint64_t posted_end = 0;         // of the present span
  std::uint32_t chunks_in_flight = 0;
  bool chunk_failed = false;
  bool restart_wanted = false;          // offered anew once no chunk is in flight
  std::uint64_t acknowledged_bytes = 0;
  bool resumed = false;
  bool outcome_pending = false;         // an OUTCOME that came while chunks were in flight
  const char* why_none = "";            // nothing can be offered; static text, for explain
  std::uint32_t level = 0;              // likewise
  std::uint8_t suspensions = 0;         // so far; its flow counts on
  std::uint64_t urgency_milli = 0;

  // Summary bytes, kept until DONE so that a lost lane doesn't cost another call-back.
  std::span<std::byte> summary;
  std::uint8_t summary_kind = 0;
  bool summary_asked = false, summary_ready = false, summary_posted = false;
  ExtractWork extract;                  // open: the engine makes it

  // The end.
  bool cut = false;                     // past its deadline; the receiver delivers the planes that it has
  bool cancel_wanted = false;
  Status cancel_status;
  Status status;

  // Transfers of the same version to the same node, waiting for this one.
  std::uint32_t next_follower = kNoIndex;
  bool leads = false;
};

// The medium that was picked can't be made of these rows: offered from now on without it, or, where only the code of
// a sparse medium's rows can't be made, with the rows as they are.
inline void rule_out_medium(Outgoing& out) noexcept {
  if (is_sparse(out.medium) && out.coding.coded()) {
    out.raw_values = true;
  } else {
    out.excluded |= mask_of(out.medium);
  }
}

// ---- the receiver's side ---------------------------------------------------------------------------

enum class InState : std::uint8_t {
  gathering,    // token ids are still to come
  deciding,     // they are here: what is held, what to pick, memory for it
  eager,        // everything is staged; the EAGER frame is to come
  receiving,    // lease exposed
  summary,      // accepted as summary, which is to come
  sealing,      // all bytes are here; the lease is being withdrawn
  decoding,     // planes to raw slots, then publication
  failing,      // ended badly; the lease is being withdrawn
  closing,      // the answer (DONE, REJECT, LATER) is to be posted, then all is gone
};
inline constexpr std::size_t kInStates = 9;

[[nodiscard]] constexpr std::uint32_t bit(InState s) noexcept {
  return 1U << static_cast<unsigned>(s);
}
[[nodiscard]] constexpr bool may_move(InState from, InState to) noexcept {
  using enum InState;
  constexpr std::array<std::uint32_t, kInStates> kTable{
      /* gathering */ bit(deciding) | bit(closing),
      /* deciding  */ bit(eager) | bit(receiving) | bit(summary) | bit(decoding) | bit(closing),
      /* eager     */ bit(deciding) | bit(decoding) | bit(closing),
      /* receiving */ bit(sealing) | bit(failing),
      /* summary   */ bit(closing),
      /* sealing   */ bit(decoding) | bit(failing) | bit(closing),
      /* decoding  */ bit(closing),
      /* failing   */ bit(closing),
      /* closing   */ 0,
  };
  return (kTable[static_cast<std::size_t>(from)] & bit(to)) != 0;
}

// What a transfer in `deciding` is at; each takes as many cycles as its blocks want.
enum class Decision : std::uint8_t {
  look,   // for what is held, and what the tier has
  restore,  // blocks come from the tier, which is quicker than their transfer; then it looks again
  stage,  // memory for what was picked
  plan,   // the pieces that bytes land in
};

enum class Answer : std::uint8_t { none, done, reject, later };

struct Split;

inline constexpr std::uint8_t kRestoresOfOffer = 3;  // a damaged block ends one; then the rest is sent

struct Incoming {
  TransferId id = 0;                    // of the peer's counting
  std::uint32_t peer = kNoIndex;
  std::uint32_t lane = kNoIndex;
  InState state = InState::gathering;
  AgentHandle to;
  std::uint32_t fetch = kNoIndex;       // index in the fetch table
  TenantHandle tenant_handle;
  Name tenant, from_name, to_name, context;
  TaskId task = 0;
  std::uint64_t version_number = 0;
  Layout layout;
  Hash128 tokenizer;
  std::uint32_t fidelity_floor_ppm = 0, source_epsilon_ppm = 0, epsilon_ppm = 0;
  std::uint16_t weight = 2, criticality_milli = 1000;
  std::uint32_t floor_ppm = 0;          // λ that the delivery has to keep, its lineage's included
  std::uint32_t held_limit_ppm = 0;     // what is held with more loss counts as missing
  bool floor_waived = false;            // nothing would have kept the lineage's
  bool refresh = false;                 // of planes for what is here: delivered to nobody
  bool critical = false, background = false, eager_announced = false;
  Medium wish = Medium::automatic;
  TimeNs submitted_ns = 0;              // by the sender's age, on our clock
  TimeNs deadline_ns = 0;
  TimeNs last_activity_ns = 0;
  TimeNs decided_ns = 0;                // when the medium was picked: predictions count from here
  std::uint64_t base_tokens = 0;

  std::span<TokenId> tokens;
  std::uint64_t tokens_here = 0;
  std::uint32_t candidate_count = 0;
  std::array<scheduler::CandidateCost, scheduler::kMaxWeighed> candidates;  // behind those offered may be a split

  Decision decision = Decision::look;
  Handle<Restore> restore;
  VersionHandle restored;               // what came from the tier, pinned until it is part of what is staged
  std::uint8_t restores = 0;
  bool pick_again = false;              // there was no memory; what is free counts now
  Store::HaveScan have;                 // of what is held as exactly as it is sent, or as lossy media would be
  std::array<std::uint32_t, 2> lossy_ppm{};  // ε that the least and the most lossy of these add
  scheduler::Pick pick;
  Medium medium = Medium::tokens;
  Coding coding;                        // the medium's, with the sizes that were offered
  std::uint32_t rows = 0;               // topk: tokens that are kept
  bool positions_taken = false;         // and where these are has been read
  bool tail_first = false;              // the order of its stream
  Handle<Split> split;                  // while the agent may compute the head of it
  std::uint64_t missing_blocks = 0;
  bool accept_wanted = false, outcome_wanted = false;
  bool superseded = false;              // cancelled, and offered anew under another id: no failure
  bool listed = true;                   // found by (peer, id); not any more once the peer restarted

  StagingHandle staging;
  std::uint32_t tail_from_row = 0, tail_block = 0;
  std::size_t first_plane = 0;          // planes before it are held
  bool whole_planes = false, shared = false;
  wire::LowRankCode lowrank;            // of the candidate lowrank
  std::uint32_t range_count = 0;
  std::array<wire::BlockRange, kMaxMissingRanges> ranges;
  PayloadArrays arrays;
  std::uint32_t lease_slot = kNoIndex;
  RangeSet received;
  RangeSet bad;                         // corrupt units, not received again yet
  std::uint32_t corrupt_units = 0;
  bool asked_again = false;
  std::uint64_t decode_at = 0;          // n-th (layer, block)
  std::uint64_t cut_at_bytes = 0;       // ended by its deadline with so many, delivered at the fidelity reached
  bool decode_failed = false;           // a run was no code, though its digest was right: the sender's fault
  bool resumed = false;
  std::uint64_t eager_bytes = 0, summary_bytes = 0, payload_bytes = 0;
  bool delivered = false;

  Answer answer = Answer::none;
  Status status;
  std::uint64_t retry_after_ns = 0;
  TimeNs observed_ns = 0;
  bool event_reserved = false;
};

// Who got it holds the KV under its hashes from then on; the delivery of some tokens only is terminal.
[[nodiscard]] constexpr bool stays_held(Medium medium) noexcept { return is_kv(medium) && !is_sparse(medium); }
[[nodiscard]] inline bool has_kv(std::span<const scheduler::CandidateCost> candidates) noexcept {
  return std::any_of(candidates.begin(), candidates.end(), [](const auto& c) { return is_kv(c.medium); });
}

}  // namespace kvrail::engine
