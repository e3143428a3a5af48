// Versions that came without KV: token ids to recompute from, and summaries.
#include <cstring>

#include "engine/store/state.h"

namespace kvrail::engine {

Result<VersionHandle> Store::publish_tokens(TenantHandle tenant, const Name& owner,
                                            const Name& context, std::uint64_t number,
                                            const Layout& layout, Medium medium,
                                            std::span<const TokenId> tokens,
                                            std::optional<std::uint32_t> held_limit_ppm) noexcept {
  StageRequest request;
  request.tenant = tenant;
  request.owner = owner;
  request.context = context;
  request.version = number;
  request.layout = layout;
  request.tokens = tokens;
  request.coding.medium = medium;
  request.held_limit_ppm = held_limit_ppm.value_or(0);
  request.show_held = held_limit_ppm.has_value();
  const auto staging = stage(request);
  return staging ? publish(*staging) : Result<VersionHandle>(staging.status());
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
  state_->write_manifest_header(version);
  state_->list(*made, false);
  return made;
}

}  // namespace kvrail::engine
