// What a node shows of its transfers: who, what, and why.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::testing;

TEST_CASE("core / status page / rows tell who, what, why") {
  std::vector<std::byte> memory(sizeof(StatusPage));
  World world;
  NodeOptions options = World::small_options(1, 1);
  options.status_page = memory;
  Host& b = world.add(2, &options);
  Host& a = world.add(1);
  world.dial(a, 2);
  TestAgent from(a, "from");
  TestAgent to(b, "to");
  REQUIRE(world.run_until([&] { return a.node->knows(name_of("tenant"), name_of("to")); }));
  REQUIRE(from.commit("doc", 7, 100).ok());
  const TicketId ticket = from.send("doc", {"to"});
  AgentEvent sent;
  REQUIRE(world.run_until([&] { return from.take(AgentEventKind::sent, sent, ticket); }));
  AgentEvent event;
  REQUIRE(to.take(AgentEventKind::delivery, event));
  CHECK(b.node->release(to.handle, event.delivery, 777).ok());
  world.run_for(50 * kMillisecondNs);
  const StatusPage* page = as_status_page(memory.data(), memory.size());
  REQUIRE(page != nullptr);
  auto data = std::make_unique<StatusData>();
  REQUIRE(read_status_page(*page, *data));
  CHECK(data->node == 2);
  CHECK(data->agent_count == 2);
  CHECK(data->peer_count == 1);
  CHECK(data->lane_count == 1);
  CHECK(data->transfer_count == 1);
  CHECK(data->counters.transfers_in_ok == 1);
  const StatusTransfer& row = data->transfers[1];
  CHECK(row.from.view() == "from");
  CHECK(row.to.view() == "to");
  CHECK(row.context.view() == "doc");
  CHECK(row.direction == StatusDirection::in);
  CHECK(row.total_tokens == 100);
  CHECK(row.medium == sent.medium);
  CHECK(row.recompute_ns == 777);
  CHECK(row.line_count > 1);
  CHECK(row.status == Status{});
}

TEST_CASE("core / status page / what the sender cannot offer says why, in its own row") {
  std::vector<std::byte> memory(sizeof(StatusPage));
  NodeOptions options = World::small_options(1, 1);
  options.status_page = memory;
  const NodeOptions without = World::small_options(2, 1);
  Pair pair(options, TestAgent::base_info(), TestAgent::base_info(), {}, &without);
  REQUIRE(pair.sender->commit("doc", 7, 100).ok());
  struct Case {
    Medium wish;
    const char* why;
  };
  const auto shown = std::make_unique<StatusData>();
  std::size_t rows = 0;
  for (const Case& of : {Case{Medium::topk, "the agent gave no importance"}, Case{Medium::window, "no window is configured"},
                         Case{Medium::split, "the receiver does not accept this medium"}}) {
    CAPTURE(of.why);
    CHECK(pair.send("doc", {.medium = of.wish}).status.code == Code::rejected);
    pair.world.run_for(50 * kMillisecondNs);
    const StatusPage* page = as_status_page(memory.data(), memory.size());
    REQUIRE(page != nullptr);
    REQUIRE(read_status_page(*page, *shown));
    REQUIRE(shown->transfer_count == ++rows);
    const StatusTransfer& row = shown->transfers[rows];
    CHECK(row.direction == StatusDirection::out);
    CHECK(row.status.code == Code::rejected);
    REQUIRE(row.line_count == 1);
    CHECK(row.lines[0].medium == of.wish);
    CHECK(row.lines[0].allowed == 0);
    CHECK(std::string_view(row.lines[0].why_not) == of.why);
  }
  pair.finish();
}

TEST_CASE("core / tasks / the deadline of a task makes its transfers more urgent, and ends none of them") {
  // Two bulk contexts over a link that takes a second for each; both are asked for at once.
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 200'000;
  link.latency_ns = 100 * kMicrosecondNs;
  Pair pair(World::small_options(1, 1), TestAgent::base_info(), TestAgent::base_info(), link);
  TestAgent other(*pair.a, "other");
  REQUIRE(pair.world.run_until([&] { return pair.b->node->knows(name_of("tenant"), name_of("other")); }));
  REQUIRE(pair.sender->commit("doc", 7, 400).ok());
  REQUIRE(other.commit("doc", 8, 400).ok());
  REQUIRE(pair.a->node->begin_task(pair.sender->handle, 77, name_of("flow"), 1'500 * kMillisecondNs).ok());
  AgentEvent task;
  REQUIRE(pair.world.run_until([&] { return pair.sender->take(AgentEventKind::task, task, 77); }));
  const TicketId second = other.send("doc", {"receiver"}, {.medium = Medium::full});
  const TicketId ticket = pair.sender->send("doc", {"receiver"}, {.task = task.task, .medium = Medium::full});
  const AgentEvent first = pair.ended(ticket);
  CHECK(first.status == Status{});
  AgentEvent late;
  CHECK_FALSE(other.take(AgentEventKind::sent, late, second));  // though it was there before
  REQUIRE(pair.world.run_until([&] { return other.take(AgentEventKind::sent, late, second); }));
  CHECK(late.status == Status{});
  CHECK(first.observed_ns > 1'000 * kMillisecondNs);
  // One whose time is over is late, and still arrives.
  pair.world.run_for(2 * kSecondNs);
  REQUIRE(pair.sender->commit("more", 9, 100).ok());
  CHECK(pair.ended(pair.sender->send("more", {"receiver"}, {.task = task.task})).status == Status{});
  for (int i = 0; i < 3; ++i) (void)pair.delivered();
  pair.finish();
}
