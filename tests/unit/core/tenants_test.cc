// Two tenants with the same prompt: the second one has no part in what the first one has brought, and can't tell from any
// figure, its time among them, whether it is here. Time is virtual, so "the same" means equal.
#include <optional>

#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::uint64_t kPrompt = 7, kOther = 8;
constexpr std::size_t kTokens = 640;

struct Seen {
  Status sent, fetched;
  Medium medium = Medium::automatic;
  std::uint64_t bytes = 0, missing = 0;
  std::int64_t predicted_ns = 0, observed_ns = 0;
  TimeNs ended_ns = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// What the second tenant sees of its transfer of kPrompt once the first one has had `before` brought to the same node, and
// has left it to the tier if there is one.
Seen second_tenant(std::uint64_t before, bool tier, const SendOptions& options) {
  Pair pair;
  if (tier) pair.world.give_tier(*pair.b);
  AgentInfo other = TestAgent::base_info();
  other.tenant = name_of("second");
  TestAgent sender(*pair.a, "sender", other), receiver(*pair.b, "receiver", other);
  REQUIRE(pair.world.run_until([&] { return pair.a->node->knows(other.tenant, name_of("receiver")) && pair.b->node->knows(other.tenant, name_of("sender")); }));
  for (const std::uint64_t seed : {before, before + 100, before + 200, before + 300, before + 400, before + 500}) {
    const std::string context = std::string("c").append(std::to_string(seed - before));
    if (seed != before && !tier) break;
    REQUIRE(pair.sender->commit(context, seed, kTokens).ok());
    CHECK(pair.send(context, {.medium = Medium::full}).status.ok());
    REQUIRE(pair.b->node->release(pair.receiver->handle, pair.delivered().delivery, 0).ok());
    KVRAIL_ASSERT(pair.a->node->drop_context(pair.sender->handle, name_of(context)).ok());
    (void)pair.a->node->free_blocks(pair.sender->handle, pair.sender->contexts[context].extent);
    pair.sender->contexts.erase(context);
    pair.world.run_for(200 * kMillisecondNs);
  }
  if (tier) CHECK(pair.b->node->counters().offloads > 0);
  REQUIRE(sender.commit("doc", kPrompt, kTokens).ok());
  const TicketId ticket = sender.send("doc", {"receiver"}, options);
  AgentEvent sent;
  REQUIRE(pair.world.run_until([&] { return sender.take(AgentEventKind::sent, sent, ticket); }));
  Seen seen;
  seen.sent = sent.status;
  seen.medium = sent.medium;
  seen.bytes = sent.bytes;
  seen.missing = sent.missing_blocks;
  seen.predicted_ns = sent.predicted_ns;
  seen.observed_ns = sent.observed_ns;
  seen.ended_ns = pair.world.network.now_ns();
  seen.fetched = pair.b->node->fetch(receiver.handle, 99, name_of("nobody"), name_of("c0"), 0, {});
  return seen;
}

}  // namespace

TEST_CASE("tenants / the same prompt of another tenant is no hit, and takes to the nanosecond as long as any other") {
  for (const bool tier : {false, true}) {
    for (const Medium medium : {Medium::automatic, Medium::full, Medium::int4, Medium::tokens}) {
      CAPTURE(tier);
      CAPTURE(medium_name(medium));
      const SendOptions options{.medium = medium};
      const Seen same = second_tenant(kPrompt, tier, options), unlike = second_tenant(kOther, tier, options);
      CHECK(same.sent.ok());
      CHECK(same == unlike);
      CHECK(same.fetched.code == Code::not_found);
      if (medium == Medium::full) CHECK(same.missing == kTokens / 16);
    }
  }
}
