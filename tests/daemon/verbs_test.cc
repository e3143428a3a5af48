// Two kvraild whose only way to each other is RDMA. Run by scripts/test --verbs, in a guest where
// this machine has no device.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/daemon/two_nodes.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::test {
namespace {

using std::chrono::seconds;

// Ends the program as skipped where there is no device.
Link verbs_link() {
  static const std::string host = transport::verbs::own_address();
  if (host.empty()) {
    std::printf("SKIP: %s\n", transport::verbs::why_unavailable().c_str());
    std::exit(77);
  }
  Link link{"verbs"};
  link.verbs = host.c_str();
  return link;
}

}  // namespace

TEST_CASE("verbs nodes / media arrive right, and growth moves only what is new") {
  Pair pair(verbs_link());
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  for (const auto& [from, to, name] : {std::tuple(&planner, &coder, "coder"), std::tuple(&coder, &planner, "planner")}) {
    for (const Medium medium : {Medium::full, Medium::int8, Medium::tokens, Medium::automatic}) {
      CAPTURE(medium_name(medium));
      Growing doc(*from, 40 + static_cast<std::uint64_t>(medium), 2000);
      std::uint64_t first_bytes = 0;
      for (const std::uint32_t length : {1000U, 1001U, 1900U}) {
        CAPTURE(length);
        const Outcome sent = send(*from, doc.commit(length), name, medium);
        REQUIRE_MESSAGE(sent.status.ok(), kvrail::name(sent.status.code));
        auto got = to->receive(kSoon);
        REQUIRE(got.ok());
        CHECK(std::vector<TokenId>(got->tokens().begin(), got->tokens().end()) ==
              std::vector<TokenId>(doc.all.begin(), doc.all.begin() + length));
        if (medium != Medium::full) continue;
        CHECK(differences(*got, doc.seed) == 0);
        if (length == 1000) first_bytes = sent.bytes;
        if (length == 1001) CHECK(sent.bytes < first_bytes / 50);
      }
    }
  }
}

TEST_CASE("verbs nodes / a peer killed or stopped amid a transfer ends the ticket once, its next life is served") {
  for (const bool stop : {false, true}) {
    CAPTURE(stop);
    Pair pair(verbs_link());
    Agent planner = pair.attach("a", "planner");
    std::optional<Agent> coder(pair.attach("b", "coder"));
    Growing doc(planner, 3, 4000);
    REQUIRE(send(planner, doc.commit(100), "coder", Medium::full).status.ok());
    const Context big = doc.commit(4000);
    SendOptions options;
    options.medium = Medium::full;
    options.deadline = seconds(8);
    pair.b().stop();
    auto ticket = planner.send(big, {"coder"}, options);
    REQUIRE(ticket.ok());
    if (!stop) pair.b().signal(SIGKILL);
    const auto outcomes = planner.wait(ticket.value(), kSoon);
    REQUIRE(outcomes.ok());
    REQUIRE(outcomes->size() == 1);
    CHECK_FALSE(outcomes->front().status.ok());
    if (stop) {
      pair.b().signal(SIGCONT);
      pair.b().signal(SIGTERM);
    }
    CHECK(pair.b().wait(kSoonMs) >= 0);
    coder.reset();
    pair.start_b();
    coder.emplace(pair.attach("b", "coder"));
    CHECK(send(planner, big, "coder", Medium::full).status.ok());
    auto got = coder->receive(kSoon);
    REQUIRE(got.ok());
    CHECK(differences(*got, 3) == 0);
  }
}

}  // namespace kvrail::test
