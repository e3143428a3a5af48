// Messages with descriptors over a SOCK_SEQPACKET socket; used by both sides.
// Threads: any; each call stands alone.
#pragma once

#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "engine/ipc/fd.h"
#include "engine/ipc/protocol.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"

namespace kvrail::engine::ipc {

enum class SendOutcome : std::uint8_t { sent, full, closed };

// Never waits and raises no SIGPIPE. The descriptors stay the caller's.
[[nodiscard]] SendOutcome send_message(int socket, std::span<const std::byte> message,
                                       std::span<const int> fds = {}) noexcept;

template <class Message>
[[nodiscard]] SendOutcome send_message(int socket, const Message& message,
                                       std::span<const int> fds = {}) noexcept {
  return send_message(socket, std::as_bytes(std::span{&message, 1}), fds);
}

// The header of a message of type M in answer to `sequence`.
template <class Message>
[[nodiscard]] MessageHeader header_of(MessageType type, std::uint32_t sequence) noexcept {
  MessageHeader header;
  header.type = type;
  header.bytes = sizeof(Message);
  header.sequence = sequence;
  return header;
}

enum class ReceiveOutcome : std::uint8_t {
  message,    // `bytes` holds one, its header checked against its length
  none,       // nothing there now
  closed,     // the other side is gone
  malformed,  // too long, too short, wrong magic, or more descriptors than any message has
};

// One received message. Descriptors that came along are owned by it, so whatever is wrong with the
// message, none of them stays open.
struct Received {
  alignas(8) std::array<std::byte, kMaxMessageBytes> bytes{};
  std::size_t size = 0;
  MessageHeader header;
  std::array<UniqueFd, kAttachedFds> fds;
  std::size_t fd_count = 0;

  // Whoever is through with the message calls this; else they stay open until the next one.
  void close_fds() noexcept {
    for (UniqueFd& fd : fds) fd.reset();
    fd_count = 0;
  }

  // A copy of the message as M; only after header.type told what it is and the size is equal.
  template <class Message>
  [[nodiscard]] bool as(Message& out) const noexcept {
    if (size != sizeof(Message)) return false;
    std::memcpy(&out, bytes.data(), sizeof(Message));
    return true;
  }
};

[[nodiscard]] ReceiveOutcome receive_message(int socket, Received& out) noexcept;

// Waits until the socket is readable or the deadline has passed; false then. Client side only.
[[nodiscard]] bool wait_readable(int fd, TimeNs timeout_ns) noexcept;

[[nodiscard]] Result<sockaddr_un> socket_address(const std::string& path);
// listen.cc: the engine only.
[[nodiscard]] Result<UniqueFd> listen_at(const std::string& path, unsigned mode, int backlog);
[[nodiscard]] Result<UniqueFd> connect_to(const std::string& path);

}  // namespace kvrail::engine::ipc
