#include "engine/ipc/node_host.h"

namespace kvrail::engine::ipc {

Result<AgentGrant> NodeHost::attach(const AgentInfo& info) {
  Result<AgentHandle> agent = node_.attach(info);
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

Result<Extent> NodeHost::import(AgentHandle agent, std::byte* base, std::uint64_t bytes, int fd) {
  return node_.import_range(agent, base, bytes, fd);
}

void NodeHost::probe(AgentHandle agent, const Probe& probe) noexcept {
  node_.update_compute(agent, probe.compute, probe.backlog_ns, probe.idle_until_ns);
}

}  // namespace kvrail::engine::ipc
