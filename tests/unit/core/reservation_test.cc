// Reservations through the core: asked for, refused with the figures, paid out, carried to the next lane, ended.
#include "tests/unit/core/pair.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::testing;

namespace {

constexpr ReservationAsk kBeat{20 * kMillisecondNs, 0, 16 * 1024};

struct Reserving : Pair {
  using Pair::Pair;
  AgentEvent ask(const ReservationAsk& what, std::string_view to = "receiver") {
    const TicketId ticket = sender->next_ticket++;
    REQUIRE(a->node->reserve(sender->handle, ticket, name_of(to), what).ok());
    a->node->cycle(world.network.now_ns());
    AgentEvent event;
    REQUIRE(sender->take(AgentEventKind::reserved, event, ticket));
    return event;
  }
  AgentEvent notice() {
    AgentEvent event;
    REQUIRE(world.run_until([&] { return sender->take(AgentEventKind::reservation_ended, event); }));
    return event;
  }
};

NodeOptions with_page(std::vector<std::byte>& memory) {
  NodeOptions options = World::small_options(1, 1);
  memory.resize(sizeof(StatusPage));
  options.status_page = memory;
  return options;
}

}  // namespace

TEST_CASE("reservation / bytes that name it are paid by it, those beyond its budget are not") {
  std::vector<std::byte> memory;
  const NodeOptions options = with_page(memory);
  const NodeOptions other = World::small_options(2, 1);
  Reserving it(options, TestAgent::base_info(), TestAgent::base_info(), {}, &other);
  const AgentEvent made = it.ask(kBeat);
  REQUIRE(made.status.ok());
  CHECK(made.reservation != 0);
  CHECK(made.figures[0] == 16 * 1024 * 50);  // 50 periods a second
  CHECK(made.figures[1] == made.figures[2]);
  REQUIRE(it.sender->commit("context", 1, 640).ok());
  SendOptions send;
  send.medium = Medium::full;
  send.reservation = made.reservation;
  const AgentEvent sent = it.send("context", send);
  REQUIRE(sent.status.ok());
  it.exact(1, 640);
  it.a->node->refresh_status(it.world.network.now_ns());
  const auto page = std::make_unique<StatusData>();
  REQUIRE(read_status_page(*as_status_page(memory.data(), memory.size()), *page));
  REQUIRE(page->reservation_count == 1);
  const StatusReservation& row = page->reservations[0];
  CHECK(row.up == 1);
  CHECK(row.served_bytes >= kBeat.bytes);
  CHECK(row.served_bytes < sent.bytes);
  CHECK(row.exhausted >= 1);
  CHECK(page->lanes[0].reserved_bytes_per_s == 16 * 1024 * 50);
  CHECK(page->lanes[0].held_credits == 2);
  CHECK(page->transfers[page->transfer_count % kStatusTransfers].reservation == made.reservation);
  REQUIRE(it.a->node->unreserve(it.sender->handle, made.reservation).ok());
  CHECK(it.a->node->unreserve(it.sender->handle, made.reservation).code == Code::not_found);
  it.sender->send("context", {"receiver"}, send);
  CHECK(it.sender->last_status.code == Code::not_found);
  it.finish();
}

TEST_CASE("reservation / refusals are typed and have the figures") {
  Reserving it;
  const AgentEvent first = it.ask(kBeat);
  const AgentEvent over = it.ask({kSecondNs, 0, first.figures[2]});
  CHECK(over.status.code == Code::limit);
  CHECK(over.reservation == 0);
  CHECK(over.figures[0] == first.figures[2]);
  CHECK(over.figures[1] == first.figures[2] - first.figures[0]);
  CHECK(over.figures[2] == first.figures[2]);
  CHECK(it.ask({kSecondNs, 0, over.figures[1]}).status.ok());
  CHECK(it.ask({kSecondNs, kSecondNs, 1}).status.code == Code::invalid_argument);
  CHECK(it.ask(kBeat, "nobody").status.code == Code::not_found);
  CHECK(it.ask(kBeat, "sender").status.code == Code::unsupported);
  it.finish();
}

TEST_CASE("reservation / a lane that is lost takes it along to the next one") {
  Reserving it;
  const AgentEvent made = it.ask(kBeat);
  REQUIRE(it.sender->commit("context", 1, 640).ok());
  SendOptions send;
  send.medium = Medium::full;
  send.reservation = made.reservation;
  const TicketId ticket = it.sender->send("context", {"receiver"}, send);
  it.world.run_for(kMillisecondNs);
  it.world.network.lose_lanes(1, 2);
  it.world.run_for(kMillisecondNs);
  it.world.check();
  CHECK(it.ended(ticket).status.ok());
  it.exact(1, 640);
  CHECK(it.a->node->unreserve(it.sender->handle, made.reservation).ok());
  CHECK(it.sender->count(AgentEventKind::reservation_ended) == 0);
  it.finish();
}

TEST_CASE("reservation / it ends with its agent, and with a notice when the receiver or its node goes") {
  Reserving it;
  const AgentEvent first = it.ask(kBeat);
  {
    TestAgent third(*it.a, "third");
    const TicketId ticket = third.next_ticket++;
    REQUIRE(it.a->node->reserve(third.handle, ticket, name_of("receiver"), {kSecondNs, 0, first.figures[1] - first.figures[0]}).ok());
    CHECK(it.ask({kSecondNs, 0, 1}).status.code == Code::limit);
    CHECK(it.a->node->unreserve(it.sender->handle, 2).code == Code::not_found);  // another one's
    it.a->node->detach(third.handle);
  }
  const AgentEvent second = it.ask({kSecondNs, 0, 1});
  CHECK(second.status.ok());
  it.b->node->detach(it.receiver->handle);
  for (int i = 0; i < 2; ++i) {
    const AgentEvent end = it.notice();
    CHECK(end.status.code == Code::not_found);
    CHECK((end.reservation == first.reservation || end.reservation == second.reservation));
  }
  TestAgent later(*it.b, "later");
  REQUIRE(it.world.run_until([&] { return it.a->node->knows(name_of("tenant"), name_of("later")); }));
  const AgentEvent third = it.ask(kBeat, "later");
  REQUIRE(third.status.ok());
  it.world.kill(2);
  CHECK(it.notice().status.code == Code::peer_down);
  it.a->node->check();
}
