// An agent's engine in another process: the attach socket.
// Thread: the agent's.
#pragma once

#include <memory>

#include "engine/client/channel.h"
#include "engine/client/session.h"
#include "engine/ipc/fd.h"
#include "engine/ipc/socket_io.h"
#include "kvrail/agent.h"

namespace kvrail::client {

[[nodiscard]] Result<std::shared_ptr<Session>> attach_socket(const AttachOptions& options);

// The ATTACH message of these options; one line where they cannot be.
[[nodiscard]] Result<ipc::AttachMessage> attach_message(const AttachOptions& options);

// What an unattached asker can have: a read-only mapping of the engine's status page.
[[nodiscard]] Result<ArenaMap> map_status_page(const std::string& socket_path, TimeNs timeout_ns);

}  // namespace kvrail::client
