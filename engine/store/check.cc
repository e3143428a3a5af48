// The audit: everything that is counted is counted again from what names it. Slow; for tests and
// for debug builds that ask for it.
#include <limits>
#include <unordered_map>
#include <vector>

#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

class Audit {
 public:
  explicit Audit(const Store::State& state)
      : state_(state),
        block_refs_(state.blocks.capacity()),
        slot_refs_(state.slots.capacity()),
        visible_(state.blocks.capacity()) {}

  void run() {
    count_versions();
    count_blocks();
    check_slots();
    check_arenas();
    check_contexts();
    check_pins();
    check_lru();
    check_tenants();
  }

 private:
  void count_versions() {
    state_.versions.for_each([&](VersionHandle, const VersionRecord& version) {
      ++versions_of_[version.tenant.index];
      manifest_[version.tenant.index] +=
          (granules(version.manifest_bytes) + granules(version.positions_bytes)) * kGranuleBytes;
      std::uint32_t kv_blocks = 0;
      for (std::uint32_t i = 0; i < version.block_count; ++i) {
        if (!version.blocks[i]) {
          KVRAIL_ASSERT_MSG(version.window_first_block > 0 || !version.published || version.stub, "a version lacks a block");
          continue;
        }
        const BlockRecord* block = state_.blocks.get(version.blocks[i]);
        KVRAIL_ASSERT_MSG(block != nullptr, "a version names a block that is gone");
        KVRAIL_ASSERT_MSG(block->tenant == version.tenant,
                          "a version names another tenant's block");
        KVRAIL_ASSERT(block->hash == version.hashes[i]);
        ++block_refs_[version.blocks[i].index];
        if (version.published) {
          visible_[version.blocks[i].index] = true;
        }
        ++kv_blocks;
      }
      KVRAIL_ASSERT(!version.published || version.stub || kv_blocks == version.kv_blocks);
      stub_bytes_[version.tenant.index] += version.stub ? version.manifest_bytes : 0;
      stubs_ += version.stub ? 1 : 0;
    });
  }

  void count_blocks() {
    std::uint64_t indexed = 0;
    state_.blocks.for_each([&](BlockHandle handle, const BlockRecord& block) {
      KVRAIL_ASSERT_MSG(block.refs > 0 && block.refs == block_refs_[handle.index],
                        "a block's references are miscounted");
      KVRAIL_ASSERT(block.tokens >= 1 && block.tokens <= block.shape.block_tokens);
      const SlotRecord* slot = state_.slots.get(block.slot);
      KVRAIL_ASSERT_MSG(slot != nullptr && (slot->rows_used >= block.tokens || !visible_[handle.index]),
                        "a block's rows are not accounted for");
      ++slot_refs_[block.slot.index];
      ++blocks_of_[block.tenant.index];
      KVRAIL_ASSERT_MSG(block.has_planes() || block.plane_users == 0, "planes in use are gone");
      idle_planes_ += block.has_planes() && block.plane_users == 0 ? 1 : 0;
      for (const PlaneRecord& plane : block.planes) {
        planes_[block.tenant.index] +=
            plane.offset == kNoOffset ? 0 : granules(plane.bytes) * kGranuleBytes;
      }
      indexed += block.indexed ? 1 : 0;
      const BlockHandle found = state_.find_block(block.tenant, block.hash);
      KVRAIL_ASSERT_MSG(!block.indexed || found == handle,
                        "an indexed block is not found by its hash");
    });
    KVRAIL_ASSERT(indexed == state_.block_index.size());
    std::uint64_t fresh = 0;
    for (BlockHandle at = state_.fresh_first; at; at = state_.blocks.get(at)->fresh_next) {
      KVRAIL_ASSERT(state_.blocks.get(at) != nullptr && state_.blocks.get(at)->fresh);
      ++fresh;
    }
    state_.blocks.for_each(
        [&](BlockHandle, const BlockRecord& block) { fresh -= block.fresh ? 1 : 0; });
    KVRAIL_ASSERT(fresh == 0);
  }

  void check_slots() {
    state_.slots.for_each([&](SlotHandle handle, const SlotRecord& slot) {
      KVRAIL_ASSERT_MSG(slot.refs > 0 && slot.refs == slot_refs_[handle.index],
                        "a slot's references are miscounted");
      const StoreMemory* memory = state_.memory_of(slot.arena);
      KVRAIL_ASSERT_MSG(memory != nullptr, "a slot lies in an arena that is gone");
      if (memory->kind == MemoryKind::receive) {
        raw_[memory->tenant.index] += granules(slot.bytes) * kGranuleBytes;
      } else {
        const AgentSlot& own = memory->slots[slot.offset / memory->block_bytes];
        KVRAIL_ASSERT(own.record == handle && own.state == SlotState::committed);
      }
    });
  }

  // Every slot of an agent's arena is free, writable or committed, and in exactly one list.
  void check_arenas() {
    for (std::uint32_t i = 0; i < state_.regions.capacity(); ++i) {
      const StoreMemory* memory = state_.arenas[i].get();
      if (memory == nullptr) {
        continue;
      }
      KVRAIL_ASSERT(state_.memory_of(memory->id) == memory);
      if (memory->extents != nullptr) {
        memory->extents->check();
      }
      if (memory->kind == MemoryKind::receive) {
        check_receive(*memory);
        continue;
      }
      std::uint32_t used = 0;
      for (std::uint32_t s = 0; s < memory->slot_count; ++s) {
        const AgentSlot& slot = memory->slots[s];
        used += slot.state == SlotState::free ? 0 : 1;
        KVRAIL_ASSERT(slot.record.valid() == (slot.state == SlotState::committed));
        KVRAIL_ASSERT(memory->owner.valid() || slot.state != SlotState::writable);
      }
      KVRAIL_ASSERT_MSG(used == memory->used_slots, "slots of an agent's arena are miscounted");
      KVRAIL_ASSERT(memory->extents == nullptr ||
                    memory->extents->free_units() + used == memory->slot_count);
    }
  }

  void check_receive(const StoreMemory& memory) {
    const std::uint32_t tenant = memory.tenant.index;
    KVRAIL_ASSERT(memory.usage.used(mempool::PoolClass::raw) == raw_[tenant]);
    KVRAIL_ASSERT(memory.usage.used(mempool::PoolClass::manifest) == manifest_[tenant]);
    KVRAIL_ASSERT(memory.usage.used(mempool::PoolClass::plane0) +
                      memory.usage.used(mempool::PoolClass::plane1) +
                      memory.usage.used(mempool::PoolClass::residual) +
                      memory.usage.used(mempool::PoolClass::lowrank) ==
                  planes_[tenant]);
    KVRAIL_ASSERT_MSG(memory.usage.total() + memory.extents->free_units() * kGranuleBytes ==
                          memory.extents->total_units() * kGranuleBytes,
                      "used and free bytes of a receive arena do not make its size");
  }

  void check_contexts() {
    std::uint64_t listed = 0;
    state_.contexts.for_each([&](ContextHandle handle, const ContextRecord& context) {
      KVRAIL_ASSERT_MSG(context.newest.valid(), "a context without versions");
      KVRAIL_ASSERT(state_.find_context(context.tenant, context.owner, context.name) == handle);
      std::uint64_t last = UINT64_MAX;
      for (VersionHandle at = context.newest; at; at = state_.versions.get(at)->next_older) {
        const VersionRecord* version = state_.versions.get(at);
        KVRAIL_ASSERT(version != nullptr && version->published && version->context == handle);
        KVRAIL_ASSERT(version->number <= last && version->number <= context.last_number);
        last = version->number;
        ++listed;
      }
      const AgentRecord* owner = state_.agent(context.local_owner);
      KVRAIL_ASSERT(!context.local_owner.valid() ||
                    (owner != nullptr && owner->name == context.owner));
    });
    state_.versions.for_each(
        [&](VersionHandle, const VersionRecord& version) { listed -= version.context ? 1 : 0; });
    KVRAIL_ASSERT(listed == 0);
  }

  void check_pins() {
    std::unordered_map<std::uint64_t, std::uint32_t> delivered;
    state_.deliveries.for_each([&](DeliveryHandle, const DeliveryRecord& delivery) {
      KVRAIL_ASSERT(state_.agent(delivery.agent) != nullptr);
      ++delivered[delivery.version.packed()];
    });
    for (const auto& [packed, count] : delivered) {
      const VersionRecord* version = state_.versions.get(VersionHandle::unpack(packed));
      KVRAIL_ASSERT_MSG(version != nullptr && version->pins >= count,
                        "a delivery names a version that is not pinned");
    }
  }

  [[nodiscard]] std::uint64_t check_idle(TenantHandle tenant, const IdleList& list, bool stubs, bool kept) const {
    std::uint64_t count = 0;
    VersionHandle previous;
    for (VersionHandle at = list.oldest; at; at = state_.versions.get(at)->lru_next) {
      const VersionRecord* version = state_.versions.get(at);
      KVRAIL_ASSERT(version != nullptr && version->in_lru && version->pins == 0 && version->tenant == tenant);
      KVRAIL_ASSERT(version->lru_previous == previous && version->stub == stubs);
      KVRAIL_ASSERT(stubs || version->kept == kept);
      KVRAIL_ASSERT_MSG(version->valued == !stubs, "what may leave has a value, and nothing else");
      previous = at;
      ++count;
    }
    KVRAIL_ASSERT(list.newest == previous);
    return count;
  }

  void check_value(VersionHandle handle, const VersionRecord& version) const {
    const scheduler::ValueIndex& values = state_.values_of(version.tenant);
    KVRAIL_ASSERT(values.contains(handle.index) && !version.stub);
    const bool pinned = values.value(handle.index) == std::numeric_limits<scheduler::ValueIndex::LogValue>::max();
    KVRAIL_ASSERT_MSG(pinned == !version.in_lru, "what is idle may be chosen to go, and nothing else");
  }

  void check_lru() {
    std::uint64_t idle = 0;
    state_.tenants.for_each([&](TenantHandle handle, const TenantRecord& tenant) {
      idle += check_idle(handle, tenant.idle, false, false) + check_idle(handle, tenant.idle_kept, false, true);
      idle += check_idle(handle, tenant.idle_stubs, true, false);
      for (BlockHandle at = tenant.plane_oldest; at; at = state_.blocks.get(at)->plane_next) {
        const BlockRecord* block = state_.blocks.get(at);
        KVRAIL_ASSERT(block != nullptr && block->has_planes() && block->plane_users == 0);
        --idle_planes_;
      }
    });
    KVRAIL_ASSERT_MSG(idle_planes_ == 0, "idle planes must be evictable");
    state_.versions.for_each([&](VersionHandle handle, const VersionRecord& version) {
      const ContextRecord* context = state_.contexts.get(version.context);
      const bool owned = context != nullptr && context->local_owner.valid();
      KVRAIL_ASSERT_MSG(version.in_lru == (version.published && version.pins == 0 && !owned && !version.dying),
                        "an idle version without owner must be evictable, and no other");
      idle -= version.in_lru ? 1 : 0;
      if (version.valued) check_value(handle, version);
    });
    KVRAIL_ASSERT(idle == 0);
    KVRAIL_ASSERT(stubs_ == state_.stubs);
  }

  void check_tenants() {
    std::unordered_map<std::uint32_t, std::uint64_t> staged;
    state_.stagings.for_each([&](StagingHandle, const StagingRecord& staging) {
      const VersionRecord* version = state_.versions.get(staging.version);
      KVRAIL_ASSERT(version != nullptr && !version->published && version->pins == 0);
      staged[version->tenant.index] += staging.bytes;
    });
    state_.tenants.for_each([&](TenantHandle handle, const TenantRecord& tenant) {
      KVRAIL_ASSERT(tenant.versions == versions_of_[handle.index] &&
                    tenant.blocks == blocks_of_[handle.index]);
      KVRAIL_ASSERT(tenant.staged_bytes == staged[handle.index] && tenant.stub_bytes == stub_bytes_[handle.index]);
    });
    KVRAIL_ASSERT(state_.memory->consistent());
  }

  using PerTenant = std::unordered_map<std::uint32_t, std::uint64_t>;
  const Store::State& state_;
  std::vector<std::uint32_t> block_refs_;
  std::vector<std::uint32_t> slot_refs_;
  std::vector<bool> visible_;  // named by a published version
  std::int64_t idle_planes_ = 0;
  std::uint64_t stubs_ = 0;
  PerTenant versions_of_, blocks_of_, raw_, planes_, manifest_, stub_bytes_;
};

}  // namespace

void Store::check() const noexcept {
  AllowAllocScope audit;
  Audit(*state_).run();
}

}  // namespace kvrail::engine
