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
  // A tenant stays once it is there; forget() tells when its first agent was refused.
  Result<AttachMemory> memory = Node::prepare_attach(*store_, info, !known);
  if (memory.ok() && !known) tenants_.push_back(info.tenant);
  return memory;
}

void NodeHost::forget(const Name& tenant) {
  const std::lock_guard lock(tenants_guard_);
  std::erase(tenants_, tenant);
}

bool NodeHost::knows(const Name& tenant) const noexcept { return node_.store().find_tenant(tenant).valid(); }

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

Result<ImportMemory> NodeHost::prepare_import(const Layout& layout, const ImportRequest& request) {
  const StoreOptions options = store_.value_or(StoreOptions{});
  const std::optional<std::uint64_t> end = checked_add(request.offset, request.bytes);
  if (!end) return Error{{Code::invalid_argument}, "the range to import ends beyond 2^64"};
  const bool pages = request.fd < 0;
  const std::uint64_t block_bytes = layout.block_bytes();
  if (!pages && request.offset % block_bytes != 0) {
    return Error{{Code::unsupported}, "an import in place begins at a whole block"};
  }
  Result<StoreMemoryPtr> memory =
      Node::prepare_import(options, layout, request.base, pages ? request.bytes : *end, request.fd);
  if (!memory.ok()) return std::move(memory).error();
  const std::uint64_t before = pages ? 0 : request.offset / block_bytes;
  return ImportMemory{memory->release(), static_cast<std::uint32_t>(before)};
}

// The slots before those that were asked for are freed at once.
Result<Extent> NodeHost::import(AgentHandle agent, const ImportMemory& memory) {
  StoreMemoryPtr mapped(memory.memory);
  if (!agent.valid()) {
    node_.retire(std::move(mapped));
    return Status{Code::not_found};
  }
  const std::uint32_t before = memory.slots_before;
  Result<Extent> extent = node_.import_range(agent, std::move(mapped));
  if (!extent.ok() || before == 0) return extent;
  KVRAIL_ASSERT(before < extent->count);
  const std::uint64_t block_bytes = node_.store().arena(extent->arena)->bytes() / extent->count;
  KVRAIL_ASSERT(node_.free_blocks(agent, {extent->arena, before, extent->offset}).ok());
  return Extent{extent->arena, extent->count - before, extent->offset + before * block_bytes};
}

void NodeHost::probe(AgentHandle agent, const Probe& probe) noexcept {
  node_.update_compute(agent, probe.compute, probe.backlog_ns, probe.idle_until_ns);
}

}  // namespace kvrail::engine::ipc
