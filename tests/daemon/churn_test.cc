// Work that comes and goes for long: nothing of it may stay.
#include <dirent.h>
#include <doctest/doctest.h>

#include <csignal>
#include <fstream>
#include <string>

#include "tests/daemon/two_nodes.h"
#include "tests/support/mode.h"
#include "tests/support/sanitizers.h"

namespace kvrail::test {
namespace {

struct Holdings {
  std::size_t descriptors = 0;
  std::size_t resident_kib = 0;
};

Holdings holdings_of(pid_t pid) {
  Holdings holdings;
  const std::string folder = "/proc/" + std::to_string(pid);
  DIR* fds = ::opendir((folder + "/fd").c_str());
  REQUIRE(fds != nullptr);
  while (::readdir(fds) != nullptr) ++holdings.descriptors;
  ::closedir(fds);
  // Without what agents share with it: an arena's pages are counted as they are touched.
  std::ifstream status(folder + "/status");
  std::string word;
  while (status >> word) {
    if (word == "RssAnon:") status >> holdings.resident_kib;
  }
  return holdings;
}

// One life of an agent on each node: a context goes over, grows, goes again, and all of it ends.
void one_round(Pair& pair, std::uint64_t seed) {
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Growing doc(planner, seed, 200);
  for (const std::uint32_t length : {100U, 130U, 200U}) {
    const Outcome sent = send(planner, doc.commit(length), "coder", seed % 3 == 0 ? Medium::int8 : Medium::full);
    REQUIRE_MESSAGE(sent.status.ok(), name(sent.status.code));
    const auto got = coder.receive(kSoon);
    REQUIRE(got.ok());
    if (got->medium() == Medium::full) CHECK(differences(*got, seed) == 0);
  }
  CHECK(planner.drop_context("doc-" + std::to_string(seed)).ok());
}

TEST_CASE("churn / agents and contexts that come and go leave no memory and no descriptor behind") {
  for (const Link& link : {kLinks[0], kLinks[3]}) {
    CAPTURE(std::string(link.name));
    Pair pair(link);
    const std::uint64_t rounds = by_mode<std::uint64_t>(15, 40, 2000);
    const std::uint64_t warm = rounds / 4 + 5;
    for (std::uint64_t i = 0; i < warm; ++i) one_round(pair, i + 1);
    const Holdings a = holdings_of(pair.a().pid());
    const Holdings b = holdings_of(pair.b().pid());
    for (std::uint64_t i = 0; i < rounds; ++i) one_round(pair, 100'000 + i);
    // The last agents are taken back after they have gone, and their arenas unmapped after that.
    CHECK(until([&] { return holdings_of(pair.a().pid()).descriptors <= a.descriptors + 2; }));
    CHECK(until([&] { return holdings_of(pair.b().pid()).descriptors <= b.descriptors + 2; }));
    const Holdings later_a = holdings_of(pair.a().pid());
    const Holdings later_b = holdings_of(pair.b().pid());
    MESSAGE(rounds << " rounds over " << std::string(link.name) << ": resident " << a.resident_kib << " -> " << later_a.resident_kib
                   << " KiB and " << b.resident_kib << " -> " << later_b.resident_kib << " KiB");
#if !KVRAIL_TEST_SANITIZED   // whose allocators keep what was freed
    CHECK(later_a.resident_kib < a.resident_kib + 4096);
    CHECK(later_b.resident_kib < b.resident_kib + 4096);
#endif
  }
}

TEST_CASE("churn / requests that are cancelled by the hundred give everything back") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  Growing doc(planner, 7, 2000);
  const Context context = doc.commit(2000);
  REQUIRE(send(planner, context, "coder", Medium::tokens).status.ok());
  REQUIRE(coder.receive(kSoon).ok());
  const int rounds = by_mode(2, 10, 200);
  std::uint64_t ended = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Ticket> tickets;
    SendOptions options;
    options.medium = Medium::full;
    for (int i = 0; i < 300; ++i) {
      const auto ticket = planner.send(context, {"coder"}, options);
      if (ticket.ok()) tickets.push_back(*ticket);
    }
    for (const Ticket ticket : tickets) static_cast<void>(planner.cancel(ticket));
    for (const Ticket ticket : tickets) {
      const auto outcomes = planner.wait(ticket, kSoon);
      REQUIRE_MESSAGE(outcomes.ok(), (outcomes.ok() ? "" : outcomes.error().message));
      CHECK(outcomes->size() == 1);
      ++ended;
    }
    // What had arrived before it was cancelled is there, whole.
    for (auto got = coder.receive(std::chrono::nanoseconds(0)); got.ok(); got = coder.receive(std::chrono::nanoseconds(0))) {
      CHECK(differences(*got, 7) == 0);
    }
  }
  CHECK(ended >= static_cast<std::uint64_t>(rounds) * 100);
  Growing probe(planner, 8, 1000);
  CHECK(send(planner, probe.commit(1000), "coder", Medium::full).status.ok());
  for (;;) {
    const auto got = coder.receive(kSoon);
    REQUIRE(got.ok());
    if (got->context() != "doc-8") continue;
    CHECK(differences(*got, 8) == 0);
    break;
  }
}

}  // namespace
}  // namespace kvrail::test
