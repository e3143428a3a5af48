// Contexts: the versions of one name, who owns them, and how they are found.
#include <algorithm>

#include "codec/hash.h"
#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

std::uint64_t context_key(TenantHandle tenant, const Name& owner, const Name& name) noexcept {
  struct Key {
    std::uint64_t tenant;
    Name owner;
    Name name;
  };
  static_assert(sizeof(Key) == sizeof(std::uint64_t) + 2 * sizeof(Name), "padding would be hashed");
  const Key key{tenant.packed(), owner, name};
  return codec::hash_of({reinterpret_cast<const char*>(&key), sizeof(key)}).low;
}

}  // namespace

ContextHandle Store::State::find_context(TenantHandle tenant, const Name& owner,
                                         const Name& name) const noexcept {
  const std::uint32_t position =
      context_index.find(context_key(tenant, owner, name), [&](std::uint32_t at) {
        const ContextRecord& context = *contexts.get(contexts.handle_at(at));
        return context.tenant == tenant && context.owner == owner && context.name == name;
      });
  return position == HashIndex::kNone ? ContextHandle{} : contexts.handle_at(position);
}

ContextHandle Store::State::ensure_context(TenantHandle tenant, const Name& owner,
                                           const Name& name) noexcept {
  if (const ContextHandle present = find_context(tenant, owner, name)) {
    return present;
  }
  const ContextHandle handle = contexts.try_emplace();
  KVRAIL_ASSERT_MSG(handle.valid(), "there are as many contexts as versions, and each has one");
  ContextRecord& context = *contexts.get(handle);
  context.tenant = tenant;
  context.owner = owner;
  context.name = name;
  context.key = context_key(tenant, owner, name);
  // Other nodes may still hold versions of a context that is made anew under an old name, so its
  // numbers go on above all that were given out.
  context.last_number = tenants.get(tenant)->dropped_number;
  context_index.insert(context.key, handle.index);
  return handle;
}

void Store::State::erase_context(ContextHandle handle) noexcept {
  const ContextRecord& context = *contexts.get(handle);
  TenantRecord& tenant = *tenants.get(context.tenant);
  if (context.was_local) {
    tenant.dropped_number = std::max(tenant.dropped_number, context.last_number);
  }
  if (context.local_owner.valid()) {
    disown_context(handle);
  }
  context_index.erase(context.key, handle.index);
  contexts.erase(handle);
}

void Store::State::own_context(ContextHandle handle, AgentRecord& owner) noexcept {
  ContextRecord& context = *contexts.get(handle);
  if (context.local_owner == owner.handle) {
    return;
  }
  KVRAIL_ASSERT_MSG(!context.local_owner.valid(), "two agents of one tenant have the same name");
  context.local_owner = owner.handle;
  context.was_local = true;
  context.agent_previous = ContextHandle{};
  context.agent_next = owner.first_context;
  if (ContextRecord* first = contexts.get(owner.first_context)) {
    first->agent_previous = handle;
  }
  owner.first_context = handle;
  for (VersionHandle version = context.newest; version;
       version = versions.get(version)->next_older) {
    value_forget(version);
    lru_remove(version);  // An agent that came back under its name takes its contexts over.
  }
}

void Store::State::disown_context(ContextHandle handle) noexcept {
  ContextRecord& context = *contexts.get(handle);
  AgentRecord* owner = agent(context.local_owner);
  KVRAIL_ASSERT(owner != nullptr);
  ContextRecord* previous = contexts.get(context.agent_previous);
  ContextRecord* next = contexts.get(context.agent_next);
  (previous != nullptr ? previous->agent_next : owner->first_context) = context.agent_next;
  if (next != nullptr) {
    next->agent_previous = context.agent_previous;
  }
  context.local_owner = AgentHandle{};
}

VersionHandle Store::State::find_version(ContextHandle handle,
                                         std::uint64_t number) const noexcept {
  const ContextRecord* context = contexts.get(handle);
  if (context == nullptr) {
    return {};
  }
  VersionHandle at = context->newest;
  while (number != 0 && at && versions.get(at)->number != number) {
    at = versions.get(at)->next_older;
  }
  return at;
}

// --- public ---

VersionHandle Store::find(TenantHandle tenant, const Name& owner, const Name& context,
                          std::uint64_t number) const noexcept {
  return state_->find_version(state_->find_context(tenant, owner, context), number);
}

void Store::drop_context(AgentHandle handle_of_agent, const Name& name) noexcept {
  const AgentRecord* agent = state_->agent(handle_of_agent);
  if (agent == nullptr) {
    return;
  }
  const ContextHandle handle = state_->find_context(agent->tenant, agent->name, name);
  const ContextRecord* context = state_->contexts.get(handle);
  // An agent that came back under its name may drop what it left behind; a context of another
  // node's agent with that name is not its own.
  if (context == nullptr || !context->was_local) {
    return;
  }
  // The context record goes with its last version, so it is looked up again each time.
  while ((context = state_->contexts.get(handle)) != nullptr) {
    const VersionHandle version = context->newest;
    if (state_->versions.get(version)->pins == 0) {
      state_->destroy(version);
    } else {
      state_->unlist(version);
    }
  }
}

}  // namespace kvrail::engine
