// Versions that came without KV: token ids to recompute from, and summaries.
#include <cstring>

#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

// Takes a reference to each leading full block that is held already, so that whoever gets the ids
// recomputes only what follows.
void take_held(Store::State& state, VersionRecord& version, std::uint32_t limit_ppm) noexcept {
  std::uint32_t count = 0;
  for (; count < version.hash_count; ++count) {
    const BlockHandle handle = state.find_block(version.tenant, version.hashes[count]);
    const BlockRecord* block = state.blocks.get(handle);
    if (block == nullptr || !block->full() || block->epsilon_ppm > limit_ppm) {
      break;
    }
    state.ref(handle);
    version.blocks[count] = handle;
  }
  version.block_count = version.kv_blocks = count;
}

}  // namespace

Result<VersionHandle> Store::publish_tokens(TenantHandle tenant, const Name& owner,
                                            const Name& context, std::uint64_t number,
                                            const Layout& layout, Medium medium,
                                            std::span<const TokenId> tokens,
                                            std::optional<std::uint32_t> held_limit_ppm) noexcept {
  if (state_->tenants.get(tenant) == nullptr) {
    return Status{Code::not_found};
  }
  if (!valid_layout(layout)) {
    return refuse(StoreRule::layout);
  }
  if (tokens.empty()) {
    return refuse(StoreRule::no_tokens);
  }
  if (number == 0 || number > kMaxVersionNumber) {
    return refuse(StoreRule::version_number);
  }
  const auto made =
      state_->make_version(tenant, owner, context, layout, tokens.size(), held_limit_ppm.has_value(), false);
  if (!made) {
    return made;
  }
  VersionRecord& version = *state_->versions.get(*made);
  version.number = number;
  version.medium = medium;
  state_->fill_hashes(version, tokens);
  if (held_limit_ppm) {
    take_held(*state_, version, *held_limit_ppm);
  }
  if (const VersionHandle equal = state_->find_equal(version, held_limit_ppm.value_or(0))) {
    const VersionRecord& other = *state_->versions.get(equal);
    if (other.medium == medium && other.kv_blocks == version.kv_blocks) {
      state_->destroy(*made);
      return equal;
    }
  }
  if (!state_->take_manifest(version)) {
    state_->destroy(*made);
    return state_->out_of_memory(tenant);
  }
  std::memcpy(state_->manifest_tail(version), tokens.data(), tokens.size_bytes());
  state_->publish(*made, state_->may_list(version));
  return made;
}

Result<VersionHandle> Store::publish_summary(TenantHandle tenant, const Name& owner,
                                             const Name& context, std::uint64_t number,
                                             std::uint8_t kind,
                                             std::span<const std::byte> bytes) noexcept {
  if (state_->tenants.get(tenant) == nullptr) {
    return Status{Code::not_found};
  }
  const auto made = state_->make_version(tenant, owner, context, Layout{}, 0, false, false);
  if (!made) {
    return made;
  }
  VersionRecord& version = *state_->versions.get(*made);
  version.number = number;
  version.medium = Medium::summary;
  version.summary_kind = kind;
  version.summary_bytes = bytes.size();
  if (!state_->take_manifest(version)) {
    state_->destroy(*made);
    return state_->out_of_memory(tenant);
  }
  if (!bytes.empty()) {
    std::memcpy(state_->manifest_tail(version), bytes.data(), bytes.size());
  }
  state_->publish(*made, false);
  return made;
}

}  // namespace kvrail::engine
