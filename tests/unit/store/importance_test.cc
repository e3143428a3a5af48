// What tokens mean: kept with the version, counted, gone with it.
#include <cmath>

#include "tests/unit/store/fixture.h"

using namespace kvrail;
using namespace kvrail::engine;
using namespace kvrail::engine::testing;

namespace {

Status give(Fixture& f, AgentHandle agent, std::uint64_t number, std::uint64_t first, const std::vector<float>& values) {
  NoAllocScope worker;
  return f.store->set_importance(agent, name("c"), number, first, values);
}

}  // namespace

TEST_CASE("store / importance / what is given is kept with its version, all else is NaN") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const VersionHandle version = f.commit(a, "c", ids(40), {f.allocate(a, 3)}).value();
  VersionView view;
  REQUIRE(f.store->view(version, view));
  CHECK(view.importance.empty());
  CHECK(give(f, a, 0, 10, {1, 2, 3}).ok());
  CHECK(give(f, a, 1, 12, {9, INFINITY}).ok());
  REQUIRE(f.store->view(version, view));
  REQUIRE(view.importance.size() == 40);
  CHECK(std::isnan(view.importance[9]));
  CHECK(view.importance[10] == 1);
  CHECK(view.importance[11] == 2);
  CHECK(view.importance[12] == 9);
  CHECK(view.importance[13] == INFINITY);
  CHECK(std::isnan(view.importance[39]));
  CHECK(f.store->counters().importance_bytes == 160);
  f.store->drop_context(a, name("c"));
  CHECK(f.store->counters().importance_bytes == 0);
}

TEST_CASE("store / importance / of other agents, versions and tokens it is refused") {
  Fixture f;
  const AgentHandle a = f.attach(0, "a");
  const AgentHandle b = f.attach(1, "b");
  const VersionHandle version = f.commit(a, "c", ids(40), {f.allocate(a, 3)}).value();
  REQUIRE(f.store->deliver(b, version).valid());
  CHECK(give(f, b, 0, 0, {1}).code == Code::not_found);
  CHECK(give(f, a, 2, 0, {1}).code == Code::not_found);
  CHECK(give(f, agent_handle(5), 0, 0, {1}).code == Code::not_found);
  for (const std::uint64_t first : {std::uint64_t{39}, std::uint64_t{40}, UINT64_MAX}) {
    CHECK(give(f, a, 0, first, {1, 2}) ==
          Status{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(StoreRule::importance)});
  }
  CHECK(give(f, a, 0, 0, {}).code == Code::invalid_argument);
  CHECK(f.store->counters().importance_bytes == 0);
  // A context that came from another node is not this agent's, whatever its owner is called.
  f.receive(f.request("a", "far", ids(16)), 1);
  NoAllocScope worker;
  const float one = 1;
  CHECK(f.store->set_importance(a, name("far"), 0, 0, {&one, 1}).code == Code::not_found);
}

TEST_CASE("store / importance / without table memory it is refused and nothing is lost") {
  StoreOptions options = small_options();
  options.table_bytes = 96 << 10;
  Fixture f(options);
  const AgentHandle a = f.attach(0, "a");
  std::vector<VersionHandle> versions;
  Status last;
  // Versions of 500 tokens take 2,000 bytes of importance each, beside their lists.
  const Extent slots = f.allocate(a, 32);
  for (int i = 0; last.ok() && i < 200; ++i) {
    const std::string context = std::string("c").append(std::to_string(i));
    const auto made = f.commit(a, context, ids(500), {slots});
    REQUIRE_MESSAGE(made.ok(), "commit " << i << ": " << kvrail::name(made.status().code));
    const std::vector<float> values(500, 1.0F);
    const Name context_name = name(context);
    NoAllocScope worker;
    last = f.store->set_importance(a, context_name, 0, 0, values);
  }
  CHECK(last.code == Code::out_of_memory);
}
