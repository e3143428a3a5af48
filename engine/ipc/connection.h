// One client of the attach server. Private to attach_*.cc.
// Thread: the Conductor.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/ipc/attach_server.h"

namespace kvrail::engine::ipc {

struct AttachServer::Connection {
  enum class Stage : std::uint8_t { hello, adopting, serving, asking, leaving };

  std::uint64_t id = 0;
  UniqueFd socket;
  UniqueFd pidfd;            // readable when the process has ended, even if a child keeps the socket
  Credentials caller;
  Stage stage = Stage::hello;
  TimeNs deadline_ns = kNever;            // of the hello
  std::uint32_t sequence = 0;             // of the request in hand
  DropReason leaving = DropReason::none;  // decided while the worker was still adopting
  bool polite = false;                    // DETACH came: the end is answered
  std::unique_ptr<AgentSession> session;

  [[nodiscard]] bool half_open() const noexcept { return stage == Stage::hello; }
};

// Keys of the epoll set: the listener, the link's bell, then two for each connection.
inline constexpr std::uint64_t kListenerKey = 0;
inline constexpr std::uint64_t kNoticeKey = 1;
[[nodiscard]] constexpr std::uint64_t socket_key(std::uint64_t id) noexcept { return id * 2; }
[[nodiscard]] constexpr std::uint64_t pidfd_key(std::uint64_t id) noexcept { return id * 2 + 1; }

}  // namespace kvrail::engine::ipc
