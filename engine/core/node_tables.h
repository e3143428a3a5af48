// What a node keeps of agents, peers, lanes and requests: the rows of its tables and their keys.
// Private to engine/core. Thread: the scheduler worker.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>

#include "engine/core/flat_map.h"
#include "engine/core/node.h"
#include "engine/core/transfer.h"
#include "kvrail/base/prng.h"
#include "scheduler/arbiter.h"
#include "scheduler/medium_choice.h"
#include "scheduler/prefetch.h"
#include "transport/transport.h"
#include "transport/wire/codec.h"

namespace kvrail::engine {

using OutHandle = Handle<Outgoing>;
using InHandle = Handle<Incoming>;
using transport::Event;
using transport::LaneId;

inline constexpr std::uint32_t kMaxTransports = 8;
inline constexpr std::int32_t kOfferedAnew = 2;    // CANCEL: the same transfer comes under another id
inline constexpr std::int32_t kBaseGone = 1;       // REJECT not_found: offer again from token 0

struct LocalAgent {
  AgentInfo info;
  TenantHandle tenant;
  bool leaving = false;               // detached; stays until peers have been told
  std::uint64_t up_pending = 0;       // peers (bit per index) that have not been sent AGENT_UP
  std::uint64_t down_pending = 0;
  TimeNs compute_backlog_ns = 0, idle_until_ns = 0;
  scheduler::PriceMeter compute_price;
  std::uint32_t event_head = kNoIndex, event_tail = kNoIndex;  // waiting for the agent's ring
  std::uint32_t events = 0, reserved = 0;
  std::uint64_t sends = 0, deliveries = 0;
  CommitHandle commit;                // under way
  TicketId commit_ticket = 0;
};

struct RemoteAgent {
  Name tenant, name;
  std::uint32_t peer = kNoIndex;
  RoleWeight role = kRoleExecutor;
  MediumMask accepted = 0;
  Hash128 tokenizer;
  Layout layout;
  ComputeProfile compute;
  wire::LowRankCode lowrank;          // that its node can read for its Layout
  TimeNs confirmed_ns = 0;            // last AGENT_UP
};

struct Peer {
  NodeId id = 0;
  Incarnation incarnation = 0;
  bool alive = false;
  TimeNs last_heard_ns = 0;
  std::uint64_t lanes = 0;            // bit per lane index
  bool state_known = false;
  TimeNs state_at_ns = 0;
  wire::State state;
  TimeNs state_sent_ns = 0;
  std::uint32_t open = 0;             // transfers, both directions
  scheduler::PriceMeter others_price{scheduler::Demand::elastic}; // of our receiving side, by what other peers send to us
  TimeNs connected_ns = 0;            // agents not announced again since are dropped after a while
  bool confirming = false;
};

struct Lane {
  std::uint32_t transport = 0;
  LaneId id;
  std::uint32_t peer = kNoIndex;
  std::uint32_t dial = kNoIndex;      // we opened it
  bool closing = false;               // closed by us, its lane_down is to come
  std::uint64_t serial = 0;           // the order in which lanes came up
  TimeNs last_heard_ns = 0, last_sent_ns = 0;
  std::uint64_t keepalives = 0;
};

struct Dial {
  std::string address;
  std::uint32_t transport = 0;
  NodeId peer = 0;                    // known after the first success
  LaneId lane;                        // opening, or open
  bool opening = false;
  TimeNs backoff_ns = 0;
};

// How a dial stands, for the Conductor to read at any time: why the last try failed, or kDialUp, or ok with
// detail 0 before the first try. Relaxed: nothing else is published by it. A Status is aligned to 4 bytes, and
// clang would call libatomic for it; so its bytes are kept as one word.
class DialState {
 public:
  void store(Status state) noexcept { word_.store(std::bit_cast<std::uint64_t>(state), std::memory_order_relaxed); }
  [[nodiscard]] Status load() const noexcept { return std::bit_cast<Status>(word_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::uint64_t> word_{std::bit_cast<std::uint64_t>(Status{})};
};
inline constexpr Status kDialUp{Code::ok, Scope::transfer, 1};

struct Chunk {
  OutHandle out;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t lane = 0;
};

// Receive memory's name on the wire; the same slot on every transport.
struct LeaseSlot {
  std::uint32_t generation = 1;
  InHandle in;                        // invalid: free
  std::uint32_t exposed = 0;          // bit per transport
  std::uint32_t withdrawing = 0;
  std::uint64_t bytes = 0;
  std::uint64_t announced = 0;        // of these, still to come through our interface (inflow_)
  scheduler::LeaseHandle granted;     // in the arbiter's ledger
  std::uint32_t next_free = kNoIndex;
};

struct Ended {                        // what a DONE said, for those who did not hear it
  Status status;
  Medium medium = Medium::tokens;
  std::uint64_t bytes = 0;
  std::uint64_t observed_ns = 0;
  TimeNs at_ns = 0;
};
struct TransferKey {                  // of a peer's counting
  std::uint32_t peer = 0;
  TransferId id = 0;
  friend bool operator==(const TransferKey&, const TransferKey&) noexcept = default;
};
struct EndedAt {
  TransferKey key;
  TimeNs at_ns = 0;
};
struct TransferKeyHash {
  std::uint64_t operator()(const TransferKey& key) const noexcept {
    return mix_bits(key.id * 64 + key.peer);
  }
};
struct WordHash {
  std::uint64_t operator()(std::uint64_t key) const noexcept { return mix_bits(key); }
};

struct AgentKey {
  Name tenant, name;
  friend bool operator==(const AgentKey&, const AgentKey&) noexcept = default;
};
struct AgentKeyHash {
  std::uint64_t operator()(const AgentKey& key) const noexcept {
    return codec::hash_of(key.name.view()).low ^ mix_bits(codec::hash_of(key.tenant.view()).low);
  }
};
struct AgentWhere {                   // one of the two
  AgentHandle local;
  std::uint32_t remote = kNoIndex;
};

// What a peer is believed to hold of a context: token ids up to a block border, perhaps KV.
struct BeliefKey {
  std::uint32_t peer = 0;
  Hash128 context;                    // of tenant, sender and context names
  friend bool operator==(const BeliefKey&, const BeliefKey&) noexcept = default;
};
struct BeliefKeyHash {
  std::uint64_t operator()(const BeliefKey& key) const noexcept {
    return mix_bits(key.context.low + key.peer);
  }
};
struct Belief {
  std::uint64_t tokens = 0;
  Hash128 hash;
  bool has_kv = false;
};

struct Fetch {
  std::uint64_t id = 0;
  AgentHandle agent;
  TicketId ticket = 0;
  std::uint32_t peer = kNoIndex;
  Name tenant, requester, owner, context;
  std::uint64_t version = 0;
  SendOptions options;
  TimeNs submitted_ns = 0, give_up_ns = 0, retry_ns = 0, resend_at_ns = 0;
  InHandle in;                        // once the OFFER has come
  bool posted = false;
  bool refresh = false;               // the node's own: no agent hears of it
};

// A context whose blocks lost something on their way that planes of its origin would give back.
struct Refresh {
  AgentHandle agent;                  // that it came to, and that the planes come for
  Name owner, context;
  std::uint64_t version = 0;
  std::uint8_t tries = 0;             // that made way for others
};
// These, oldest first, and the one under way.
struct Refreshes {
  static constexpr std::uint32_t kMost = 64;
  std::array<Refresh, kMost> waiting;
  std::uint32_t count = 0;
  Handle<Fetch> fetch;
  Refresh running;
  TimeNs next_look_ns = 0;
  std::uint64_t seen = 0;             // transfers, at the last look
};

// What a restore is at; each takes as many cycles as its blocks want.
enum class RestoreStep : std::uint8_t {
  look,     // whether the tier has what memory lacks (of a stub)
  stage,    // memory for that
  read,     // the tier fills it
  publish,
};

// Blocks on their way from the tier into memory: all of a stub, or the leading ones of what is offered. While gets
// are under way the staged memory is the tier's, whatever has become of those who wait.
struct Restore {
  RestoreStep step = RestoreStep::look;
  VersionHandle stub;                 // pinned, and its deliveries and transfers wait; or:
  InHandle in;                        // this one waits; none once it has ended
  StageRequest request;               // its tokens are in scratch memory
  std::span<TokenId> tokens;
  Store::HaveScan scan;
  StagingHandle staging;
  std::uint32_t at = 0, in_flight = 0;
  bool failed = false;
  bool partial = false;               // of a stub: only its leading blocks are to be had
  bool overdue = false;               // nobody waits for it any more; it ends when the tier has let go
  std::uint64_t bytes = 0;
};

// What an agent has said that it will need. As many as the plan has places, so that none there gives way.
struct Expected {
  std::uint64_t agent = 0, key = 0;   // as the plan knows them
  TenantHandle tenant;
  Name agent_name, owner, context;
  TimeNs when_ns = 0, over_ns = 0;
  std::uint32_t probability_ppm = 0;
  bool learned = false;               // from earlier tasks, not said by the agent
  scheduler::PrefetchPlan::Id item;   // once it has started
  bool running = false;
  Handle<Restore> restore;            // while it runs
  VersionHandle pinned;               // it is here, and stays until it is used
};

// A fetch of a context of which nothing is known here but, perhaps, its name in the tier: engine/core/recall.cc.
struct Recall {
  AgentHandle agent;
  TicketId ticket = 0;
  TenantHandle tenant;
  Name owner, context;
  std::uint64_t version = 0;
  SendOptions options;
  TimeNs submitted_ns = 0, give_up_ns = 0;
  std::span<std::byte> record;        // scratch memory; the tier's until it has answered
  bool ended = false;                 // nobody waits for it any more
};

// A version whose blocks are written to the tier, one at a time, and then its name.
struct Offload {
  VersionHandle version;              // pinned
  TenantHandle tenant;
  std::uint32_t at = 0, in_flight = 0;
  bool failed = false;
  bool named = false;
  std::span<std::byte> record;        // its name, scratch memory
};

// That an agent will probably use a context.
struct Hint {
  const Name& owner;
  const Name& context;
  TimeNs in_ns = 0, spread_ns = 0;
  std::uint32_t probability_ppm = 0;
  bool learned = false;
};

// A reservation of a local agent. Between lanes it has none, and waits for the next one to the same peer.
struct OpenReservation {
  ReservationId id = 0;
  AgentHandle agent;
  Name tenant, to;
  std::uint32_t peer = kNoIndex, lane = kNoIndex;
  scheduler::ReservationSpec spec;
  scheduler::ReservationHandle admitted;
  scheduler::BudgetHandle budget;
  scheduler::BudgetCounts before;     // of the lanes that it had
};

// A split from the delivery of its ids until its last claim is answered: engine/core/split.cc. The marks count missing
// blocks from the first one: those before `claimed` the agent computes, those from `tail` on have come.
struct Split {
  AgentHandle to;
  DeliveryHandle first;               // the ids, and what was held
  InHandle in;                        // none once it has ended
  std::uint32_t claimed = 0, tail = 0;
  std::uint32_t granted = 0;          // blocks of the last claim, at:
  TimeNs granted_ns = 0, begun_ns = 0;
  TicketId waiting = 0;               // the claim that is to be answered with `last`
  bool ended = false;
  AgentEvent last;
};

// What is needed to learn from a delivery of token ids once the agent says what they cost it.
struct OpenDelivery {
  std::uint32_t lane = 0;
  Medium medium = Medium::tokens;
  std::uint64_t bytes = 0;
  TimeNs predicted_ns = 0, arrived_ns = 0;  // since the decision
  std::uint64_t serial = 0;           // of its row on the status page
};

struct EventNode {
  AgentEvent event;
  std::uint32_t next = kNoIndex;
};

// What begins a transfer to another node.
struct OutRequest {
  AgentHandle from;
  TicketId ticket = 0;
  std::uint64_t fetch_id = 0;
  std::uint16_t receiver = 0;
  Name tenant, from_name, to_name, context;
  VersionHandle version;
  std::uint64_t version_number = 0;
  std::uint32_t peer = kNoIndex;
  std::uint16_t weight = 2;
  Handle<OpenReservation> reservation;
  SendOptions options;
};

// A delivery on this node; `ticket` is of the sender, or (fetch) of the receiver.
struct LocalRequest {
  TransferId id = 0;                  // counted with those to other nodes
  AgentHandle from, to;
  TicketId ticket = 0;
  bool fetch = false;
  std::uint16_t receiver = 0;
  Name context;
  VersionHandle version;
  SendOptions options;
  TimeNs submitted_ns = 0;
  bool restored = false;              // what could be had from the tier is here
};

// A delivery on this node that can't be made yet: the version's blocks are to come back from the tier, or a summary
// is made of it, by the agent unless `extract` is open.
struct LocalWait {
  LocalRequest request;               // its version is pinned
  Handle<Restore> restore;
  ExtractWork extract;                // open: the engine makes it
};

}  // namespace kvrail::engine
