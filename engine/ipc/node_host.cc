#include "engine/ipc/node_host.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kvrail/base/checked.h"

namespace kvrail::engine::ipc {

Result<AttachMemory> NodeHost::prepare(const AgentInfo& info) {
  if (!store_) return AttachMemory{};
  const std::lock_guard lock(tenants_guard_);
  const bool known = std::find(tenants_.begin(), tenants_.end(), info.tenant) != tenants_.end();
  // A tenant stays once it is there. If its first agent was refused, the worker makes its arena.
  Result<AttachMemory> memory = Node::prepare_attach(*store_, info, !known);
  if (memory.ok() && !known) tenants_.push_back(info.tenant);
  return memory;
}

Result<AgentGrant> NodeHost::attach(const AgentInfo& info, AttachMemory memory) {
  Result<AgentHandle> agent =
      memory.agent != nullptr ? node_.attach(info, std::move(memory)) : node_.attach(info);
  if (!agent.ok()) return std::move(agent).error();
  AgentGrant grant;
  grant.agent = *agent;
  Store& store = node_.store();
  grant.arena_id = store.agent_arena(*agent);
  grant.receive_id = store.receive_arena(node_.tenant_of(*agent));
  grant.arena = store.arena(grant.arena_id);
  grant.receive = store.arena(grant.receive_id);
  KVRAIL_ASSERT(grant.arena != nullptr && grant.receive != nullptr);
  return grant;
}

const mempool::Arena* NodeHost::arena(AgentHandle agent, std::uint32_t id) noexcept {
  const Store& store = node_.store();
  return store.may_read(node_.tenant_of(agent), id) ? store.arena(id) : nullptr;
}

// The store maps an fd from its start, so slots before the offset are taken along and freed at once.
Result<Extent> NodeHost::import(AgentHandle agent, const ImportRequest& request) {
  if (request.fd < 0) return node_.import_range(agent, request.base, request.bytes, -1);
  const std::optional<std::uint64_t> end = checked_add(request.offset, request.bytes);
  if (!end) return Error{{Code::invalid_argument}, "the range to import ends beyond 2^64"};
  Result<Extent> extent = node_.import_range(agent, nullptr, *end, request.fd);
  if (!extent.ok() || request.offset == 0) return extent;
  const std::uint64_t block_bytes = *end / extent->count;
  const auto before = static_cast<std::uint32_t>(request.offset / block_bytes);
  if (request.offset % block_bytes != 0 || before >= extent->count) {
    KVRAIL_ASSERT(node_.free_blocks(agent, *extent).ok());
    return Error{{Code::unsupported}, "an import in place begins at a whole block"};
  }
  KVRAIL_ASSERT(node_.free_blocks(agent, {extent->arena, before, extent->offset}).ok());
  return Extent{extent->arena, extent->count - before, extent->offset + request.offset};
}

void NodeHost::probe(AgentHandle agent, const Probe& probe) noexcept {
  node_.update_compute(agent, probe.compute, probe.backlog_ns, probe.idle_until_ns);
}

}  // namespace kvrail::engine::ipc
