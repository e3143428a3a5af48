// The store's tables and the operations on them that several of its files need. See store.h for the
// rules; the files: memory.cc (arenas), blocks.cc, digests.cc, versions.cc, contexts.cc,
// manifest.cc hold these operations; agents.cc, commit.cc, delivery.cc, stage.cc, staging.cc,
// tokens.cc, store.cc the public functions; check.cc audits.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "engine/store/hash_index.h"
#include "engine/store/records.h"
#include "mempool/fixed_memory.h"

namespace kvrail::engine {

[[nodiscard]] inline Status refuse(StoreRule rule) noexcept {
  return {Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(rule)};
}
// Bytes of a block slot, nothing for a layout that is not valid or whose sizes do not fit.
[[nodiscard]] std::optional<std::uint64_t> checked_block_bytes(const Layout& layout) noexcept;
// Of a request from outside; never allocates where it succeeds.
[[nodiscard]] bool valid_layout(const Layout& layout) noexcept;
[[nodiscard]] inline std::uint64_t granules(std::uint64_t bytes) noexcept {
  return bytes / kGranuleBytes + (bytes % kGranuleBytes != 0 ? 1 : 0);
}
// The token ids of block i.
[[nodiscard]] inline std::span<const TokenId> block_tokens_of(std::span<const TokenId> tokens,
                                                              std::uint32_t block_tokens,
                                                              std::uint64_t i) noexcept {
  const std::uint64_t first = i * block_tokens;
  return tokens.subspan(first, std::min<std::uint64_t>(block_tokens, tokens.size() - first));
}

struct Store::State {
  State(const StoreOptions& options, const Clock& clock,
        std::unique_ptr<mempool::FixedMemory> memory);

  // --- memory.cc ---
  [[nodiscard]] StoreMemory* memory_of(mempool::RegionId id) const noexcept;
  [[nodiscard]] StoreMemory* receive_of(TenantHandle tenant) const noexcept;
  [[nodiscard]] Result<mempool::RegionId> adopt(StoreMemoryPtr memory, TenantHandle tenant,
                                                AgentHandle owner) noexcept;
  void retire_if_unused(mempool::RegionId id) noexcept;
  void retire(StoreMemoryPtr gone) noexcept;
  // Of pages by address whose agent has gone.
  void revoke(StoreMemory& pages) noexcept;
  [[nodiscard]] bool is_revoked(BlockHandle block) const noexcept;
  [[nodiscard]] bool is_revoked(const VersionRecord& version) const noexcept;
  // Space in the tenant's receive arena; unpinned versions without an owner make room, oldest
  // first.
  [[nodiscard]] std::optional<std::uint64_t> take(TenantHandle tenant, std::uint64_t bytes,
                                                  mempool::PoolClass pool) noexcept;
  // False: not even if all that is idle went, so nothing of it should.
  [[nodiscard]] bool may_fit(TenantHandle tenant, std::uint64_t bytes) const noexcept;
  void give_back(TenantHandle tenant, std::uint64_t offset, std::uint64_t bytes,
                 mempool::PoolClass pool) noexcept;
  [[nodiscard]] Status out_of_memory(TenantHandle tenant) const noexcept;
  [[nodiscard]] std::byte* address(mempool::RegionId arena, std::uint64_t offset) const noexcept;

  // --- blocks.cc ---
  struct NewBlock {
    TenantHandle tenant;
    Hash128 hash, parent;
    BlockShape shape;
    std::uint32_t tokens = 0;
    std::uint32_t epsilon_ppm = 0;
    SlotHandle slot;                  // a slot that other blocks name already; else
    mempool::RegionId own_arena = 0;  // a writable slot of an agent; else one is taken from the
    std::uint64_t own_offset = 0;     // tenant's receive arena
    std::uint64_t slot_bytes = 0;
    Coding coding;  // a coded medium: with its planes
  };
  // The i-th block of an open version, of `tokens` behind `parent`; its slot and its loss are the caller's to say.
  [[nodiscard]] static NewBlock new_block(const VersionRecord& version, std::uint32_t i, const Hash128& parent,
                                          std::size_t tokens) noexcept;
  // A block with one reference that nothing finds yet. On failure nothing is kept.
  [[nodiscard]] Result<BlockHandle> make_block(const NewBlock& request) noexcept;
  [[nodiscard]] SlotHandle make_slot(mempool::RegionId arena, std::uint64_t offset,
                                     std::uint64_t bytes) noexcept;
  [[nodiscard]] bool find_slot(const NewBlock& request, BlockRecord& block) noexcept;
  void ref(BlockHandle block) noexcept;
  void unref(BlockHandle block) noexcept;
  void unref_slot(SlotHandle slot) noexcept;
  // Lets the block be found; it takes the place of one with the same hash and a worse ε.
  void index_block(BlockHandle block) noexcept;
  [[nodiscard]] BlockHandle find_block(TenantHandle tenant, const Hash128& hash) const noexcept;
  // From loops over a version's blocks, each of whose look-ups is a cache miss: the one of a few blocks
  // later is begun now.
  void prefetch_after(const VersionRecord& version, std::uint32_t i) const noexcept;
  // The longest block that holds a proper prefix of these rows under the same parent.
  [[nodiscard]] BlockHandle find_tail(TenantHandle tenant, const Hash128& parent,
                                      std::span<const TokenId> tokens,
                                      std::uint32_t epsilon_limit_ppm) const noexcept;
  // Those of the coding that the block has not yet; false: no memory, and nothing is kept.
  [[nodiscard]] bool take_planes(BlockRecord& block, const Coding& coding) noexcept;
  [[nodiscard]] bool take_plane(BlockRecord& block, const Coding& coding, std::size_t plane) noexcept;
  // Whether plane 2 is as the coding wants it, or may be made so.
  [[nodiscard]] bool fit_varying(BlockRecord& block, const Coding& coding, bool used) noexcept;
  void drop_plane(BlockRecord& block, std::size_t plane) noexcept;
  void drop_planes(BlockRecord& block) noexcept;
  void use_planes(BlockHandle handle) noexcept;
  void plane_list_add(BlockHandle handle) noexcept;
  void unuse_planes(BlockHandle handle) noexcept;
  void plane_list_remove(BlockRecord& block) noexcept;
  [[nodiscard]] bool evict_planes(TenantHandle tenant) noexcept;
  // That the plane's runs are coded in; null for planes whose runs are equal.
  [[nodiscard]] const LowRankBasis* basis_of(std::size_t plane) const noexcept {
    return plane == kLowRankPlane ? options.lowrank.get() : nullptr;
  }
  [[nodiscard]] const LowRankBasis* basis_for(Medium medium) const noexcept {
    return basis_of(medium == Medium::lowrank ? kLowRankPlane : 0);
  }
  [[nodiscard]] RunPlace run_of(const BlockRecord& block, std::size_t plane, std::uint32_t layer) const noexcept {
    return run_place(basis_of(plane), block.planes[plane].bytes, block.shape.layers, block.tokens, layer);
  }

  // --- digests.cc ---
  [[nodiscard]] bool reserve(DigestList& list, std::uint64_t units) noexcept;
  void release(DigestList& list) noexcept;
  [[nodiscard]] bool digest(BlockRecord& block, std::uint32_t layers,
                            std::uint64_t& budget_bytes) noexcept;
  void digest_planes(BlockRecord& block, PlaneMask planes, std::uint32_t layers) noexcept;
  void push_fresh(BlockHandle handle) noexcept;
  void drop_fresh(BlockHandle handle) noexcept;

  // --- versions.cc ---
  // A version that nothing finds, with room for its lists.
  [[nodiscard]] Result<VersionHandle> make_version(TenantHandle tenant, const Name& owner,
                                                   const Name& name, const Layout& layout,
                                                   std::uint64_t token_count, bool with_blocks,
                                                   bool with_missing) noexcept;
  // Its manifest is written: from now on it is visible, and found by name if `listed`.
  void list(VersionHandle handle, bool listed) noexcept;
  void pin(VersionHandle handle) noexcept;    // an invalid handle is welcome, for unpin() too
  void unpin(VersionHandle handle) noexcept;  // may destroy it
  // Not pinned. It is gone at once, its blocks follow: reap().
  void destroy(VersionHandle handle) noexcept;
  // Not pinned. A stub stays of what can be had again from its token ids; anything else is destroyed.
  void let_go(VersionHandle handle) noexcept;
  // Lets blocks of destroyed versions go. Returns how many.
  std::uint64_t reap(TenantHandle tenant, std::uint64_t budget_blocks) noexcept;
  void bury_soon(VersionHandle handle) noexcept;
  [[nodiscard]] bool bury(VersionHandle handle, std::uint64_t& budget_blocks) noexcept;
  void unlist(VersionHandle handle) noexcept;
  void idle(VersionHandle handle) noexcept;  // the last pin has gone, or never was one
  void lru_remove(VersionHandle handle) noexcept;
  // For room in the arena: blocks go before stubs, which give back next to nothing.
  [[nodiscard]] bool evict_one(TenantHandle tenant, bool stubs_too) noexcept;
  // For an entry or memory of the tables: stubs go before blocks.
  [[nodiscard]] bool evict_entry(TenantHandle tenant) noexcept;
  void supersede(ContextRecord& context) noexcept;  // the context may be gone afterwards
  [[nodiscard]] ContextHandle find_context(TenantHandle tenant, const Name& owner,
                                           const Name& name) const noexcept;
  [[nodiscard]] ContextHandle ensure_context(TenantHandle tenant, const Name& owner,
                                             const Name& name) noexcept;
  [[nodiscard]] VersionHandle find_version(ContextHandle context,
                                           std::uint64_t number) const noexcept;
  void erase_context(ContextHandle handle) noexcept;
  void own_context(ContextHandle handle, AgentRecord& agent) noexcept;
  void disown_context(ContextHandle handle) noexcept;

  // --- values.cc: what a tenant's versions are worth that may leave memory ---
  [[nodiscard]] static std::unique_ptr<scheduler::ValueIndex> make_values(const StoreOptions& options);
  [[nodiscard]] scheduler::ValueIndex& values_of(TenantHandle tenant) const noexcept { return *receive_of(tenant)->values; }
  void value_idle(VersionHandle handle) noexcept;    // nobody needs it from now on
  void value_busy(VersionHandle handle) noexcept;    // it was idle, and is used
  void value_forget(VersionHandle handle) noexcept;  // it leaves, or is its owner's again; still in its list if it was idle
  [[nodiscard]] scheduler::EntryCost cost_of(const VersionRecord& version) const noexcept;
  [[nodiscard]] VersionHandle least_worth(TenantHandle tenant) const noexcept;  // invalid: none is idle

  // --- stubs.cc ---
  [[nodiscard]] bool may_become_stub(const VersionRecord& version) const noexcept;
  void make_stub(VersionHandle handle) noexcept;
  // The KV is here again: the stub of the same number is of no use.
  void drop_stub_of(const VersionRecord& version) noexcept;
  [[nodiscard]] bool is_shadowed(const VersionRecord& stub) const noexcept;
  [[nodiscard]] std::uint32_t with_kv(const VersionRecord& version) const noexcept;  // of its context and number

  // --- manifest.cc ---
  [[nodiscard]] bool take_manifest(VersionRecord& version) noexcept;  // sizes are known
  void drop_manifest_blocks(VersionRecord& version) noexcept;  // its entries; kv_blocks is 0 afterwards
  void write_manifest_header(const VersionRecord& version) noexcept;
  void write_manifest_block(const VersionRecord& version, std::uint32_t block) noexcept;
  [[nodiscard]] std::byte* manifest_tail(const VersionRecord& version) const noexcept;
  [[nodiscard]] std::span<const TokenId> tokens_of(const VersionRecord& version) const noexcept;
  [[nodiscard]] std::span<std::uint32_t> positions_of(const VersionRecord& version) const noexcept;  // topk
  [[nodiscard]] bool take_positions_room(VersionRecord& version, std::uint64_t total) noexcept;
  void give_back_positions(VersionRecord& version) noexcept;
  [[nodiscard]] ManifestRef manifest_ref(const VersionRecord& version) const noexcept;

  // --- staging.cc ---
  void undo_growth(const StagingRecord& staging) noexcept;
  [[nodiscard]] BlockHandle find_or_index(BlockHandle own) noexcept;
  // What the planes of a block that has arrived are good for from now on.
  void settle_planes(const StagingRecord& staging, const Coding& coding, BlockHandle handle) noexcept;
  void settle_block(const StagingRecord& staging, VersionRecord& version) noexcept;
  void write_staged(const StagingRecord& staging, const VersionRecord& version) noexcept;
  [[nodiscard]] VersionHandle find_equal(const VersionRecord& version,
                                         std::uint32_t epsilon_ppm) const noexcept;
  // What is found by its name with the least loss, of the same number and tokens; itself where there is no such.
  [[nodiscard]] VersionHandle finest_of(VersionHandle handle) const noexcept;
  // Versions of the same number and tokens that lost more, and are held by nobody.
  void drop_coarser_of(const VersionRecord& version) noexcept;
  [[nodiscard]] bool may_list(const VersionRecord& version) const noexcept;

  // --- commit.cc, commit_check.cc ---
  // Fills in what `open` inherits from the prefix.
  [[nodiscard]] Status judge_commit(const AgentRecord& agent, const CommitRequest& request,
                                    CommitRecord& open) const noexcept;
  [[nodiscard]] Result<VersionHandle> end_commit(CommitHandle handle) noexcept;
  void close_commit(CommitHandle handle) noexcept;
  void drop_commit(CommitHandle handle) noexcept;

  // --- agents.cc ---
  [[nodiscard]] AgentRecord* agent(AgentHandle handle) const noexcept;
  void drop_delivery(DeliveryHandle handle) noexcept;

  StoreOptions options;
  const Clock& clock;
  std::unique_ptr<mempool::FixedMemory> memory;
  SlotTable<TenantRecord, TenantTag> tenants;
  std::unique_ptr<AgentRecord[]> agents;
  mempool::RegionTable regions;
  std::unique_ptr<StoreMemoryPtr[]> arenas;  // by slot_of(region)
  std::atomic<StoreMemory*> retired{nullptr};  // a stack; who takes, takes all
  TimeNs retired_since_ns = 0;
  std::uint64_t retirements = 0;
  RetireHook retire_hook = nullptr;
  void* retire_context = nullptr;
  std::uint32_t revoked_arenas = 0;
  TimeNs next_expiry_look_ns = 0;
  SlotTable<SlotRecord> slots;
  SlotTable<BlockRecord, BlockTag> blocks;
  SlotTable<VersionRecord, VersionTag> versions;
  SlotTable<ContextRecord> contexts;
  SlotTable<DeliveryRecord, DeliveryTag> deliveries;
  SlotTable<StagingRecord, StagingTag> stagings;
  SlotTable<CommitRecord, CommitTag> commits;
  HashIndex block_index;
  HashIndex context_index;
  BlockHandle fresh_first, fresh_last;
  RestoreCosts costs;
  std::uint64_t sequence = 0;
  std::uint32_t dying_versions = 0;  // of all tenants: most cycles look at no tenant
  std::uint64_t copied_bytes = 0;
  std::uint64_t importance_bytes = 0;
  std::uint64_t stubs_made = 0;
  std::uint32_t stubs = 0;
  std::uint32_t commit_mark = 0;
};

}  // namespace kvrail::engine
