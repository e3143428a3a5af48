// Agents and the slots that they write.
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

struct SlotRange {
  StoreMemory* memory = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// The slots that an extent from outside names, if the agent owns them.
Status own_range(const Store::State& state, AgentHandle agent, const Extent& extent,
                 SlotRange& out) noexcept {
  StoreMemory* memory = state.memory_of(extent.arena);
  if (memory == nullptr || memory->kind == MemoryKind::receive || memory->owner != agent) {
    return refuse(StoreRule::foreign_slot);
  }
  const std::uint64_t first = extent.offset / memory->block_bytes;
  if (extent.count == 0 || extent.offset % memory->block_bytes != 0 || first > memory->slot_count ||
      extent.count > memory->slot_count - first) {
    return refuse(StoreRule::slot_unaligned);
  }
  out = {memory, static_cast<std::uint32_t>(first), extent.count};
  return {};
}

// Frees the writable slots of a range; runs of them in one step. Returns how many.
std::uint32_t free_writable(const SlotRange& range) noexcept {
  StoreMemory& memory = *range.memory;
  std::uint32_t freed = 0;
  const std::uint32_t end = range.first + range.count;
  for (std::uint32_t i = range.first; i < end;) {
    if (memory.slots[i].state != SlotState::writable) {
      ++i;
      continue;
    }
    const std::uint32_t run = i;
    while (i < end && memory.slots[i].state == SlotState::writable) {
      memory.slots[i].state = SlotState::free;
      ++i;
    }
    if (memory.extents != nullptr) {
      memory.extents->give_back(run, i - run, i - run);
    }
    freed += i - run;
  }
  KVRAIL_ASSERT(memory.used_slots >= freed);
  memory.used_slots -= freed;
  return freed;
}

bool names_slot_of(const Store::State& state, const VersionRecord& version,
                   mempool::RegionId arena) noexcept {
  const auto lies_there = [&](BlockHandle handle) {
    const BlockRecord* block = state.blocks.get(handle);
    const SlotRecord* slot = block == nullptr ? nullptr : state.slots.get(block->slot);
    return slot != nullptr && slot->arena == arena;
  };
  return std::any_of(version.blocks, version.blocks + version.block_count, lies_there);
}

// The first from there on that shares a slot of the arena.
VersionHandle sharing(const Store::State& state, VersionHandle at, mempool::RegionId arena) noexcept {
  const VersionRecord* version = state.versions.get(at);
  while (version != nullptr && !names_slot_of(state, *version, arena)) {
    at = version->lru_next;
    version = state.versions.get(at);
  }
  return version == nullptr ? VersionHandle{} : at;
}

// A run of free slots. What came from elsewhere shares blocks that an agent had committed, and is kept
// after the agent has dropped its own context; such versions go, oldest first, when it wants room.
std::optional<std::uint64_t> take_slots(Store::State& state, TenantHandle tenant,
                                        StoreMemory& memory, std::uint32_t count) noexcept {
  VersionHandle at = state.tenants.get(tenant)->idle_kept.oldest;
  bool kept = true;
  for (;;) {
    if (const auto first = memory.extents->try_take(count, count)) {
      return first;
    }
    if (state.reap(tenant, count) > 0) {
      continue;
    }
    at = sharing(state, at, memory.id);
    if (!at && !kept) {
      return std::nullopt;
    }
    if (!at) {
      kept = false;
      at = state.tenants.get(tenant)->idle.oldest;
      continue;
    }
    const VersionHandle next = state.versions.get(at)->lru_next;
    state.let_go(at);
    at = next;
  }
}

Status may_add(const Store::State& state, const AgentRecord& place, const Name& name,
               TenantHandle tenant, const Layout& layout, const StoreMemory* memory) noexcept {
  if (place.handle.valid()) {
    return Code::already_exists;
  }
  if (state.tenants.get(tenant) == nullptr) {
    return Code::not_found;
  }
  for (std::uint32_t i = 0; i < state.options.max_agents; ++i) {
    const AgentRecord& other = state.agents[i];
    if (other.handle.valid() && other.tenant == tenant && other.name == name) {
      return Code::already_exists;
    }
  }
  const bool fits =
      memory != nullptr && memory->kind == MemoryKind::agent && memory->layout == layout;
  return fits ? Status{} : refuse(StoreRule::import_only);
}

}  // namespace

AgentRecord* Store::State::agent(AgentHandle handle) const noexcept {
  if (!handle.valid() || handle.index >= options.max_agents ||
      agents[handle.index].handle != handle) {
    return nullptr;
  }
  return &agents[handle.index];
}

Result<void> Store::add_agent(AgentHandle handle, const Name& name, TenantHandle tenant,
                              const Layout& layout, StoreMemoryPtr memory) noexcept {
  KVRAIL_ASSERT_MSG(handle.valid() && handle.index < state_->options.max_agents,
                    "more agents than max_agents");
  AgentRecord& agent = state_->agents[handle.index];
  const Status status = may_add(*state_, agent, name, tenant, layout, memory.get());
  if (!status.ok()) {
    state_->retire(std::move(memory));
    return status;
  }
  const std::uint64_t block_bytes = memory->block_bytes;
  const auto id = state_->adopt(std::move(memory), tenant, handle);
  if (!id) {
    return id.status();
  }
  agent = AgentRecord{};
  agent.handle = handle;
  agent.name = name;
  agent.tenant = tenant;
  agent.layout = layout;
  agent.block_bytes = block_bytes;
  agent.arena = *id;
  return {};
}

Result<void> Store::add_agent(AgentHandle handle, const Name& name, TenantHandle tenant,
                              const Layout& layout, std::uint64_t arena_bytes) {
  auto memory = prepare_agent(state_->options, layout, arena_bytes);
  if (!memory) {
    return std::move(memory).error();
  }
  return add_agent(handle, name, tenant, layout, std::move(memory).value());
}

std::uint32_t Store::remove_agent(AgentHandle handle) noexcept {
  State& state = *state_;
  AgentRecord* agent = state.agent(handle);
  if (agent == nullptr) {
    return 0;
  }
  if (agent->open_commit) {
    state.drop_commit(agent->open_commit);
  }
  while (agent->newest_delivery) {
    KVRAIL_ASSERT(release(handle, agent->newest_delivery));
  }
  while (agent->first_context) {
    const ContextHandle context = agent->first_context;
    state.disown_context(context);
    VersionHandle version = state.contexts.get(context)->newest;
    for (; version; version = state.versions.get(version)->next_older) {
      if (state.versions.get(version)->pins == 0) {
        state.idle(version);  // From now on it stays for its TTL only.
      }
    }
  }
  std::uint32_t freed = 0;
  for (std::uint32_t i = 0; i < state.regions.capacity(); ++i) {
    StoreMemory* memory = state.arenas[i].get();
    if (memory != nullptr && memory->owner == handle) {
      freed += free_writable({memory, 0, memory->slot_count});
      const mempool::RegionId id = memory->id;
      const bool by_address = memory->kind == MemoryKind::imported && memory->arena->fd() < 0;
      if (by_address) {
        state.revoke(*memory);  // The memory itself may go with its last version.
      }
      if ((memory = state.memory_of(id)) != nullptr) {
        memory->owner = AgentHandle{};
        state.retire_if_unused(id);
      }
    }
  }
  *agent = AgentRecord{};
  return freed;
}

bool Store::lends(AgentHandle handle) const noexcept {
  for (std::uint32_t i = 0; state_->revoked_arenas > 0 && i < state_->regions.capacity(); ++i) {
    const StoreMemory* memory = state_->arenas[i].get();
    if (memory != nullptr && handle.valid() && memory->lender == handle) {
      return true;
    }
  }
  return false;
}

bool Store::revoked(VersionHandle handle) const noexcept {
  const VersionRecord* version = state_->versions.get(handle);
  return version != nullptr && state_->is_revoked(*version);
}

std::uint32_t Store::agent_arena(AgentHandle handle) const noexcept {
  const AgentRecord* agent = state_->agent(handle);
  return agent == nullptr ? 0 : agent->arena;
}

Result<Extent> Store::allocate(AgentHandle handle, std::uint32_t count) noexcept {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return refuse(StoreRule::no_such_agent);
  }
  if (count == 0) {
    return refuse(StoreRule::too_few_slots);
  }
  StoreMemory& memory = *state_->memory_of(agent->arena);
  if (count > memory.slot_count) {
    return Status{Code::too_large, Scope::transfer, static_cast<std::int32_t>(memory.slot_count)};
  }
  const auto first = take_slots(*state_, agent->tenant, memory, count);
  if (!first) {
    return Status{Code::out_of_capacity, Scope::transfer,
                  static_cast<std::int32_t>(memory.extents->largest_free())};
  }
  for (std::uint64_t i = *first; i < *first + count; ++i) {
    KVRAIL_ASSERT(memory.slots[i].state == SlotState::free && !memory.slots[i].record);
    memory.slots[i].state = SlotState::writable;
  }
  memory.used_slots += count;
  return Extent{memory.id, count, *first * memory.block_bytes};
}

Status Store::free_blocks(AgentHandle handle, const Extent& extent) noexcept {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return refuse(StoreRule::no_such_agent);
  }
  if (agent->open_commit) {
    return Code::busy;  // Some of its slots may be the agent's again.
  }
  SlotRange range;
  if (const Status status = own_range(*state_, handle, extent, range); !status.ok()) {
    return status;
  }
  // Slots that a version held are free already if it has gone meanwhile; all free is an error.
  const AgentSlot* first = range.memory->slots.get() + range.first;
  if (std::all_of(first, first + range.count,
                  [](const AgentSlot& slot) { return slot.state == SlotState::free; })) {
    return refuse(StoreRule::slot_not_writable);
  }
  free_writable(range);
  state_->retire_if_unused(extent.arena);
  return {};
}

Result<Extent> Store::import_range(AgentHandle handle, StoreMemoryPtr memory) noexcept {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr || memory == nullptr || memory->kind != MemoryKind::imported ||
      memory->layout != agent->layout) {
    state_->retire(std::move(memory));
    return refuse(agent == nullptr ? StoreRule::no_such_agent : StoreRule::import_only);
  }
  for (std::uint32_t i = 0; i < memory->slot_count; ++i) {
    memory->slots[i].state = SlotState::writable;
  }
  memory->used_slots = memory->slot_count;
  const std::uint32_t count = memory->slot_count;
  const auto id = state_->adopt(std::move(memory), agent->tenant, handle);
  if (!id) {
    return id.status();
  }
  return Extent{*id, count, 0};
}

Result<Extent> Store::import_range(AgentHandle handle, std::byte* base, std::uint64_t bytes,
                                   int fd) {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return Error{refuse(StoreRule::no_such_agent), text(StoreRule::no_such_agent)};
  }
  auto memory = prepare_import(state_->options, agent->layout, base, bytes, fd);
  if (!memory) {
    return std::move(memory).error();
  }
  return import_range(handle, std::move(memory).value());
}

}  // namespace kvrail::engine
