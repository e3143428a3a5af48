// SessionHost over a Node.
// Thread: the worker that drives the node.
#pragma once

#include "engine/core/node.h"
#include "engine/ipc/session_host.h"

namespace kvrail::engine::ipc {

class NodeHost final : public SessionHost {
 public:
  explicit NodeHost(Node& node) noexcept : node_(node) {}
  [[nodiscard]] AgentCommands& commands() noexcept override { return node_; }
  [[nodiscard]] Result<AgentGrant> attach(const AgentInfo& info) override;
  void detach(AgentHandle agent) noexcept override { node_.detach(agent); }
  [[nodiscard]] const mempool::Arena* arena(AgentHandle agent, std::uint32_t id) noexcept override;
  [[nodiscard]] Result<Extent> import(AgentHandle agent, const ImportRequest& request) override;
  void probe(AgentHandle agent, const Probe& probe) noexcept override;

 private:
  Node& node_;
};

}  // namespace kvrail::engine::ipc
