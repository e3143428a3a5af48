// The epoll back end, for kernels and containers that refuse io_uring: the same operations, made of
// non-blocking calls that are tried when the kernel said that they may succeed.
//
// Every socket is registered once, edge-triggered, for both directions. An operation is either on
// the ready list (to be tried by the next pump()), waiting for an edge, or on the done list.
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "transport/tcp/socket_io.h"

namespace kvrail::transport::tcp {
namespace {

constexpr int kEventsPerPump = 64;

class OpList {
 public:
  void push(IoOp& op) noexcept {
    KVRAIL_ASSERT(!op.linked);
    op.linked = true;
    op.next = nullptr;
    (tail_ == nullptr ? head_ : tail_->next) = &op;
    tail_ = &op;
  }
  [[nodiscard]] IoOp* pop() noexcept {
    IoOp* const op = head_;
    if (op != nullptr) {
      head_ = op->next;
      tail_ = head_ == nullptr ? nullptr : tail_;
      op->next = nullptr;
      op->linked = false;
    }
    return op;
  }
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }

 private:
  IoOp* head_ = nullptr;
  IoOp* tail_ = nullptr;
};

class EpollIo final : public SocketIo {
 public:
  explicit EpollIo(int epoll_fd) noexcept : epoll_fd_(epoll_fd) {}
  ~EpollIo() override { ::close(epoll_fd_); }

  [[nodiscard]] int adopt(IoSocket& socket, int fd) noexcept override;
  void close(IoSocket& socket) noexcept override;
  void start(IoOp& op, OpKind kind) noexcept override;
  void cancel(IoOp& op) noexcept override;
  void pump() noexcept override;
  [[nodiscard]] IoOp* reap() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return epoll_fd_; }
  [[nodiscard]] bool arm() noexcept override { return ready_.empty() && done_.empty(); }
  [[nodiscard]] bool is_owner() const noexcept override { return true; }
  [[nodiscard]] const char* name() const noexcept override { return "epoll"; }

 private:
  void collect_edges() noexcept;
  void wake(IoOp& op) noexcept;
  void attempt(IoOp& op) noexcept;
  void finish(IoOp& op, std::int32_t result) noexcept;

  int epoll_fd_;
  OpList ready_;
  OpList done_;
};

[[nodiscard]] bool is_inward(const IoOp& op) noexcept {
  return op.kind == OpKind::accept || op.kind == OpKind::receive;
}

int EpollIo::adopt(IoSocket& socket, int fd) noexcept {
  KVRAIL_ASSERT(!socket.is_open() && !socket.is_busy());
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return errno;
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &socket;
  if (::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) < 0) {
    return errno;
  }
  socket.fd = fd;
  socket.readable = socket.writable = true;
  socket.hung_up = false;
  return 0;
}

void EpollIo::close(IoSocket& socket) noexcept {
  KVRAIL_ASSERT(!socket.is_busy());
  // A descriptor that a child process inherited would keep the registration alive past close().
  static_cast<void>(::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, socket.fd, nullptr));
  ::close(socket.fd);
  socket.fd = -1;
}

void EpollIo::start(IoOp& op, OpKind kind) noexcept {
  KVRAIL_ASSERT(!op.in_flight() && op.socket->is_open());
  op.kind = kind;
  op.reaped = false;
  op.cancel_asked = false;
  if (kind == OpKind::connect) {
    const int rc = ::connect(op.socket->fd, op.address.get(), op.address.length);
    if (rc == 0 || errno != EINPROGRESS) {
      finish(op, rc == 0 ? 0 : -errno);
      return;
    }
    op.socket->writable = false;  // the edge that reports the outcome
    return;
  }
  if (is_inward(op) ? op.socket->readable : op.socket->writable) {
    ready_.push(op);
  }
}

void EpollIo::cancel(IoOp& op) noexcept {
  if (!op.in_flight() || op.cancel_asked) {
    return;
  }
  op.cancel_asked = true;
  if (!op.linked) {
    finish(op, -ECANCELED);  // it was waiting; one on the ready list is ended by pump()
  }
}

void EpollIo::finish(IoOp& op, std::int32_t result) noexcept {
  op.result = result;
  done_.push(op);
}

void EpollIo::wake(IoOp& op) noexcept {
  if (op.in_flight() && !op.linked) {
    ready_.push(op);
  }
}

void EpollIo::collect_edges() noexcept {
  std::array<epoll_event, kEventsPerPump> events;
  int count = 0;
  do {
    count = ::epoll_wait(epoll_fd_, events.data(), kEventsPerPump, 0);
  } while (count < 0 && errno == EINTR);
  KVRAIL_ASSERT(count >= 0);
  for (int i = 0; i < count; ++i) {
    // The socket may have been closed, even reopened, since this edge: its slot is still memory of
    // ours, and a wrong "readable" only costs an EAGAIN.
    auto& socket = *static_cast<IoSocket*>(events[static_cast<std::size_t>(i)].data.ptr);
    const std::uint32_t what = events[static_cast<std::size_t>(i)].events;
    const bool ended = (what & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
    socket.hung_up = socket.hung_up || ended;
    if (ended || (what & EPOLLIN) != 0) {
      socket.readable = true;
      wake(socket.in);
    }
    if ((what & (EPOLLERR | EPOLLHUP | EPOLLOUT)) != 0) {
      socket.writable = true;
      wake(socket.out);
    }
  }
}

std::int32_t requested_bytes(const msghdr& message) noexcept {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    sum += message.msg_iov[i].iov_len;
  }
  return static_cast<std::int32_t>(sum);
}

void EpollIo::attempt(IoOp& op) noexcept {
  IoSocket& socket = *op.socket;
  ssize_t rc = -1;
  do {
    switch (op.kind) {
      case OpKind::accept:
        op.address.length = sizeof(op.address.storage);
        rc = ::accept4(socket.fd, op.address.get(), &op.address.length, SOCK_CLOEXEC);
        break;
      case OpKind::connect: {
        int failure = 0;
        socklen_t length = sizeof(failure);
        rc = ::getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &failure, &length);
        if (rc == 0 && failure != 0) {
          rc = -1;
          errno = failure;
        }
        break;
      }
      case OpKind::receive:
        rc = ::recvmsg(socket.fd, &op.message, op.flags | MSG_DONTWAIT);
        break;
      case OpKind::send:
        rc = ::sendmsg(socket.fd, &op.message, op.flags | MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      case OpKind::splice: {
        const std::int32_t moved = op.pipe->push(op.message, socket.fd);
        rc = moved < 0 ? -1 : moved;
        errno = moved < 0 ? -moved : 0;
        break;
      }
      case OpKind::none:
        KVRAIL_UNREACHABLE();
    }
  } while (rc < 0 && errno == EINTR);
  bool& may_go = is_inward(op) ? socket.readable : socket.writable;
  if (rc < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    may_go = false;
    return;  // the next edge puts it back on the ready list
  }
  // Less than asked for means drained (or full), so the next try waits for an edge. After a hang-up
  // no edge comes any more: then tries go on until the kernel reports the end.
  if (op.kind == OpKind::receive || op.kind == OpKind::send) {
    may_go = rc < 0 || rc == requested_bytes(op.message) || socket.hung_up;
  }
  finish(op, rc < 0 ? -errno : static_cast<std::int32_t>(rc));
}

void EpollIo::pump() noexcept {
  collect_edges();
  // What becomes ready while we try is for the next pump(): one pass is bounded work.
  OpList now = ready_;
  ready_ = OpList{};
  while (IoOp* const op = now.pop()) {
    if (op->cancel_asked) {
      finish(*op, -ECANCELED);
    } else {
      attempt(*op);
    }
  }
}

IoOp* EpollIo::reap() noexcept {
  IoOp* const op = done_.pop();
  if (op != nullptr) {
    op->reaped = true;
  }
  return op;
}

}  // namespace

Result<std::unique_ptr<SocketIo>> make_epoll_io(const SocketIoLimits&) {
  const int fd = ::epoll_create1(EPOLL_CLOEXEC);
  if (fd < 0) {
    return Error{{Code::limit, Scope::device, errno},
                 std::string("epoll_create1 failed: ") + std::strerror(errno)};
  }
  return Result<std::unique_ptr<SocketIo>>(std::make_unique<EpollIo>(fd));
}

}  // namespace kvrail::transport::tcp
