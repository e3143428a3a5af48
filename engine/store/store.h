// The context store of a node: which memory holds which meaning. It owns tenants, arenas, block
// slots, Representations, contexts, versions, manifests, pins and the staging of transfers that
// arrive; it knows nothing of peers, media choice or the wire.
//
// Thread: the scheduler worker, but for the functions marked Conductor (they map memory, and the
// two hand over by command). No allocation outside the Conductor's functions: all tables have the
// capacity given in StoreOptions, from memory taken at construction.
//
// Ownership: slots of an agent's arena are written by that agent until commit, never after; slots
// of a receive arena are written by the engine only. A slot is free again when no version, staging
// or delivery names it. A Representation = (block hash, codec, encoding id, planes, ε, origin); the
// block table keeps, per hash, the raw slot (what agents read) and, when the block came as planes,
// the planes as they came, so that forwarding never re-encodes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/core/agent_port.h"
#include "engine/core/manifest.h"
#include "engine/store/coding.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "mempool/memory.h"
#include "transport/payload.h"

namespace kvrail::engine {

class TierPort;
struct TenantTag;
struct BlockTag;
struct StagingTag;
struct CommitTag;
using TenantHandle = Handle<TenantTag>;
using BlockHandle = Handle<BlockTag>;
using StagingHandle = Handle<StagingTag>;
using CommitHandle = Handle<CommitTag>;  // a commit that is under way

struct StoreOptions {
  std::uint32_t max_tenants = 16;
  std::uint32_t max_agents = 256;
  std::uint32_t max_blocks = 1U << 18;
  std::uint32_t max_versions = 1U << 14;
  std::uint32_t max_stagings = 1024;
  std::uint32_t max_deliveries = 1U << 14;
  std::uint64_t table_bytes = 256ULL << 20;  // for token ids, lists, manifests' book-keeping
  std::uint64_t receive_arena_bytes = 256ULL << 20;  // per tenant
  std::uint64_t agent_arena_bytes = 64ULL << 20;     // default per agent
  std::uint32_t tenant_max_blocks = 0;    // share of one tenant, 0: no limit but the table's
  std::uint32_t tenant_max_versions = 0;  // the same
  // How long contexts stay whose owner is not an agent of this node (any more), since their last
  // use. They also go, least recently used first, when the tenant's receive arena has no room.
  std::int64_t context_ttl_ns = 600'000'000'000;
  // Of contexts that make room their token ids stay, to have the KV again from wherever it is.
  bool stubs = true;
  bool hugetlb = false;
  bool lock_memory = false;
  LowRankBasisPtr lowrank;  // none: no planes of lowrank
};

// What it takes to have KV again that has left memory: from the tier, or by computing it.
struct RestoreCosts {
  TimeNs tier_ns_per_mib = kMillisecondNs;
  ComputeProfile compute{.prefill_per_token_ns = 200'000};
};

struct TenantMemory {
  std::uint64_t total_bytes = 0, free_bytes = 0, staged_bytes = 0;
};

// Everything a sender needs to know of a version; spans stay valid while the version is pinned.
struct VersionView {
  TenantHandle tenant;
  Name owner;
  Name context;
  std::uint64_t number = 0;
  Layout layout;
  std::span<const TokenId> tokens;
  std::span<const BlockHandle> blocks;  // ceil(tokens / T), empty when only tokens are held
  std::span<const Hash128> hashes;      // chain after each block; the last may be a partial block's
  std::uint32_t epsilon_ppm = 0;
  bool stub = false;                     // its KV has left memory: what is above are its ids and hashes, and of the KV
  std::uint32_t stub_epsilon_ppm = 0;    // what it had lost
  bool kept = false;                     // a tier has all its blocks
  std::uint32_t pins = 0;                // who holds it: deliveries, transfers
  ManifestRef manifest;
  Medium medium = Medium::full;          // how it came here; full for a local commit
  std::uint32_t window_first_block = 0;  // window: blocks[i] is invalid for 0 < i < this; split: this one begins the tail
  std::uint64_t kept_tokens = 0;         // topk: rows in the blocks, which have no hashes; at these positions:
  std::span<const std::uint32_t> positions;
  std::uint8_t summary_kind = 0;         // medium summary: the bytes instead of tokens
  std::span<const std::byte> summary;
  std::span<const float> importance;     // of each token, NaN where the agent gave none; empty: nowhere
};

struct PlaneView {
  std::byte* data = nullptr;  // a run for each layer; null: the block has no such plane
  std::uint64_t bytes = 0;
  std::uint32_t layers = 0;   // that are written
  std::uint32_t all_layers = 0, rows = 0;
  const LowRankBasis* lowrank = nullptr;  // of the plane that is coded in it

  [[nodiscard]] std::span<std::byte> run(std::uint32_t layer) const noexcept {
    const RunPlace at = run_place(lowrank, bytes, all_layers, rows, layer);
    return {data + at.offset, at.bytes};
  }
};

struct BlockView {
  Hash128 hash;
  std::byte* raw = nullptr;  // canonical slot
  std::uint32_t arena = 0;   // where it lies
  std::uint64_t offset = 0;
  std::uint32_t tokens = 0;  // valid rows
  std::uint32_t epsilon_ppm = 0;
  bool came_coded = false;  // the rows lost something on their way: planes that are not here can't be made
  Hash128 encoding;         // of plane 0, zero until all of it is written
  std::array<PlaneView, kPlanes> planes;
};

// Whether all of them are written, for the first `layers` layers.
[[nodiscard]] constexpr bool planes_there(const BlockView& block, PlaneMask planes, std::uint32_t layers) noexcept {
  for (std::size_t i = 0; i < kPlanes; ++i) {
    if (has_plane(planes, i) && (block.planes[i].data == nullptr || block.planes[i].layers < layers)) return false;
  }
  return true;
}

struct CommitRequest {
  AgentHandle agent;
  Name context;
  std::span<const TokenId> tokens;  // copied
  std::span<const Extent> slots;    // copied
  // The context's block that the first slot is for. Those before it are the prefix's, or, without a
  // prefix, those of the context's version before.
  std::uint32_t first_block = 0;
  DeliveryHandle prefix;  // what it was computed on: its ε is inherited
};

// What a transfer that arrives will fill. `missing` blocks get slots (and planes for coded media)
// in the tenant's receive arena; the others are held already and pinned. Token ids and references
// need no slots; the leading full blocks that are held are shown with them if `show_held`.
struct StageRequest {
  TenantHandle tenant;
  Name owner, context;
  std::uint64_t version = 0;
  Layout layout;
  std::span<const TokenId> tokens;  // of the whole context; valid until it is published
  Coding coding;  // of the medium: one that is_kv(), or tokens or reference
  std::uint32_t epsilon_ppm = 0;
  std::uint32_t window_first_block = 0;  // window only: blocks before it (but block 0) are left out
  std::uint64_t kept_tokens = 0;  // topk only: that rows come of, into blocks without hashes
  bool outgoing = false;  // topk: rows that this node gathers to send; it is read while staged, never published
  // Held blocks up to this ε need not arrive again; epsilon_ppm is used if it is larger.
  std::uint32_t held_limit_ppm = 0;
  bool show_held = false;  // tokens and reference: for agents of the same Layout
  bool anonymous = false;        // published, it is found by nobody; it stays while it is pinned
  bool again = false;            // the KV of a stub: found where that is, whoever owns the context
  bool whole_blocks = false;     // rows of a shorter tail are not built upon: each missing block comes as a whole
  bool build_on_planes = false;  // coded media: planes that are held of a coarser copy need not arrive again
};

// Of what a version is; what is to be done with it is the caller's to add.
[[nodiscard]] inline StageRequest stage_request_of(const VersionView& view) noexcept {
  StageRequest request;
  request.tenant = view.tenant;
  request.owner = view.owner;
  request.context = view.context;
  request.version = view.number;
  request.layout = view.layout;
  request.tokens = view.tokens;
  return request;
}

struct HaveResult {
  std::uint32_t leading_blocks = 0;  // full blocks held from the start, ε within the asked bound
  std::uint32_t held_blocks = 0;     // all that are held, tail included when it is equal
  // Rows of block number `leading_blocks` that are held as the (shorter) tail of an earlier
  // version. That block may be the last one or one that was the tail and is full now.
  std::uint32_t tail_rows = 0;
};

// Status::detail of an invalid_argument from the store: which rule was broken.
enum class StoreRule : std::int32_t {
  none = 0,
  no_such_agent,  // the agent's handle is stale
  no_tokens,
  too_few_slots,
  foreign_slot,       // not in an arena of the agent, nor the slot of a block it may build on
  slot_unaligned,     // the offset is no multiple of block_bytes, or beyond the arena
  slot_not_writable,  // free, or committed with other content
  slot_twice,
  rows_committed,  // the slot's rows hold another continuation already
  layout,
  medium,
  window,
  stale_prefix,
  version_number,
  import_only,  // prepared memory of another kind than the call needs
  importance,   // of no tokens, or of tokens that the version has not
  kept,         // topk of no rows, or of more than there are tokens
};
[[nodiscard]] const char* text(StoreRule rule) noexcept;  // one sentence for logs and agents

// Memory for a tenant or an agent, made on any thread (it blocks), adopted by the worker without
// allocation.
struct StoreMemory;
struct StoreMemoryDeleter {
  void operator()(StoreMemory* memory) const noexcept;
};
using StoreMemoryPtr = std::unique_ptr<StoreMemory, StoreMemoryDeleter>;

class Store {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Store>> create(const StoreOptions& options,
                                                             const Clock& clock);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store();

  // --- tenants and agents ---
  // The Conductor prepares memory, the worker adopts it; memory that nothing names any more, or that a
  // refused call was given, goes back by take_retired() to the Conductor, which destroys it
  // (housekeep() does so if nobody takes it for long). ensure_tenant, add_agent and import_range
  // without prepared memory do both in turn.
  [[nodiscard]] static Result<StoreMemoryPtr> prepare_tenant(const StoreOptions& options,
                                                             const Name& name);
  [[nodiscard]] static Result<StoreMemoryPtr> prepare_agent(const StoreOptions& options,
                                                            const Layout& layout,
                                                            std::uint64_t arena_bytes);
  [[nodiscard]] static Result<StoreMemoryPtr> prepare_import(const StoreOptions& options,
                                                             const Layout& layout, std::byte* base,
                                                             std::uint64_t bytes, int fd);
  [[nodiscard]] TenantHandle find_tenant(const Name& name) const noexcept;
  [[nodiscard]] Result<TenantHandle> ensure_tenant(const Name& name,
                                                   StoreMemoryPtr memory) noexcept;
  [[nodiscard]] Result<void> add_agent(AgentHandle agent, const Name& name, TenantHandle tenant,
                                       const Layout& layout, StoreMemoryPtr memory) noexcept;
  [[nodiscard]] Result<Extent> import_range(AgentHandle agent, StoreMemoryPtr memory) noexcept;
  // Any thread. A chain of all that is to be destroyed, null: none.
  [[nodiscard]] StoreMemoryPtr take_retired() noexcept;
  [[nodiscard]] std::uint64_t retirements() const noexcept;  // grows when there is more to take
  void retire(StoreMemoryPtr unused) noexcept;           // of the worker, which must not unmap it
  // Called for each adopted arena before it is retired, when nothing names its memory any more.
  using RetireHook = void (*)(void* context, const mempool::Arena& arena) noexcept;
  void on_retire(RetireHook hook, void* context) noexcept;

  [[nodiscard]] Result<TenantHandle> ensure_tenant(const Name& name);
  [[nodiscard]] Result<void> add_agent(AgentHandle agent, const Name& name, TenantHandle tenant,
                                       const Layout& layout, std::uint64_t arena_bytes);
  // The agent is gone: writable slots, its pins and deliveries return now; committed contexts stay
  // until their TTL. Returns the number of slots returned.
  // Pages that it brought by address are its process's, so what lies there goes with it: no look-up
  // finds a version with a block there any more, whoever made it; lends() is false once nobody reads it.
  std::uint32_t remove_agent(AgentHandle agent) noexcept;
  [[nodiscard]] bool lends(AgentHandle agent) const noexcept;
  [[nodiscard]] bool revoked(VersionHandle version) const noexcept;
  [[nodiscard]] const mempool::Arena* arena(std::uint32_t arena_id) const noexcept;
  [[nodiscard]] std::uint32_t agent_arena(AgentHandle agent) const noexcept;
  [[nodiscard]] std::uint32_t receive_arena(TenantHandle tenant) const noexcept;
  // Whether an agent of that tenant may map the arena read-only. Absent and forbidden look alike.
  [[nodiscard]] bool may_read(TenantHandle tenant, std::uint32_t arena_id) const noexcept;
  [[nodiscard]] TenantMemory memory(TenantHandle tenant) const noexcept;
  [[nodiscard]] Name name_of(TenantHandle tenant) const noexcept;

  // --- the agent's own blocks ---
  // One run of slots. Code::out_of_capacity: no run that long now; too_large: more than the arena.
  [[nodiscard]] Result<Extent> allocate(AgentHandle agent, std::uint32_t blocks) noexcept;
  // Returns the writable slots of the extent; committed ones return by themselves when no version
  // names them, and may have done so already: free slots are passed over, only an extent of nothing
  // else is refused. An agent must not free slots that it has been given again meanwhile
  // (engine/client/slot_claims.h). Freeing all of an imported range ends the import.
  Status free_blocks(AgentHandle agent, const Extent& extent) noexcept;
  // Host memory of an embedded agent, used in place (kind host_pages, fd -1), or an fd mapped from
  // its start (host_fd, base null; the caller keeps the fd). A memfd must be sealed against
  // shrinking or let itself be: the engine can't be made to read beyond its end. Pages must stay
  // mapped until arena(id) is null, after the agent's removal until lends() is false.
  [[nodiscard]] Result<Extent> import_range(AgentHandle agent, std::byte* base, std::uint64_t bytes,
                                            int fd);
  // Slots cover all blocks from first_block on; slots beyond what the tokens need stay writable. A
  // block that the tenant holds already (same hash, ε no worse) is shared, and the agent's own slot
  // for it stays its own, writable. Slots of blocks that the agent did not write (of a delivery, say)
  // may be named at their place in the context.
  // One commit of an agent at a time: Code::busy, for free_blocks() too. Nothing of it can be seen
  // before the end; the agent's removal ends it.
  [[nodiscard]] Result<CommitHandle> begin_commit(const CommitRequest& request) noexcept;
  // Goes on, for at most as many blocks as the budget has, which is lowered. Nothing: there is more
  // to do; else the commit has ended.
  [[nodiscard]] std::optional<Result<VersionHandle>> advance(CommitHandle commit,
                                                             std::uint64_t& budget_blocks) noexcept;
  [[nodiscard]] Result<VersionHandle> commit(const CommitRequest& request) noexcept;  // at once
  // number 0: newest. Contexts of any agent of the tenant, local or received; windows are not found
  // (their delivery is terminal). Versions with KV go before token ids of the same number.
  [[nodiscard]] VersionHandle find(TenantHandle tenant, const Name& owner, const Name& context,
                                   std::uint64_t number) const noexcept;
  // Newest version named `context` that `agent` committed, else the newest delivered to it.
  [[nodiscard]] VersionHandle find_for(AgentHandle agent, const Name& context,
                                       std::uint64_t number) const noexcept;
  // What the tokens from `first` on mean to the agent, in a version that it has committed (0: its newest). Kept in
  // table memory with the version; what is not given is NaN, the least there is.
  Status set_importance(AgentHandle agent, const Name& context, std::uint64_t number, std::uint64_t first,
                        std::span<const float> importance) noexcept;
  // Versions are found no more; what no delivery pins is free at once.
  void drop_context(AgentHandle agent, const Name& context) noexcept;

  // --- reading versions ---
  [[nodiscard]] bool view(VersionHandle version, VersionView& out) const noexcept;
  // Versions that are found by name, as many as there is room for, in no order; returns how many there are.
  [[nodiscard]] std::size_t list(std::span<VersionHandle> out) const noexcept;
  // Without the rest of the view; 0 when there is no such version.
  [[nodiscard]] std::uint64_t number(VersionHandle version) const noexcept;
  [[nodiscard]] BlockView block(BlockHandle block) const noexcept;
  void pin(VersionHandle version) noexcept;
  void unpin(VersionHandle version) noexcept;
  // Digests of a block, computed once and kept, layer after layer: a layer is one piece when the
  // block is full, else the valid rows of K and of V are pieces of their own. Of the first `layers`
  // layers; `budget_bytes` bounds the work and is lowered by it; false: call again.
  [[nodiscard]] bool ensure_digests(BlockHandle block, std::uint32_t layers,
                                    std::uint64_t& budget_bytes) noexcept;
  // Empty as long as they are not there.
  [[nodiscard]] std::span<const std::uint64_t> raw_digests(BlockHandle block,
                                                           std::uint32_t layer) const noexcept;
  [[nodiscard]] std::span<const std::uint64_t> plane_digests(BlockHandle block, std::size_t plane,
                                                             std::uint32_t layer) const noexcept;
  // Attaches the planes of a coding to a block (the sender encodes into those that are not written
  // yet), and keeps all that the block has until release_planes() has been called as often. They come
  // from the tenant's receive arena; released ones stay for the next sender until that memory is
  // needed. False (nothing to release): no memory, a layout that can't be coded so, or a block whose
  // rows were decoded from fewer planes: those can't be added by whoever has not the original.
  [[nodiscard]] bool attach_planes(BlockHandle block, const Coding& coding) noexcept;
  void release_planes(BlockHandle block) noexcept;
  // These planes of the first `layers` layers are written: digests them, and, with the last layer of
  // plane 0, computes the encoding id.
  void planes_written(BlockHandle block, PlaneMask planes, std::uint32_t layers) noexcept;

  // --- delivering ---
  [[nodiscard]] DeliveryHandle deliver(AgentHandle to, VersionHandle version) noexcept;  // pins
  [[nodiscard]] ManifestRef manifest(DeliveryHandle delivery) const noexcept;
  bool release(AgentHandle agent, DeliveryHandle delivery) noexcept;  // false: not this agent's

  // --- receiving ---
  // Block hashes of `tokens` under (tenant, layout), chained; writes ceil(n/T) hashes.
  void hash_chain(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                  std::span<Hash128> out) const noexcept;
  [[nodiscard]] HaveResult have(TenantHandle tenant, const Layout& layout,
                                std::span<const TokenId> tokens,
                                std::uint32_t epsilon_limit_ppm) const noexcept;
  // The same for some limits and in steps; true when it is through.
  struct HaveScan {
    std::uint64_t next_block = 0;
    Hash128 parent;
    static constexpr std::size_t kLimits = 3;
    std::array<std::uint32_t, kLimits> limits_ppm{};
    std::array<bool, kLimits> broken{};
    std::array<HaveResult, kLimits> results{};
    // With a tier: the leading blocks, a last partial one included, that are held within the first limit, or kept there
    // within one of its own.
    const TierPort* tier = nullptr;
    std::uint32_t tier_limit_ppm = 0;
    std::uint64_t reachable_blocks = 0, tier_blocks = 0, tier_bytes = 0;
    bool unreachable = false;

    void look_in_tier(const Hash128& hash, std::size_t tokens, bool held) noexcept;
  };
  [[nodiscard]] bool scan(HaveScan& scan, TenantHandle tenant, const Layout& layout,
                          std::span<const TokenId> tokens,
                          std::uint64_t& budget_blocks) const noexcept;
  // All or nothing. Code::out_of_memory leaves everything as it was (the caller answers LATER).
  [[nodiscard]] Result<StagingHandle> begin_stage(const StageRequest& request) noexcept;
  // Goes on, for at most as many blocks as the budget has, which is lowered. Ok: the bytes may come;
  // else the staging has ended.
  [[nodiscard]] std::optional<Status> advance(StagingHandle staging,
                                              std::uint64_t& budget_blocks) noexcept;
  [[nodiscard]] Result<StagingHandle> stage(const StageRequest& request) noexcept;  // at once
  struct StagingView {
    std::uint32_t block_count = 0;
    // > 0: of block number `tail_block` (the first missing one, not always the last) only the rows
    // from this one on are to come; those before are in the slot already. Never for coded media.
    std::uint32_t tail_from_row = 0;
    std::uint32_t tail_block = 0;
    std::size_t first_plane = 0;  // planes before it are there, in every missing block
    std::span<const std::uint8_t> missing;  // per block: 1 = must arrive
    std::span<const BlockHandle> blocks;    // held or new; invalid where a window has none
    std::span<std::byte> positions;         // topk: room for them as they travel (positions_room)
  };
  [[nodiscard]] bool view(StagingHandle staging, StagingView& out) const noexcept;
  // topk: what has come as positions, checked, becomes what agents read. Before the first advance_publish();
  // protocol_error: they are not as many as rows, not ascending, or beyond the tokens.
  [[nodiscard]] Status take_positions(StagingHandle staging) noexcept;
  // All bytes are in place and verified (coded media: decoded; planes_written() is called for blocks for
  // which the caller has not done so): the version becomes visible as a whole, with the last step.
  // Then the staging has ended.
  [[nodiscard]] std::optional<Result<VersionHandle>> advance_publish(
      StagingHandle staging, std::uint64_t& budget_blocks) noexcept;
  [[nodiscard]] Result<VersionHandle> publish(StagingHandle staging) noexcept;  // at once
  void abandon(StagingHandle staging) noexcept;
  // Only the planes of `medium` have come, fewer than were staged: that is what will be published.
  void cut(StagingHandle staging, Medium medium, std::uint32_t epsilon_ppm) noexcept;
  // Blocks [from, tail) were computed elsewhere: what is published has those before and behind them, is a split, and
  // found by nobody.
  void leave_head(StagingHandle staging, std::uint32_t from, std::uint32_t tail) noexcept;
  // A version of token ids (medium tokens, reference), or a summary. With a limit, deliveries of it
  // also show the leading full blocks that are held with no more ε, for agents of the same Layout.
  [[nodiscard]] Result<VersionHandle> publish_tokens(TenantHandle tenant, const Name& owner,
                                                     const Name& context, std::uint64_t number,
                                                     const Layout& layout, Medium medium,
                                                     std::span<const TokenId> tokens,
                                                     std::optional<std::uint32_t> held_limit_ppm = {}) noexcept;
  // A stub of a version of this number that was here once (its medium and what it lost count not, but for that loss).
  [[nodiscard]] Result<VersionHandle> publish_stub(const StageRequest& request, std::uint32_t epsilon_ppm) noexcept;
  [[nodiscard]] Result<VersionHandle> publish_summary(TenantHandle tenant, const Name& owner,
                                                      const Name& context, std::uint64_t number,
                                                      std::uint8_t kind,
                                                      std::span<const std::byte> bytes) noexcept;

  // --- leaving memory ---
  // The version that would be let go next for room in the tenant's receive arena though its KV is nowhere else, where
  // a stub of it would stay; it is not pinned. Invalid: there is none.
  [[nodiscard]] VersionHandle next_to_leave(TenantHandle tenant) const noexcept;
  // Of the first tenant that is short of memory and has one.
  [[nodiscard]] VersionHandle next_to_leave(std::uint32_t free_below_ppm) const noexcept;
  // Whether a smaller share of it is free, or taken by what a tier keeps too and nobody uses.
  [[nodiscard]] bool short_of_memory(TenantHandle tenant, std::uint32_t free_below_ppm) const noexcept;
  // Of all tenants: free, or taken by what a tier keeps too and nobody uses.
  [[nodiscard]] std::uint64_t room_bytes() const noexcept;
  // Who will use the version, with what probability and when (scheduler/value.h): it goes by that until then. Of a stub,
  // or of an owner's, nothing happens.
  void expect(VersionHandle version, std::uint32_t probability_ppm, TimeNs when_ns) noexcept;
  void expect_no_more(VersionHandle version) noexcept;
  void set_costs(const RestoreCosts& costs) noexcept;  // of what becomes idle from now on
  // A tier has all blocks of the version, which is pinned: it goes before others, and costs a read to have again.
  void keep(VersionHandle version) noexcept;
  // The rows of a staged block have come from where they had been kept, with this loss.
  void came_back(BlockHandle block, std::uint32_t epsilon_ppm) noexcept;

  // Bounded housekeeping: TTL, blocks of versions that went, digests of fresh commits, retired memory
  // that nobody took. Returns work done; 0: nothing to do now.
  std::size_t housekeep(TimeNs now_ns, std::uint64_t budget_bytes) noexcept;
  // Conservation: every slot is in exactly one list; asserted in tests and debug builds.
  void check() const noexcept;

  struct Counters {
    std::uint64_t versions = 0, blocks = 0, deliveries = 0, stagings = 0, copied_bytes = 0;
    std::uint64_t importance_bytes = 0;
    std::uint64_t stubs = 0, stubs_made = 0;  // now; ever
  };
  [[nodiscard]] Counters counters() const noexcept;

  // Of the implementation; defined in engine/store/state.h, which nobody else includes.
  struct State;

 private:
  std::size_t expire(TimeNs now_ns) noexcept;
  Store();
  [[nodiscard]] Result<VersionHandle> end_publish(StagingHandle staging) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace kvrail::engine
