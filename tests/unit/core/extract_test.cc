// Summaries that the engine makes of what the agent said matters: to another node and on this one.
#include <cmath>

#include "codec/extract.h"
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::size_t kTokens = 200;

NodeOptions extracting(std::uint32_t tokens) {
  NodeOptions options = World::small_options(1, 1);
  options.summary_tokens = tokens;
  return options;
}

AgentInfo reader() {
  AgentInfo info = TestAgent::base_info();
  info.accepted |= mask_of(Medium::summary);
  return info;
}

std::vector<float> weights() {
  std::vector<float> out(kTokens);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(i * 37 % 101);
  out[5] = NAN;
  return out;
}

// What codec::extract() takes of the context of that seed.
std::string expected(std::uint64_t seed, std::uint32_t budget, std::span<const TokenId> separators) {
  const auto ids = TestAgent::tokens_of(seed, kTokens);
  std::vector<codec::TextSpan> memory(ids.size());
  std::vector<TokenId> out(budget);
  codec::ExtractRule rule;
  rule.separators = separators;
  out.resize(codec::extract(ids, weights(), budget, rule, memory, out));
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(TokenId)};
}

Status give_importance(Pair& pair) {
  return pair.a->node->set_importance(pair.sender->handle, name_of("doc"), 0, 0, weights());
}

}  // namespace

TEST_CASE("core / extract / a summary is made without a call-back, the same that the codec makes") {
  for (const std::uint64_t steps : {1024ULL, 1ULL}) {
    NodeOptions options = extracting(100);
    options.work_blocks_per_cycle = steps;
    const auto ids = TestAgent::tokens_of(7, kTokens);
    options.summary_separators = {ids[20], ids[60], ids[64], ids[130]};
    std::sort(options.summary_separators.begin(), options.summary_separators.end());
    Pair pair(options, TestAgent::base_info(), reader());
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    REQUIRE(give_importance(pair).ok());
    const AgentEvent sent = pair.send("doc", {.medium = Medium::summary});
    CHECK(sent.status == Status{});
    CHECK(sent.medium == Medium::summary);
    const AgentEvent event = pair.delivered();
    CHECK(event.medium == Medium::summary);
    const Received got = read_delivery(*pair.b, event);
    CHECK(got.header.summary_kind == 1);
    CHECK(got.summary == expected(7, 100, options.summary_separators));
    CHECK(got.summary.size() > 40);
    CHECK(pair.sender->count(AgentEventKind::summary_request) == 0);
    pair.finish();
  }
}

TEST_CASE("core / extract / without importance, a budget or an equal tokenizer there is none") {
  const SendOptions wish{.medium = Medium::summary};
  {
    Pair pair(extracting(7), TestAgent::base_info(), reader());
    REQUIRE(pair.sender->commit("doc", 7, kTokens, kTokens + 1).ok());
    CHECK(pair.send("doc", wish).status.code == Code::rejected);
    REQUIRE(give_importance(pair).ok());
    CHECK(pair.send("doc", wish).status.code == Code::rejected);  // no span is that short
    REQUIRE(pair.sender->commit("doc", 7, kTokens + 1).ok());     // a new version knows nothing of the old one's
    CHECK(pair.send("doc", wish).status.code == Code::rejected);
    pair.finish();
  }
  {
    Pair pair(extracting(0), TestAgent::base_info(), reader());
    REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
    REQUIRE(give_importance(pair).ok());
    CHECK(pair.send("doc", wish).status.code == Code::rejected);
    pair.finish();
  }
  AgentInfo other = reader();
  other.tokenizer = {8, 8};
  Pair pair(extracting(100), TestAgent::base_info(), other);
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  REQUIRE(give_importance(pair).ok());
  CHECK(pair.send("doc", wish).status.code == Code::rejected);
  pair.finish();
}

TEST_CASE("core / extract / an agent that makes summaries itself is asked all the same") {
  AgentInfo from = TestAgent::base_info();
  from.summary_bytes = 64;
  Pair pair(extracting(100), from, reader());
  REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
  REQUIRE(give_importance(pair).ok());
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.medium = Medium::summary});
  AgentEvent asked;
  REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::summary_request, asked); }));
  const std::string words = "own words";
  REQUIRE(pair.a->node->summary(pair.sender->handle, asked.transfer, 0, std::as_bytes(std::span(words))).ok());
  CHECK(pair.ended(ticket).status == Status{});
  CHECK(read_delivery(*pair.b, pair.delivered()).summary == words);
  pair.finish();
}

TEST_CASE("core / extract / the sender may leave, and cancelling takes all back, at any step") {
  for (int cycles = 0; cycles < 30; ++cycles) {
    for (const bool leaves : {true, false}) {
      NodeOptions options = extracting(100);
      options.work_blocks_per_cycle = 1;
      Pair pair(options, TestAgent::base_info(), reader());
      REQUIRE(pair.sender->commit("doc", 7, kTokens).ok());
      REQUIRE(give_importance(pair).ok());
      const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.medium = Medium::summary});
      for (int i = 0; i < cycles; ++i) {
        for (Host* host : {pair.a, pair.b}) host->node->cycle(pair.world.network.now_ns());
        pair.world.network.advance_to(pair.world.network.now_ns() + 20 * kMicrosecondNs);
      }
      if (leaves) {
        pair.a->node->detach(pair.sender->handle);
      } else {
        (void)pair.a->node->cancel(pair.sender->handle, ticket);
      }
      REQUIRE(pair.world.run_until([&] { return pair.world.idle(); }, 60 * kSecondNs));
      pair.world.check();
      CHECK(pair.b->count(pair.receiver->handle, AgentEventKind::delivery) <= 1);
      if (leaves) CHECK(pair.b->count(pair.receiver->handle, AgentEventKind::delivery) == 1);
    }
  }
}

TEST_CASE("core / extract / on one node too, for an agent that reads nothing else") {
  NodeOptions options = extracting(100);
  options.work_blocks_per_cycle = 1;
  World world;
  Host& host = world.add(1, &options);
  TestAgent from(host, "from");
  AgentInfo info = reader();
  info.accepted = mask_of(Medium::summary);
  info.layout.head_dim = 16;
  TestAgent to(host, "to", info);
  REQUIRE(from.commit("doc", 7, kTokens).ok());
  const TicketId none = from.send("doc", {"to"});
  AgentEvent event;
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, event, none); }));
  CHECK_FALSE(event.status.ok());
  REQUIRE(host.node->set_importance(from.handle, name_of("doc"), 0, 0, weights()).ok());
  for (const Medium wish : {Medium::automatic, Medium::summary}) {
    const TicketId ticket = from.send("doc", {"to"}, {.medium = wish});
    AgentEvent got;
    REQUIRE(world.run_until([&] { return to.take(AgentEventKind::delivery, got); }));
    CHECK(got.medium == Medium::summary);
    CHECK(read_delivery(host, got).summary == expected(7, 100, {}));
    REQUIRE(from.take(AgentEventKind::sent, event, ticket));
    CHECK(event.status == Status{});
    CHECK(host.node->release(to.handle, got.delivery, 0).ok());
  }
  // One that is cancelled while it is made.
  const TicketId ticket = from.send("doc", {"to"}, {.medium = Medium::summary});
  host.node->cycle(world.network.now_ns());
  (void)host.node->cancel(from.handle, ticket);
  REQUIRE(world.run_until([&] { return world.idle(); }));
  world.check();
}
