#include "perf/demo/command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/ipc/fd.h"

namespace kvrail::demo {
namespace {

using engine::ipc::UniqueFd;

struct Pipe {
  UniqueFd read, write;
};

bool make_pipe(Pipe& out) {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return false;
  out.read = UniqueFd(fds[0]);
  out.write = UniqueFd(fds[1]);
  return true;
}

// What the commands write is far below a pipe's buffer, so one after the other cannot block them.
std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

int spawn(const std::vector<std::string>& words, int out, int err, pid_t& pid) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions{};
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  int rc = ENOENT;
  // Users without root often lack the sbin folders in their PATH, where ip and tc live.
  for (const char* folder : {"", "/usr/sbin/", "/sbin/"}) {
    const std::string program = folder + words.front();
    rc = ::posix_spawnp(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
    if (rc != ENOENT) break;
  }
  posix_spawn_file_actions_destroy(&actions);
  return rc;
}

}  // namespace

Result<std::string> run_command(const std::vector<std::string>& words) {
  KVRAIL_ASSERT(!words.empty());
  Pipe out;
  Pipe err;
  if (!make_pipe(out) || !make_pipe(err))
    return Error{{Code::io_error, Scope::transfer, errno}, "no more pipes"};
  pid_t pid = -1;
  if (const int rc = spawn(words, out.write.get(), err.write.get(), pid); rc != 0) {
    return Error{{Code::not_found, Scope::transfer, rc}, words.front() + ": " + std::strerror(rc)};
  }
  out.write.reset();
  err.write.reset();
  std::string output = read_all(out.read.get());
  const std::string complaint = read_all(err.read.get());
  int state = 0;
  while (::waitpid(pid, &state, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return output;
  return Error{{Code::io_error, Scope::transfer, state},
               joined(words) + ": " + complaint.substr(0, complaint.find('\n'))};
}

}  // namespace kvrail::demo
