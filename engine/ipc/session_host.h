// The engine as the sessions see it: who gives an agent its handle and memory. NodeHost
// (node_host.h) is the one that serves; the parts of this folder need no more than this.
// Thread: the worker. attach, arena and import may block and allocate; they run between duty cycles.
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

class SessionHost {
 public:
  SessionHost() = default;
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;
  virtual ~SessionHost() = default;

  [[nodiscard]] virtual AgentCommands& commands() noexcept = 0;
  [[nodiscard]] virtual Result<AgentGrant> attach(const AgentInfo& info) = 0;
  // Everything that the agent held returns; no event is pushed for it any more.
  virtual void detach(AgentHandle agent) noexcept = 0;
  // nullptr when absent or not of the agent's tenant: the same answer for both.
  [[nodiscard]] virtual const mempool::Arena* arena(AgentHandle agent, std::uint32_t id) noexcept = 0;
  // `base` is a mapping of the agent's memory that the host takes over when ok: it stays mapped as
  // long as a context may lie in it. fd < 0: pages of this very process, which are only used.
  [[nodiscard]] virtual Result<Extent> import(AgentHandle agent, std::byte* base, std::uint64_t bytes,
                                              int fd) = 0;
  virtual void probe(AgentHandle agent, const Probe& probe) noexcept = 0;
};

}  // namespace kvrail::engine::ipc
