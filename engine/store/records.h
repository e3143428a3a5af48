// The records of the store's tables. Links between records are handles, so that a stale one shows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/agent_port.h"
#include "engine/core/manifest.h"
#include "engine/store/coding.h"
#include "engine/store/store.h"
#include "kvrail/base/handle.h"
#include "kvrail/types.h"
#include "mempool/extents.h"
#include "mempool/memory.h"
#include "mempool/pool_class.h"
#include "mempool/region_table.h"
#include "scheduler/value.h"

namespace kvrail::engine {

struct SlotRecord;
struct ContextRecord;
using SlotHandle = Handle<SlotRecord>;
using ContextHandle = Handle<ContextRecord>;

inline constexpr std::uint64_t kGranuleBytes = 64;  // receive arenas are divided in these
inline constexpr std::uint64_t kNoOffset = UINT64_MAX;
inline constexpr std::uint32_t kVersionsKept = 2;  // newest numbers of a context
inline constexpr std::uint64_t kMaxTokens = 1ULL
                                            << 31;  // of a context; positions travel as 32 bits
inline constexpr std::uint64_t kMaxVersionNumber = 1ULL
                                                   << 62;  // from other nodes; leaves room above

// Of a tenant's ValueIndex: what a tier keeps too goes before what is nowhere else.
inline constexpr std::uint32_t kRankKept = 0, kRankOnlyHere = 1, kRanks = 2;

enum class SlotState : std::uint8_t { free, writable, committed };

// A slot of an agent's arena or of an imported range, in the order of their offsets.
struct AgentSlot {
  SlotHandle record;       // while a block names it
  std::uint32_t mark = 0;  // the commit that saw it last, to find a slot named twice
  SlotState state = SlotState::free;
};

enum class MemoryKind : std::uint8_t { receive, agent, imported };

// An arena and the account of what lies in it.
struct StoreMemory {
  MemoryKind kind = MemoryKind::receive;
  std::unique_ptr<mempool::Arena> arena;
  std::unique_ptr<mempool::Extents> extents;  // receive: granules; agent: slots; imported: none
  std::unique_ptr<AgentSlot[]> slots;         // agent and imported
  std::uint32_t slot_count = 0;
  std::uint64_t block_bytes = 0;
  Layout layout;
  mempool::PoolUsage usage;  // receive
  std::unique_ptr<scheduler::ValueIndex> values;  // receive: of the tenant's versions
  // From adoption on:
  mempool::RegionId id = 0;
  TenantHandle tenant;
  AgentHandle owner;             // invalid for receive, or when the agent has gone
  AgentHandle lender;            // of pages by address whose agent has gone
  std::uint32_t used_slots = 0;  // writable and committed ones
  StoreMemoryPtr next_retired;
};

// A piece of memory that holds the raw rows of at least one block. Blocks that are successive
// lengths of one growing tail share it.
struct SlotRecord {
  mempool::RegionId arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint32_t refs = 0;
  std::uint32_t rows_used = 0;    // rows below are immutable
  std::uint32_t epsilon_ppm = 0;  // of those rows
  Hash128 hash;                   // what those rows mean: the hash of the longest block here
};

// What of the Layout decides where rows lie; a tenth of its size, as there are many blocks.
struct BlockShape {
  std::uint16_t layers = 0;
  std::uint16_t kv_heads = 0;
  std::uint16_t head_dim = 0;
  std::uint16_t block_tokens = 0;
  Dtype dtype = Dtype::bf16;

  [[nodiscard]] static BlockShape of(const Layout& layout) noexcept {
    return {static_cast<std::uint16_t>(layout.layers), static_cast<std::uint16_t>(layout.kv_heads),
            static_cast<std::uint16_t>(layout.head_dim),
            static_cast<std::uint16_t>(layout.block_tokens), layout.dtype};
  }
  [[nodiscard]] Layout layout() const noexcept {
    Layout out;
    out.layers = layers;
    out.kv_heads = kv_heads;
    out.head_dim = head_dim;
    out.block_tokens = block_tokens;
    out.dtype = dtype;
    return out;
  }
};

// Digests of one stream of pieces, layer by layer. Blocks of one unit need no table memory.
struct DigestList {
  std::uint64_t* many = nullptr;
  std::uint64_t one = 0;
  std::uint32_t count = 0;
  std::uint32_t done = 0;
  [[nodiscard]] std::uint64_t* data() noexcept { return count > 1 ? many : &one; }
  [[nodiscard]] const std::uint64_t* data() const noexcept { return count > 1 ? many : &one; }
};

struct PlaneRecord {
  std::uint64_t offset = kNoOffset;  // in the tenant's receive arena
  std::uint64_t bytes = 0;
  std::uint32_t layers = 0;  // written and digested
  DigestList digests;
  [[nodiscard]] bool taken() const noexcept { return offset != kNoOffset; }
};

struct BlockRecord {
  Hash128 hash;
  Hash128 parent;
  Hash128 encoding;
  TenantHandle tenant;
  SlotHandle slot;
  BlockShape shape;
  std::uint32_t refs = 0;  // versions and stagings that name it
  std::uint32_t tokens = 0;
  std::uint32_t epsilon_ppm = 0;
  bool indexed = false;  // found by its hash: the best ε of it
  bool fresh = false;    // in the queue of blocks to digest
  BlockHandle fresh_previous, fresh_next;
  DigestList digests;
  std::array<PlaneRecord, kPlanes> planes;
  Medium varying = Medium::full;  // what plane 2 is of: exact or lossless
  bool came_coded = false;        // its rows were decoded from planes and lost something: no plane can be added
  // Who needs the planes: each attach_planes(), and for ever the block that came as planes. At zero
  // they are in the tenant's list of planes that may go.
  std::uint32_t plane_users = 0;
  BlockHandle plane_previous, plane_next;

  [[nodiscard]] bool has_planes() const noexcept {
    return std::any_of(planes.begin(), planes.end(), [](const PlaneRecord& plane) { return plane.taken(); });
  }
  [[nodiscard]] bool full() const noexcept { return tokens == shape.block_tokens; }
};

struct VersionRecord {
  TenantHandle tenant;
  Name owner;
  Name name;
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;  // order of publication in this store
  Layout layout;
  Medium medium = Medium::full;
  std::uint8_t summary_kind = 0;
  std::uint32_t window_first_block = 0;
  std::uint32_t left_out_from = 1;  // blocks from this one to that are left out; of a split it is where the head began
  std::uint32_t epsilon_ppm = 0;
  std::uint64_t token_count = 0;
  std::uint64_t kept_tokens = 0;  // topk: rows in its blocks, which are packed and have no hashes
  std::uint64_t summary_bytes = 0;
  std::uint32_t hash_count = 0;   // ceil(tokens / T)
  std::uint32_t block_count = 0;  // hash_count; token ids: leading blocks that were held, or 0
  std::uint32_t kv_blocks = 0;    // blocks that are there; fewer for a window
  Hash128* hashes = nullptr;      // one piece of table memory: hashes | blocks | missing
  BlockHandle* blocks = nullptr;
  std::uint8_t* missing = nullptr;            // stagings only
  float* importance = nullptr;                // token_count of them, table memory; null: none was given
  std::uint64_t manifest_offset = kNoOffset;  // in the tenant's receive arena
  std::uint64_t manifest_bytes = 0;
  std::uint64_t positions_offset = kNoOffset;  // likewise, of a staged topk: as they travel
  std::uint64_t positions_bytes = 0;
  std::uint32_t pins = 0;
  std::uint32_t dying_at = 0;  // of one whose blocks go: those below have been let go
  bool dying = false;          // it waits in the tenant's list of these
  bool kept = false;           // a tier has all its blocks too: they may go at any time
  bool stub = false;           // its blocks have left memory, or are about to: token ids and hashes are what stayed
  std::uint32_t stub_epsilon_ppm = 0;  // that they had lost
  bool published = false;
  bool in_lru = false;
  bool valued = false;         // it is in its tenant's ValueIndex, pinned there unless it is idle
  ContextHandle context;     // valid while it can be found by name
  VersionHandle next_older;  // in its context
  VersionHandle lru_previous, lru_next;
  TimeNs last_used_ns = 0;
  TimeNs counted_ns = 0;       // the last use that its value knows of

  // Whether it can be read and sent as KV; of token ids at most the start has some.
  [[nodiscard]] bool has_kv() const noexcept {
    return block_count > 0 && !stub && medium != Medium::tokens && medium != Medium::reference;
  }
};

// All versions of (tenant, owner, name), the one to be found first at the head.
struct ContextRecord {
  TenantHandle tenant;
  Name owner;
  Name name;
  std::uint64_t key = 0;
  std::uint64_t last_number = 0;
  VersionHandle newest;
  AgentHandle local_owner;  // invalid: of another node, or its agent has gone
  bool was_local = false;   // its numbers were given out here
  TimeNs used_ns = 0;       // last use of any of its versions that was counted, and how many blocks that one had
  std::uint32_t used_blocks = 0;
  ContextHandle agent_previous, agent_next;
};

struct DeliveryRecord {
  AgentHandle agent;
  VersionHandle version;
  DeliveryHandle previous, next;  // of the same agent, newest first
};

// Where a staging has come to. Each step goes over all blocks, some at a time.
enum class StageStep : std::uint8_t {
  hash,      // chain the tokens
  hold,      // refer to what is held, list what is missing
  take,      // memory for what is missing
  ready,     // the bytes may come
  settle,    // let the blocks be found
  manifest,  // write what agents read
};

struct StagingRecord {
  VersionHandle version;
  StageStep step = StageStep::hash;
  std::uint32_t at = 0;               // next block of the step
  std::span<const TokenId> tokens;    // the caller's
  Coding coding;                      // of what comes
  std::uint32_t epsilon_ppm = 0;
  std::uint32_t limit_ppm = 0;        // of what is held
  std::uint32_t missing = 0;
  std::uint32_t first_missing = 0;
  std::uint64_t bytes = 0;
  std::size_t first_plane = 0;  // planes before it are copied from what is held
  std::uint32_t tail_block = 0;
  std::uint32_t tail_from_row = 0;
  bool outgoing = false;        // for a peer: it has no manifest
  bool whole_blocks = false;    // no tail grows
  bool anonymous = false;       // found by nobody once published
  bool again = false;           // of a stub
  // A tail that grows in its own slot: what the slot held before, should the staging be abandoned.
  SlotHandle grown;
  SlotRecord before;
};

// Where a commit has come to. Each step goes over all blocks, some at a time.
enum class CommitStep : std::uint8_t {
  hash,      // chain the tokens
  prefix,    // share the blocks before the first slot
  slots,     // a block for each slot
  undo,      // refused: all is given back
  apply,     // let the blocks be found; nothing can fail from here on
  manifest,  // write what agents read
};

struct CommitRecord {
  AgentHandle agent;
  VersionHandle version;    // being made
  VersionHandle prefix;     // pinned, if there is one
  VersionHandle previous;   // the newest of the context; pinned, if there is one
  std::span<Extent> slots;  // table memory
  std::uint32_t first_block = 0;
  std::uint32_t mark = 0;   // of the slots that this commit has seen
  CommitStep step = CommitStep::hash;
  std::uint32_t at = 0;     // next block of the step
  std::uint32_t extent = 0, slot = 0;  // of the next slot
  std::uint32_t epsilon_ppm = 0;
  Status refusal;
};

// Least recently used first, linked by the versions' lru_*.
struct IdleList {
  VersionHandle oldest, newest;
  std::uint64_t kv_bytes = 0;  // that would come back, where no two of them share blocks
};

struct TenantRecord {
  Name name;
  mempool::RegionId receive = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t dropped_number = 0;  // highest version number of contexts that have gone
  std::uint32_t blocks = 0;
  std::uint32_t versions = 0;
  // Unpinned versions without a local owner: with KV that is nowhere else, with KV that a tier keeps too, stubs. What of
  // the first two goes next is their ValueIndex's to say; the lists are for their TTL.
  IdleList idle, idle_kept, idle_stubs;
  std::uint64_t stub_bytes = 0;            // manifests of all stubs
  BlockHandle plane_oldest, plane_newest;  // blocks whose planes nobody uses
  VersionHandle dying_first, dying_last;   // destroyed, or stubs: not all blocks let go yet; linked by lru_next
};

struct AgentRecord {
  AgentHandle handle;  // invalid: no agent here
  Name name;
  TenantHandle tenant;
  Layout layout;
  std::uint64_t block_bytes = 0;
  mempool::RegionId arena = 0;
  DeliveryHandle newest_delivery;
  ContextHandle first_context;
  CommitHandle open_commit;
};

}  // namespace kvrail::engine
