// The engine as the sessions see it: who gives an agent its handle and memory. NodeHost
// (node_host.h) is the one that serves; the parts of this folder need no more than this.
// Thread: the worker, but for prepare(). arena and import may block and allocate; they run between
// duty cycles.
#pragma once

#include <cstdint>

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

struct ImportRequest {
  int fd = -1;
  std::byte* base = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
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
  [[nodiscard]] virtual Result<AgentGrant> attach(const AgentInfo& info, AttachMemory memory) = 0;
  // Everything that the agent held returns; no event is pushed for it any more.
  virtual void detach(AgentHandle agent) noexcept = 0;
  // nullptr when absent or not of the agent's tenant: the same answer for both.
  [[nodiscard]] virtual const mempool::Arena* arena(AgentHandle agent, std::uint32_t id) noexcept = 0;
  // Block slots in memory that the agent brings along. fd >= 0: [offset, offset + bytes) of a memfd,
  // which the host maps itself for as long as a context may lie in it; the fd stays the caller's.
  // fd < 0: pages of this very process at `base`, used in place.
  [[nodiscard]] virtual Result<Extent> import(AgentHandle agent, const ImportRequest& request) = 0;
  virtual void probe(AgentHandle agent, const Probe& probe) noexcept = 0;
};

}  // namespace kvrail::engine::ipc
