// Arenas of the store: how they are made, adopted, divided and retired.
#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "kvrail/base/checked.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kMaxBlockBytes = 1ULL << 31;
constexpr std::uint64_t kImportAlignment = 16;  // what every dtype and vector load is content with

// A receive arena may hold this many pieces at a time; small ones are what it runs out of.
std::uint32_t max_pieces(const StoreOptions& options) {
  const std::uint64_t by_table = 3ULL * options.max_blocks + options.max_versions;
  return static_cast<std::uint32_t>(std::min(by_table, options.receive_arena_bytes / 1024 + 1024));
}

Result<StoreMemoryPtr> make_memory(MemoryKind kind, Result<std::unique_ptr<mempool::Arena>> arena) {
  if (!arena) {
    return std::move(arena).error();
  }
  StoreMemoryPtr memory(new StoreMemory());
  memory->kind = kind;
  memory->arena = std::move(arena).value();
  return memory;
}

Result<std::uint64_t> checked_layout(const Layout& layout) {
  if (auto valid = codec::validate(layout); !valid) {
    return std::move(valid).error();
  }
  const auto bytes = checked_block_bytes(layout);
  if (!bytes) {
    return Error{{Code::too_large},
                 "layout: one block would have more than 2 GiB; use fewer tokens per block"};
  }
  return *bytes;
}

void make_slots(StoreMemory& memory, const Layout& layout, std::uint64_t block_bytes,
                std::uint32_t count) {
  memory.layout = layout;
  memory.block_bytes = block_bytes;
  memory.slot_count = count;
  memory.slots = std::make_unique<AgentSlot[]>(count);
}

}  // namespace

void StoreMemoryDeleter::operator()(StoreMemory* memory) const noexcept {
  // A chain of retired arenas is taken apart by hand: nested deleters would recurse.
  while (memory != nullptr) {
    StoreMemory* next = memory->next_retired.release();
    delete memory;
    memory = next;
  }
}

std::optional<std::uint64_t> checked_block_bytes(const Layout& layout) noexcept {
  const auto bytes = checked_product(2, layout.layers, layout.block_tokens, layout.kv_heads,
                                     layout.head_dim, dtype_bytes(layout.dtype));
  return bytes && *bytes > 0 && *bytes <= kMaxBlockBytes ? bytes : std::nullopt;
}

Result<StoreMemoryPtr> Store::prepare_tenant(const StoreOptions& options, const Name& name) {
  mempool::ArenaOptions arena;
  arena.bytes = options.receive_arena_bytes;
  arena.try_hugetlb = options.hugetlb;
  arena.lock = options.lock_memory;
  arena.sole_writer = true;
  arena.name = "kvrail-receive-" + std::string(name.view());
  auto memory = make_memory(MemoryKind::receive, mempool::Arena::create(arena));
  if (memory) {
    (*memory)->extents = std::make_unique<mempool::Extents>(
        (*memory)->arena->bytes() / kGranuleBytes, max_pieces(options));
    (*memory)->values = State::make_values(options);
  }
  return memory;
}

Result<StoreMemoryPtr> Store::prepare_agent(const StoreOptions& options, const Layout& layout,
                                            std::uint64_t arena_bytes) {
  const auto block_bytes = checked_layout(layout);
  if (!block_bytes) {
    return block_bytes.error();
  }
  const std::uint64_t bytes = arena_bytes == 0 ? options.agent_arena_bytes : arena_bytes;
  if (*block_bytes > bytes) {
    return Error{{Code::too_large},
                 "one block of this layout has " + std::to_string(*block_bytes) +
                     " bytes, the agent's arena only " + std::to_string(bytes) +
                     "; raise the arena's size or lower block_tokens"};
  }
  mempool::ArenaOptions arena;
  arena.bytes = bytes;
  arena.try_hugetlb = options.hugetlb;
  arena.lock = options.lock_memory;
  arena.name = "kvrail-agent";
  auto memory = make_memory(MemoryKind::agent, mempool::Arena::create(arena));
  if (memory) {
    const std::uint64_t fit = (*memory)->arena->bytes() / *block_bytes;
    const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, options.max_blocks));
    make_slots(**memory, layout, *block_bytes, count);
    (*memory)->extents = std::make_unique<mempool::Extents>(count, count);
  }
  return memory;
}

Result<StoreMemoryPtr> Store::prepare_import(const StoreOptions& options, const Layout& layout,
                                             std::byte* base, std::uint64_t bytes, int fd) {
  const auto block_bytes = checked_layout(layout);
  if (!block_bytes) {
    return block_bytes.error();
  }
  if (bytes == 0 || bytes % *block_bytes != 0 || bytes / *block_bytes > options.max_blocks) {
    return Error{{Code::invalid_argument},
                 "an imported range must hold whole blocks of " + std::to_string(*block_bytes) +
                     " bytes, at most " + std::to_string(options.max_blocks) + "; it has " +
                     std::to_string(bytes) + " bytes"};
  }
  if (fd < 0 && reinterpret_cast<std::uintptr_t>(base) % kImportAlignment != 0) {
    return Error{{Code::invalid_argument},
                 "an imported range must start at a multiple of 16 bytes"};
  }
  auto memory = make_memory(MemoryKind::imported, fd < 0 ? mempool::Arena::adopt(base, bytes)
                                                         : mempool::Arena::map_fd(fd, bytes));
  if (memory) {
    make_slots(**memory, layout, *block_bytes, static_cast<std::uint32_t>(bytes / *block_bytes));
  }
  return memory;
}

StoreMemory* Store::State::memory_of(mempool::RegionId id) const noexcept {
  return regions.find(id) != nullptr ? arenas[regions.slot_of(id)].get() : nullptr;
}

StoreMemory* Store::State::receive_of(TenantHandle tenant) const noexcept {
  const TenantRecord* record = tenants.get(tenant);
  return record != nullptr ? memory_of(record->receive) : nullptr;
}

std::byte* Store::State::address(mempool::RegionId arena, std::uint64_t offset) const noexcept {
  const StoreMemory* from = memory_of(arena);
  KVRAIL_ASSERT(from != nullptr && offset < from->arena->bytes());
  return from->arena->base() + offset;
}

Result<mempool::RegionId> Store::State::adopt(StoreMemoryPtr from, TenantHandle tenant,
                                              AgentHandle owner) noexcept {
  KVRAIL_ASSERT(from != nullptr && from->id == 0);
  const auto id = regions.try_add(from->arena->base(), from->arena->bytes(), from->arena->fd());
  if (!id) {
    retire(std::move(from));
    return Status{Code::out_of_capacity, Scope::engine,
                  static_cast<std::int32_t>(regions.capacity())};
  }
  from->id = *id;
  from->tenant = tenant;
  from->owner = owner;
  arenas[regions.slot_of(*id)] = std::move(from);
  return *id;
}

void Store::State::retire_if_unused(mempool::RegionId id) noexcept {
  StoreMemory* from = memory_of(id);
  KVRAIL_ASSERT(from != nullptr);
  const bool wanted =
      from->kind == MemoryKind::receive || (from->kind == MemoryKind::agent && from->owner.valid());
  if (wanted || from->used_slots > 0) {
    return;
  }
  revoked_arenas -= from->lender.valid() ? 1 : 0;
  StoreMemoryPtr gone = std::move(arenas[regions.slot_of(id)]);
  KVRAIL_ASSERT(regions.remove(id));
  if (retire_hook != nullptr) {
    retire_hook(retire_context, *gone->arena);
  }
  retire(std::move(gone));
}

// Whoever takes from the stack takes all of it, so a compare that sees an old head again is right.
void Store::State::retire(StoreMemoryPtr gone) noexcept {
  if (gone == nullptr) {
    return;
  }
  ++retirements;
  StoreMemory* const added = gone.release();
  StoreMemory* head = retired.load(std::memory_order_relaxed);
  if (head == nullptr) {
    retired_since_ns = clock.now_ns();
  }
  do {
    static_cast<void>(added->next_retired.release());
    added->next_retired.reset(head);
    // Release: pairs with take_retired(), whose thread destroys what the worker has written.
  } while (!retired.compare_exchange_weak(head, added, std::memory_order_release,
                                          std::memory_order_relaxed));
}

bool Store::State::is_revoked(BlockHandle handle) const noexcept {
  if (revoked_arenas == 0) {
    return false;
  }
  const BlockRecord* block = blocks.get(handle);
  const SlotRecord* slot = block == nullptr ? nullptr : slots.get(block->slot);
  return slot != nullptr && memory_of(slot->arena)->lender.valid();
}

bool Store::State::is_revoked(const VersionRecord& version) const noexcept {
  return revoked_arenas != 0 &&
         std::any_of(version.blocks, version.blocks + version.block_count,
                     [this](BlockHandle block) { return is_revoked(block); });
}

void Store::State::revoke(StoreMemory& pages) noexcept {
  pages.lender = pages.owner;
  ++revoked_arenas;
  blocks.for_each([&](BlockHandle handle, BlockRecord& block) {
    const SlotRecord* slot = slots.get(block.slot);
    if (block.indexed && slot != nullptr && slot->arena == pages.id) {
      block_index.erase(block.hash.low, handle.index);
      block.indexed = false;
    }
  });
  versions.for_each([&](VersionHandle handle, const VersionRecord& version) {
    if (!version.published || !is_revoked(version)) {
      return;
    }
    if (version.pins == 0) {
      destroy(handle);
    } else {
      unlist(handle);  // Its last reader takes it along.
    }
  });
}

std::optional<std::uint64_t> Store::State::take(TenantHandle tenant, std::uint64_t bytes,
                                                mempool::PoolClass pool) noexcept {
  StoreMemory* from = receive_of(tenant);
  KVRAIL_ASSERT(from != nullptr);
  const std::uint64_t units = granules(bytes);
  if (units == 0 || units > from->extents->total_units()) {
    return std::nullopt;  // Nothing that could be evicted would help.
  }
  for (;;) {
    if (const auto first = from->extents->try_take(units)) {
      from->usage.take(pool, units * kGranuleBytes);
      return *first * kGranuleBytes;
    }
    // Planes cost an encoding to have again, versions a transfer.
    if (!evict_planes(tenant) && !evict_one(tenant, pool == mempool::PoolClass::manifest)) {
      return std::nullopt;
    }
  }
}

bool Store::State::may_fit(TenantHandle tenant, std::uint64_t bytes) const noexcept {
  const TenantRecord& record = *tenants.get(tenant);
  const StoreMemory& from = *receive_of(tenant);
  if (record.dying_first) {
    return true;  // How much these give back is not known.
  }
  std::uint64_t room = from.extents->free_units() * kGranuleBytes + record.idle.kv_bytes + record.idle_kept.kv_bytes;
  for (const auto pool : {mempool::PoolClass::plane0, mempool::PoolClass::plane1, mempool::PoolClass::residual, mempool::PoolClass::lowrank}) {
    room += from.usage.used(pool);
  }
  return bytes <= room;
}

void Store::State::give_back(TenantHandle tenant, std::uint64_t offset, std::uint64_t bytes,
                             mempool::PoolClass pool) noexcept {
  StoreMemory* from = receive_of(tenant);
  KVRAIL_ASSERT(from != nullptr && offset % kGranuleBytes == 0);
  const std::uint64_t units = granules(bytes);
  from->extents->give_back(offset / kGranuleBytes, units);
  from->usage.give_back(pool, units * kGranuleBytes);
}

Status Store::State::out_of_memory(TenantHandle tenant) const noexcept {
  const StoreMemory* from = receive_of(tenant);
  const std::uint64_t free = from == nullptr ? 0 : from->extents->free_units() * kGranuleBytes;
  return {Code::out_of_memory, Scope::transfer,
          static_cast<std::int32_t>(std::min<std::uint64_t>(free, INT32_MAX))};
}

}  // namespace kvrail::engine
