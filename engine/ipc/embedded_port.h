// Agents in the engine's own process: the very same rings and rules, without a socket.
//
// Threads    a port and all agents made by it belong to one thread at a time; further threads make
//            ports of their own. In inline mode, where no worker thread runs, `drive` runs the
//            engine's duty cycle, and every wait of an agent calls it.
#pragma once

#include <functional>
#include <memory>

#include "engine/ipc/sessions.h"
#include "kvrail/agent.h"
#include "kvrail/base/result.h"

namespace kvrail::engine::ipc {

class EmbeddedPort {
 public:
  // `sessions` outlives the port and its agents. Fails when all links are taken.
  [[nodiscard]] static Result<EmbeddedPort> create(Sessions& sessions, std::function<void()> drive = {});
  EmbeddedPort(EmbeddedPort&&) noexcept;
  EmbeddedPort& operator=(EmbeddedPort&&) noexcept;
  ~EmbeddedPort();

  // socket_path is not used; an empty tenant is that of this process's user, as over the socket.
  [[nodiscard]] Result<Agent> attach(const AttachOptions& options);

 private:
  class Hub;
  friend class EmbeddedChannel;
  explicit EmbeddedPort(std::shared_ptr<Hub> hub) noexcept;
  std::shared_ptr<Hub> hub_;
};

}  // namespace kvrail::engine::ipc
