// Tells the service manager that started the daemon how far it is: the datagrams of sd_notify(3), to the
// socket that the manager names in NOTIFY_SOCKET. Without that variable, as from a shell, nothing is sent.
#pragma once

#include <string_view>

namespace kvrail::engine {

/// `state` is one assignment a line, "READY=1" or "STOPPING=1" and a "STATUS=" for people. What can't be
/// sent is dropped: a manager that has gone must not stop the engine.
void notify_service_manager(std::string_view state) noexcept;

}  // namespace kvrail::engine
