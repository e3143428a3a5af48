// Construction, tenants, arenas, housekeeping.
#include "engine/store/store.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/store/state.h"
#include "engine/store/table_size.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

// Imports and the arenas of agents that are gone come on top of the agents' own.
std::uint32_t region_capacity(const StoreOptions& options) {
  return options.max_tenants + 4 * options.max_agents;
}

constexpr std::size_t kExpiriesPerCall = 16;
constexpr std::uint64_t kReapedPerCall = 1024;
constexpr TimeNs kRetiredPatienceNs = 10 * kSecondNs;  // for a Conductor that is alive
constexpr TimeNs kExpiryLookNs = 10 * kMillisecondNs;  // a context may outlive its time by so much

constexpr std::uint64_t kLeastRoomBytes = 1U << 16;    // for token ids and lists

Result<void> validate(const StoreOptions& options) {
  const auto refused = [](const std::string& text) {
    return Error{{Code::invalid_argument, Scope::engine}, "store: " + text};
  };
  constexpr std::uint32_t kMost = 1U << 26;
  for (const std::uint32_t count :
       {options.max_tenants, options.max_agents, options.max_blocks, options.max_versions,
        options.max_stagings, options.max_deliveries}) {
    if (count == 0 || count > kMost) {
      return refused("every table needs 1 to " + std::to_string(kMost) + " entries, not " +
                     std::to_string(count));
    }
  }
  if (options.table_bytes < least_table_bytes(options)) {
    return refused("table_bytes must be at least " + std::to_string(least_table_bytes(options)) + " for max_blocks = " +
                   std::to_string(options.max_blocks) + " and max_versions = " + std::to_string(options.max_versions));
  }
  if (options.context_ttl_ns <= 0) {
    return refused("context_ttl_ns must be positive");
  }
  return {};
}

}  // namespace

std::uint64_t least_table_bytes(const StoreOptions& options) noexcept {
  const std::uint64_t cells = HashIndex::cells_for(options.max_blocks) + HashIndex::cells_for(options.max_versions);
  return cells * sizeof(std::uint64_t) + kLeastRoomBytes;
}

const char* text(StoreRule rule) noexcept {
  switch (rule) {
    case StoreRule::none:
      return "no rule was broken";
    case StoreRule::no_such_agent:
      return "the agent is not attached (any more)";
    case StoreRule::no_tokens:
      return "a context needs at least one token";
    case StoreRule::too_few_slots:
      return "the slots do not hold all tokens";
    case StoreRule::foreign_slot:
      return "a slot is neither the agent's nor the one that holds this block";
    case StoreRule::slot_unaligned:
      return "a slot is not at a multiple of the block size, or beyond its arena";
    case StoreRule::slot_not_writable:
      return "a slot is free, or holds other committed tokens";
    case StoreRule::slot_twice:
      return "a slot is named twice";
    case StoreRule::rows_committed:
      return "the slot's rows hold another continuation already";
    case StoreRule::layout:
      return "the layout is not valid or not the agent's";
    case StoreRule::medium:
      return "this medium is not stored as blocks, or cannot encode this layout";
    case StoreRule::window:
      return "the window begins behind the context's end";
    case StoreRule::stale_prefix:
      return "the prefix is no delivery of this agent, or of another layout";
    case StoreRule::version_number:
      return "version numbers are 1 to 2^62";
    case StoreRule::import_only:
      return "the prepared memory is of another kind or layout";
    case StoreRule::kept:
      return "topk has rows of some of its tokens";
    case StoreRule::importance:
      return "importance is for tokens that the version has";
  }
  return "?";
}

Store::State::State(const StoreOptions& given, const Clock& time,
                    std::unique_ptr<mempool::FixedMemory> tables)
    : options(given),
      clock(time),
      memory(std::move(tables)),
      tenants(given.max_tenants),
      agents(std::make_unique<AgentRecord[]>(given.max_agents)),
      regions(region_capacity(given)),
      arenas(std::make_unique<StoreMemoryPtr[]>(region_capacity(given))),
      slots(given.max_blocks),
      blocks(given.max_blocks),
      versions(given.max_versions),
      contexts(given.max_versions),
      deliveries(given.max_deliveries),
      stagings(given.max_stagings),
      commits(given.max_agents) {
  block_index.attach(memory->try_array<std::uint64_t>(HashIndex::cells_for(options.max_blocks)));
  context_index.attach(
      memory->try_array<std::uint64_t>(HashIndex::cells_for(options.max_versions)));
}

Store::Store() = default;
Store::~Store() {
  if (state_ != nullptr) {
    static_cast<void>(take_retired());
  }
}

Result<std::unique_ptr<Store>> Store::create(const StoreOptions& options, const Clock& clock) {
  if (auto valid = validate(options); !valid) {
    return std::move(valid).error();
  }
  auto memory = mempool::FixedMemory::create(options.table_bytes, options.lock_memory);
  if (!memory) {
    return std::move(memory).error();
  }
  std::unique_ptr<Store> store(new Store());
  store->state_ = std::make_unique<State>(options, clock, std::move(memory).value());
  return store;
}

TenantHandle Store::find_tenant(const Name& name) const noexcept {
  TenantHandle found;
  state_->tenants.for_each([&](TenantHandle handle, const TenantRecord& tenant) {
    if (tenant.name == name) {
      found = handle;
    }
  });
  return found;
}

Result<TenantHandle> Store::ensure_tenant(const Name& name, StoreMemoryPtr memory) noexcept {
  if (const TenantHandle present = find_tenant(name)) {
    state_->retire(std::move(memory));
    return present;
  }
  if (memory == nullptr || memory->kind != MemoryKind::receive) {
    state_->retire(std::move(memory));
    return refuse(StoreRule::import_only);
  }
  const TenantHandle handle = state_->tenants.try_emplace();
  if (!handle) {
    state_->retire(std::move(memory));
    return Status{Code::out_of_capacity, Scope::engine,
                  static_cast<std::int32_t>(state_->tenants.capacity())};
  }
  TenantRecord& tenant = *state_->tenants.get(handle);
  tenant.name = name;
  const auto id = state_->adopt(std::move(memory), handle, AgentHandle{});
  if (!id) {
    state_->tenants.erase(handle);
    return id.status();
  }
  tenant.receive = *id;
  return handle;
}

Result<TenantHandle> Store::ensure_tenant(const Name& name) {
  if (const TenantHandle present = find_tenant(name)) {
    return present;
  }
  auto memory = prepare_tenant(state_->options, name);
  if (!memory) {
    return std::move(memory).error();
  }
  return ensure_tenant(name, std::move(memory).value());
}

StoreMemoryPtr Store::take_retired() noexcept {
  return StoreMemoryPtr(state_->retired.exchange(nullptr, std::memory_order_acquire));
}

std::uint64_t Store::retirements() const noexcept { return state_->retirements; }

void Store::retire(StoreMemoryPtr unused) noexcept { state_->retire(std::move(unused)); }

void Store::on_retire(RetireHook hook, void* context) noexcept {
  state_->retire_hook = hook;
  state_->retire_context = context;
}

const mempool::Arena* Store::arena(std::uint32_t arena_id) const noexcept {
  const StoreMemory* memory = state_->memory_of(arena_id);
  return memory == nullptr ? nullptr : memory->arena.get();
}

std::uint32_t Store::receive_arena(TenantHandle tenant) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  return record == nullptr ? 0 : record->receive;
}

bool Store::may_read(TenantHandle tenant, std::uint32_t arena_id) const noexcept {
  const StoreMemory* memory = state_->memory_of(arena_id);
  return memory != nullptr && tenant.valid() && memory->tenant == tenant;
}

Name Store::name_of(TenantHandle tenant) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  return record == nullptr ? Name{} : record->name;
}

TenantMemory Store::memory(TenantHandle tenant) const noexcept {
  const StoreMemory* memory = state_->receive_of(tenant);
  if (memory == nullptr) {
    return {};
  }
  return {memory->extents->total_units() * kGranuleBytes,
          memory->extents->free_units() * kGranuleBytes, state_->tenants.get(tenant)->staged_bytes};
}

Store::Counters Store::counters() const noexcept {
  return {state_->versions.size(), state_->blocks.size(), state_->deliveries.size(),
          state_->stagings.size(), state_->copied_bytes, state_->importance_bytes, state_->stubs, state_->stubs_made};
}

std::size_t Store::expire(TimeNs now_ns) noexcept {
  std::size_t count = 0;
  const auto expire_from = [&](const VersionHandle& oldest) {
    while (count < kExpiriesPerCall) {
      const VersionRecord* version = state_->versions.get(oldest);
      if (version == nullptr || now_ns - version->last_used_ns < state_->options.context_ttl_ns) {
        return;
      }
      state_->destroy(oldest);
      ++count;
    }
  };
  state_->tenants.for_each([&](TenantHandle, const TenantRecord& tenant) {
    expire_from(tenant.idle.oldest);
    expire_from(tenant.idle_kept.oldest);
    expire_from(tenant.idle_stubs.oldest);
  });
  return count;
}

std::size_t Store::housekeep(TimeNs now_ns, std::uint64_t budget_bytes) noexcept {
  std::size_t work = 0;
  if (now_ns >= state_->next_expiry_look_ns) {
    work = expire(now_ns);
    if (work < kExpiriesPerCall) state_->next_expiry_look_ns = now_ns + kExpiryLookNs;
  }
  std::uint64_t reaped = 0;
  if (state_->dying_versions > 0) {
    state_->tenants.for_each([&](TenantHandle handle, const TenantRecord&) {
      reaped += state_->reap(handle, kReapedPerCall - reaped);
    });
  }
  work += reaped;
  while (budget_bytes > 0 && state_->fresh_first) {
    const BlockHandle handle = state_->fresh_first;
    BlockRecord& block = *state_->blocks.get(handle);
    if (state_->digest(block, block.shape.layers, budget_bytes)) {
      state_->drop_fresh(handle);
    }
    ++work;
  }
  if (state_->retired.load(std::memory_order_relaxed) != nullptr &&
      now_ns - state_->retired_since_ns >= kRetiredPatienceNs) {
    // There is no Conductor, or it is stuck. One arena only: unmapping takes milliseconds.
    if (StoreMemoryPtr first = take_retired(); first != nullptr) {
      for (StoreMemoryPtr rest = std::move(first->next_retired); rest != nullptr;) {
        StoreMemoryPtr next = std::move(rest->next_retired);
        state_->retire(std::move(rest));
        rest = std::move(next);
      }
      state_->retired_since_ns -= kRetiredPatienceNs;  // The others have waited as long.
      ++work;
    }
  }
  return work;
}

}  // namespace kvrail::engine
