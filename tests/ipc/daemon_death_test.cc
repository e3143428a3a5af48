// The engine dies or restarts under its agents: they learn it within a second, and come back.
#include <doctest/doctest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

constexpr int kSoonMs = 20'000;

class Daemon {
 public:
  explicit Daemon(const TempDir& dir)
      : process_({kvraild_path(), "--config",
                  dir.write("kvraild.toml", "[attach]\nsocket = \"" + dir.path("s") +
                                                "\"\n[memory]\ntables = \"64 MiB\"\nreceive_arena = \"16 MiB\"\n"
                                                "agent_arena = \"4 MiB\"\n")}) {}
  [[nodiscard]] bool up() { return process_.says("takes agents at", kSoonMs); }
  void kill() {
    process_.signal(SIGKILL);
    static_cast<void>(process_.wait(kSoonMs));
  }
  [[nodiscard]] Process& process() { return process_; }

 private:
  Process process_;
};

struct Timed {
  Status status;
  TimeNs took_ns = 0;
};

template <class Call>
Timed after_kill(Daemon& daemon, Call call) {
  std::atomic<bool> begun{false};
  std::atomic<TimeNs> killed_ns{0};
  const SteadyClock clock;
  std::thread killer([&] {
    while (!begun.load()) std::this_thread::yield();
    daemon.process().signal(SIGKILL);
    killed_ns.store(clock.now_ns());
  });
  begun.store(true);
  Timed timed;
  timed.status = call();
  const TimeNs ended_ns = clock.now_ns();
  killer.join();
  timed.took_ns = ended_ns - killed_ns.load();
  return timed;
}

}  // namespace

TEST_CASE("daemon death / whoever waits is told within a second, and reattaches to the next daemon") {
  const TempDir dir;
  const int rounds = by_mode(3, 3, 1000);
  std::optional<Agent> agent;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    Daemon daemon(dir);
    REQUIRE_MESSAGE(daemon.up(), daemon.process().output());
    if (!agent) {
      Result<Agent> attached = Agent::attach(options_of(dir.path("s"), "planner"));
      REQUIRE_MESSAGE(attached.ok(), attached.error().message);
      agent.emplace(std::move(*attached));
    } else {
      const Result<void> again = agent->reattach(kSoon);
      REQUIRE_MESSAGE(again.ok(), again.error().message);
    }
    Result<Blocks> blocks = agent->allocate(small_layout(), 2, Place::host(), kSoon);
    REQUIRE_MESSAGE(blocks.ok(), blocks.error().message);
    fill(blocks->slot(0), 3);
    const Result<Context> context = agent->commit("c", tokens_of(20), *blocks, Fence::none(), nullptr, kSoon);
    REQUIRE_MESSAGE(context.ok(), context.error().message);
    REQUIRE(agent->fetch("planner", "c").ok());
    Result<Delivery> delivery = agent->receive(kSoon);
    REQUIRE_MESSAGE(delivery.ok(), delivery.error().message);
    const Timed timed = after_kill(daemon, [&] { return agent->receive(kSoon).status(); });
    CHECK(timed.status.code == Code::peer_down);
    CHECK(timed.status.scope == Scope::engine);
    CHECK(timed.took_ns < kSecondNs);
    // What was handed over stays readable; everything that needs the engine says that it is gone.
    CHECK(holds(delivery->blocks()[0].data, 3));
    CHECK_FALSE(agent->attached());
    CHECK(agent->allocate(small_layout(), 1).status().code == Code::peer_down);
    CHECK(agent->commit("c", tokens_of(20), *blocks).status().code == Code::peer_down);
    CHECK(agent->send(*context, {"planner"}).status().code == Code::peer_down);
    CHECK(agent->begin_task({}).status().code == Code::peer_down);
    CHECK(agent->poll().status().code == Code::peer_down);
    // Only when all of it is gone: a dying process may close the agent's socket before the one it listens at.
    static_cast<void>(daemon.process().wait(kSoonMs));
    CHECK(agent->reattach(std::chrono::milliseconds(20)).status().code == Code::unreachable);
  }
}

TEST_CASE("daemon death / tickets that were open are unknown after reattaching, blocks of before are refused") {
  const TempDir dir;
  std::optional<Daemon> daemon;
  daemon.emplace(dir);
  REQUIRE(daemon->up());
  Result<Agent> agent = Agent::attach(options_of(dir.path("s"), "planner"));
  REQUIRE_MESSAGE(agent.ok(), agent.error().message);
  Result<Blocks> blocks = agent->allocate(small_layout(), 1, Place::host(), kSoon);
  REQUIRE(blocks.ok());
  const Result<Context> context = agent->commit("c", tokens_of(16), *blocks, Fence::none(), nullptr, kSoon);
  REQUIRE(context.ok());
  daemon->process().stop();
  const Result<Ticket> ticket = agent->send(*context, {"planner"});
  REQUIRE(ticket.ok());
  CHECK(agent->wait(*ticket, std::chrono::milliseconds(20)).status().code == Code::timed_out);
  daemon->kill();
  CHECK(agent->wait(*ticket, kSoon).status().code == Code::peer_down);
  daemon.emplace(dir);
  REQUIRE_MESSAGE(daemon->up(), daemon->process().output());
  REQUIRE(agent->reattach(kSoon).ok());
  CHECK(agent->wait(*ticket, kSoon).status().code == Code::unknown);
  CHECK(agent->commit("c", tokens_of(16), *blocks).status().code == Code::generation_mismatch);
}

TEST_CASE("daemon death / a drain says goodbye") {
  const TempDir dir;
  Daemon daemon(dir);
  REQUIRE(daemon.up());
  Result<Agent> agent = Agent::attach(options_of(dir.path("s"), "planner"));
  REQUIRE(agent.ok());
  daemon.process().signal(SIGTERM);
  const Result<Delivery> none = agent->receive(kSoon);
  CHECK((none.status().code == Code::shutting_down || none.status().code == Code::peer_down));
  CHECK(daemon.process().wait(kSoonMs) == 0);
}

}  // namespace kvrail::test
