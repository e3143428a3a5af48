// What an agent says of its tokens, over the public API.
#include <doctest/doctest.h>

#include "tests/ipc/engine_rig.h"

namespace kvrail::test {

TEST_CASE("ipc / importance is taken for a version of the agent's own, in pieces, within its tokens") {
  EngineRig rig;
  rig.serve([&] {
    Result<Agent> attached = Agent::attach(options_of(rig.socket(), "planner", "test"));
    Result<Agent> receiver = Agent::attach(options_of(rig.socket(), "coder", "test"));
    REQUIRE((attached.ok() && receiver.ok()));
    Agent& planner = *attached;
    Agent& coder = *receiver;
    Result<Blocks> blocks = planner.allocate(small_layout(), 3, Place::host(), kSoon);
    REQUIRE(blocks.ok());
    const Result<Context> committed = planner.commit("c", tokens_of(40), *blocks, Fence::none(), nullptr, kSoon);
    REQUIRE(committed.ok());
    const Context& context = *committed;
    const std::vector<float> weights(40, 0.5F);
    CHECK(planner.set_importance(context, 0, weights).ok());
    CHECK(planner.set_importance(Context{context.name, 0}, 30, std::span(weights).first(10)).ok());
    CHECK(planner.set_importance(context, 31, std::span(weights).first(10)).status().code == Code::invalid_argument);
    CHECK(planner.set_importance(context, UINT32_MAX, weights).status().code == Code::invalid_argument);
    CHECK(planner.set_importance(context, 0, {}).status().code == Code::invalid_argument);
    CHECK(planner.set_importance(context, 0, std::vector<float>(20'000)).status().code == Code::invalid_argument);
    CHECK(planner.set_importance(Context{context.name, 7}, 0, weights).status().code == Code::not_found);
    REQUIRE(planner.send(context, {"coder"}).ok());
    const Result<Delivery> delivery = coder.receive(kSoon);
    REQUIRE(delivery.ok());
    CHECK(coder.set_importance(context, 0, weights).status().code == Code::not_found);  // it is the planner's to say
  });
  CHECK(rig.node().store().counters().importance_bytes == 160);
}

}  // namespace kvrail::test
