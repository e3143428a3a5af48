// The engine as the sessions see it: who gives an agent its handle and memory. NodeHost
// (node_host.h) is the one that serves; the parts of this folder need no more than this.
// Thread: the worker, but for what is marked otherwise. What blocks (mapping memory, giving it back) is
// done by the attaching threads.
#pragma once

#include <cstdint>
#include <utility>

#include "engine/core/agent_port.h"
#include "engine/core/node.h"
#include "kvrail/base/result.h"
#include "kvrail/probe.h"
#include "mempool/memory.h"

namespace kvrail::engine::ipc {

struct AgentGrant {
  AgentHandle agent;
  std::uint32_t arena_id = 0;
  std::uint32_t receive_id = 0;
  const mempool::Arena* arena = nullptr;    // both live as long as the host
  const mempool::Arena* receive = nullptr;
};

// fd >= 0: [offset, offset + bytes) of a memfd; the fd stays the caller's. fd < 0: pages of this very
// process at `base`, used in place.
struct ImportRequest {
  int fd = -1;
  std::byte* base = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What is imported, mapped already. An fd is mapped from its start, so there may be slots before those
// that were asked for. A plain value, because queues carry it: whoever pops it owns the memory.
struct ImportMemory {
  StoreMemory* memory = nullptr;
  std::uint32_t slots_before = 0;
};

class SessionHost {
 public:
  SessionHost() = default;
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;
  virtual ~SessionHost() = default;

  [[nodiscard]] virtual AgentCommands& commands() noexcept = 0;
  // Any thread: takes the memory that the agent will need, which may last. Empty memory is allowed,
  // attach() then takes it itself.
  [[nodiscard]] virtual Result<AttachMemory> prepare(const AgentInfo& info) = 0;
  // Any thread: the attachment with the memory of this tenant was refused.
  virtual void forget(const Name& tenant) = 0;
  [[nodiscard]] virtual bool knows(const Name& tenant) const noexcept = 0;
  // Any thread. Memory that an agent of this Layout brings along, for import().
  [[nodiscard]] virtual Result<ImportMemory> prepare_import(const Layout& layout, const ImportRequest& request) = 0;
  // Any thread: unmaps what the worker needs no more.
  virtual void free_retired() noexcept = 0;
  // Grows when there is something to free.
  [[nodiscard]] virtual std::uint64_t retirements() const noexcept = 0;
  [[nodiscard]] virtual Result<AgentGrant> attach(const AgentInfo& info, AttachMemory memory) = 0;
  // Everything that the agent held returns; no event is pushed for it any more.
  virtual void detach(AgentHandle agent) noexcept = 0;
  // Whether pages of a detached agent's own process are still read.
  [[nodiscard]] virtual bool lends(AgentHandle agent) const noexcept = 0;
  // nullptr when absent or not of the agent's tenant: the same answer for both.
  [[nodiscard]] virtual const mempool::Arena* arena(AgentHandle agent, std::uint32_t id) noexcept = 0;
  // Block slots in memory that the agent brings along. An invalid agent: it has gone meanwhile.
  [[nodiscard]] virtual Result<Extent> import(AgentHandle agent, const ImportMemory& memory) = 0;
  virtual void probe(AgentHandle agent, const Probe& probe) noexcept = 0;
};

}  // namespace kvrail::engine::ipc
