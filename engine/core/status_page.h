// What a running node shows to the outside (kvrailctl, the demo): one block of plain data in shared
// memory, which the node refreshes at most once per slice, and only when something has changed.
//
// Threads: one writer (the scheduler worker), any number of readers in other processes.
// State: `sequence` and the data behind it.
// Invariant: sequence is even while the data is at rest, odd while the writer is inside.
// Edges: the writer's release store of the even value pairs with the readers' acquire load; a
// reader that sees the same even value before and after its copy has a whole picture.
// Relaxed: the store of the odd value, ordered by the release fence behind it.
// Wrap: 2^63 refreshes; at 100 a second that outlives everything.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kvrail/base/assert.h"
#include "kvrail/base/status.h"
#include "kvrail/types.h"

namespace kvrail::engine {

inline constexpr std::uint64_t kStatusPageMagic = 0x3130'5453'4c49'4152ULL;  // "RAILST01"
inline constexpr std::size_t kStatusAgents = 256;
inline constexpr std::size_t kStatusLanes = 64;
inline constexpr std::size_t kStatusPeers = 64;
inline constexpr std::size_t kStatusDials = 64;
inline constexpr std::size_t kStatusTasks = 128;
inline constexpr std::size_t kStatusContexts = 128;
inline constexpr std::size_t kStatusExpected = 32;
inline constexpr std::size_t kStatusReservations = 64;
inline constexpr std::size_t kStatusTransfers = 256;
inline constexpr std::size_t kStatusCostLines = 9;

// Monotonic counts since the start of the node.
struct StatusCounters {
  std::uint64_t duty_cycles = 0;
  std::uint64_t commits = 0;
  std::uint64_t sends = 0;               // tickets, by receiver
  std::uint64_t transfers_out_ok = 0;
  std::uint64_t transfers_out_failed = 0;
  std::uint64_t transfers_in_ok = 0;
  std::uint64_t transfers_in_failed = 0;
  std::uint64_t transfers_cut = 0;       // in, of those that are ok: ended by their deadline with fewer planes
  std::uint64_t local_deliveries = 0;
  std::uint64_t eager_transfers = 0;
  std::uint64_t delta_transfers = 0;     // some blocks were held already
  std::uint64_t payload_bytes_out = 0;   // acknowledged
  std::uint64_t payload_bytes_in = 0;
  std::uint64_t copied_bytes = 0;        // by the store and by eager frames
  std::uint64_t encoded_bytes = 0;       // input bytes of the codecs
  std::uint64_t decoded_bytes = 0;
  std::uint64_t foreign_encodings = 0;   // held planes that the next one did not fit: all were sent
  std::uint64_t laters = 0;              // receiver was full
  std::uint64_t rejects = 0;
  std::uint64_t queries = 0;
  std::uint64_t suspensions = 0;         // times that a transfer made way for a more urgent one on another lane
  std::uint64_t resumes = 0;             // transfers that went on from their cursor
  std::uint64_t corrupt_units = 0;
  std::uint64_t lane_losses = 0;
  std::uint64_t peer_deaths = 0;
  std::uint64_t peer_restarts = 0;
  std::uint64_t duplicate_lanes = 0;
  std::uint64_t malformed_frames = 0;
  std::uint64_t unknown_messages = 0;    // late, or of something that has ended
  std::uint64_t posts_refused = 0;       // transport was full
  std::uint64_t events_deferred = 0;     // an agent's ring was full
  std::uint64_t offloads = 0;            // contexts that the tier has all blocks of
  std::uint64_t offloads_failed = 0;
  std::uint64_t restores = 0;            // contexts, and beginnings of such, that came back from it
  std::uint64_t restores_failed = 0;     // not all there any more, damaged, no memory: sent or computed instead
  std::uint64_t restored_bytes = 0;
  std::uint64_t prefetches = 0;          // of the restores: begun because a hint said that an agent would need the context
  std::uint64_t lineages_kept = 0;       // transfers in whose cheapest medium the lineage's floor ruled out
  std::uint64_t lineages_below = 0;      // delivered under that floor, for want of any other way
  std::uint64_t refreshes = 0;           // contexts that planes came for, so that less is lost of them
  std::uint64_t refreshes_forced = 0;    // of these: because a transfer was to keep its floor
  std::uint64_t refreshes_failed = 0;    // also those that made way for other transfers
  std::uint64_t refreshed_bytes = 0;
  std::uint64_t turns_expected = 0;      // of agents of this node, foreseen here or by a peer
  std::uint64_t turns_told = 0;          // of agents of other nodes: their nodes were told
  std::uint64_t workflows_refused = 0;   // descriptions by peers that can't be, or found no room
};

struct StatusAgent {
  Name tenant, name;
  std::uint64_t node = 0;                // 0: local
  RoleWeight role = 0;
  std::uint8_t live = 0;
  std::uint8_t reserved = 0;
  MediumMask accepted = 0;
  Hash128 layout_fingerprint;
  std::uint64_t block_bytes = 0;
  std::uint64_t prefill_per_token_ns = 0;
  std::uint64_t compute_backlog_ns = 0;
  std::uint64_t sends = 0, deliveries = 0;
};

struct StatusLane {
  char transport[8] = {};
  std::uint64_t peer = 0;
  std::uint8_t up = 0;
  std::uint8_t reserved[7] = {};
  std::uint64_t capacity_bytes_per_s = 0, planning_bytes_per_s = 0;
  std::int64_t round_trip_ns = 0;
  std::uint64_t in_flight_bytes = 0, in_flight_limit_bytes = 0, queued_bytes = 0;
  std::uint32_t chunk_bytes = 0;
  std::uint32_t held_credits = 0;        // for its reservations
  std::uint64_t reserved_bytes_per_s = 0;
  std::uint64_t bytes_sent = 0, bytes_received = 0, malformed = 0, digest_failures = 0;
};

struct StatusPeer {
  std::uint64_t node = 0;
  std::uint64_t incarnation = 0;
  std::uint8_t up = 0;
  std::uint8_t reserved[7] = {};
  std::int64_t last_heard_ago_ns = 0;
  std::uint64_t receive_bytes_free = 0, receive_bytes_total = 0;  // from its STATE
  std::uint64_t nic_backlog_ns = 0, nic_price_ppm = 0, compute_price_ppm = 0;
};

// A peer of the configuration, connected or not.
struct StatusDial {
  char address[112] = {};                // as the configuration has it, cut where it is longer
  char transport[8] = {};
  char why[160] = {};                    // why the last try failed, and what to do; empty: none has
  std::int64_t since_ns = 0;             // connected, or not, since then; the node's clock
  std::uint8_t up = 0;
  std::uint8_t reserved[7] = {};
};

struct StatusTask {
  std::uint64_t task = 0;
  Name workflow, agent;
  std::int64_t begun_ns = 0;             // the node's clock
  std::int64_t ended_ns = 0;             // 0: open
  std::int64_t deadline_ns = 0;          // 0: none
  std::uint64_t transfers = 0, bytes = 0;
};

// Set aside for what a local agent sends to another one.
struct StatusReservation {
  Name tenant, agent, to;
  std::uint64_t peer = 0;
  std::uint16_t id = 0;
  std::uint8_t up = 0;                   // 0: its lane is lost, it waits for the next
  std::uint8_t reserved[5] = {};
  std::int64_t period_ns = 0, offset_ns = 0;
  std::uint64_t bytes = 0;               // each period
  std::uint64_t served_bytes = 0;        // before all else
  std::uint64_t exhausted = 0;           // periods whose budget was used up
};

// A version of a context that can be found by its name.
enum class StatusPlace : std::uint8_t {
  memory = 1,  // only
  both = 2,    // and in the tier: its memory can be had at once
  left = 3,    // token ids are here; its KV is in the tier, or lost
  ids = 4,     // it came without KV
};
struct StatusContext {
  Name tenant, owner, context;
  std::uint64_t version = 0;
  std::uint64_t tokens = 0;
  std::uint64_t kv_bytes = 0;            // in memory
  std::uint32_t pins = 0;                // deliveries and transfers that hold it
  std::uint32_t epsilon_ppm = 0;
  StatusPlace place = StatusPlace::memory;
  std::uint8_t reserved[7] = {};
};

// Memory slower than the node's own (engine/core/tier_port.h).
struct StatusTier {
  std::uint8_t present = 0;
  std::uint8_t state = 0;                // TierState
  std::uint8_t reserved[6] = {};
  std::uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0;
  std::uint64_t puts = 0, gets = 0, bytes_written = 0, bytes_read = 0;
  std::uint64_t refused = 0, damaged = 0, quarantined = 0;
  std::uint64_t read_bytes_per_s = 0, write_bytes_per_s = 0;
};

// What agents have said that they will need, and what became of it.
struct StatusExpected {
  enum class Step : std::uint8_t { waiting = 1, coming = 2, here = 3 };
  Name agent, owner, context;
  std::int64_t in_ns = 0;                // from the refresh; negative: overdue
  std::uint32_t probability_ppm = 0;
  Step step = Step::waiting;
  std::uint8_t reserved[3] = {};
};
struct StatusPrefetch {
  std::uint64_t started_bytes = 0, used_bytes = 0, wasted_bytes = 0;
  std::uint64_t used = 0, late = 0, wasted = 0;  // late: used while it was still coming
};

// One alternative that the receiver weighed.
struct StatusCostLine {
  Medium medium = Medium::tokens;
  std::uint8_t allowed = 0;
  std::uint8_t chosen = 0;
  std::uint8_t reserved[5] = {};
  std::uint64_t bytes = 0;
  std::int64_t wait_ns = 0, encode_ns = 0, transmit_ns = 0, decode_ns = 0, recompute_ns = 0,
               loss_ns = 0, price_ns = 0, total_ns = 0, cost_ns = 0;
  char why_not[48] = {};
};

enum class StatusDirection : std::uint8_t { out = 1, in = 2, local = 3 };

// One transfer as this node saw it. Cost lines and reason are known where the choice was made: at
// the receiver (direction in). A row with both directions shares {origin node, transfer}.
struct StatusTransfer {
  std::uint64_t serial = 0;              // rows of the ring are in order of end; 0: empty
  std::uint64_t transfer = 0;
  std::uint64_t origin_node = 0, peer_node = 0;
  std::uint64_t task = 0;
  Name tenant, from, to, context;
  std::uint64_t version = 0;
  StatusDirection direction = StatusDirection::out;
  Medium medium = Medium::automatic;
  Medium wish = Medium::automatic;
  std::uint8_t reason = 0;               // scheduler::PickReason
  std::uint8_t critical = 0, background = 0, eager = 0, resumed = 0;
  std::uint64_t total_tokens = 0, total_blocks = 0, missing_blocks = 0;
  std::uint64_t bytes = 0;
  std::int64_t submitted_ns = 0, ended_ns = 0;
  std::int64_t predicted_ns = 0, observed_ns = 0;
  std::int64_t recompute_ns = -1;        // told by the agent at release; -1: not (yet)
  std::uint32_t level = 0;
  std::uint32_t line_count = 0;
  std::uint64_t urgency_milli = 0;
  std::uint32_t epsilon_ppm = 0;         // κ ε: λ = exp(-epsilon)
  std::uint32_t source_epsilon_ppm = 0;  // what the sender's copy had lost
  std::uint32_t floor_ppm = 0;           // λ that it had to keep, 0: none
  std::uint16_t reservation = 0;         // that it was sent by, 0: none
  std::uint16_t suspensions = 0;         // times that it made way for others
  Status status;
  StatusCostLine lines[kStatusCostLines];
};

struct StatusData {
  std::uint64_t node = 0, incarnation = 0;
  std::int64_t started_ns = 0, refreshed_ns = 0;  // the node's clock
  std::uint8_t draining = 0;
  std::uint8_t policy = 0;               // Medium forced by config; automatic: adaptive
  std::uint8_t reserved[6] = {};
  StatusCounters counters;
  std::uint64_t receive_bytes_total = 0, receive_bytes_free = 0, leased_bytes = 0;
  std::uint64_t blocks = 0, versions = 0, deliveries = 0, stagings = 0;
  std::uint32_t agent_count = 0, lane_count = 0, peer_count = 0, task_count = 0;
  std::uint32_t active_out = 0, active_in = 0;
  std::uint32_t dial_count = 0;
  std::uint32_t reservation_count = 0;
  StatusAgent agents[kStatusAgents];
  StatusLane lanes[kStatusLanes];
  StatusPeer peers[kStatusPeers];
  StatusDial dials[kStatusDials];        // in the order of the configuration
  StatusReservation reservations[kStatusReservations];
  StatusTier tier;
  StatusPrefetch prefetch;
  std::uint64_t expected_count = 0;
  StatusExpected expected[kStatusExpected];
  std::uint64_t stubs = 0;               // of the versions
  std::uint64_t context_count = 0;       // that there are; the first of them:
  StatusContext contexts[kStatusContexts];
  StatusTask tasks[kStatusTasks];        // a ring: newest overwrite oldest
  std::uint64_t transfer_count = 0;      // ever ended; row of serial s is s % kStatusTransfers
  StatusTransfer transfers[kStatusTransfers];
};

struct StatusPage {
  std::uint64_t magic = 0;
  std::uint64_t page_bytes = 0;          // sizeof(StatusPage), so that an old reader refuses
  std::atomic<std::uint64_t> sequence{0};
  StatusData data;
};

static_assert(std::is_trivially_copyable_v<StatusData>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the page is shared by processes");

// A view of the page if the bytes are one of this build, else nullptr.
[[nodiscard]] inline const StatusPage* as_status_page(const void* memory, std::size_t bytes) noexcept {
  if (memory == nullptr || bytes < sizeof(StatusPage)) return nullptr;
  const auto* page = static_cast<const StatusPage*>(memory);
  return page->magic == kStatusPageMagic && page->page_bytes == sizeof(StatusPage) ? page : nullptr;
}

// Copies the data out. False: the writer was inside at each of `attempts`; try again later.
[[nodiscard]] inline bool read_status_page(const StatusPage& page, StatusData& out,
                                           int attempts = 1000) noexcept {
  for (int i = 0; i < attempts; ++i) {
    const std::uint64_t before = page.sequence.load(std::memory_order_acquire);
    if ((before & 1U) != 0) continue;
    std::memcpy(&out, &page.data, sizeof(out));
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

// The writer's side: one object around each refresh.
class StatusPageWrite {
 public:
  explicit StatusPageWrite(StatusPage& page) noexcept
      : page_(page), before_(page.sequence.load(std::memory_order_relaxed)) {
    KVRAIL_ASSERT_MSG((before_ & 1U) == 0, "a status page has one writer");
    page_.sequence.store(before_ + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~StatusPageWrite() { page_.sequence.store(before_ + 2, std::memory_order_release); }
  StatusPageWrite(const StatusPageWrite&) = delete;
  StatusPageWrite& operator=(const StatusPageWrite&) = delete;
  [[nodiscard]] StatusData& data() noexcept { return page_.data; }

 private:
  StatusPage& page_;
  std::uint64_t before_;
};

}  // namespace kvrail::engine
