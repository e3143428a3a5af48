#include "perf/demo/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace kvrail::demo {
namespace {

using engine::ipc::UniqueFd;

Error failed(const std::string& what) {
  return Error{{Code::io_error, Scope::transfer, errno}, what + ": " + std::strerror(errno)};
}

// What the child needs, made before fork(): in between only system calls are safe.
struct Prepared {
  std::vector<char*> argv;
  UniqueFd net, log, child_in, child_out;
};

[[noreturn]] void become(const Prepared& ready, pid_t parent) {
  // A group of its own: the terminal's Ctrl-C reaches the demo only, which then ends us in order.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  if (ready.net.get() >= 0 && ::setns(ready.net.get(), CLONE_NEWNET) != 0) ::_exit(126);
  ::dup2(ready.child_in.get(), STDIN_FILENO);
  ::dup2(ready.child_out.get() >= 0 ? ready.child_out.get() : ready.log.get(), STDOUT_FILENO);
  ::dup2(ready.log.get(), STDERR_FILENO);
  ::execv(ready.argv[0], ready.argv.data());
  ::_exit(127);
}

Result<void> make_pipes(Prepared& ready, UniqueFd& input, UniqueFd& output) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0) return failed("pipe");
  ready.child_in = UniqueFd(in[0]);
  input = UniqueFd(in[1]);
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return failed("pipe");
  output = UniqueFd(out[0]);
  ready.child_out = UniqueFd(out[1]);
  ::fcntl(output.get(), F_SETFL, O_NONBLOCK);
  return {};
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const SpawnOptions& options) {
  Prepared ready;
  ready.argv.push_back(const_cast<char*>(options.program.c_str()));
  for (const std::string& word : options.arguments)
    ready.argv.push_back(const_cast<char*>(word.c_str()));
  ready.argv.push_back(nullptr);
  if (!options.network_namespace.empty()) {
    const std::string path = "/run/netns/" + options.network_namespace;
    ready.net = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (ready.net.get() < 0) return failed(path);
  }
  ready.log =
      UniqueFd(::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (ready.log.get() < 0) return failed(options.log);
  ChildProcess child;
  child.log_ = options.log;
  if (options.pipes) {
    if (auto made = make_pipes(ready, child.input_, child.output_); !made.ok())
      return std::move(made).error();
  } else {
    ready.child_in = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  const pid_t parent = ::getpid();
  child.pid_ = ::fork();
  if (child.pid_ < 0) return failed("fork");
  if (child.pid_ == 0) become(ready, parent);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_state_(other.exit_state_),
      label_(std::move(other.label_)),
      log_(std::move(other.log_)),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      partial_(std::move(other.partial_)) {}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  ask_to_end();
  wait_for_end(2 * kSecondNs);
}

bool ChildProcess::running() {
  if (pid_ <= 0) return false;
  const pid_t got = ::waitpid(pid_, &exit_state_, WNOHANG);
  if (got == 0 || (got < 0 && errno == EINTR)) return true;
  pid_ = -1;
  return false;
}

void ChildProcess::ask_to_end() {
  input_.reset();
  if (pid_ > 0) ::kill(pid_, SIGTERM);
}

bool ChildProcess::wait_for_end(TimeNs grace_ns) {
  const SteadyClock clock;
  const TimeNs deadline_ns = clock.now_ns() + grace_ns;
  while (running()) {
    if (clock.now_ns() >= deadline_ns) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &exit_state_, 0);
      pid_ = -1;
      return false;
    }
    ::usleep(5'000);
  }
  return WIFEXITED(exit_state_) && WEXITSTATUS(exit_state_) == 0;
}

bool ChildProcess::tell(const std::string& line) {
  const std::string text = line + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(input_.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    done += static_cast<std::size_t>(wrote);
  }
  return true;
}

std::optional<std::string> ChildProcess::next_line() {
  for (;;) {
    if (const auto end = partial_.find('\n'); end != std::string::npos) {
      std::string line = partial_.substr(0, end);
      partial_.erase(0, end + 1);
      return line;
    }
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(output_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    partial_.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::string ChildProcess::log_tail() const {
  constexpr std::size_t kMost = 600;
  std::ifstream file(log_, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (text.size() > kMost) text.erase(0, text.size() - kMost);
  return text;
}

}  // namespace kvrail::demo
