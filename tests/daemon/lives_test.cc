// Daemons that die, are told to end and start again, at any moment of the work.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <thread>

#include "kvrail/base/time.h"
#include "tests/daemon/two_nodes.h"
#include "tests/support/mode.h"
#include "tests/support/sanitizers.h"

namespace kvrail::test {
namespace {

// Sends a signal to a process some microseconds from now, from a thread of its own.
class Blow {
 public:
  Blow(Process& process, int number, TimeNs after_ns)
      : thread_([&process, number, after_ns] {
          const SteadyClock clock;
          const TimeNs until_ns = clock.now_ns() + after_ns;
          while (clock.now_ns() < until_ns) std::this_thread::yield();
          process.signal(number);
        }) {}
  ~Blow() { thread_.join(); }
  Blow(const Blow&) = delete;
  Blow& operator=(const Blow&) = delete;

 private:
  std::thread thread_;
};

// A context that is larger than what is under way at one time, so that a blow falls into its middle.
constexpr std::uint32_t kTokens = 6000;

TEST_CASE("lives / the receiver's daemon is killed at any moment of a transfer, and comes back") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Growing doc(planner, 3, kTokens);
  const Context context = doc.commit(kTokens);
  Prng prng(11);
  const int lives = by_mode(2, 6, 1000);
  int whole = 0;
  for (int life = 0; life < lives; ++life) {
    CAPTURE(life);
    std::optional<Agent> coder(pair.attach("b", "coder"));
    Growing small(planner, 4, 20);
    REQUIRE(send(planner, small.commit(20), "coder", Medium::tokens).status.ok());
    SendOptions options;
    options.medium = Medium::full;
    const auto ticket = planner.send(context, {"coder"}, options);
    REQUIRE(ticket.ok());
    { const Blow blow(pair.b(), SIGKILL, static_cast<TimeNs>(prng.uniform(15'000'000))); }
    CHECK(pair.b().wait(kSoonMs) == 128 + SIGKILL);
    coder.reset();
    pair.start_b();   // its new incarnation ends what its silence would end later
    const auto outcomes = planner.wait(*ticket, kSoon);
    REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
    REQUIRE(outcomes->size() == 1);
    whole += outcomes->front().status.ok();
    CHECK(planner.drop_context("doc-4").ok());
  }
  Agent coder = pair.attach("b", "coder");
  REQUIRE(send(planner, context, "coder", Medium::full).status.ok());
  const auto got = coder.receive(kSoon);
  REQUIRE(got.ok());
  CHECK(differences(*got, 3) == 0);
  MESSAGE(lives << " kills of the receiving daemon, " << whole << " after the transfer had ended");
}

TEST_CASE("lives / the sender's daemon is killed at any moment of a transfer: nothing partial is shown") {
  Pair pair(kLinks[0]);
  Agent coder = pair.attach("b", "coder");
  Prng prng(12);
  const int lives = by_mode(2, 6, 1000);
  int whole = 0;
  for (int life = 0; life < lives; ++life) {
    CAPTURE(life);
    std::optional<Agent> planner(pair.attach("a", "planner"));
    const std::uint64_t seed = 1000 + static_cast<std::uint64_t>(life);
    Growing small(*planner, 4, 20);
    REQUIRE(send(*planner, small.commit(20), "coder", Medium::tokens).status.ok());
    Growing doc(*planner, seed, kTokens);
    SendOptions options;
    options.medium = Medium::full;
    const auto ticket = planner->send(doc.commit(kTokens), {"coder"}, options);
    REQUIRE(ticket.ok());
    { const Blow blow(pair.a(), SIGKILL, static_cast<TimeNs>(prng.uniform(15'000'000))); }
    const auto outcomes = planner->wait(*ticket, kSoon);
    CHECK((outcomes.ok() || outcomes.status().code == Code::peer_down));
    CHECK(pair.a().wait(kSoonMs) == 128 + SIGKILL);
    planner.reset();
    pair.start_a();
    // The directory of the new life is known when a small thing comes through; what came before it is whole.
    planner.emplace(pair.attach("a", "marker"));
    Growing mark(*planner, 5, 20);
    REQUIRE(send(*planner, mark.commit(20), "coder", Medium::tokens).status.ok());
    for (;;) {
      const auto got = coder.receive(kSoon);
      REQUIRE_MESSAGE(got.ok(), (got.ok() ? "" : got.error().message));
      if (got->context() == "doc-5") break;
      if (got->medium() != Medium::full) continue;
      CHECK(got->tokens().size() == kTokens);
      CHECK(got->blocks().size() == (kTokens + 15) / 16);
      CHECK(differences(*got, seed) == 0);
      ++whole;
    }
  }
  MESSAGE(lives << " kills of the sending daemon, " << whole << " contexts had arrived, whole");
}

TEST_CASE("lives / a daemon that is stopped for longer than a peer is waited for, and goes on") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Growing doc(planner, 3, kTokens);
  REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
  REQUIRE(coder.receive(kSoon).ok());
  const Context context = doc.commit(kTokens);
  pair.b().stop();
  SendOptions options;
  options.medium = Medium::full;
  const SteadyClock clock;
  const TimeNs begin_ns = clock.now_ns();
  const auto ticket = planner.send(context, {"coder"}, options);
  REQUIRE(ticket.ok());
  const auto outcomes = planner.wait(*ticket, kSoon);
  REQUIRE(outcomes.ok());
  CHECK(outcomes->front().status.code == Code::peer_down);
  const TimeNs noticed_ns = clock.now_ns() - begin_ns;
#if !KVRAIL_TEST_SANITIZED
  CHECK(noticed_ns < 3 * kSecondNs);
#endif
  MESSAGE("a stopped peer is given up after " << noticed_ns / kMillisecondNs << " ms");
  pair.b().signal(SIGCONT);
  // Nothing of the transfer that was given up arrives late; it is sent again and is whole.
  REQUIRE(send(planner, context, "coder", Medium::full).status.ok());
  const auto got = coder.receive(kSoon);
  REQUIRE(got.ok());
  CHECK(got->tokens().size() == kTokens);
  CHECK(differences(*got, 3) == 0);
  CHECK_FALSE(coder.receive(std::chrono::milliseconds(200)).ok());
}

TEST_CASE("lives / SIGTERM at any moment under load ends a daemon with 0, a second one at once") {
  Prng prng(13);
  const int runs = by_mode(2, 6, 500);
  TimeNs longest_ns = 0;
  for (int run = 0; run < runs; ++run) {
    CAPTURE(run);
    Pair pair(kLinks[static_cast<std::size_t>(run) % 4]);
    Agent planner = pair.attach("a", "planner");
    Agent coder = pair.attach("b", "coder");
    Growing doc(planner, 3, kTokens);
    const Context context = doc.commit(kTokens);
    REQUIRE(send(planner, context, "coder", Medium::tokens).status.ok());
    SendOptions options;
    options.medium = Medium::full;
    const auto ticket = planner.send(context, {"coder"}, options);
    REQUIRE(ticket.ok());
    Process& ends = run % 2 == 0 ? pair.b() : pair.a();
    { const Blow blow(ends, SIGTERM, static_cast<TimeNs>(prng.uniform(20'000'000))); }
    const SteadyClock clock;
    const TimeNs begin_ns = clock.now_ns();
    if (run % 3 == 0) ends.signal(SIGTERM);
    CHECK(ends.wait(kSoonMs) == 0);
    longest_ns = std::max(longest_ns, clock.now_ns() - begin_ns);
    if (&ends == &pair.b()) {
      const auto outcomes = planner.wait(*ticket, kSoon);
      REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
      CHECK(outcomes->size() == 1);
    }
    // The other side lives on.
    CHECK((&ends == &pair.b() ? planner : coder).begin_task({}).ok());
  }
  CHECK(longest_ns < 11 * kSecondNs);   // runtime.drain, and the way out
  MESSAGE(runs << " ends under load, the slowest took " << longest_ns / kMillisecondNs << " ms");
}

TEST_CASE("lives / a daemon that ends leaves the socket of the one that has taken its name") {
  const TempDir dir;
  const std::string config = dir.write("kvraild.toml", "[attach]\nsocket = \"" + dir.path("s") +
                                                           "\"\n[memory]\ntables = \"64 MiB\"\nreceive_arena = \"16 MiB\"\n");
  Process first({kvraild_path(), "--config", config});
  REQUIRE_MESSAGE(first.says("takes agents at", kSoonMs), first.output());
  REQUIRE(::unlink(dir.path("s").c_str()) == 0);
  Process second({kvraild_path(), "--config", config});
  REQUIRE_MESSAGE(second.says("takes agents at", kSoonMs), second.output());
  first.signal(SIGTERM);
  CHECK(first.wait(kSoonMs) == 0);
  CHECK(::access(dir.path("s").c_str(), F_OK) == 0);
  second.signal(SIGTERM);
  CHECK(second.wait(kSoonMs) == 0);
  CHECK(::access(dir.path("s").c_str(), F_OK) != 0);
}

TEST_CASE("lives / of two daemons that start together on one socket, one runs and the other says why") {
  const TempDir dir;
  const std::string config =
      dir.write("c", "[attach]\nsocket = \"" + dir.path("s") + "\"\n[memory]\ntables = \"16 MiB\"\n"
                     "receive_arena = \"1 MiB\"\nagent_arena = \"1 MiB\"\n");
  const int rounds = by_mode(3, 10, 200);
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    Process first({kvraild_path(), "--config", config});
    Process second({kvraild_path(), "--config", config});
    const SteadyClock clock;
    const TimeNs deadline_ns = clock.now_ns() + kSoonMs * kMillisecondNs;
    int codes[2] = {-1, -1};
    while (codes[0] < 0 && codes[1] < 0 && clock.now_ns() < deadline_ns) {
      codes[0] = first.wait(10);
      codes[1] = second.wait(10);
    }
    REQUIRE((codes[0] < 0) != (codes[1] < 0));
    Process& lost = codes[0] >= 0 ? first : second;
    Process& won = codes[0] >= 0 ? second : first;
    CHECK(lost.wait(0) == 1);
    CHECK(last_line(lost.output()).find("in use") != std::string::npos);
    REQUIRE(won.says("takes agents at", kSoonMs));
    AttachOptions options;
    options.socket_path = dir.path("s");
    options.name = "a";
    options.layout = layout();
    options.timeout = kSoon;
    const auto agent = Agent::attach(options);
    CHECK_MESSAGE(agent.ok(), (agent.ok() ? "" : agent.error().message));
    // Killed every other time, so that the next two find a socket that nobody listens at.
    won.signal(round % 2 == 0 ? SIGKILL : SIGTERM);
    CHECK(won.wait(kSoonMs) >= 0);
  }
}

}  // namespace
}  // namespace kvrail::test
