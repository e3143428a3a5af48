// Versions: how they are made, listed, kept and dropped.
#include <algorithm>

#include "codec/hash.h"
#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

// Of a version that goes; larger ones go in steps.
constexpr std::uint64_t kBlocksAtOnce = 256;

IdleList& idle_list(TenantRecord& tenant, const VersionRecord& version) noexcept {
  return version.stub ? tenant.idle_stubs : version.kept ? tenant.idle_kept : tenant.idle;
}

std::uint64_t kv_bytes(const VersionRecord& version) noexcept {
  return version.stub ? 0 : std::uint64_t{version.kv_blocks} * version.layout.block_bytes();
}

// Which of two versions of a context is found first.
bool goes_before(const VersionRecord& a, const VersionRecord& b) noexcept {
  if (a.number != b.number) {
    return a.number > b.number;
  }
  const bool a_kv = a.has_kv();
  const bool b_kv = b.has_kv();
  if (a_kv != b_kv) {
    return a_kv;
  }
  return a.epsilon_ppm != b.epsilon_ppm ? a.epsilon_ppm < b.epsilon_ppm : a.sequence > b.sequence;
}

}  // namespace

Result<VersionHandle> Store::State::make_version(TenantHandle tenant, const Name& owner,
                                                 const Name& name, const Layout& layout,
                                                 std::uint64_t token_count, bool with_blocks,
                                                 bool with_missing) noexcept {
  TenantRecord& holder = *tenants.get(tenant);
  while (options.tenant_max_versions != 0 && holder.versions >= options.tenant_max_versions) {
    if (!evict_entry(tenant)) {
      return Status{Code::quota_exceeded, Scope::transfer,
                    static_cast<std::int32_t>(options.tenant_max_versions)};
    }
  }
  const std::uint64_t hash_count =
      token_count == 0 ? 0 : (token_count - 1) / layout.block_tokens + 1;
  if (hash_count > options.max_blocks || token_count > kMaxTokens) {
    return Status{Code::too_large, Scope::transfer, static_cast<std::int32_t>(options.max_blocks)};
  }
  while (versions.full() && evict_entry(tenant)) {
  }
  const VersionHandle handle = versions.try_emplace();
  if (!handle) {
    return Status{Code::out_of_capacity, Scope::transfer,
                  static_cast<std::int32_t>(versions.capacity())};
  }
  VersionRecord& version = *versions.get(handle);
  ++holder.versions;
  version.tenant = tenant;
  version.owner = owner;
  version.name = name;
  version.layout = layout;
  version.token_count = token_count;
  version.hash_count = static_cast<std::uint32_t>(hash_count);
  version.block_count = with_blocks ? version.hash_count : 0;
  if (hash_count == 0) {
    return handle;
  }
  const std::uint64_t bytes =
      hash_count *
      (sizeof(Hash128) + (with_blocks ? sizeof(BlockHandle) : 0) + (with_missing ? 1 : 0));
  std::byte* lists = memory->try_array<std::byte>(bytes).data();
  while (lists == nullptr && evict_entry(tenant)) {
    lists = memory->try_array<std::byte>(bytes).data();
  }
  if (lists == nullptr) {
    version.block_count = 0;
    destroy(handle);
    return Status{
        Code::out_of_memory, Scope::transfer,
        static_cast<std::int32_t>(std::min<std::uint64_t>(memory->bytes_free(), INT32_MAX))};
  }
  // All-zero bytes are a null hash, an invalid handle and "not missing", so the lists start valid.
  version.hashes = reinterpret_cast<Hash128*>(lists);
  version.blocks = reinterpret_cast<BlockHandle*>(version.hashes + hash_count);
  version.missing =
      with_missing ? reinterpret_cast<std::uint8_t*>(version.blocks + hash_count) : nullptr;
  return handle;
}

void Store::State::list(VersionHandle handle, bool listed) noexcept {
  VersionRecord& version = *versions.get(handle);
  KVRAIL_ASSERT(!version.published && version.pins == 0);
  version.published = true;
  version.sequence = ++sequence;
  if (!listed) {
    idle(handle);
    return;
  }
  const ContextHandle context_handle = ensure_context(version.tenant, version.owner, version.name);
  ContextRecord& context = *contexts.get(context_handle);
  context.last_number = std::max(context.last_number, version.number);
  version.context = context_handle;
  VersionHandle* link = &context.newest;
  while (VersionRecord* other = versions.get(*link)) {
    if (goes_before(version, *other)) {
      break;
    }
    link = &other->next_older;
  }
  version.next_older = *link;
  *link = handle;
  idle(handle);
  // The new version may itself be an old number that came late; it stays until it could be pinned.
  ++version.pins;
  supersede(context);
  --version.pins;
}

// Called where a version has no pin: decides whether it stays. A version that can't be found by
// name stays only until somebody had the chance to pin it (see unpin).
void Store::State::idle(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  KVRAIL_ASSERT(version.pins == 0 && version.published && !version.in_lru);
  version.last_used_ns = clock.now_ns();
  const ContextRecord* context = contexts.get(version.context);
  if (context != nullptr && context->local_owner.valid()) {
    return;  // It is the owner's, who drops it.
  }
  if (version.dying) {
    return;  // When its last block has gone.
  }
  TenantRecord& tenant = *tenants.get(version.tenant);
  IdleList& list = idle_list(tenant, version);
  list.kv_bytes += kv_bytes(version);
  version.in_lru = true;
  if (!version.stub) {
    value_idle(handle);
  }
  version.lru_previous = list.newest;
  version.lru_next = VersionHandle{};
  if (VersionRecord* last = versions.get(list.newest)) {
    last->lru_next = handle;
  } else {
    list.oldest = handle;
  }
  list.newest = handle;
}

void Store::State::lru_remove(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  if (!version.in_lru) {
    return;
  }
  TenantRecord& tenant = *tenants.get(version.tenant);
  IdleList& list = idle_list(tenant, version);
  list.kv_bytes -= kv_bytes(version);
  VersionRecord* previous = versions.get(version.lru_previous);
  VersionRecord* next = versions.get(version.lru_next);
  (previous != nullptr ? previous->lru_next : list.oldest) = version.lru_next;
  (next != nullptr ? next->lru_previous : list.newest) = version.lru_previous;
  version.in_lru = false;
}

bool Store::State::evict_one(TenantHandle tenant, bool stubs_too) noexcept {
  if (reap(tenant, kBlocksAtOnce) > 0) {
    return true;
  }
  if (const VersionHandle first = least_worth(tenant)) {
    let_go(first);
    return true;
  }
  const VersionHandle stub = tenants.get(tenant)->idle_stubs.oldest;
  if (stubs_too && stub) {
    destroy(stub);
    return true;
  }
  return false;
}

bool Store::State::evict_entry(TenantHandle tenant) noexcept {
  if (reap(tenant, kBlocksAtOnce) > 0) {
    return true;
  }
  const VersionHandle stub = tenants.get(tenant)->idle_stubs.oldest;
  const VersionHandle first = stub ? stub : least_worth(tenant);
  if (first) {
    destroy(first);
  }
  return first.valid();
}

void Store::State::let_go(VersionHandle handle) noexcept {
  if (may_become_stub(*versions.get(handle))) {
    make_stub(handle);
  } else {
    destroy(handle);
  }
}

// Only the newest numbers of a context stay; older ones go as soon as nobody pins them.
void Store::State::supersede(ContextRecord& context) noexcept {
  std::uint32_t numbers = 0;
  std::uint64_t last = 0;
  VersionHandle handle = context.newest;
  while (const VersionRecord* version = versions.get(handle)) {
    const VersionHandle next = version->next_older;
    if (numbers == 0 || version->number != last) {
      ++numbers;
      last = version->number;
    }
    if (numbers > kVersionsKept && version->pins == 0) {
      destroy(handle);
    }
    handle = next;
  }
}

void Store::State::unlist(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  ContextRecord* context = contexts.get(version.context);
  if (context == nullptr) {
    return;
  }
  VersionHandle* link = &context->newest;
  while (*link != handle) {
    KVRAIL_ASSERT(link->valid());
    link = &versions.get(*link)->next_older;
  }
  *link = version.next_older;
  version.next_older = VersionHandle{};
  const ContextHandle from = version.context;
  version.context = ContextHandle{};
  if (!context->newest) {
    erase_context(from);
  }
}

void Store::State::destroy(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  KVRAIL_ASSERT(version.pins == 0);
  value_forget(handle);
  lru_remove(handle);
  unlist(handle);
  version.published = false;
  if (version.stub) {
    --stubs;
    tenants.get(version.tenant)->stub_bytes -= version.manifest_bytes;
    version.stub = false;
  }
  if (version.manifest_offset != kNoOffset) {
    give_back(version.tenant, version.manifest_offset, version.manifest_bytes,
              mempool::PoolClass::manifest);
    version.manifest_offset = kNoOffset;
    version.manifest_bytes = 0;
  }
  give_back_positions(version);
  if (!version.dying) {
    bury_soon(handle);
  }
}

// A few blocks go at once, more of them in steps: reap().
void Store::State::bury_soon(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  std::uint64_t at_once = kBlocksAtOnce;
  if (version.block_count <= at_once) {
    KVRAIL_ASSERT(bury(handle, at_once));
    return;
  }
  TenantRecord& tenant = *tenants.get(version.tenant);
  version.dying = true;
  version.lru_next = VersionHandle{};
  if (VersionRecord* last = versions.get(tenant.dying_last)) {
    last->lru_next = handle;
  } else {
    tenant.dying_first = handle;
  }
  tenant.dying_last = handle;
  ++dying_versions;
}

// False: the budget ended before its blocks.
bool Store::State::bury(VersionHandle handle, std::uint64_t& budget_blocks) noexcept {
  VersionRecord& version = *versions.get(handle);
  for (; version.dying_at < version.block_count; ++version.dying_at, --budget_blocks) {
    if (budget_blocks == 0) {
      return false;
    }
    prefetch_after(version, version.dying_at);
    if (const BlockHandle block = version.blocks[version.dying_at]) {
      version.blocks[version.dying_at] = BlockHandle{};
      unref(block);
    }
  }
  version.dying = false;
  if (version.stub) {
    version.block_count = version.dying_at = 0;
    if (version.pins == 0) {
      const TimeNs used_ns = version.last_used_ns;
      idle(handle);
      version.last_used_ns = used_ns;
    }
    return true;
  }
  memory->give_back(version.hashes);
  if (version.importance != nullptr) {
    importance_bytes -= version.token_count * sizeof(float);
    memory->give_back(version.importance);
  }
  --tenants.get(version.tenant)->versions;
  versions.erase(handle);
  return true;
}

std::uint64_t Store::State::reap(TenantHandle tenant_handle, std::uint64_t budget_blocks) noexcept {
  TenantRecord& tenant = *tenants.get(tenant_handle);
  std::uint64_t left = budget_blocks;
  while (left > 0 && tenant.dying_first) {
    const VersionHandle first = tenant.dying_first;
    const VersionHandle next = versions.get(first)->lru_next;
    if (!bury(first, left)) {
      break;
    }
    --dying_versions;
    tenant.dying_first = next;
    tenant.dying_last = next ? tenant.dying_last : VersionHandle{};
  }
  return budget_blocks - left;
}

void Store::State::pin(VersionHandle handle) noexcept {
  if (!handle) {
    return;
  }
  VersionRecord* version = versions.get(handle);
  KVRAIL_ASSERT_MSG(version != nullptr && version->published,
                    "pinning a version that is not there");
  value_busy(handle);
  lru_remove(handle);
  ++version->pins;
}

void Store::State::unpin(VersionHandle handle) noexcept {
  if (!handle) {
    return;
  }
  VersionRecord* version = versions.get(handle);
  KVRAIL_ASSERT_MSG(version != nullptr && version->pins > 0,
                    "unpinning a version that is not pinned");
  if (--version->pins > 0) {
    return;
  }
  ContextRecord* context = contexts.get(version->context);
  if (context == nullptr || is_revoked(*version) || is_shadowed(*version)) {
    destroy(handle);  // Dropped by its owner, terminal, on pages that are to go, or a stub of what is here again.
    return;
  }
  idle(handle);
  supersede(*context);
}

// --- public ---

bool Store::view(VersionHandle handle, VersionView& out) const noexcept {
  const VersionRecord* version = state_->versions.get(handle);
  if (version == nullptr || !version->published) {
    return false;
  }
  out.tenant = version->tenant;
  out.owner = version->owner;
  out.context = version->name;
  out.number = version->number;
  out.layout = version->layout;
  out.tokens = state_->tokens_of(*version);
  out.blocks = {version->blocks, version->has_kv() ? version->block_count : 0};
  out.hashes = {version->hashes, version->kept_tokens > 0 ? 0 : version->hash_count};
  out.kept_tokens = version->kept_tokens;
  out.positions = state_->positions_of(*version);
  out.epsilon_ppm = version->epsilon_ppm;
  out.stub = version->stub;
  out.stub_epsilon_ppm = version->stub_epsilon_ppm;
  out.kept = version->kept;
  out.pins = version->pins;
  out.manifest = state_->manifest_ref(*version);
  out.medium = version->medium;
  out.window_first_block = version->window_first_block;
  out.summary_kind = version->summary_kind;
  out.summary = {state_->manifest_tail(*version), version->summary_bytes};
  out.importance = {version->importance, version->importance == nullptr ? 0 : version->token_count};
  return true;
}

std::size_t Store::list(std::span<VersionHandle> out) const noexcept {
  std::size_t count = 0;
  state_->versions.for_each([&](VersionHandle handle, const VersionRecord& version) {
    if (!version.context) {
      return;
    }
    if (count < out.size()) {
      out[count] = handle;
    }
    ++count;
  });
  return count;
}

std::uint64_t Store::number(VersionHandle handle) const noexcept {
  const VersionRecord* version = state_->versions.get(handle);
  return version == nullptr ? 0 : version->number;
}

void Store::pin(VersionHandle handle) noexcept { state_->pin(handle); }

void Store::unpin(VersionHandle handle) noexcept { state_->unpin(handle); }

}  // namespace kvrail::engine
