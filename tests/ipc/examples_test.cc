// The examples of docs/ are compiled by the build, and do what they say against a real engine.
#include <doctest/doctest.h>

#include "tests/ipc/engine_rig.h"

namespace kvrail::test {

TEST_CASE("examples / C++ and C hand a context over") {
  for (const char* path : {KVRAIL_EXAMPLE_CC_PATH, KVRAIL_EXAMPLE_C_PATH}) {
    CAPTURE(path);
    EngineRig rig;
    rig.serve([&] {
      Process example({path, rig.socket()});
      CHECK(example.wait(20'000) == 0);
      CAPTURE(example.output());
      CHECK(example.output().find("coder has 'conversation-42' version 1 from planner: 100 tokens, 2 blocks") !=
            std::string::npos);
      CHECK(example.output().find("planner: ok") != std::string::npos);
    });
  }
  Process alone({KVRAIL_EXAMPLE_C_PATH, "/nonexistent/kvrail"});
  CHECK(alone.wait(20'000) == 1);
  CHECK(alone.output().find("no engine listens at /nonexistent/kvrail") != std::string::npos);
}

}  // namespace kvrail::test
