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

TEST_CASE("ipc / a workflow is described, and one that can't be is refused with what is wrong") {
  EngineRig rig;
  rig.serve([&] {
    Result<Agent> attached = Agent::attach(options_of(rig.socket(), "planner"));
    REQUIRE(attached.ok());
    Agent& agent = *attached;
    WorkflowDescription review;
    review.steps = {{"planner", std::chrono::milliseconds(20)}, {"coder", std::chrono::milliseconds(300)}, {"planner", {}}};
    review.hand_overs = {{0, 1}, {1, 2}};
    const Result<void> described = agent.describe_workflow("review", review, kSoon);
    REQUIRE_MESSAGE(described.ok(), described.error().message);
    CHECK(agent.begin_task({.workflow = "review", .deadline = kSoon}, kSoon).ok());
    const auto message = [&](const WorkflowDescription& description, std::string_view name = "review") {
      const Result<void> refused = agent.describe_workflow(name, description, kSoon);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.status().code == Code::invalid_argument);
      return refused.error().message;
    };
    CHECK(message({}).find("one step at least") != std::string::npos);
    WorkflowDescription wrong = review;
    wrong.hand_overs.push_back({2, 0});
    CHECK(message(wrong).find("circle; give an agent a step for each of its turns") != std::string::npos);
    wrong.hand_overs.back() = {2, 3};
    CHECK(message(wrong).find("a step that is not there") != std::string::npos);
    wrong = review;
    wrong.steps[0].duration = std::chrono::hours(25);
    CHECK(message(wrong).find("at most a day") != std::string::npos);
    wrong.steps[0].duration = Nanoseconds(-1);
    CHECK(message(wrong).find("not negative") != std::string::npos);
    wrong.steps.assign(65, {"coder", {}});
    CHECK(message(wrong).find("at most 64 steps") != std::string::npos);
    wrong = review;
    wrong.steps[1].agent = "two words";
    CHECK(message(wrong).find("agent 'two words'") != std::string::npos);
    CHECK(message(review, "").find("workflow ''") != std::string::npos);
    CHECK(agent.attached());
  });
}

}  // namespace kvrail::test
