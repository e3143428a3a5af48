// Workflows: hand-overs that the task waits for go first, on every node that it reaches; and what agents will want in their
// turn is learned.
#include "engine/core/transfer.h"
#include "engine/core/workflows.h"
#include "tests/unit/core/tiered.h"

using namespace kvrail;
using namespace kvrail::testing;

namespace {

constexpr std::size_t kLong = 640;
using Fault = scheduler::WorkflowGraph::Fault;

TaskId begin(Host& host, TestAgent& agent, TimeNs deadline_ns = 0) {
  const TicketId ticket = agent.next_ticket++;
  REQUIRE(host.node->begin_task(agent.handle, ticket, name_of("review"), deadline_ns).ok());
  AgentEvent event;
  REQUIRE(host.take(agent.handle, AgentEventKind::task, event, ticket));
  return event.task;
}

SendOptions whole_of(TaskId task) {
  SendOptions options;
  options.medium = Medium::full;
  options.task = task;
  return options;
}

// `first` hands to `second`, that one to `slow` and `quick`: what goes to `slow` has ten times as much behind it.
Status describe(Host& host, const TestAgent& by) {
  const std::array<WorkflowStep, 4> steps{{{name_of("first"), kMillisecondNs},
                                           {name_of("second"), kMillisecondNs},
                                           {name_of("slow"), 100 * kMillisecondNs},
                                           {name_of("quick"), 10 * kMillisecondNs}}};
  const std::array<WorkflowEdge, 3> edges{{{0, 1}, {1, 2}, {1, 3}}};
  return host.node->describe_workflow(by.handle, name_of("review"), steps, edges);
}

transport::sim::LinkModel slow_link() {
  transport::sim::LinkModel link;
  link.rate_bytes_per_s = 10'000'000;  // 320 KiB take 33 ms
  return link;
}

// Three nodes in a row. The second one's agent sends two contexts to the third, the one with time to spare first.
struct Row {
  Row() : world(1, slow_link()) {
    for (NodeId id = 1; id <= 3; ++id) hosts[id - 1] = &world.add(id);
    world.dial(*hosts[0], 2);
    world.dial(*hosts[1], 3);
    first = std::make_unique<TestAgent>(*hosts[0], "first");
    second = std::make_unique<TestAgent>(*hosts[1], "second");
    slow = std::make_unique<TestAgent>(*hosts[2], "slow");
    quick = std::make_unique<TestAgent>(*hosts[2], "quick");
    const Name tenant = TestAgent::base_info().tenant;
    REQUIRE(world.run_until([&] {
      return hosts[0]->node->knows(tenant, name_of("second")) && hosts[1]->node->knows(tenant, name_of("slow")) &&
             hosts[1]->node->knows(tenant, name_of("quick"));
    }));
  }
  // From `second` on, when both contexts have been delivered.
  struct Times {
    TimeNs slow_ns = 0, quick_ns = 0;
  };
  Times run(TaskId task) {
    REQUIRE(second->commit("to-quick", 7, kLong).ok());
    REQUIRE(second->commit("to-slow", 8, kLong).ok());
    const TicketId quick_ticket = second->send("to-quick", {"quick"}, whole_of(task));
    const TicketId slow_ticket = second->send("to-slow", {"slow"}, whole_of(task));
    AgentEvent to_quick, to_slow;
    bool quick_done = false, slow_done = false;
    REQUIRE(world.run_until([&] {
      quick_done = quick_done || second->take(AgentEventKind::sent, to_quick, quick_ticket);
      slow_done = slow_done || second->take(AgentEventKind::sent, to_slow, slow_ticket);
      return quick_done && slow_done;
    }));
    REQUIRE((to_quick.status.ok() && to_slow.status.ok()));
    return {to_slow.observed_ns, to_quick.observed_ns};
  }

  World world;
  std::array<Host*, 3> hosts{};
  std::unique_ptr<TestAgent> first, second, slow, quick;
};

}  // namespace

TEST_CASE("of two hand-overs of a task the one that its end waits for goes first") {
  Row row;
  SUBCASE("where the workflow was described") {
    REQUIRE(describe(*row.hosts[1], *row.second).ok());
    const Row::Times times = row.run(begin(*row.hosts[1], *row.second));
    CHECK(times.slow_ns < times.quick_ns * 3 / 4);
  }
  SUBCASE("on the node that the task comes to, whose agents never heard of the workflow") {
    REQUIRE(describe(*row.hosts[0], *row.first).ok());
    const TaskId task = begin(*row.hosts[0], *row.first);
    REQUIRE(row.first->commit("start", 6, 160).ok());
    const TicketId ticket = row.first->send("start", {"second"}, whole_of(task));
    AgentEvent event;
    REQUIRE(row.world.run_until([&] { return row.first->take(AgentEventKind::sent, event, ticket); }));
    const Row::Times times = row.run(task);
    CHECK(times.slow_ns < times.quick_ns * 3 / 4);
  }
  SUBCASE("without a description none of them does") {
    const Row::Times times = row.run(begin(*row.hosts[1], *row.second));
    CHECK(times.slow_ns >= times.quick_ns);
  }
  SUBCASE("nor for a task of another workflow's name") {
    REQUIRE(describe(*row.hosts[1], *row.second).ok());
    const TicketId ticket = row.second->next_ticket++;
    REQUIRE(row.hosts[1]->node->begin_task(row.second->handle, ticket, name_of("other"), 0).ok());
    AgentEvent event;
    REQUIRE(row.second->take(AgentEventKind::task, event, ticket));
    const Row::Times times = row.run(event.task);
    CHECK(times.slow_ns >= times.quick_ns);
  }
}

TEST_CASE("a hand-over with a tight share of the deadline overtakes one that began before it") {
  Row row;
  REQUIRE(describe(*row.hosts[1], *row.second).ok());
  REQUIRE(row.second->commit("mine", 7, kLong).ok());
  REQUIRE(row.second->commit("other", 9, kLong).ok());
  const auto run = [&](TimeNs deadline_ns) {
    const TicketId other = row.second->send("other", {"quick"}, whole_of(0));
    const TicketId mine = row.second->send("mine", {"quick"}, whole_of(begin(*row.hosts[1], *row.second, deadline_ns)));
    std::array<AgentEvent, 2> events;
    std::array<bool, 2> done{};
    REQUIRE(row.world.run_until([&] {
      done[0] = done[0] || row.second->take(AgentEventKind::sent, events[0], other);
      done[1] = done[1] || row.second->take(AgentEventKind::sent, events[1], mine);
      return done[0] && done[1];
    }));
    return events[1].observed_ns - events[0].observed_ns;
  };
  SUBCASE("no deadline") { CHECK(run(0) >= 0); }
  SUBCASE("15 ms, of which 10 are the agent's behind it") { CHECK(run(15 * kMillisecondNs) < 0); }
}

TEST_CASE("descriptions that can't be are refused with the reason, and the one before stays") {
  Row row;
  Node& node = *row.hosts[1]->node;
  REQUIRE(describe(*row.hosts[1], *row.second).ok());
  const std::array<WorkflowStep, 2> steps{{{name_of("a"), 1}, {name_of("b"), 1}}};
  const std::array<WorkflowEdge, 2> circle{{{0, 1}, {1, 0}}};
  const std::array<WorkflowEdge, 1> beyond{{{0, 2}}};
  const std::array<WorkflowStep, 1> negative{{{name_of("a"), -1}}};
  const auto fault = [&](std::span<const WorkflowStep> s, std::span<const WorkflowEdge> e) {
    const Status status = node.describe_workflow(row.second->handle, name_of("review"), s, e);
    CHECK(status.code == Code::invalid_argument);
    return static_cast<Fault>(status.detail);
  };
  CHECK(fault({}, {}) == Fault::no_steps);
  CHECK(fault(steps, circle) == Fault::loop);
  CHECK(fault(steps, beyond) == Fault::bad_step);
  CHECK(fault(negative, {}) == Fault::bad_duration);
  CHECK(fault(std::vector<WorkflowStep>(65, steps[0]), {}) == Fault::too_many);
  CHECK(node.describe_workflow(AgentHandle{}, name_of("review"), steps, {}).code == Code::not_found);
  const Row::Times times = row.run(begin(*row.hosts[1], *row.second));
  CHECK(times.slow_ns < times.quick_ns * 3 / 4);
}

TEST_CASE("of one tenant the workflow described longest ago gives way, another tenant's never does") {
  Workflows workflows;
  const auto text = [](std::string_view tenant, int number) {
    wire::Workflow made;
    if (!tenant.empty()) made.tenant = name_of(tenant);
    made.workflow = name_of(std::string("w").append(std::to_string(number)));
    made.step_count = 1;
    made.steps[0].agent = name_of("a");
    return made;
  };
  const int most = static_cast<int>(Workflows::kMostOfTenant);
  REQUIRE(workflows.describe(text("other", 0), kNoIndex).ok());
  for (int i = 0; i <= most; ++i) REQUIRE(workflows.describe(text("mine", i), kNoIndex).ok());
  CHECK(workflows.find(name_of("mine"), name_of("w0")) == nullptr);
  CHECK(workflows.find(name_of("mine"), name_of("w1")) != nullptr);
  CHECK(workflows.find(name_of("other"), name_of("w0")) != nullptr);
  // One of all tenants stands in where the tenant has none of its own.
  REQUIRE(workflows.describe(text("", 0), kNoIndex).ok());
  CHECK(workflows.find(name_of("mine"), name_of("w0"))->text.tenant.length() == 0);
  CHECK(workflows.find(name_of("other"), name_of("w0"))->text.tenant == name_of("other"));
  // Many tenants: each finds room, by and by that of who has the most; those of all tenants stay.
  for (std::uint32_t i = 0; i < 2 * Workflows::kMost; ++i) {
    const std::string tenant = std::string("t").append(std::to_string(i));
    REQUIRE(workflows.describe(text(tenant, 1), kNoIndex).ok());
    CHECK(workflows.find(name_of(tenant), name_of("w1")) != nullptr);
  }
  CHECK(workflows.find(name_of("mine"), name_of("w1")) == nullptr);
  CHECK(workflows.find(name_of("anyone"), name_of("w0")) != nullptr);
}

TEST_CASE("what an agent wanted in its turns is brought back when the turn before its own begins") {
  Tiered t;
  TestAgent& sender = *t.pair.sender;
  const auto hand_over = [&] {
    const TaskId task = begin(*t.pair.a, sender);
    REQUIRE(sender.commit(t.context(0), t.seed_of(0), kTokens, 2 * kTokens).ok());
    REQUIRE(t.pair.send(t.context(0), whole_of(task)).status.ok());
    t.pair.exact(t.seed_of(0), kTokens);
    KVRAIL_ASSERT(t.pair.a->node->drop_context(sender.handle, name_of(t.context(0))).ok());
    KVRAIL_ASSERT(t.pair.a->node->free_blocks(sender.handle, sender.contexts[t.context(0)].extent).code != Code::internal);
    sender.contexts.erase(t.context(0));
    REQUIRE(t.pair.a->node->end_task(sender.handle, task).ok());
    t.settle();
  };
  const auto others = [&] {
    for (int i = 1; i <= 8; ++i) {
      t.bring(i);
      t.settle();
    }
    REQUIRE(t.view_of(0).stub);
  };
  hand_over();
  hand_over();
  others();
  // Two tasks, of which both came to the receiver: the third does with a probability of a half.
  const TaskId third = begin(*t.pair.a, sender);
  REQUIRE(t.pair.world.run_until([&] { return !t.view_of(0).stub; }));
  CHECK(t.pair.a->node->counters().turns_told == 1);
  CHECK(t.counters().turns_expected == 1);
  CHECK(t.counters().prefetches == 1);
  CHECK(t.view_of(0).pins == 1);  // until the turn is over due
  REQUIRE(t.pair.a->node->end_task(sender.handle, third).ok());
  t.pair.world.run_for(3 * kSecondNs);
  CHECK(t.view_of(0).pins == 0);
  t.settle();
}

TEST_CASE("who comes next is known from the description before it was learned, on its own node too") {
  Row row;
  TestAgent beside(*row.hosts[1], "beside");
  const std::array<WorkflowStep, 3> steps{{{name_of("second"), 20 * kMillisecondNs}, {name_of("beside"), kMillisecondNs},
                                           {name_of("quick"), kMillisecondNs}}};
  const std::array<WorkflowEdge, 2> edges{{{0, 1}, {0, 2}}};
  REQUIRE(row.hosts[1]->node->describe_workflow(row.second->handle, name_of("review"), steps, edges).ok());
  static_cast<void>(begin(*row.hosts[1], *row.second));
  CHECK(row.hosts[1]->node->counters().turns_expected == 1);
  CHECK(row.hosts[1]->node->counters().turns_told == 1);
  REQUIRE(row.world.run_until([&] { return row.hosts[2]->node->counters().turns_expected == 1; }));
}
