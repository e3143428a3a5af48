// Reservations between real daemons, over both public APIs.
#include <doctest/doctest.h>

#include <csignal>

#include "kvrail/c_api.h"
#include "tests/daemon/two_nodes.h"

namespace kvrail::test {
namespace {

constexpr Nanoseconds kPeriod{20 * kMillisecondNs};

// Once the directory knows the receiver.
Reservation reserve(Agent& agent, std::string_view to, const ReserveOptions& options, ReservationFigures& figures) {
  for (int i = 0; i < 1000; ++i) {
    const Result<Reservation> made = agent.reserve(to, options, &figures, kSoon);
    if (made.ok()) return *made;
    REQUIRE_MESSAGE(made.status().code == Code::not_found, made.error().message);
    static_cast<void>(agent.receive(Nanoseconds(10 * kMillisecondNs)));  // nothing comes
  }
  FAIL("the receiver never became known");
  return {};
}

}  // namespace

TEST_CASE("two nodes / a reservation: sends name it, too much is refused with the figures, its end is told") {
  Pair pair(kLinks[0]);
  Agent planner = pair.attach("a", "planner");
  Agent coder = pair.attach("b", "coder");
  ReservationFigures figures;
  const Reservation beat = reserve(planner, "coder", {64 * 1024, kPeriod}, figures);
  CHECK(beat.id != 0);
  CHECK(figures.needed == 64 * 1024 * 50);
  CHECK(figures.available <= figures.half);

  ReservationFigures refused;
  const Result<Reservation> over = planner.reserve("coder", {figures.half, Nanoseconds(kSecondNs)}, &refused, kSoon);
  REQUIRE(!over.ok());
  CHECK(over.status().code == Code::limit);
  CHECK(refused.needed == figures.half);
  CHECK(refused.available < refused.needed);
  CHECK(over.error().message.find(std::to_string(refused.available)) != std::string::npos);
  CHECK(planner.reserve("coder", {0, kPeriod}).status().code == Code::invalid_argument);
  CHECK(planner.reserve("coder", {1, kPeriod, kPeriod}).status().code == Code::invalid_argument);
  CHECK(planner.reserve("planner", {1, kPeriod}).status().code == Code::unsupported);
  CHECK(planner.reserve("nobody", {1, kPeriod}).status().code == Code::not_found);

  Growing doc(planner, 1, 400);
  const Context context = doc.commit(300);
  SendOptions options;
  options.medium = Medium::full;
  options.reservation = beat;
  const Result<Ticket> ticket = planner.send(context, {"coder"}, options);
  REQUIRE(ticket.ok());
  CHECK(coder.receive(kSoon).ok());
  const auto outcomes = planner.wait(*ticket, kSoon);
  REQUIRE(outcomes.ok());
  CHECK(outcomes->at(0).status.ok());

  REQUIRE(planner.release_reservation(beat).ok());
  CHECK(planner.release_reservation(beat).status().code == Code::not_found);
  const Result<Ticket> stale = planner.send(context, {"coder"}, options);
  REQUIRE(stale.ok());
  CHECK(planner.wait(*stale, kSoon).status().code == Code::not_found);

  const Reservation second = reserve(planner, "coder", {64 * 1024, kPeriod}, figures);
  CHECK(!planner.reservation_ended().has_value());
  REQUIRE(coder.detach(kSoon).ok());
  std::optional<ReservationEnd> end;
  for (int i = 0; i < 1000 && !end; ++i) {
    static_cast<void>(planner.receive(Nanoseconds(10 * kMillisecondNs)));
    end = planner.reservation_ended();
  }
  REQUIRE(end.has_value());
  CHECK(end->reservation.id == second.id);
  CHECK(end->why.code == Code::not_found);
}

TEST_CASE("two nodes / a reservation in C") {
  Pair pair(kLinks[0]);
  Agent coder = pair.attach("b", "coder");
  kvrail_attach_options attach;
  kvrail_attach_options_init(&attach);
  const std::string socket = pair.socket("a");
  attach.socket_path = socket.c_str();
  attach.name = "planner";
  attach.tenant = "test";
  attach.layout.layers = layout().layers;
  attach.layout.kv_heads = layout().kv_heads;
  attach.layout.head_dim = layout().head_dim;
  attach.layout.block_tokens = layout().block_tokens;
  attach.layout.dtype = KVRAIL_BF16;
  kvrail_agent* agent = nullptr;
  REQUIRE_MESSAGE(kvrail_attach(&attach, &agent) == KVRAIL_OK, kvrail_last_error());
  kvrail_reservation_figures figures{};
  std::uint32_t reservation = 0;
  kvrail_code code = KVRAIL_NOT_FOUND;
  for (int i = 0; i < 1000 && code == KVRAIL_NOT_FOUND; ++i) {
    code = kvrail_reserve(agent, "coder", 1000, kPeriod.count(), 0, Nanoseconds(kSoon).count(), &figures, &reservation);
    if (code == KVRAIL_NOT_FOUND) static_cast<void>(coder.receive(Nanoseconds(10 * kMillisecondNs)));
  }
  REQUIRE_MESSAGE(code == KVRAIL_OK, kvrail_last_error());
  CHECK(figures.needed == 50'000);
  std::uint32_t none = 0;
  CHECK(kvrail_reserve(agent, "coder", figures.half, kSecondNs, 0, Nanoseconds(kSoon).count(), &figures, &none) == KVRAIL_LIMIT);
  CHECK(figures.available == figures.half - 50'000);
  CHECK(none == 0);
  CHECK(kvrail_release_reservation(agent, reservation) == KVRAIL_OK);
  CHECK(kvrail_release_reservation(agent, reservation) == KVRAIL_NOT_FOUND);
  kvrail_code why = KVRAIL_OK;
  CHECK(kvrail_reservation_ended(agent, &none, &why) == 0);
  kvrail_agent_destroy(agent);
}

}  // namespace kvrail::test
