// A program that the demo started: in a network namespace or not, with pipes or a log file.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/ipc/fd.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"

namespace kvrail::demo {

struct SpawnOptions {
  std::string program;                 // path
  std::vector<std::string> arguments;  // without the program
  std::string network_namespace;       // name under /run/netns, empty: that of the demo
  std::string log;                     // file for standard error, and for output without pipes
  bool pipes = false;                  // standard input and output are ours
};

/// Thread: its owner. Destroying it ends the program, and so does the end of the demo, however it
/// comes: the kernel kills children whose parent has died.
class ChildProcess {
 public:
  [[nodiscard]] static Result<ChildProcess> start(const SpawnOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  /// Whether it still runs.
  [[nodiscard]] bool running();
  void ask_to_end();  // SIGTERM
  /// Waits for the end, and kills after `grace_ns`. True if it ended by itself with exit status 0.
  bool wait_for_end(TimeNs grace_ns);

  /// Writes a line to its standard input.
  [[nodiscard]] bool tell(const std::string& line);
  /// The next line of its output, if one is complete. Never waits.
  [[nodiscard]] std::optional<std::string> next_line();
  [[nodiscard]] int output() const noexcept { return output_.get(); }
  /// The last lines of its log, for messages.
  [[nodiscard]] std::string log_tail() const;
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  void set_label(std::string label) { label_ = std::move(label); }

 private:
  ChildProcess() = default;
  pid_t pid_ = -1;  // -1: moved from, or reaped
  int exit_state_ = 0;
  std::string label_;
  std::string log_;
  engine::ipc::UniqueFd input_, output_;
  std::string partial_;
};

}  // namespace kvrail::demo
