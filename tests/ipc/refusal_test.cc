// What the library refuses, in one line with the limit, before the engine hears of it.
#include <doctest/doctest.h>

#include <limits>

#include "tests/ipc/engine_rig.h"

namespace kvrail::test {

TEST_CASE("ipc / a fidelity floor that is no fraction is refused with its range, for send and fetch") {
  EngineRig rig;
  rig.serve([&] {
    Result<Agent> attached = Agent::attach(options_of(rig.socket(), "planner"));
    REQUIRE(attached.ok());
    Agent& agent = *attached;
    Result<Blocks> blocks = agent.allocate(small_layout(), 1, Place::host(), kSoon);
    REQUIRE(blocks.ok());
    const Result<Context> context = agent.commit("doc", tokens_of(16), *blocks, Fence::none(), nullptr, kSoon);
    REQUIRE(context.ok());
    for (const double floor : {-0.01, 1.01, 1e300, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
      CAPTURE(floor);
      const auto sent = agent.send(*context, {"planner"}, {.fidelity_floor = floor});
      const auto fetched = agent.fetch("planner", "doc", {.fidelity_floor = floor});
      CHECK(sent.status().code == Code::invalid_argument);
      CHECK(fetched.status().code == Code::invalid_argument);
      CHECK(sent.error().message.find("is out of range: 0 (any loss) to 1 (no loss)") != std::string::npos);
    }
    for (const double floor : {0.0, 1.0}) {
      const Result<Ticket> ticket = agent.send(*context, {"planner"}, {.fidelity_floor = floor});
      REQUIRE(ticket.ok());
      CHECK(agent.wait(*ticket, kSoon).ok());
    }
  });
}

}  // namespace kvrail::test
