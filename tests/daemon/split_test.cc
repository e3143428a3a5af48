// A split between real daemons: the agent computes from the head what it claims, the rest is in the delivery, and no
// token is left out or wrong, whoever is faster.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>

#include "tests/daemon/two_nodes.h"

namespace kvrail::test {
namespace {

using std::chrono::milliseconds;

// Claims to the end, a claim taking so long. Returns the tokens that were claimed, from `first` on one behind the other.
// Nothing of these contexts is held before.
std::uint32_t compute(Agent& agent, Delivery& delivery, milliseconds each, std::uint32_t first) {
  std::uint32_t claimed = 0;
  for (;;) {
    auto claim = agent.claim(delivery, 64, kSoon);
    REQUIRE_MESSAGE(claim.ok(), (claim.ok() ? "" : claim.error().message));
    if (!*claim) return claimed;
    CHECK((*claim)->first_token == first + claimed);
    CHECK((*claim)->tokens > 0);
    CHECK((*claim)->tokens <= 64);
    claimed += (*claim)->tokens;
    static_cast<void>(agent.receive(each));  // nothing comes: it is as long as computing takes
  }
}

std::uint32_t tokens_in(const Delivery& delivery) {
  std::uint32_t sum = 0;
  for (const BlockView block : delivery.blocks()) sum += block.tokens;
  return sum;
}

}  // namespace

TEST_CASE("two nodes / a split: head and tail make the whole, with a fast agent and with a slow one") {
  constexpr Link kPaced{.name = "tcp, paced", .tcp = "pacing = \"160Mbit/s\"\n"};
  constexpr MediumMask kMore = mask_of(Medium::split);
  Pair pair(kPaced);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder", kMore);
  SendOptions wish;
  wish.medium = Medium::split;
  std::uint64_t seed = 50;
  for (const milliseconds each : {milliseconds(0), milliseconds(2), milliseconds(60)}) {
    CAPTURE(each.count());
    Growing doc(planner, ++seed, 2000);
    const Context context = doc.commit(1900);
    Result<Ticket> ticket = planner.send(context, {"coder"}, wish);
    REQUIRE(ticket.ok());
    auto delivery = coder.receive(kSoon);
    if (!delivery.ok()) {  // the directory was still under way
      ticket = planner.send(context, {"coder"}, wish);
      REQUIRE(ticket.ok());
      delivery = coder.receive(kSoon);
    }
    REQUIRE_MESSAGE(delivery.ok(), (delivery.ok() ? "" : delivery.error().message));
    CHECK(delivery->medium() == Medium::split);
    CHECK(delivery->tokens().size() == 1900);
    // One that times out may be answered later; what it was given more than the next asks for is for those after it.
    std::uint32_t claimed = 0;
    bool whole = false;
    if (each == milliseconds(2)) {
      const auto hasty = coder.claim(*delivery, UINT32_MAX, milliseconds(0));
      if (!hasty.ok()) CHECK(hasty.status().code == Code::timed_out);
      whole = hasty.ok() && !*hasty;
      claimed = hasty.ok() && *hasty ? (*hasty)->tokens : 0;
    }
    if (!whole) claimed += compute(coder, *delivery, each, claimed);
    CHECK(claimed + tokens_in(*delivery) == 1900);
    CHECK(delivery->tokens().size() == 1900);
    CHECK((delivery->medium() == Medium::split) == (claimed > 0));
    if (claimed > 0) CHECK(delivery->first_token() == claimed);
    if (delivery->epsilon() == 0.0) CHECK(differences(*delivery, doc.seed) == 0);
    const auto outcomes = planner.wait(*ticket, kSoon);
    REQUIRE(outcomes.ok());
    CHECK(outcomes->front().status.ok());
    CHECK(coder.claim(*delivery, 64, kSoon).status().code == Code::invalid_argument);  // it is over
  }
}

TEST_CASE("two nodes / a split: given back in the middle, or its peer killed, it ends with a clear answer") {
  constexpr Link kSlow{.name = "tcp, slow", .tcp = "pacing = \"8Mbit/s\"\n"};
  Pair pair(kSlow);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder", mask_of(Medium::split));
  Growing doc(planner, 70, 2000);
  const Context context = doc.commit(1900);
  SendOptions wish;
  wish.medium = Medium::split;
  const auto begin = [&] {
    for (int attempt = 0; attempt < 200; ++attempt) {
      const auto ticket = planner.send(context, {"coder"}, wish);
      REQUIRE(ticket.ok());
      auto delivery = coder.receive(milliseconds(500));
      if (delivery.ok()) return std::pair{std::move(*delivery), *ticket};
    }
    FAIL("no split came");
    return std::pair{Delivery(), Ticket{}};
  };
  {
    auto open = begin();
    CHECK(coder.claim(open.first, 64, kSoon).ok());
    open.first = Delivery();
    const auto outcomes = planner.wait(open.second, kSoon);
    REQUIRE(outcomes.ok());
    CHECK(outcomes->front().status.code == Code::cancelled);
  }
  auto open = begin();
  CHECK(coder.claim(open.first, 64, kSoon).ok());
  pair.a().signal(SIGKILL);
  Status ended;
  for (int i = 0; i < 1000 && ended.ok(); ++i) {
    const auto claim = coder.claim(open.first, 16, kSoon);
    ended = claim.ok() ? Status{} : claim.status();
    if (claim.ok() && !*claim) break;
  }
  CHECK(!ended.ok());
  CHECK(open.first.tokens().size() == 1900);  // what no block covers is the agent's to compute
}

}  // namespace kvrail::test
