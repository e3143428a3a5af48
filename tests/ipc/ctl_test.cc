// kvrailctl against a real engine: what it shows, and what it says when there is nothing to show.
#include <doctest/doctest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "kvrail_features.h"
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
}

TEST_CASE("kvrailctl / wrong usage names what is wrong and what there is, and exits with 2") {
  const auto refused = [](std::vector<std::string> arguments, const char* what) {
    const Output output = run_alone(std::move(arguments));
    CAPTURE(output.text);
    CHECK(output.code == 2);
    CHECK(output.text.find(what) != std::string::npos);
    CHECK(std::count(output.text.begin(), output.text.end(), '\n') == 1);
  };
  refused({"frobnicate"}, "no command 'frobnicate'; commands are status, agents, lanes, peers, tasks, transfers");
  refused({"--json", "frobnicate", "x"}, "no command 'frobnicate'");
  refused({}, "a command is missing; commands are status");
  refused({"--frobnicate"}, "kvrailctl: ");
  refused({"explain", "--way", "up"}, "--way");
  for (const char* id : {"not-a-number", "0", "0x", "12x", "18446744073709551616", "-5", ""}) {
    CAPTURE(id);
    refused({"explain", id}, "kvrailctl: ");
    refused({"explain", "--peer", id}, "kvrailctl: ");
  }
  refused({"explain", "0"}, "'0' is no id: give a whole number from 1");
}

TEST_CASE("kvrailctl / help tells the exit codes, and there is a version") {
  const Output help = run_alone({"--help"});
  CHECK(help.code == 0);
  CHECK(help.text.find("Exit codes: 0 shown; 1 no engine") != std::string::npos);
  const Output version = run_alone({"--version"});
  CHECK(version.code == 0);
  CHECK(version.text == "kvrailctl " KVRAIL_VERSION "\n");
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
    const Result<Delivery> delivery = coder->receive(kSoon);
    const auto outcomes = planner->wait(*ticket, kSoon);
    REQUIRE(delivery.ok());
    REQUIRE(outcomes.ok());
    CHECK(delivery->transfer() != 0);
    CHECK((*outcomes)[0].transfer == delivery->transfer());
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
  CHECK(id != "0");
  CHECK(run(rig, {"transfers"}).text.find("doc") != std::string::npos);

  const Output why = run(rig, {"explain", id});
  CHECK(why.code == 0);
  CHECK(why.text.find("'doc' version 1 from planner to coder") != std::string::npos);
  CHECK(why.text.find("transfer " + id + " (local)") != std::string::npos);
  CHECK(run(rig, {"explain"}).text == why.text);
  CHECK(run(rig, {"explain", "00" + id}).text == why.text);
  CHECK(run(rig, {"explain", id, "--way", "local", "--peer", "0x7"}).text == why.text);
  CHECK(run(rig, {"explain", id, "--way", "in"}).code == 3);
  CHECK(run(rig, {"explain", id, "--peer", "8"}).code == 3);
  const Output none = run(rig, {"explain", "123456789"});
  CHECK(none.code == 3);
  CHECK(none.text.find("no such transfer") != std::string::npos);
  CHECK(run(rig, {"lanes"}).text == "no lanes\n");
  CHECK(run(rig, {"peers"}).text == "no peers are configured\n\nno peers\n");
  CHECK(nlohmann::json::parse(run(rig, {"lanes", "--json"}).text).empty());
  rig.serve([&] {
    held.reset();
    planner.reset();
    coder.reset();
  });
}

}  // namespace kvrail::test
