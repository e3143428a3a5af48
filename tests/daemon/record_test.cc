// What daemons recorded of real transfers, decided again by the simulator's program: all alike.
#include <doctest/doctest.h>

#include <csignal>
#include <string>

#include "tests/daemon/two_nodes.h"

namespace kvrail::test {

TEST_CASE("record / the simulator decides what two daemons recorded as they did") {
  const TempDir dir;
  const Link link{"tcp"};
  {
    Pair pair(link, "[runtime]\nrecord = \"" + dir.path("@NODE@.record") + "\"\n");
    Agent planner = pair.attach("a", "planner");
    Agent coder = pair.attach("b", "coder");
    Growing doc(planner, 3, 2000);
    for (const std::uint32_t length : {500U, 1000U, 1001U, 1900U}) {
      const Outcome sent = send(planner, doc.commit(length), "coder", Medium::automatic);
      REQUIRE_MESSAGE(sent.status.ok(), name(sent.status.code));
      REQUIRE(coder.receive(kSoon).ok());
      const Outcome forced = send(planner, doc.commit(length), "coder", Medium::full);
      REQUIRE_MESSAGE(forced.status.ok(), name(forced.status.code));
      REQUIRE(coder.receive(kSoon).ok());
    }
    for (Process* daemon : {&pair.a(), &pair.b()}) {
      daemon->signal(SIGTERM);
      CHECK(daemon->wait(kSoonMs) == 0);
    }
  }
  for (const char* node : {"a", "b"}) {
    CAPTURE(std::string(node));
    Process sim({KVRAIL_SIM_PATH, "replay", dir.path(std::string(node) + ".record")});
    CHECK(sim.wait(kSoonMs) == 0);
    const std::string said = sim.output();
    INFO(said);
    CHECK(said.find(" 0 decided otherwise") != std::string::npos);
    CHECK(said.find("full before the end") == std::string::npos);
    // b chose the media, a sent the chunks.
    CHECK((said.find("0 choices") == 0) == (node[0] == 'a'));
    CHECK((said.find("with 0 chunks") != std::string::npos) == (node[0] == 'b'));
  }
}

TEST_CASE("record / an earlier recording is kept, what is none is left alone, and a second start ends no engine") {
  const TempDir dir;
  const std::string record = dir.path("here.record");
  const std::string text = "[attach]\nsocket = \"" + dir.path("s.sock") + "\"\n[memory]\ntables = \"64 MiB\"\n[runtime]\nrecord = \"" + record + "\"\n";
  const std::string config = dir.write("k.toml", text);
  {
    Process first({kvraild_path(), "--config", config});
    REQUIRE(first.says("takes agents at", kSoonMs));
    Process second({kvraild_path(), "--config", config});
    CHECK(second.wait(kSoonMs) != 0);
    AttachOptions options;
    options.socket_path = dir.path("s.sock");
    options.name = "a";
    options.layout = layout();
    options.timeout = kSoon;
    auto agent = Agent::attach(options);
    REQUIRE(agent.ok());
    CHECK(agent->begin_task({}).ok());
    first.signal(SIGTERM);
    CHECK(first.wait(kSoonMs) == 0);
  }
  Process sim({KVRAIL_SIM_PATH, "replay", record + ".1"});
  CHECK(sim.wait(kSoonMs) == 0);
  (void)dir.write("here.record", "what somebody needs");
  Process refused({kvraild_path(), "--config", config});
  CHECK(refused.wait(kSoonMs) != 0);
  CHECK(refused.output().find("is there, and no recording; move it away") != std::string::npos);
  Process check({kvraild_path(), "--config", config, "--check-config"});
  CHECK(check.wait(kSoonMs) != 0);
  CHECK(check.output().find("is there, and no recording") != std::string::npos);
}

TEST_CASE("record / a file that can't be made is refused at the start, with its key") {
  const TempDir dir;
  const std::string text = "[attach]\nsocket = \"" + dir.path("s.sock") + "\"\n[runtime]\nrecord = \"" + dir.path("none/file") + "\"\n";
  Process daemon({kvraild_path(), "--config", dir.write("k.toml", text)});
  CHECK(daemon.wait(kSoonMs) == 1);
  CHECK(daemon.output().find("runtime.record: ") != std::string::npos);
}

}  // namespace kvrail::test
