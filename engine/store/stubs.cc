// Versions whose blocks leave memory. What stays is a stub: the version as one of token ids, found by its name,
// from which the KV can be had again, from a tier that kept the blocks, from a peer, or by computing it.
#include <array>

#include "engine/core/tier_port.h"
#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

// Of a tenant so many are looked at for one that can become a stub.
constexpr std::uint32_t kCandidates = 32;
constexpr std::uint64_t kStubShare = 8;  // of a receive arena the n-th part at most is stubs

}  // namespace

std::uint32_t Store::State::with_kv(const VersionRecord& version) const noexcept {
  const ContextRecord* context = contexts.get(version.context);
  std::uint32_t count = 0;
  for (VersionHandle at = context == nullptr ? VersionHandle{} : context->newest; at; at = versions.get(at)->next_older) {
    const VersionRecord& other = *versions.get(at);
    count += other.number == version.number && other.has_kv() ? 1 : 0;
  }
  return count;
}

// Terminal deliveries are found by nobody again, and where the same number is there with KV, ids are of no use.
bool Store::State::may_become_stub(const VersionRecord& version) const noexcept {
  return options.stubs && version.context && version.has_kv() && !is_partial(version.medium) && !is_revoked(version) &&
         with_kv(version) == 1;
}

bool Store::State::is_shadowed(const VersionRecord& version) const noexcept {
  return version.stub && with_kv(version) > 0;
}

void Store::State::make_stub(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  KVRAIL_ASSERT(version.pins == 0 && version.published && !version.dying);
  value_forget(handle);
  lru_remove(handle);
  drop_manifest_blocks(version);
  version.stub = true;
  ++stubs;
  version.stub_epsilon_ppm = version.epsilon_ppm;
  version.medium = Medium::tokens;
  version.epsilon_ppm = 0;
  write_manifest_header(version);
  ++stubs_made;
  TenantRecord& tenant = *tenants.get(version.tenant);
  tenant.stub_bytes += version.manifest_bytes;
  bury_soon(handle);
  while (tenant.stub_bytes > receive_of(version.tenant)->arena->bytes() / kStubShare && tenant.idle_stubs.oldest) {
    destroy(tenant.idle_stubs.oldest);
  }
}

void Store::State::drop_stub_of(const VersionRecord& version) noexcept {
  const ContextRecord* context = contexts.get(version.context);
  VersionHandle at = context == nullptr ? VersionHandle{} : context->newest;
  while (const VersionRecord* other = versions.get(at)) {
    const VersionHandle next = other->next_older;
    if (other->stub && other->number == version.number && other->pins == 0) {
      destroy(at);
      return;  // There is one at most; the context has the version left.
    }
    at = next;
  }
}

// --- public ---

Result<VersionHandle> Store::publish_stub(const StageRequest& of, std::uint32_t epsilon_ppm) noexcept {
  const auto made = publish_tokens(of.tenant, of.owner, of.context, of.version, of.layout, Medium::tokens, of.tokens);
  if (!made.ok()) {
    return made;
  }
  VersionRecord& version = *state_->versions.get(*made);
  if (version.medium != Medium::tokens || version.stub || version.pins > 0) {
    return made;  // It is here, or a stub of it.
  }
  state_->value_forget(*made);
  state_->lru_remove(*made);
  version.stub = true;
  version.stub_epsilon_ppm = epsilon_ppm;
  ++state_->stubs;
  state_->tenants.get(version.tenant)->stub_bytes += version.manifest_bytes;
  state_->idle(*made);
  return made;
}

VersionHandle Store::next_to_leave(TenantHandle tenant) const noexcept {
  if (state_->tenants.get(tenant) == nullptr) {
    return {};
  }
  std::array<scheduler::ValueIndex::Handle, kCandidates> next;
  const std::size_t count = state_->values_of(tenant).next_victims(kRankOnlyHere, next);
  for (std::size_t i = 0; i < count; ++i) {
    const VersionHandle handle = state_->versions.handle_at(next[i]);
    if (state_->may_become_stub(*state_->versions.get(handle))) {
      return handle;
    }
  }
  return {};
}

bool Store::short_of_memory(TenantHandle tenant, std::uint32_t free_below_ppm) const noexcept {
  const TenantMemory of = memory(tenant);
  const TenantRecord* record = state_->tenants.get(tenant);
  return record != nullptr && of.free_bytes + record->idle_kept.kv_bytes < of.total_bytes / 1'000 * (free_below_ppm / 1'000);
}

std::uint64_t Store::room_bytes() const noexcept {
  std::uint64_t bytes = 0;
  state_->tenants.for_each([&](TenantHandle tenant, const TenantRecord& record) {
    bytes += memory(tenant).free_bytes + record.idle_kept.kv_bytes;
  });
  return bytes;
}

VersionHandle Store::next_to_leave(std::uint32_t free_below_ppm) const noexcept {
  VersionHandle found;
  state_->tenants.for_each([&](TenantHandle tenant, const TenantRecord&) {
    if (!found && short_of_memory(tenant, free_below_ppm)) {
      found = next_to_leave(tenant);
    }
  });
  return found;
}

void Store::keep(VersionHandle handle) noexcept {
  VersionRecord* version = state_->versions.get(handle);
  KVRAIL_ASSERT_MSG(version != nullptr && version->pins > 0, "what is written to a tier is pinned meanwhile");
  version->kept = true;
}

// Rows that lost something have no planes with them that could be sent on, and none can be made of them.
void Store::came_back(BlockHandle handle, std::uint32_t epsilon_ppm) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr && !block->indexed, "only what is staged comes back");
  block->epsilon_ppm = epsilon_ppm;
  block->came_coded = epsilon_ppm > 0;
  state_->slots.get(block->slot)->epsilon_ppm = epsilon_ppm;
}

}  // namespace kvrail::engine
