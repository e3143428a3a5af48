// SessionHost over a Node.
// Thread: the worker that drives the node, but for what session_host.h says.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "engine/core/node.h"
#include "engine/ipc/session_host.h"

namespace kvrail::engine::ipc {

class NodeHost final : public SessionHost {
 public:
  // Without the store's options the memory of agents is taken on the worker.
  explicit NodeHost(Node& node) noexcept : node_(node) {}
  NodeHost(Node& node, const StoreOptions& store) : node_(node), store_(store) {}
  [[nodiscard]] AgentCommands& commands() noexcept override { return node_; }
  [[nodiscard]] Result<AttachMemory> prepare(const AgentInfo& info) override;
  void forget(const Name& tenant) override;
  [[nodiscard]] bool knows(const Name& tenant) const noexcept override;
  [[nodiscard]] Result<ImportMemory> prepare_import(const Layout& layout, const ImportRequest& request) override;
  void free_retired() noexcept override { node_.free_retired(); }
  [[nodiscard]] std::uint64_t retirements() const noexcept override { return node_.retirements(); }
  [[nodiscard]] Result<AgentGrant> attach(const AgentInfo& info, AttachMemory memory) override;
  void detach(AgentHandle agent) noexcept override { node_.detach(agent); }
  [[nodiscard]] bool lends(AgentHandle agent) const noexcept override { return node_.lends(agent); }
  [[nodiscard]] const mempool::Arena* arena(AgentHandle agent, std::uint32_t id) noexcept override;
  [[nodiscard]] Result<Extent> import(AgentHandle agent, const ImportMemory& memory) override;
  void probe(AgentHandle agent, const Probe& probe) noexcept override;

 private:
  Node& node_;
  std::optional<StoreOptions> store_;
  std::mutex tenants_guard_;               // attaching threads only, never the duty cycle
  std::vector<Name> tenants_;              // whose receive arena was made, or is on its way
};

}  // namespace kvrail::engine::ipc
