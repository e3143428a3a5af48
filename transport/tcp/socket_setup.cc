#include "transport/tcp/socket_setup.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvrail::transport::tcp {
namespace {

constexpr const char* kLoopbackCongestionControl = "cubic";

void set_int(int fd, int level, int name, int value) noexcept {
  // A kernel that lacks an option leaves the default, which works, if less well.
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof(value)));
}

void set_congestion_control(int fd, const char* name) noexcept {
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name,
                                 static_cast<socklen_t>(std::strlen(name))));
}

void set_buffers(int fd, const TcpOptions& options) noexcept {
  if (options.send_buffer_bytes != 0) {
    set_int(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes));
  }
  if (options.receive_buffer_bytes != 0) {
    set_int(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes));
  }
}

Error listen_error(const std::string& text, int failure) {
  const std::string what = "cannot listen on " + text + ": ";
  switch (failure) {
    case EADDRINUSE:
      return Error{{Code::address_in_use, Scope::engine, failure},
                   what + "the port is in use; stop what listens there or choose another port"};
    case EADDRNOTAVAIL:
      return Error{{Code::unreachable, Scope::engine, failure},
                   what + "no interface of this machine has that address"};
    case EACCES:
    case EPERM:
      return Error{{Code::permission_denied, Scope::engine, failure},
                   what + "not permitted; ports below 1024 need a privilege"};
    case EAFNOSUPPORT:
      return Error{{Code::unsupported, Scope::engine, failure},
                   what + "this kernel has no such address family"};
    case EMFILE:
    case ENFILE:
      return Error{{Code::limit, Scope::engine, failure},
                   what + "too many open files; raise the limit (ulimit -n)"};
    default:
      return Error{{Code::io_error, Scope::engine, failure}, what + std::strerror(failure)};
  }
}

}  // namespace

NewSocket make_dial_socket(const SocketAddress& to, const TcpOptions& options) noexcept {
  const int fd = ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    const bool full = errno == EMFILE || errno == ENFILE;
    return NewSocket{-1, Status{full ? Code::limit : Code::io_error, Scope::lane, errno}};
  }
  // Buffer sizes count only before connect(): they decide the window scale.
  tune_connection(fd, to.is_loopback(), options);
  return NewSocket{fd, {}};
}

void tune_connection(int fd, bool loopback, const TcpOptions& options) noexcept {
  set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.user_timeout_ms != 0) {
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(options.user_timeout_ms));
  }
  if (!options.congestion_control.empty()) {
    set_congestion_control(fd, options.congestion_control.c_str());
  } else if (loopback) {
    set_congestion_control(fd, kLoopbackCongestionControl);
  }
  set_buffers(fd, options);
}

void tune_bulk(int fd, const TcpOptions& options) noexcept {
  if (options.bulk_rate_bytes_per_s != 0) {
    const std::uint64_t rate = options.bulk_rate_bytes_per_s;
    static_cast<void>(::setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate)));
  }
}

Result<Listening> make_listen_socket(const TcpOptions& options) {
  Result<SocketAddress> parsed = parse_address(options.listen_address, PortZero::allowed);
  if (!parsed) {
    return std::move(parsed).error();
  }
  Listening listening;
  listening.address = *parsed;
  const int fd = ::socket(parsed->family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    return listen_error(options.listen_address, errno);
  }
  // A restarted node takes its port back although old connections linger in TIME_WAIT.
  set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (parsed->family() == AF_INET6) {
    set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, parsed->is_wildcard() ? 0 : 1);
  }
  set_buffers(fd, options);
  socklen_t length = sizeof(listening.address.storage);
  if (::bind(fd, parsed->get(), parsed->length) < 0 ||
      ::listen(fd, options.accept_backlog) < 0 ||
      ::getsockname(fd, listening.address.get(), &length) < 0) {
    const int failure = errno;
    ::close(fd);
    return listen_error(options.listen_address, failure);
  }
  listening.address.length = length;
  listening.fd = fd;
  return listening;
}

Result<void> check_congestion_control(const std::string& name) {
  if (name.empty()) {
    return {};
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    return Error{{Code::limit, Scope::engine, errno}, "cannot make a socket: too many open files"};
  }
  const int rc = ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.c_str(),
                              static_cast<socklen_t>(name.size()));
  const int failure = errno;
  ::close(fd);
  if (rc == 0) {
    return {};
  }
  return Error{{Code::unsupported, Scope::engine, failure},
               "congestion control '" + name +
                   "' is not available; net.ipv4.tcp_allowed_congestion_control lists what is"};
}

}  // namespace kvrail::transport::tcp
