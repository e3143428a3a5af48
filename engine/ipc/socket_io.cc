#include "engine/ipc/socket_io.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvrail::engine::ipc {
namespace {

Error path_error(Code code, int error, const std::string& what) {
  return Error{{code, Scope::engine, error}, what};
}

const sockaddr* generic(const sockaddr_un& address) noexcept {
  return reinterpret_cast<const sockaddr*>(&address);
}

}  // namespace

Result<sockaddr_un> socket_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return path_error(Code::invalid_argument, 0,
                      "socket path '" + path + "' must have 1 to " +
                          std::to_string(sizeof(address.sun_path) - 1) + " bytes");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

SendOutcome send_message(int socket, std::span<const std::byte> message,
                         std::span<const int> fds) noexcept {
  KVRAIL_ASSERT(fds.size() <= kAttachedFds);
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kAttachedFds)> control{};
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == static_cast<ssize_t>(message.size())) return SendOutcome::sent;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return SendOutcome::full;
    return SendOutcome::closed;
  }
}

namespace {

// Takes ownership of every descriptor first; only then may the message be judged. False: more came
// than fit, the kernel has closed those already.
void take_fds(msghdr& header, Received& out) noexcept {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (out.fd_count < out.fds.size()) out.fds[out.fd_count++] = std::move(owned);
    }
  }
}

}  // namespace

ReceiveOutcome receive_message(int socket, Received& out) noexcept {
  out.close_fds();
  iovec part{out.bytes.data(), out.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kAttachedFds)> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t received = 0;
  bool reset = false;
  for (;;) {
    received = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received >= 0 || (errno != EINTR && errno != ECONNRESET)) break;
    // Told once, and before what the other side said last: it closed without reading all of ours.
    if (errno == ECONNRESET && std::exchange(reset, true)) break;
  }
  if (received < 0) {
    return errno == EAGAIN ? ReceiveOutcome::none : ReceiveOutcome::closed;
  }
  take_fds(header, out);
  if (received == 0) return ReceiveOutcome::closed;
  out.size = static_cast<std::size_t>(received);
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || out.size < sizeof(MessageHeader)) {
    return ReceiveOutcome::malformed;
  }
  std::memcpy(&out.header, out.bytes.data(), sizeof(MessageHeader));
  const bool sound = out.header.magic == kMessageMagic && out.header.bytes == out.size;
  return sound ? ReceiveOutcome::message : ReceiveOutcome::malformed;
}

bool wait_readable(int fd, TimeNs timeout_ns) noexcept {
  pollfd entry{fd, POLLIN, 0};
  const timespec timeout{static_cast<time_t>(timeout_ns / kSecondNs),
                         static_cast<long>(timeout_ns % kSecondNs)};
  return ::ppoll(&entry, 1, timeout_ns == kNever ? nullptr : &timeout, nullptr) > 0;
}

Result<UniqueFd> connect_to(const std::string& path) {
  const Result<sockaddr_un> address = socket_address(path);
  if (!address.ok()) return address.error();
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return path_error(Code::limit, errno, "cannot make a Unix socket: raise the limit of open files");
  if (::connect(socket.get(), generic(*address), sizeof(*address)) != 0) {
    const int error = errno;
    if (error == EACCES || error == EPERM) {
      return path_error(Code::permission_denied, error,
                        "no right to use " + path + ": join the group that owns the socket");
    }
    // EAGAIN: the backlog is full; whoever has time tries again.
    return path_error(error == EAGAIN ? Code::busy : Code::unreachable, error,
                      "no engine listens at " + path + ": start kvraild, or give the path that it uses");
  }
  return socket;
}

}  // namespace kvrail::engine::ipc
