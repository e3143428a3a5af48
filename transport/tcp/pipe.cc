#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "kvrail/base/assert.h"
#include "transport/tcp/socket_io.h"

namespace kvrail::transport::tcp {
namespace {

constexpr int kPipeBytes = 1024 * 1024;

// splice() to a socket that the peer has closed raises SIGPIPE and knows no flag against it. The
// signal is the process's business, so it is held off and taken back here.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    sigset_t block;
    ::sigemptyset(&block);
    ::sigaddset(&block, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &block, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  ~NoSigpipe() {
    if (raised && !was_pending_) {
      sigset_t only;
      ::sigemptyset(&only);
      ::sigaddset(&only, SIGPIPE);
      const timespec at_once{0, 0};
      static_cast<void>(::sigtimedwait(&only, nullptr, &at_once));
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  bool raised = false;

 private:
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace

int Pipe::open() noexcept {
  KVRAIL_ASSERT(!is_open());
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
    return errno;
  }
  read_fd = fds[0];
  write_fd = fds[1];
  filled = passed = 0;
  // Where the system's limit is lower, the default of 64 KiB works too, with more calls.
  static_cast<void>(::fcntl(write_fd, F_SETPIPE_SZ, kPipeBytes));
  return 0;
}

void Pipe::close() noexcept {
  if (is_open()) {
    ::close(read_fd);
    ::close(write_fd);
    read_fd = write_fd = -1;
    filled = passed = 0;
  }
}

std::int32_t Pipe::push(const msghdr& message, int socket_fd) noexcept {
  KVRAIL_ASSERT(is_open());
  if (filled == 0) {
    KVRAIL_ASSERT(passed == 0);
    const ssize_t in = ::vmsplice(write_fd, message.msg_iov, message.msg_iovlen, SPLICE_F_NONBLOCK);
    if (in <= 0) {
      return in < 0 ? -errno : -EIO;
    }
    filled = static_cast<std::uint32_t>(in);
  }
  NoSigpipe guard;
  while (filled > 0) {
    const ssize_t out = ::splice(read_fd, nullptr, socket_fd, nullptr, filled,
                                 SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (out < 0) {
      const int failure = errno;
      guard.raised = failure == EPIPE;
      return -failure;
    }
    if (out == 0) {
      return -EIO;
    }
    filled -= static_cast<std::uint32_t>(out);
    passed += static_cast<std::uint32_t>(out);
  }
  const auto result = static_cast<std::int32_t>(passed);
  passed = 0;
  return result;
}

}  // namespace kvrail::transport::tcp
