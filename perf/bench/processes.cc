#include "perf/bench/processes.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/client/socket_channel.h"
#include "perf/bench/bench.h"

namespace kvrail::bench {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// In the child: dies with its parent, and lives in the namespace that is asked for.
void settle(pid_t parent, const std::string& network_namespace) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  if (network_namespace.empty()) return;
  const int fd = ::open(("/run/netns/" + network_namespace).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::setns(fd, CLONE_NEWNET) != 0) ::_exit(126);
  ::close(fd);
}

// Our programs lie beside the bench in the build folder, or where they were installed.
std::string kvraild_path() {
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& place : {here / "../../engine/daemon/kvraild", here / "kvraild"}) {
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  return "kvraild";
}

}  // namespace

Folder::Folder() {
  std::string pattern = "/tmp/kvrail-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw Failure("cannot make a folder in /tmp");
  path_ = pattern;
}

Folder::~Folder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

Child::Child(const Program& program) {
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw Failure("cannot fork");
  if (pid_ > 0) return;
  settle(parent, program.network_namespace);
  const char* const out = program.output.empty() ? "/dev/null" : program.output.c_str();
  const int fd = ::open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ::dup2(fd, STDOUT_FILENO);
  ::dup2(fd, STDERR_FILENO);
  for (const std::string& pair : program.environment) ::putenv(const_cast<char*>(pair.c_str()));
  std::vector<char*> words;
  for (const std::string& word : program.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

Child::Child(const std::function<void()>& body, const std::string& network_namespace) {
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw Failure("cannot fork");
  if (pid_ > 0) return;
  settle(parent, network_namespace);
  int status = 0;
  try {
    body();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "kvrail-bench, in a child: %s\n", failure.what());
    status = 1;
  }
  ::_exit(status);  // nothing of the parent's is torn down here
}

Child::~Child() {
  if (!running()) return;
  ::kill(pid_, SIGTERM);
  static_cast<void>(ended_well(5 * kSecond));
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status_, 0);
}

bool Child::running() {
  if (!reaped_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

bool Child::ended_well(std::int64_t timeout_ns) {
  const std::int64_t until = now_ns() + timeout_ns;
  while (running() && now_ns() < until) ::usleep(1000);
  return reaped_ && WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
}

void* map(std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Failure("no shared memory");
  return memory;
}

void unmap(void* memory, std::size_t bytes) { ::munmap(memory, bytes); }

Daemon::Daemon(const Folder& folder, const std::string& name, const std::string& config,
               const std::string& network_namespace)
    : log_(folder.path(name + ".log")), socket_(folder.path(name + ".sock")) {
  const std::string file = folder.path(name + ".toml");
  std::ofstream(file) << "[attach]\nsocket = \"" << socket_ << "\"\n" << config;
  child_ = std::make_unique<Child>(Child::Program{{kvraild_path(), "--config", file}, {}, log_, network_namespace});
  wait_for("kvraild to take agents", 30 * kSecond, [&] {
    if (!child_->running()) throw Failure("kvraild ended: " + read_file(log_));
    auto mapped = client::map_status_page(socket_, kSecond);
    if (!mapped.ok()) return false;
    page_ = engine::as_status_page(mapped.value().base, mapped.value().bytes);
    page_bytes_ = mapped.value().bytes;
    return page_ != nullptr;
  });
  copy_ = std::make_unique<engine::StatusData>();
}

Daemon::~Daemon() {
  child_.reset();
  if (page_ != nullptr) ::munmap(const_cast<engine::StatusPage*>(page_), page_bytes_);
}

const engine::StatusData& Daemon::status() {
  wait_for("a whole status page", 10 * kSecond, [&] { return engine::read_status_page(*page_, *copy_); });
  return *copy_;
}

void Daemon::await(std::uint32_t peers, std::uint32_t agents) {
  wait_for("peers and agents to be known", 20 * kSecond, [&] {
    const engine::StatusData& now = status();
    std::uint32_t up = 0;
    for (std::uint32_t i = 0; i < now.peer_count; ++i) up += now.peers[i].up;
    if (!child_->running()) throw Failure("kvraild ended: " + read_file(log_));
    return up >= peers && now.agent_count >= agents;
  });
}

std::int64_t cpu_ns(pid_t pid) {
  // schedstat counts nanoseconds, /proc/PID/stat only ticks.
  std::int64_t sum = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream file(task.path() / "schedstat");
    std::int64_t ran = 0;
    if (file >> ran) sum += ran;
  }
  if (sum == 0) throw Failure("no /proc/PID/task/*/schedstat on this kernel");
  return sum;
}

std::uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  const bool bound = ::bind(fd, raw, length) == 0 && ::getsockname(fd, raw, &length) == 0;
  ::close(fd);
  if (!bound) throw Failure("no free port");
  return ntohs(address.sin_port);
}

bool in_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "/usr/bin:/bin:/usr/sbin:/sbin" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::optional<std::string> output_of(const Child::Program& program, std::int64_t timeout_ns) {
  const Folder folder;
  Child::Program redirected = program;
  redirected.output = folder.path("output");
  Child child(redirected);
  if (!child.ended_well(timeout_ns)) return std::nullopt;
  return read_file(redirected.output);
}

void wait_for(const std::string& what, std::int64_t timeout_ns, const std::function<bool()>& done) {
  const std::int64_t until = now_ns() + timeout_ns;
  while (!done()) {
    if (now_ns() > until) throw Failure("waited in vain for " + what);
    ::usleep(200);
  }
}

}  // namespace kvrail::bench
