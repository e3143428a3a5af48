// How sockets do their work, behind one small interface: start an operation, collect it when it is
// done. Two back ends: io_uring (uring_io.cc) and epoll with non-blocking calls (epoll_io.cc). The
// lanes above can't tell them apart.
//
// An operation belongs to its socket: one inwards (accept, receive) and one outwards (connect,
// send). From start to reap() the kernel may read and write everything that the operation names,
// so the owner touches none of it; cancel() only hastens the reap.
//
// Thread: owner, the Worker that polls the transport. Making and destroying may happen elsewhere.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kvrail/base/result.h"
#include "transport/socket_address.h"

namespace kvrail::transport::tcp {

struct IoSocket;

// splice: a send that hands the pages of `message` to the socket instead of copying them (epoll
// back end only). They must not change until the peer has said that it has the bytes.
enum class OpKind : std::uint8_t { none, accept, connect, receive, send, splice };

/// The way of pages into a socket: vmsplice() in, splice() out.
struct Pipe {
  int read_fd = -1;
  int write_fd = -1;
  std::uint32_t filled = 0;  // bytes on their way to the socket
  std::uint32_t passed = 0;  // bytes that the operation in flight has brought there

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() { close(); }

  /// 0 or an errno.
  [[nodiscard]] int open() noexcept;
  void close() noexcept;
  [[nodiscard]] bool is_open() const noexcept { return read_fd >= 0; }
  /// Goes on until the socket is full or one filling of the pipe has passed: the bytes of that
  /// filling, or -EAGAIN when the socket must become writable first, or -errno.
  [[nodiscard]] std::int32_t push(const msghdr& message, int socket_fd) noexcept;
};

struct IoOp {
  OpKind kind = OpKind::none;  // none: idle, may be started
  bool reaped = true;          // false from start to reap
  bool cancel_asked = false;
  bool linked = false;         // epoll back end: on one of its lists
  int flags = 0;               // of recvmsg, sendmsg
  std::int32_t result = 0;     // after reap: bytes, a new descriptor, or -errno
  IoSocket* socket = nullptr;
  IoOp* next = nullptr;        // epoll back end: list link
  msghdr message{};            // receive, send, splice
  Pipe* pipe = nullptr;        // splice
  SocketAddress address;       // connect: to; accept: from
  [[nodiscard]] bool in_flight() const noexcept { return !reaped; }
};

// Lives in a table that outlasts the SocketIo's use of it, and never moves.
struct IoSocket {
  int fd = -1;
  std::uint32_t tag = 0;  // the owner's own number, to find its object from a reaped operation
  IoOp in;
  IoOp out;
  // Epoll back end: what the kernel last said. Optimistic: a wrong true costs one EAGAIN.
  bool readable = false;
  bool writable = false;
  bool hung_up = false;

  IoSocket() noexcept { in.socket = out.socket = this; }
  IoSocket(const IoSocket&) = delete;
  IoSocket& operator=(const IoSocket&) = delete;
  ~IoSocket() = default;

  [[nodiscard]] bool is_open() const noexcept { return fd >= 0; }
  [[nodiscard]] bool is_busy() const noexcept { return in.in_flight() || out.in_flight(); }
};

class SocketIo {
 public:
  SocketIo() = default;
  SocketIo(const SocketIo&) = delete;
  SocketIo& operator=(const SocketIo&) = delete;
  virtual ~SocketIo() = default;

  /// Takes over an open descriptor. 0 or an errno; on failure the descriptor stays the caller's.
  [[nodiscard]] virtual int adopt(IoSocket& socket, int fd) noexcept = 0;
  /// Closes the descriptor. No operation may be in flight.
  virtual void close(IoSocket& socket) noexcept = 0;

  /// Starts the operation; the fields that it needs are set already.
  virtual void start(IoOp& op, OpKind kind) noexcept = 0;
  /// Asks an operation in flight to end soon, with -ECANCELED or with what it had done.
  virtual void cancel(IoOp& op) noexcept = 0;

  /// Hands what was started to the kernel and learns what is done. Never blocks.
  virtual void pump() noexcept = 0;
  /// The next finished operation, idle again, or nullptr.
  [[nodiscard]] virtual IoOp* reap() noexcept = 0;

  /// Readable when pump() would learn something, provided arm() returned true since.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// False if there is something to reap or to start already.
  [[nodiscard]] virtual bool arm() noexcept = 0;

  /// Whether this thread may call pump().
  [[nodiscard]] virtual bool is_owner() const noexcept = 0;
  [[nodiscard]] virtual const char* name() const noexcept = 0;
};

struct SocketIoLimits {
  std::uint32_t sockets = 0;
};

/// Fails with the errno of io_uring_setup in status.detail.
[[nodiscard]] Result<std::unique_ptr<SocketIo>> make_uring_io(const SocketIoLimits& limits);
[[nodiscard]] Result<std::unique_ptr<SocketIo>> make_epoll_io(const SocketIoLimits& limits);

}  // namespace kvrail::transport::tcp
