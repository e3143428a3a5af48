// What a kvraild costs that has nothing to do: two peers connected, two agents attached and asleep.
#include <unistd.h>

#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"

namespace kvrail::bench {
namespace {

constexpr double kMostPercent = 1.0;  // of one core
constexpr std::int64_t kWindowNs = 4'000'000'000;

std::string peer_of(std::uint16_t port) {
  return "[[peer]]\naddress = \"127.0.0.1:" + std::to_string(port) + "\"\n";
}

}  // namespace

void run_idle(Report& report) {
  const Folder folder;
  const std::uint16_t port = free_port();
  Daemon idle(folder, "idle", "[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n");
  Daemon left(folder, "left", peer_of(port));
  Daemon right(folder, "right", peer_of(port));
  const Agent a = attach(idle.socket(), agent_options("a", small_layout(), 1 << 20));
  const Agent b = attach(idle.socket(), agent_options("b", small_layout(), 1 << 20));
  idle.await(2, 2);
  report.measure("idle daemon, 2 peers, 2 agents", "% of core", kMostPercent, [&] {
    const std::int64_t used = cpu_ns(idle.pid());
    const std::int64_t start = now_ns();
    ::usleep(static_cast<useconds_t>(kWindowNs / 1000));
    return 100.0 * static_cast<double>(cpu_ns(idle.pid()) - used) / static_cast<double>(now_ns() - start);
  });
  report.note("windows of 4 s");
}

}  // namespace kvrail::bench
