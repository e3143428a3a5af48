#include "tests/daemon/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"

namespace kvrail::test {

TempDir::TempDir() {
  std::array<char, 32> name{"/tmp/kvrail-test-XXXXXX"};
  KVRAIL_ASSERT(::mkdtemp(name.data()) != nullptr);
  path_ = name.data();
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::write(const std::string& name, const std::string& text) const {
  std::ofstream(path(name)) << text;
  return path(name);
}

Process::Process(const std::vector<std::string>& command, const std::function<void()>& in_child) {
  std::array<int, 2> pipe{};
  KVRAIL_ASSERT(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  KVRAIL_ASSERT(pid_ >= 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a crashed test leaves nothing behind
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    if (in_child) in_child();
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  out_ = pipe[0];
}

Process::~Process() {
  if (code_ < 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(out_);
}

void Process::signal(int number) const { ::kill(pid_, number); }

void Process::stop() const {
  signal(SIGSTOP);
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

void Process::read_some(int timeout_ms) {
  pollfd fd{.fd = out_, .events = POLLIN, .revents = 0};
  if (::poll(&fd, 1, timeout_ms) <= 0) return;
  std::array<char, 4096> buffer{};
  const ssize_t got = ::read(out_, buffer.data(), buffer.size());
  if (got > 0) output_.append(buffer.data(), static_cast<std::size_t>(got));
}

int Process::wait(int timeout_ms) {
  const SteadyClock clock;
  const TimeNs until = clock.now_ns() + timeout_ms * kMillisecondNs;
  while (code_ < 0 && clock.now_ns() < until) {
    read_some(10);
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) != pid_) continue;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    static_cast<void>(output_now());
  }
  return code_;
}

const std::string& Process::output_now() {
  std::size_t before = 0;
  do {
    before = output_.size();
    read_some(0);
  } while (output_.size() != before);
  return output_;
}

bool Process::says(const std::string& text, int timeout_ms) {
  const SteadyClock clock;
  const TimeNs until = clock.now_ns() + timeout_ms * kMillisecondNs;
  while (output_.find(text) == std::string::npos) {
    if (clock.now_ns() >= until) return false;
    read_some(10);
  }
  return true;
}

std::string kvraild_path() { return KVRAIL_KVRAILD_PATH; }

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  KVRAIL_ASSERT(::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  KVRAIL_ASSERT(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

}  // namespace kvrail::test
