// What runs beside the bench: programs of ours and of others, forked copies of the bench, and the
// folder they share. All of it ends with the object, and with the bench, however that ends.
//
// Threads: the bench's main thread, while no other thread lives (it forks).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/core/status_page.h"

namespace kvrail::bench {

// A case cannot go on: main() reports it as failed and goes on with the next benchmark.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A folder of its own under /tmp, removed with all that is in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A child process: a program, or a function of the bench in a forked copy.
class Child {
 public:
  struct Program {
    std::vector<std::string> command;        // its first word is looked up in PATH
    std::vector<std::string> environment;    // "NAME=value", added
    std::string output;                      // file for both outputs; empty: nowhere
    std::string network_namespace;           // a name under /run/netns; empty: the bench's
  };
  explicit Child(const Program& program);
  // Runs `body` in a copy of this process, which then ends; a Failure ends it with status 1.
  explicit Child(const std::function<void()>& body, const std::string& network_namespace = {});
  ~Child();                                  // SIGTERM; SIGKILL if it takes longer than 5 s
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running();
  // Waits for its end; false if it did not come in time or was not with status 0.
  [[nodiscard]] bool ended_well(std::int64_t timeout_ns);

 private:
  pid_t pid_ = -1;
  int status_ = -1;
  bool reaped_ = false;
};

[[nodiscard]] void* map(std::size_t bytes);
void unmap(void* memory, std::size_t bytes);

// Memory that forked copies share, filled with zeros; T has no pointers that matter.
template <class T>
class Shared {
 public:
  Shared() : memory_(map(sizeof(T))), value_(new (memory_) T{}) {}
  ~Shared() { unmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  void* memory_;
  T* value_;
};

// kvraild with a configuration, in a folder; it takes agents when the constructor returns.
class Daemon {
 public:
  Daemon(const Folder& folder, const std::string& name, const std::string& config,
         const std::string& network_namespace = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  // A whole copy of its status page; valid until the next call.
  [[nodiscard]] const engine::StatusData& status();
  // Waits until `peers` peers are up and `agents` agents are known, its own and remote ones.
  void await(std::uint32_t peers, std::uint32_t agents);

 private:
  std::string log_;
  std::string socket_;
  std::unique_ptr<Child> child_;
  const engine::StatusPage* page_ = nullptr;
  std::size_t page_bytes_ = 0;
  std::unique_ptr<engine::StatusData> copy_;
};

// CPU time that all threads of a process have used so far.
[[nodiscard]] std::int64_t cpu_ns(pid_t pid);
// A free TCP port of loopback. Somebody may take it before its user does, but hardly so.
[[nodiscard]] std::uint16_t free_port();
[[nodiscard]] bool in_path(const std::string& program);
// Runs a command to its end; what it printed, or nothing if it failed.
[[nodiscard]] std::optional<std::string> output_of(const Child::Program& program, std::int64_t timeout_ns);
// Looks every 200 us whether `done`; a Failure with `what` after `timeout_ns`.
void wait_for(const std::string& what, std::int64_t timeout_ns, const std::function<bool()>& done);

}  // namespace kvrail::bench
