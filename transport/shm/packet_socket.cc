#include "transport/shm/packet_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "transport/socket_file.h"

namespace kvrail::transport::shm {
namespace {

constexpr int kBacklog = 64;

socklen_t fill_address(std::string_view path, sockaddr_un& out) noexcept {
  KVRAIL_ASSERT(is_valid_path(path));
  out = sockaddr_un{};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path, path.data(), path.size());
  const bool abstract = path[0] == '@';
  if (abstract) out.sun_path[0] = '\0';
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (abstract ? 0 : 1));
}

UniqueFd new_socket() noexcept {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Error listen_error(const std::string& path, int error) {
  const Code code = error == EADDRINUSE                 ? Code::address_in_use
                    : error == EACCES || error == EPERM ? Code::permission_denied
                                                        : Code::io_error;
  return Error{Status{code, Scope::device, error},
               "shm socket " + path + ": " + std::strerror(error) +
                   (error == EADDRINUSE ? "; stop the engine that listens there, remove the file if it is no socket, or set another path"
                    : error == ENOENT   ? "; make its folder, or set another path"
                                        : "")};
}

}  // namespace

bool is_valid_path(std::string_view path) noexcept {
  return path.size() >= 2 && path.size() < sizeof(sockaddr_un::sun_path) &&
         (path[0] == '@' || path[0] == '/') && path.find('\0') == std::string_view::npos;
}

Result<UniqueFd> listen_on(const std::string& path) {
  if (!is_valid_path(path)) {
    return Error{Status{Code::invalid_argument, Scope::device},
                 "shm socket " + path + ": must be @name or an absolute path of at most 107 bytes"};
  }
  sockaddr_un address{};
  const socklen_t length = fill_address(path, address);
  UniqueFd made = new_socket();
  if (!made.valid()) return listen_error(path, errno);
  const FolderLock lock(path);
  remove_stale_socket(path);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return listen_error(path, errno);
  if (path[0] == '/') ::chmod(path.c_str(), 0600);
  if (::listen(made.get(), kBacklog) != 0) return listen_error(path, errno);
  return made;
}

Status connect_to(std::string_view path, UniqueFd& out) noexcept {
  sockaddr_un address{};
  const socklen_t length = fill_address(path, address);
  UniqueFd made = new_socket();
  if (!made.valid()) return Status{Code::limit, Scope::lane, errno};
  if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return Status{Code::unreachable, Scope::lane, errno};
  }
  out = std::move(made);
  return Status::ok_status();
}

bool is_same_user(int socket) noexcept {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

SocketResult send_packet(int socket, std::span<const std::byte> bytes, int fd) noexcept {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return SocketResult::ok;
  return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? SocketResult::again
                                                                      : SocketResult::closed;
}

SocketResult receive_packet(int socket, std::span<std::byte> into, Received& out) noexcept {
  out = Received{};
  iovec part{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  // Room for one descriptor; the kernel closes the others and says MSG_CTRUNC.
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? SocketResult::again : SocketResult::closed;
  bool odd = (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      odd = true;
      continue;
    }
    // Padding lets the kernel put a second one where room is for one and a half.
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      odd = odd || i != 0;
      out.fd = UniqueFd(fd);
    }
  }
  out.bytes = static_cast<std::size_t>(got);
  if (odd) return SocketResult::bad;
  return got == 0 ? SocketResult::closed : SocketResult::ok;
}

}  // namespace kvrail::transport::shm
