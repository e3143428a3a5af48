// kvrailctl against a real engine: what it shows, and what it says when there is nothing to show.
#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/ipc/engine_rig.h"

namespace kvrail::test {
namespace {

struct Output {
  int code = -1;
  std::string text;
};

Output run(EngineRig& rig, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), KVRAIL_KVRAILCTL_PATH);
  arguments.insert(arguments.end(), {"--socket", rig.socket()});
  Output output;
  rig.serve([&] {
    Process process(arguments);
    output.code = process.wait(20'000);
    output.text = process.output();
  });
  return output;
}

Output run_alone(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), KVRAIL_KVRAILCTL_PATH);
  Process process(arguments);
  const int code = process.wait(20'000);
  return {code, process.output()};
}

}  // namespace

TEST_CASE("kvrailctl / without an engine it says so in one line and fails") {
  const Output output = run_alone({"status", "--socket", "/nonexistent/kvrail"});
  CHECK(output.code == 1);
  CHECK(output.text.find("no engine listens at /nonexistent/kvrail") != std::string::npos);
  CHECK(std::count(output.text.begin(), output.text.end(), '\n') == 1);
  CHECK(run_alone({}).code == 2);
  CHECK(run_alone({"frobnicate"}).code == 2);
  CHECK(run_alone({"explain", "not-a-number"}).code == 2);
  CHECK(run_alone({"--help"}).code == 0);
}

TEST_CASE("kvrailctl / shows agents, tasks, transfers and why") {
  EngineRig rig;
  std::optional<Agent> planner;
  std::optional<Agent> coder;
  std::optional<Blocks> held;
  rig.serve([&] {
    Result<Agent> first = Agent::attach(options_of(rig.socket(), "planner"));
    Result<Agent> second = Agent::attach(options_of(rig.socket(), "coder"));
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    planner.emplace(std::move(*first));
    coder.emplace(std::move(*second));
    const Result<Task> task = planner->begin_task({.workflow = "review", .deadline = kSoon}, kSoon);
    REQUIRE(task.ok());
    Result<Blocks> blocks = planner->allocate(small_layout(), 2, Place::host(), kSoon);
    REQUIRE(blocks.ok());
    const Result<Context> context = planner->commit("doc", tokens_of(32), *blocks, Fence::none(), nullptr, kSoon);
    REQUIRE(context.ok());
    const Result<Ticket> ticket = planner->send(*context, {"coder"}, {.task = *task});
    REQUIRE(ticket.ok());
    CHECK(coder->receive(kSoon).ok());
    CHECK(planner->wait(*ticket, kSoon).ok());
    held.emplace(std::move(*blocks));
  });
  rig.node().refresh_status(SteadyClock().now_ns());

  const Output agents = run(rig, {"agents"});
  CHECK(agents.code == 0);
  CHECK(agents.text.find("planner") != std::string::npos);
  const auto agents_json = nlohmann::json::parse(run(rig, {"agents", "--json"}).text);
  REQUIRE(agents_json.size() == 2);
  CHECK(agents_json[0]["tenant"] == "test");

  const auto status = nlohmann::json::parse(run(rig, {"--json", "status"}).text);
  CHECK(status["node"] == "7");
  CHECK(status["counters"]["commits"] == 1);
  CHECK(run(rig, {"status"}).text.find("adaptive") != std::string::npos);

  const auto tasks = nlohmann::json::parse(run(rig, {"tasks", "--json"}).text);
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0]["workflow"] == "review");

  const auto transfers = nlohmann::json::parse(run(rig, {"transfers", "--json"}).text);
  REQUIRE(transfers.size() == 1);
  CHECK(transfers[0]["from"] == "planner");
  CHECK(transfers[0]["to"] == "coder");
  CHECK(transfers[0]["context"] == "doc");
  CHECK(transfers[0]["status"] == "ok");
  const std::string id = transfers[0]["transfer"];
  CHECK(run(rig, {"transfers"}).text.find("doc") != std::string::npos);

  const Output why = run(rig, {"explain", id});
  CHECK(why.code == 0);
  CHECK(why.text.find("'doc' version 1 from planner to coder") != std::string::npos);
  CHECK(run(rig, {"explain"}).text == why.text);
  const Output none = run(rig, {"explain", "123456789"});
  CHECK(none.code == 3);
  CHECK(none.text.find("no such transfer") != std::string::npos);
  CHECK(run(rig, {"lanes"}).text == "no lanes\n");
  CHECK(nlohmann::json::parse(run(rig, {"lanes", "--json"}).text).empty());
  rig.serve([&] {
    held.reset();
    planner.reset();
    coder.reset();
  });
}

}  // namespace kvrail::test
