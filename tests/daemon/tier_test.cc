// Contexts that leave a real node's memory for files, and come back: into what grows, to who asks for what its owner
// left behind, and after the node was killed.
#include <doctest/doctest.h>

#include <sys/stat.h>

#include <csignal>

#include "tests/daemon/two_nodes.h"

namespace kvrail::test {
namespace {

constexpr std::uint32_t kTokens = 960;  // 60 blocks of 16 KiB
constexpr std::uint32_t kGrown = kTokens + 160;

// A number of `kvrailctl tiers --json`; -1: it says none.
long tier_figure(const std::string& socket, const std::string& key) {
  Process process({KVRAIL_KVRAILCTL_PATH, "tiers", "--json", "--socket", socket});
  static_cast<void>(process.wait(kSoonMs));
  const std::size_t at = process.output().find("\"" + key + "\": ");
  return at == std::string::npos ? -1 : std::strtol(process.output().c_str() + at + key.size() + 4, nullptr, 10);
}

struct Tiered {
  Tiered() {
    for (const char* node : {"a", "b"}) REQUIRE(::mkdir(dir.path(node).c_str(), 0700) == 0);
    pair.emplace(kLink, "[offload]\ndirectory = \"" + dir.path("@NODE@") + "\"\ncapacity = \"256 MiB\"\nsegment = \"16 MiB\"\n");
  }
  // Slower than any file, and memory for eight contexts.
  static constexpr Link kLink{.name = "tcp, paced", .tcp = "pacing = \"80Mbit/s\"\n", .receive_arena = "8 MiB"};
  [[nodiscard]] long figure(const std::string& key) const { return tier_figure(pair->socket("b"), key); }

  TempDir dir;
  std::optional<Pair> pair;
};

void deliver(Agent& planner, Agent& coder, Growing& doc, std::uint32_t tokens, std::uint64_t most_bytes) {
  const Outcome outcome = send(planner, doc.commit(tokens), "coder", Medium::full);
  REQUIRE_MESSAGE(outcome.status.ok(), name(outcome.status.code));
  CHECK(outcome.bytes <= most_bytes);
  auto delivery = coder.receive(kSoon);
  REQUIRE_MESSAGE(delivery.ok(), (delivery.ok() ? "" : delivery.error().message));
  CHECK(delivery->tokens().size() == tokens);
  CHECK(delivery->medium() == Medium::full);
  CHECK(differences(*delivery, doc.seed) == 0);
}

}  // namespace

TEST_CASE("two nodes / contexts leave memory for files and come back from there, after SIGKILL too") {
  Tiered t;
  Agent planner = t.pair->attach("a", "planner");
  std::optional<Agent> coder = t.pair->attach("b", "coder");
  std::vector<std::unique_ptr<Growing>> docs;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    docs.push_back(std::make_unique<Growing>(planner, seed, kGrown));
    deliver(planner, *coder, *docs.back(), kTokens, UINT64_MAX);
    if (seed > 6) REQUIRE(until([&] { return t.figure("offloads") >= static_cast<long>(seed) - 6; }));
  }
  CHECK(t.figure("stubs") > 0);
  CHECK(t.figure("restores") == 0);

  // Only what is new crosses the lane.
  deliver(planner, *coder, *docs[0], kGrown, 10 * layout().block_bytes());
  CHECK(until([&] { return t.figure("restores") == 1; }));

  // What files hold is found by another life of the node.
  coder.reset();
  t.pair->b().signal(SIGKILL);
  CHECK(t.pair->b().wait(kSoonMs) == 128 + SIGKILL);
  t.pair->start_b();
  coder.emplace(t.pair->attach("b", "coder"));
  REQUIRE(until([&] { return t.figure("blocks") >= 60; }));
  deliver(planner, *coder, *docs[1], kGrown, 10 * layout().block_bytes());
  CHECK(until([&] { return t.figure("restores") == 1; }));
}

TEST_CASE("two nodes / what its owner left behind is fetched from files, by its name after SIGKILL too") {
  Tiered t;
  std::optional<Agent> planner = t.pair->attach("a", "planner");
  std::optional<Agent> coder = t.pair->attach("b", "coder");
  {
    std::vector<std::unique_ptr<Growing>> docs;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
      docs.push_back(std::make_unique<Growing>(*planner, seed, kTokens));
      deliver(*planner, *coder, *docs.back(), kTokens, UINT64_MAX);
      if (seed > 6) REQUIRE(until([&] { return t.figure("offloads") >= static_cast<long>(seed) - 6; }));
    }
  }
  planner.reset();
  const auto fetch_doc = [&] {
    // Until the other node has told that the owner has gone, it is asked, and refuses; a start reads its files first.
    REQUIRE(until([&] {
      const auto ticket = coder->fetch("planner", "doc-1");
      if (!ticket.ok()) return false;
      const auto outcomes = coder->wait(*ticket, kSoon);
      return outcomes.ok() && outcomes->front().status.ok();
    }));
    auto got = coder->receive(kSoon);
    REQUIRE_MESSAGE(got.ok(), (got.ok() ? "" : got.error().message));
    CHECK(t.figure("restores") == 1);
    CHECK(got->medium() == Medium::full);
    CHECK(got->tokens().size() == kTokens);
    CHECK(differences(*got, 1) == 0);
  };
  fetch_doc();
  coder.reset();
  t.pair->b().signal(SIGKILL);
  CHECK(t.pair->b().wait(kSoonMs) == 128 + SIGKILL);
  t.pair->start_b();
  coder.emplace(t.pair->attach("b", "coder"));
  fetch_doc();
}

}  // namespace kvrail::test
