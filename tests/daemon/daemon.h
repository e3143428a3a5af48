// One kvraild in a directory of its own, for tests that look at it as a user does.
#pragma once

#include <poll.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/agent.h"
#include "kvrail/base/time.h"
#include "tests/daemon/process.h"

namespace kvrail::test {

inline constexpr int kSoonMs = 20'000;   // generous: it only bounds a hang
inline constexpr std::chrono::seconds kSoon{20};

// Whether `done` comes to hold within that time.
[[nodiscard]] inline bool until(const std::function<bool()>& done) {
  const SteadyClock clock;
  const TimeNs deadline_ns = clock.now_ns() + kSoonMs * kMillisecondNs;
  while (!done()) {
    if (clock.now_ns() >= deadline_ns) return false;
    static_cast<void>(::poll(nullptr, 0, 5));
  }
  return true;
}

class Daemon {
 public:
  // `extra` goes on where the file ends: keys of [memory] first, then other sections.
  explicit Daemon(const std::string& extra = "", const std::function<void()>& in_child = {},
                  const std::string& arenas = "receive_arena = \"16 MiB\"\nagent_arena = \"8 MiB\"\n")
      : socket_(dir_.path("s")),
        config_(dir_.write("kvraild.toml", "[attach]\nsocket = \"" + socket_ + "\"\n[memory]\ntables = \"64 MiB\"\n" +
                                               arenas + extra)) {
    start(in_child);
  }
  void start(const std::function<void()>& in_child = {}) {
    process_ = std::make_unique<Process>(std::vector<std::string>{kvraild_path(), "--config", config_}, in_child);
  }
  [[nodiscard]] bool up() { return process_->says("takes agents at", kSoonMs); }
  [[nodiscard]] Process& process() { return *process_; }
  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] const TempDir& dir() const { return dir_; }

  [[nodiscard]] AttachOptions options(const std::string& name) const {
    AttachOptions options;
    options.socket_path = socket_;
    options.name = name;
    options.tenant = "test";
    options.layout.layers = 1;
    options.layout.kv_heads = 1;
    options.layout.head_dim = 8;
    options.layout.block_tokens = 16;
    options.tokenizer = {1, 2};
    options.timeout = kSoon;
    return options;
  }
  [[nodiscard]] Result<Agent> attach(const std::string& name) const { return Agent::attach(options(name)); }

 private:
  TempDir dir_;
  std::string socket_;
  std::string config_;
  std::unique_ptr<Process> process_;
};

[[nodiscard]] inline std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = text.rfind('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, end + 1 - begin);
}

[[nodiscard]] inline long lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

[[nodiscard]] inline bool holds_all(const std::string& text, const std::vector<std::string>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

}  // namespace kvrail::test
