// Versions handed to agents.
#include "engine/store/state.h"

namespace kvrail::engine {

void Store::State::drop_delivery(DeliveryHandle handle) noexcept {
  const DeliveryRecord gone = *deliveries.get(handle);
  AgentRecord* to = agent(gone.agent);
  KVRAIL_ASSERT(to != nullptr);
  DeliveryRecord* previous = deliveries.get(gone.previous);
  DeliveryRecord* next = deliveries.get(gone.next);
  (previous != nullptr ? previous->next : to->newest_delivery) = gone.next;
  if (next != nullptr) {
    next->previous = gone.previous;
  }
  deliveries.erase(handle);
}

DeliveryHandle Store::deliver(AgentHandle to, VersionHandle version) noexcept {
  AgentRecord* agent = state_->agent(to);
  const VersionRecord* record = state_->versions.get(version);
  if (agent == nullptr || record == nullptr || !record->published ||
      record->tenant != agent->tenant) {
    return {};
  }
  const DeliveryHandle handle = state_->deliveries.try_emplace();
  if (!handle) {
    return {};
  }
  DeliveryRecord& delivery = *state_->deliveries.get(handle);
  delivery.agent = to;
  delivery.version = version;
  delivery.next = agent->newest_delivery;
  if (DeliveryRecord* newest = state_->deliveries.get(agent->newest_delivery)) {
    newest->previous = handle;
  }
  agent->newest_delivery = handle;
  pin(version);
  return handle;
}

ManifestRef Store::manifest(DeliveryHandle handle) const noexcept {
  const DeliveryRecord* delivery = state_->deliveries.get(handle);
  if (delivery == nullptr) {
    return {};
  }
  return state_->manifest_ref(*state_->versions.get(delivery->version));
}

bool Store::release(AgentHandle agent, DeliveryHandle handle) noexcept {
  const DeliveryRecord* delivery = state_->deliveries.get(handle);
  if (delivery == nullptr || delivery->agent != agent) {
    return false;
  }
  const VersionHandle version = delivery->version;
  state_->drop_delivery(handle);
  unpin(version);
  return true;
}

VersionHandle Store::find_for(AgentHandle handle, const Name& context,
                              std::uint64_t number) const noexcept {
  const AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return {};
  }
  const ContextHandle own = state_->find_context(agent->tenant, agent->name, context);
  if (const VersionHandle version = state_->find_version(own, number)) {
    return version;
  }
  DeliveryHandle at = agent->newest_delivery;
  while (const DeliveryRecord* delivery = state_->deliveries.get(at)) {
    const VersionRecord& version = *state_->versions.get(delivery->version);
    if (version.name == context && (number == 0 || version.number == number)) {
      return state_->finest_of(delivery->version);
    }
    at = delivery->next;
  }
  return {};
}

}  // namespace kvrail::engine
