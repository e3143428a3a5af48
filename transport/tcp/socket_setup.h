// Making sockets and setting what a lane wants of them. Control path and handshakes only.
#pragma once

#include "kvrail/base/result.h"
#include "transport/socket_address.h"
#include "transport/tcp/tcp_transport.h"

namespace kvrail::transport::tcp {

/// An unconnected stream socket fit for `to`, or the status why there is none.
struct NewSocket {
  int fd = -1;
  Status status;
};
[[nodiscard]] NewSocket make_dial_socket(const SocketAddress& to,
                                         const TcpOptions& options) noexcept;

/// No delay, the congestion control, time-outs, buffers. For both ends of every connection.
void tune_connection(int fd, bool loopback, const TcpOptions& options) noexcept;
/// What only the bulk socket gets.
void tune_bulk(int fd, const TcpOptions& options) noexcept;

struct Listening {
  int fd = -1;
  SocketAddress address;  // with the port that the kernel chose
};
[[nodiscard]] Result<Listening> make_listen_socket(const TcpOptions& options);

/// Whether this kernel lets us use the congestion control that the options name.
[[nodiscard]] Result<void> check_congestion_control(const std::string& name);

}  // namespace kvrail::transport::tcp
