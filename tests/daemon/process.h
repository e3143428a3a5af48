// A real child process of a test: started with a private directory, its output collected, ended with
// the test whatever happens. Nothing here sleeps for a fixed time; every wait has a deadline.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace kvrail::test {

// A directory under /tmp that goes with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

class Process {
 public:
  // `in_child` runs between fork and exec (limits, capabilities).
  explicit Process(const std::vector<std::string>& command, const std::function<void()>& in_child = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  // SIGSTOP, and waits until no thread of it runs any more (a signal alone is only on its way).
  void stop() const;
  // The exit code, or 128 + signal; -1 when it still runs after `timeout_ms`.
  [[nodiscard]] int wait(int timeout_ms);
  // True when the output so far holds `text`; waits for it up to `timeout_ms`.
  [[nodiscard]] bool says(const std::string& text, int timeout_ms);
  [[nodiscard]] const std::string& output() const { return output_; }   // both streams, as far as they were read
  // All that it has written until now.
  [[nodiscard]] const std::string& output_now();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  void read_some(int timeout_ms);
  pid_t pid_ = -1;
  int out_ = -1;
  int code_ = -1;
  std::string output_;
};

// Where the build put kvraild (defined by the build).
[[nodiscard]] std::string kvraild_path();
// A TCP port of 127.0.0.1 that was free a moment ago.
[[nodiscard]] int free_port();

}  // namespace kvrail::test
