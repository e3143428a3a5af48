// kvraild: the engine as a daemon, one per node.
// Exit codes: 0 ended as asked; 1 could not run (the line says what is in the way); 2 bad usage or
// configuration.
#include <poll.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>

#include "engine/config/config.h"
#include "engine/daemon/service_manager.h"
#include "engine/runtime/host.h"
#include "engine/runtime/preflight.h"
#include "kvrail_features.h"

namespace {

using namespace kvrail;
using engine::LogLevel;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr TimeNs kLongestStepNs = kSecondNs;

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

void set_up_log(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("kvraild", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

// Signals come as reads, so that nothing runs in a handler. Blocked before any thread starts.
int signal_descriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);  // of a terminal that closes
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

// Each agent takes some descriptors, and the usual soft limit of 1,024 is for programs that use select().
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

// All that is wrong, a line each.
int check_config(const engine::Config& config, const std::string& name) {
  const engine::MachineReport report = engine::check_machine(config);
  for (const std::string& line : report.warnings) std::fprintf(stderr, "kvraild: warning: %s\n", line.c_str());
  for (const Error& error : report.errors) std::fprintf(stderr, "kvraild: %s\n", error.message.c_str());
  if (!report.errors.empty()) return kExitUsage;
  std::printf("%s: good\n", name.c_str());
  return 0;
}

int run(const engine::Config& config) {
  raise_descriptor_limit();
  const int signals = signal_descriptor();
  SteadyClock clock;
  auto host = engine::Host::create(config, clock, [](LogLevel level, std::string_view line) {
    spdlog::log(level_of(level), "{}", line);
  });
  if (!host.ok()) {
    spdlog::error("{}", host.error().message);
    return kExitFailed;
  }
  engine::Host& engine = *host.value();
  if (auto started = engine.start(); !started.ok()) {
    spdlog::error("{}", started.error().message);
    return kExitFailed;
  }
  spdlog::info("node {} takes agents at {}", engine.node_id(), config.socket);
  for (const std::string& line : engine.capabilities()) spdlog::info("{}", line);
  engine::notify_service_manager("READY=1\nSTATUS=takes agents at " + config.socket);
  int asked = 0;
  // The first signal drains, the second ends at once; more change nothing.
  while (!engine.drained() && asked < 2) {
    engine.step(kLongestStepNs, signals);
    signalfd_siginfo info{};
    while (asked < 2 && ::read(signals, &info, sizeof(info)) == sizeof(info)) {
      ++asked;
      spdlog::info(asked == 1 ? "draining; a second signal ends at once" : "ending at once");
      if (asked == 1) engine.drain();
      engine::notify_service_manager(asked == 1 ? "STOPPING=1\nSTATUS=draining" : "STATUS=ending at once");
    }
  }
  // A disk that does not answer may hold this up: from here on a signal ends the process by itself.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  ::pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
  host.value().reset();
  ::close(signals);
  spdlog::info("ended");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("kvraild: carries KV-cache between AI agents. One per node.");
  std::string config_path;
  bool check = false;
  app.add_option("-c,--config", config_path, "configuration file (docs/config.md); without one: the defaults");
  app.add_flag("--check-config", check, "read the configuration, hold it against this machine, say what is wrong, and end");
  app.footer("Exit codes: 0 ended as asked; 1 could not run; 2 wrong usage or configuration.");
  app.set_version_flag("--version", std::string("kvraild ") + KVRAIL_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitUsage;
  }
  auto config = config_path.empty() ? engine::parse_config("", "defaults") : engine::load_config(config_path);
  if (!config.ok()) {
    std::fprintf(stderr, "kvraild: %s\n", config.error().message.c_str());
    return kExitUsage;
  }
  if (check) return check_config(config.value(), config_path.empty() ? "defaults" : config_path);
  set_up_log(config.value().log_level);
  return run(config.value());
}
