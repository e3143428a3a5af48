// Blocks and the slots that hold their rows.
#include <algorithm>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "transport/payload.h"

namespace kvrail::engine {
namespace {

std::uint64_t raw_units(const BlockShape& shape, std::uint32_t tokens) noexcept {
  const std::uint64_t rows_bytes = tokens * shape.layout().row_bytes();
  const std::uint64_t of_layer = tokens == shape.block_tokens
                                     ? transport::units_in(2 * rows_bytes)
                                     : 2ULL * transport::units_in(rows_bytes);
  return shape.layers * of_layer;
}

}  // namespace

SlotHandle Store::State::make_slot(mempool::RegionId arena, std::uint64_t offset,
                                   std::uint64_t bytes) noexcept {
  const SlotHandle handle = slots.try_emplace();
  KVRAIL_ASSERT_MSG(handle.valid(),
                    "there are as many slots as blocks, and a slot without a block is a leak");
  SlotRecord& slot = *slots.get(handle);
  slot.arena = arena;
  slot.offset = offset;
  slot.bytes = bytes;
  return handle;
}

bool Store::State::find_slot(const NewBlock& request, BlockRecord& block) noexcept {
  if (request.slot) {
    block.slot = request.slot;
  } else if (request.own_arena != 0) {
    block.slot = make_slot(request.own_arena, request.own_offset, request.slot_bytes);
    StoreMemory& own = *memory_of(request.own_arena);
    own.slots[request.own_offset / own.block_bytes].record = block.slot;
  } else {
    const auto offset = take(request.tenant, request.slot_bytes, mempool::PoolClass::raw);
    if (!offset) {
      return false;
    }
    block.slot = make_slot(tenants.get(request.tenant)->receive, *offset, request.slot_bytes);
  }
  ++slots.get(block.slot)->refs;
  return true;
}

Store::State::NewBlock Store::State::new_block(const VersionRecord& version, std::uint32_t i, const Hash128& parent,
                                               std::size_t tokens) noexcept {
  NewBlock request;
  request.tenant = version.tenant;
  request.hash = version.hashes[i];
  request.parent = parent;
  request.shape = BlockShape::of(version.layout);
  request.tokens = static_cast<std::uint32_t>(tokens);
  request.slot_bytes = version.layout.block_bytes();
  return request;
}

Result<BlockHandle> Store::State::make_block(const NewBlock& request) noexcept {
  TenantRecord& tenant = *tenants.get(request.tenant);
  while (options.tenant_max_blocks != 0 && tenant.blocks >= options.tenant_max_blocks &&
         reap(request.tenant, 1) > 0) {
  }
  if (options.tenant_max_blocks != 0 && tenant.blocks >= options.tenant_max_blocks) {
    return Status{Code::quota_exceeded, Scope::transfer,
                  static_cast<std::int32_t>(options.tenant_max_blocks)};
  }
  while (blocks.full() && evict_one(request.tenant, true)) {
  }
  const BlockHandle handle = blocks.try_emplace();
  if (!handle) {
    return Status{Code::out_of_capacity, Scope::transfer,
                  static_cast<std::int32_t>(blocks.capacity())};
  }
  BlockRecord& block = *blocks.get(handle);
  block.hash = request.hash;
  block.parent = request.parent;
  block.tenant = request.tenant;
  block.shape = request.shape;
  block.tokens = request.tokens;
  block.epsilon_ppm = request.epsilon_ppm;
  block.refs = 1;
  ++tenant.blocks;
  if (!find_slot(request, block) || !reserve(block.digests, raw_units(block.shape, block.tokens)) ||
      !take_planes(block, request.coding)) {
    unref(handle);
    return out_of_memory(request.tenant);
  }
  block.plane_users = block.has_planes() ? 1 : 0;
  return handle;
}

void Store::State::ref(BlockHandle handle) noexcept {
  BlockRecord* block = blocks.get(handle);
  KVRAIL_ASSERT(block != nullptr && block->refs > 0);
  ++block->refs;
}

void Store::State::unref(BlockHandle handle) noexcept {
  BlockRecord* block = blocks.get(handle);
  KVRAIL_ASSERT(block != nullptr && block->refs > 0);
  if (--block->refs > 0) {
    return;
  }
  if (block->indexed) {
    block_index.erase(block->hash.low, handle.index);
  }
  if (block->fresh) {
    drop_fresh(handle);
  }
  if (block->has_planes() && block->plane_users == 0) {
    plane_list_remove(*block);
  }
  drop_planes(*block);
  release(block->digests);
  if (block->slot) {
    unref_slot(block->slot);
  }
  --tenants.get(block->tenant)->blocks;
  blocks.erase(handle);
}

void Store::State::unref_slot(SlotHandle handle) noexcept {
  SlotRecord* slot = slots.get(handle);
  KVRAIL_ASSERT(slot != nullptr && slot->refs > 0);
  if (--slot->refs > 0) {
    return;
  }
  StoreMemory* from = memory_of(slot->arena);
  KVRAIL_ASSERT(from != nullptr);
  const SlotRecord gone = *slot;
  slots.erase(handle);
  if (from->kind == MemoryKind::receive) {
    give_back(from->tenant, gone.offset, gone.bytes, mempool::PoolClass::raw);
    return;
  }
  const std::uint64_t index = gone.offset / from->block_bytes;
  AgentSlot& own = from->slots[index];
  own.record = SlotHandle{};
  if (own.state == SlotState::writable) {
    return;  // A commit that failed half-way; the slot was the agent's and stays so.
  }
  KVRAIL_ASSERT(own.state == SlotState::committed && from->used_slots > 0);
  own.state = SlotState::free;
  --from->used_slots;
  if (from->extents != nullptr) {
    from->extents->give_back(index, 1);
  }
  retire_if_unused(gone.arena);
}

void Store::State::index_block(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT(!block.indexed);
  if (const BlockHandle other = find_block(block.tenant, block.hash)) {
    BlockRecord& worse = *blocks.get(other);
    if (worse.epsilon_ppm <= block.epsilon_ppm) {
      return;
    }
    block_index.erase(worse.hash.low, other.index);
    worse.indexed = false;
  }
  block_index.insert(block.hash.low, handle.index);
  block.indexed = true;
}

BlockHandle Store::State::find_block(TenantHandle tenant, const Hash128& hash) const noexcept {
  const std::uint32_t position = block_index.find(hash.low, [&](std::uint32_t at) {
    const BlockRecord& block = *blocks.get(blocks.handle_at(at));
    return block.hash == hash && block.tenant == tenant;
  });
  return position == HashIndex::kNone ? BlockHandle{} : blocks.handle_at(position);
}

void Store::State::prefetch_after(const VersionRecord& version, std::uint32_t i) const noexcept {
  constexpr std::uint32_t kAhead = 8;
  if (i + kAhead >= version.hash_count) {
    return;
  }
  block_index.prefetch(version.hashes[i + kAhead].low);
  if (i + kAhead < version.block_count && version.blocks[i + kAhead]) {
    blocks.prefetch(version.blocks[i + kAhead]);
  }
}

// A tail is named by (parent, its rows), so every length is a name to ask for. At most T - 1 short
// hashes, and no chain of same-parent tails that a flood of short contexts could lengthen.
BlockHandle Store::State::find_tail(TenantHandle tenant, const Hash128& parent,
                                    std::span<const TokenId> tokens,
                                    std::uint32_t epsilon_limit_ppm) const noexcept {
  for (std::size_t rows = tokens.size(); rows-- > 1;) {
    const BlockHandle handle = find_block(tenant, codec::chain(parent, tokens.first(rows)));
    if (handle && blocks.get(handle)->epsilon_ppm <= epsilon_limit_ppm) {
      return handle;
    }
  }
  return {};
}

// --- public ---

BlockView Store::block(BlockHandle handle) const noexcept {
  BlockView view;
  const BlockRecord* block = state_->blocks.get(handle);
  if (block == nullptr) {
    return view;
  }
  const SlotRecord& slot = *state_->slots.get(block->slot);
  view.hash = block->hash;
  view.raw = state_->address(slot.arena, slot.offset);
  view.arena = slot.arena;
  view.offset = slot.offset;
  view.tokens = block->tokens;
  view.epsilon_ppm = block->epsilon_ppm;
  view.came_coded = block->came_coded;
  view.encoding = block->encoding;
  std::byte* base = state_->receive_of(block->tenant)->arena->base();
  for (std::size_t i = 0; i < kPlanes; ++i) {
    const PlaneRecord& plane = block->planes[i];
    if (!plane.taken()) continue;
    view.planes[i] = {base + plane.offset, plane.bytes,   plane.layers,
                      block->shape.layers, block->tokens, state_->basis_of(i)};
  }
  return view;
}

}  // namespace kvrail::engine
