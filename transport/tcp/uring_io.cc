// The io_uring back end: one operation per socket and direction, header first and then straight
// into the destination. No chains, no registered buffers, no SQPOLL: none of them gained anything
// where it was measured.
//
// The ring is made disabled and enabled by the first pump(): a single-issuer ring belongs to the
// thread that enables it, and that must be the Worker, not the control thread that built us.
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "transport/tcp/socket_io.h"

namespace kvrail::transport::tcp {
namespace {

constexpr std::uint32_t kMaxEntries = 4096;

// Best first. An older kernel answers EINVAL to flags that it does not know.
constexpr std::array<unsigned, 3> kSetupFlags{
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_R_DISABLED,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    0U,
};

class UringIo final : public SocketIo {
 public:
  UringIo() = default;
  ~UringIo() override;

  [[nodiscard]] Status open(std::uint32_t entries);

  [[nodiscard]] int adopt(IoSocket& socket, int fd) noexcept override;
  void close(IoSocket& socket) noexcept override;
  void start(IoOp& op, OpKind kind) noexcept override;
  void cancel(IoOp& op) noexcept override;
  void pump() noexcept override;
  [[nodiscard]] IoOp* reap() noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return event_fd_; }
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] bool is_owner() const noexcept override {
    return owner_ == 0 || owner_ == ::gettid();
  }
  [[nodiscard]] const char* name() const noexcept override { return "io_uring"; }

 private:
  [[nodiscard]] io_uring_sqe* take_sqe() noexcept;
  void enter() noexcept;
  [[nodiscard]] bool has_task_work() const noexcept {
    return (std::atomic_ref(*ring_.sq.kflags).load(std::memory_order_relaxed) &
            (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
  }

  io_uring ring_{};
  unsigned setup_flags_ = 0;
  int event_fd_ = -1;
  pid_t owner_ = 0;  // the thread of the first pump()
  bool ring_open_ = false;
  bool enabled_ = false;
  bool armed_ = false;
};

UringIo::~UringIo() {
  if (ring_open_) {
    io_uring_queue_exit(&ring_);
  }
  if (event_fd_ >= 0) {
    ::close(event_fd_);
  }
}

Status UringIo::open(std::uint32_t entries) {
  int failure = -EINVAL;
  for (const unsigned flags : kSetupFlags) {
    failure = io_uring_queue_init(entries, &ring_, flags);
    if (failure != -EINVAL) {
      setup_flags_ = flags;
      break;
    }
  }
  if (failure < 0) {
    return Status{Code::unsupported, Scope::device, -failure};
  }
  ring_open_ = true;
  enabled_ = (setup_flags_ & IORING_SETUP_R_DISABLED) == 0;
  event_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd_ < 0) {
    return Status{Code::limit, Scope::device, errno};
  }
  if (const int rc = io_uring_register_eventfd(&ring_, event_fd_); rc < 0) {
    return Status{Code::unsupported, Scope::device, -rc};
  }
  // Signals cost a write each; they are wanted only while the Worker is parked.
  static_cast<void>(io_uring_cq_eventfd_toggle(&ring_, false));
  return {};
}

int UringIo::adopt(IoSocket& socket, int fd) noexcept {
  // The descriptor stays in blocking mode: io_uring would report EAGAIN for a non-blocking one
  // instead of waiting for it.
  KVRAIL_ASSERT(!socket.is_open() && !socket.is_busy());
  socket.fd = fd;
  return 0;
}

void UringIo::close(IoSocket& socket) noexcept {
  KVRAIL_ASSERT_MSG(!socket.is_busy(), "the kernel may still use what the operation names");
  ::close(socket.fd);
  socket.fd = -1;
}

io_uring_sqe* UringIo::take_sqe() noexcept {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) {
    enter();
    sqe = io_uring_get_sqe(&ring_);
  }
  KVRAIL_ASSERT_MSG(sqe != nullptr, "the submission ring has room for every operation there can be");
  return sqe;
}

void UringIo::start(IoOp& op, OpKind kind) noexcept {
  KVRAIL_ASSERT(!op.in_flight() && op.socket->is_open());
  op.kind = kind;
  op.reaped = false;
  op.cancel_asked = false;
  io_uring_sqe* const sqe = take_sqe();
  const int fd = op.socket->fd;
  switch (kind) {
    case OpKind::accept:
      op.address.length = sizeof(op.address.storage);
      io_uring_prep_accept(sqe, fd, op.address.get(), &op.address.length, SOCK_CLOEXEC);
      break;
    case OpKind::connect:
      io_uring_prep_connect(sqe, fd, op.address.get(), op.address.length);
      break;
    case OpKind::receive:
      io_uring_prep_recvmsg(sqe, fd, &op.message, static_cast<unsigned>(op.flags));
      break;
    case OpKind::send:
      io_uring_prep_sendmsg(sqe, fd, &op.message, static_cast<unsigned>(op.flags) | MSG_NOSIGNAL);
      break;
    case OpKind::splice:  // would need non-blocking sockets, which io_uring does not wait for
    case OpKind::none:
      KVRAIL_UNREACHABLE();
  }
  io_uring_sqe_set_data(sqe, &op);
}

void UringIo::cancel(IoOp& op) noexcept {
  if (!op.in_flight() || op.cancel_asked) {
    return;
  }
  op.cancel_asked = true;
  io_uring_sqe* const sqe = take_sqe();
  io_uring_prep_cancel64(sqe, reinterpret_cast<std::uint64_t>(&op), 0);
  io_uring_sqe_set_data(sqe, nullptr);
}

void UringIo::enter() noexcept {
  int rc = 0;
  do {
    rc = io_uring_submit_and_get_events(&ring_);
  } while (rc == -EINTR);
  // EAGAIN and EBUSY: the kernel is short of memory or of completion slots. What was not taken
  // stays in the ring, and the next pump() offers it again.
  KVRAIL_ASSERT_MSG(rc >= 0 || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM,
                    "io_uring_enter refused what this file prepared, or another thread polls");
}

void UringIo::pump() noexcept {
  if (!enabled_) [[unlikely]] {
    // Debian 12's liburing declares io_uring_enable_rings() but does not export it.
    const long rc = ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                              nullptr, 0);
    KVRAIL_ASSERT(rc == 0);
    enabled_ = true;
  }
  if (owner_ == 0) [[unlikely]] {
    owner_ = ::gettid();
  }
  if (armed_) {
    armed_ = false;
    static_cast<void>(io_uring_cq_eventfd_toggle(&ring_, false));
    std::uint64_t count = 0;
    // Nothing to read is fine: the caller may have been woken by something else.
    static_cast<void>(::read(event_fd_, &count, sizeof(count)));
  }
  if (io_uring_sq_ready(&ring_) > 0 || has_task_work()) {
    enter();
  }
}

IoOp* UringIo::reap() noexcept {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
    auto* const op = static_cast<IoOp*>(io_uring_cqe_get_data(cqe));
    const std::int32_t result = cqe->res;
    io_uring_cqe_seen(&ring_, cqe);
    if (op == nullptr) {
      continue;  // a cancel request's own answer; the operation's answer is what counts
    }
    KVRAIL_ASSERT(op->in_flight());
    op->result = result;
    op->reaped = true;
    return op;
  }
  return nullptr;
}

bool UringIo::arm() noexcept {
  if (!enabled_) {
    return false;  // the first pump() has not been, so nothing was handed to the kernel
  }
  if (!armed_) {
    static_cast<void>(io_uring_cq_eventfd_toggle(&ring_, true));
    armed_ = true;
  }
  // Order: signals on, then look. What finishes before the look is seen here, what finishes after
  // it signals.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return io_uring_sq_ready(&ring_) == 0 && io_uring_cq_ready(&ring_) == 0 && !has_task_work();
}

}  // namespace

Result<std::unique_ptr<SocketIo>> make_uring_io(const SocketIoLimits& limits) {
  auto io = std::make_unique<UringIo>();
  // Two operations and two cancels per socket may be queued at once.
  const std::uint64_t wanted = next_power_of_two(std::uint64_t{limits.sockets} * 4);
  const auto entries = static_cast<std::uint32_t>(
      wanted < 64 ? 64 : (wanted > kMaxEntries ? kMaxEntries : wanted));
  if (const Status status = io->open(entries); !status.ok()) {
    return Error{status, std::string("io_uring is not available here: ") +
                             std::strerror(status.detail)};
  }
  return Result<std::unique_ptr<SocketIo>>(std::move(io));
}

}  // namespace kvrail::transport::tcp
