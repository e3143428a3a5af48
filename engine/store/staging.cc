// What has arrived: look-ups by hash, publication, abandonment.
#include <algorithm>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {

bool valid_layout(const Layout& layout) noexcept {
  AllowAllocScope refusal;  // Only the sentence of a refusal is allocated, and it is dropped here.
  return codec::validate(layout).ok() && checked_block_bytes(layout).has_value();
}

void Store::State::undo_growth(const StagingRecord& staging) noexcept {
  SlotRecord* slot = slots.get(staging.grown);
  if (slot != nullptr) {
    slot->rows_used = staging.before.rows_used;
    slot->epsilon_ppm = staging.before.epsilon_ppm;
    slot->hash = staging.before.hash;
  }
}

void Store::State::settle_blocks(VersionRecord& version) noexcept {
  for (std::uint32_t i = 0; i < version.block_count; ++i) {
    if (version.missing[i] == 0) {
      continue;
    }
    const BlockHandle own = version.blocks[i];
    BlockRecord& block = *blocks.get(own);
    if (block.has_planes() && block.encoding == Hash128{}) {
      complete_planes(block);
    }
    if (version.medium == Medium::window) {
      continue;  // Terminal: never found by hash.
    }
    // Another transfer may have brought the same block meanwhile.
    const BlockHandle other = find_block(version.tenant, block.hash);
    if (other && blocks.get(other)->epsilon_ppm <= block.epsilon_ppm) {
      ref(other);
      version.blocks[i] = other;
      unref(own);
    } else {
      index_block(own);
    }
  }
}

// A version of the same number and tokens that is at least as good.
VersionHandle Store::State::find_equal(const VersionRecord& version,
                                       std::uint32_t epsilon_ppm) const noexcept {
  VersionHandle at =
      find_version(find_context(version.tenant, version.owner, version.name), version.number);
  for (; at; at = versions.get(at)->next_older) {
    const VersionRecord& other = *versions.get(at);
    if (other.number != version.number) {
      return {};
    }
    if (other.has_kv() == version.has_kv() &&
        other.hash_count == version.hash_count && other.layout == version.layout &&
        other.epsilon_ppm <= epsilon_ppm &&
        (version.hash_count == 0 ||
         other.hashes[other.hash_count - 1] == version.hashes[version.hash_count - 1])) {
      return at;
    }
  }
  return {};
}

// Another node must not put versions into a context of an agent that lives here: what it sends can
// be delivered, but is not found by name.
bool Store::State::may_list(const VersionRecord& version) const noexcept {
  const ContextRecord* context =
      contexts.get(find_context(version.tenant, version.owner, version.name));
  return version.medium != Medium::window && version.medium != Medium::summary &&
         (context == nullptr || !context->local_owner.valid());
}

// --- public ---

void Store::hash_chain(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::span<Hash128> out) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  KVRAIL_ASSERT_MSG(record != nullptr && layout.block_tokens != 0,
                    "hashes for no tenant or layout");
  KVRAIL_ASSERT(out.size() == (tokens.size() + layout.block_tokens - 1) / layout.block_tokens);
  Hash128 parent = codec::root_hash(record->name.view(), layout);
  for (std::size_t i = 0; i < out.size(); ++i) {
    parent = codec::chain(parent, block_tokens_of(tokens, layout.block_tokens, i));
    out[i] = parent;
  }
}

HaveResult Store::have(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::uint32_t epsilon_limit_ppm) const noexcept {
  HaveResult result;
  const TenantRecord* record = state_->tenants.get(tenant);
  if (record == nullptr || !valid_layout(layout)) {
    return result;
  }
  Hash128 parent = codec::root_hash(record->name.view(), layout);
  bool unbroken = true;
  for (std::uint64_t first = 0, i = 0; first < tokens.size(); first += layout.block_tokens, ++i) {
    const auto part = block_tokens_of(tokens, layout.block_tokens, i);
    const Hash128 hash = codec::chain(parent, part);
    const BlockHandle held = state_->find_block(tenant, hash);
    if (held && state_->blocks.get(held)->epsilon_ppm <= epsilon_limit_ppm) {
      ++result.held_blocks;
      result.leading_blocks += unbroken && part.size() == layout.block_tokens ? 1 : 0;
    } else if (unbroken) {
      unbroken = false;
      const BlockHandle tail = state_->find_tail(tenant, parent, part, epsilon_limit_ppm);
      result.tail_rows = tail ? state_->blocks.get(tail)->tokens : 0;
    }
    parent = hash;
  }
  return result;
}

bool Store::view(StagingHandle handle, StagingView& out) const noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return false;
  }
  const VersionRecord& version = *state_->versions.get(staging->version);
  out.block_count = version.block_count;
  out.tail_from_row = staging->tail_from_row;
  out.tail_block = staging->tail_block;
  out.missing = {version.missing, version.block_count};
  out.blocks = {version.blocks, version.block_count};
  return true;
}

Result<VersionHandle> Store::publish(StagingHandle handle) noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return Status{Code::generation_mismatch};
  }
  const VersionHandle version_handle = staging->version;
  VersionRecord& version = *state_->versions.get(version_handle);
  state_->tenants.get(version.tenant)->staged_bytes -= staging->bytes;
  state_->stagings.erase(handle);
  state_->settle_blocks(version);
  std::uint32_t epsilon_ppm = 0;
  for (std::uint32_t i = 0; i < version.block_count; ++i) {
    const BlockRecord* block = state_->blocks.get(version.blocks[i]);
    epsilon_ppm = block == nullptr ? epsilon_ppm : std::max(epsilon_ppm, block->epsilon_ppm);
  }
  if (version.medium != Medium::window) {
    if (const VersionHandle equal = state_->find_equal(version, epsilon_ppm)) {
      state_->destroy(version_handle);
      return equal;
    }
  }
  state_->publish(version_handle, state_->may_list(version));
  return version_handle;
}

void Store::abandon(StagingHandle handle) noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return;
  }
  const VersionHandle version = staging->version;
  state_->tenants.get(state_->versions.get(version)->tenant)->staged_bytes -= staging->bytes;
  state_->undo_growth(*staging);
  state_->destroy(version);
  state_->stagings.erase(handle);
}

}  // namespace kvrail::engine
