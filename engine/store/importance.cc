// What tokens mean to the agent that committed them, for media that send only some of them.
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/store/state.h"

namespace kvrail::engine {

Status Store::set_importance(AgentHandle handle, const Name& context, std::uint64_t number, std::uint64_t first,
                             std::span<const float> importance) noexcept {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return Status{Code::not_found};
  }
  // Versions that were handed over are shared: their importance is their owner's to say.
  const ContextHandle own = state_->find_context(agent->tenant, agent->name, context);
  const VersionHandle version = state_->find_version(own, number);
  VersionRecord* record = state_->versions.get(version);
  if (record == nullptr || !state_->contexts.get(own)->was_local) {
    return Status{Code::not_found};
  }
  if (importance.empty() || first > record->token_count || importance.size() > record->token_count - first) {
    return refuse(StoreRule::importance);
  }
  if (record->importance == nullptr) {
    state_->pin(version);  // room may be made by evicting versions
    std::span<float> taken = state_->memory->try_array<float>(record->token_count);
    while (taken.empty() && state_->evict_entry(record->tenant)) {
      taken = state_->memory->try_array<float>(record->token_count);
    }
    record->importance = taken.data();
    state_->unpin(version);
    if (taken.empty()) {
      return Status{Code::out_of_memory, Scope::transfer,
                    static_cast<std::int32_t>(std::min<std::uint64_t>(state_->memory->bytes_free(), INT32_MAX))};
    }
    state_->importance_bytes += taken.size_bytes();
    std::fill(taken.begin(), taken.end(), std::numeric_limits<float>::quiet_NaN());
  }
  std::memcpy(record->importance + first, importance.data(), importance.size_bytes());
  return {};
}

}  // namespace kvrail::engine
