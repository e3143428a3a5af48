// SIGKILL of a client in every state of the protocol: within a second the engine has taken back all
// that it held, nobody else notices, and nothing is left behind.
#include <dirent.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "kvrail/base/prng.h"
#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  REQUIRE(folder != nullptr);
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

std::vector<std::string> states() {
  std::FILE* output = ::popen(KVRAIL_VICTIM_PATH " --states", "r");
  REQUIRE(output != nullptr);
  std::vector<std::string> names;
  char line[64];
  while (std::fgets(line, sizeof(line), output) != nullptr) names.emplace_back(line, std::strlen(line) - 1);
  ::pclose(output);
  return names;
}

// An agent that works all the time: whatever happens to others, its contexts arrive whole.
class Witness {
 public:
  explicit Witness(EngineRig& rig) {
    thread_ = std::thread([this, socket = rig.socket()] { run(socket); });
  }
  ~Witness() {
    stop_.store(true);
    thread_.join();
  }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  [[nodiscard]] std::uint64_t rounds() const { return rounds_.load(); }
  [[nodiscard]] std::uint64_t faults() const { return faults_.load(); }

 private:
  void run(const std::string& socket) {
    Result<Agent> attached = Agent::attach(options_of(socket, "witness"));
    if (!attached.ok()) {
      ++faults_;
      return;
    }
    Agent agent = std::move(*attached);
    Result<Blocks> blocks = agent.allocate(small_layout(), 2, Place::host(), kSoon);
    if (!blocks.ok()) {
      ++faults_;
      return;
    }
    fill(blocks->slot(0), 1);
    fill(blocks->slot(1), 2);
    const Result<Context> context = agent.commit("witness", tokens_of(32), *blocks, Fence::none(), nullptr, kSoon);
    if (!context.ok()) ++faults_;
    while (!stop_.load()) {
      const Result<Ticket> ticket = agent.fetch("witness", "witness");
      if (!ticket.ok() || !agent.wait(*ticket, kSoon).ok()) ++faults_;
      // Its own delivery and whatever the victims have sent it.
      while (true) {
        const Result<Delivery> delivery = agent.receive(Nanoseconds(0));
        if (!delivery.ok()) break;
        if (delivery->owner() != "witness") continue;
        if (delivery->blocks().size() != 2 || !holds(delivery->blocks()[1].data, 2)) ++faults_;
      }
      ++rounds_;
      static_cast<void>(agent.receive(std::chrono::milliseconds(1)));
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> faults_{0};
  std::thread thread_;
};

void drive(EngineRig& rig, const std::function<bool()>& done) { REQUIRE(rig.until(done)); }

}  // namespace

TEST_CASE("ipc / a client killed in any state gives back all within a second") {
  EngineRig rig;
  std::optional<Witness> witness;
  witness.emplace(rig);
  drive(rig, [&] { return witness->rounds() > 0; });
  const std::size_t descriptors = open_descriptors();
  const std::vector<std::string> names = states();
  REQUIRE(names.size() >= 15);
  const std::size_t rounds = is_long() ? 1000 : names.size();
  Prng prng(1);
  TimeNs longest_ns = 0;
  for (std::size_t i = 0; i < rounds; ++i) {
    const std::string& state = names[i % names.size()];
    CAPTURE(state);
    CAPTURE(i);
    const std::string ready = rig.path("ready");
    Process victim({KVRAIL_VICTIM_PATH, rig.socket(), "victim", state, "witness", ready});
    const bool is_ready = rig.until([&] { return ::access(ready.c_str(), F_OK) == 0; });
    if (!is_ready) static_cast<void>(victim.wait(1000));
    REQUIRE_MESSAGE(is_ready, state << ": " << victim.output());
    ::unlink(ready.c_str());
    // Some of the states are loops: the blow falls anywhere in them.
    for (std::uint64_t n = prng.uniform(50); n > 0; --n) rig.round();
    victim.signal(SIGKILL);
    const SteadyClock clock;
    const TimeNs killed_ns = clock.now_ns();
    CHECK(rig.until([&] { return rig.server().agents() == 1 && rig.sessions().size() == 1; }, kSecondNs));
    longest_ns = std::max(longest_ns, clock.now_ns() - killed_ns);
    const std::uint64_t before = witness->rounds();
    drive(rig, [&] { return witness->rounds() >= before + 2; });
    CHECK(witness->faults() == 0);
    // Its contexts stay for their TTL, which is short here; then only the pipe to the victim is left.
    CHECK(rig.until([&] { return open_descriptors() <= descriptors + 1; }));
    rig.node().check();
  }
  CHECK(longest_ns < kSecondNs);
  MESSAGE(rounds << " kills in " << names.size() << " states, slowest return " << longest_ns / 1000 << " us");
  const std::uint64_t last = witness->rounds();
  drive(rig, [&] { return witness->rounds() > last; });
  rig.serve([&] { witness.reset(); });
}

TEST_CASE("ipc / a client that is stopped keeps what it has, and works on when it goes on") {
  EngineRig rig;
  std::optional<Witness> witness;
  witness.emplace(rig);
  drive(rig, [&] { return witness->rounds() > 0; });
  const std::string ready = rig.path("ready");
  Process victim({KVRAIL_VICTIM_PATH, rig.socket(), "victim", "asking", "witness", ready});
  drive(rig, [&] { return ::access(ready.c_str(), F_OK) == 0; });
  for (int i = 0; i < 5; ++i) {
    victim.stop();
    const std::uint64_t before = witness->rounds();
    drive(rig, [&] { return witness->rounds() >= before + 20; });
    CHECK(rig.server().agents() == 2);
    victim.signal(SIGCONT);
    const std::uint64_t records = rig.sessions().counters().records;
    drive(rig, [&] { return rig.sessions().counters().records > records + 50; });
  }
  CHECK(witness->faults() == 0);
  rig.serve([&] { witness.reset(); });
}

}  // namespace kvrail::test
