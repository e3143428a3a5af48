// kvrail-demo-agent: one agent of the demo, started by kvrail-demo.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "perf/demo/role.h"

namespace {

volatile sig_atomic_t ended = 0;

void end(int) {
  ended = 1;
}

}  // namespace

bool kvrail::demo::asked_to_end() noexcept {
  return ended != 0;
}

int main(int argc, char** argv) {
  using namespace kvrail::demo;
  AgentOptions options;
  CLI::App app("One agent of the demo; kvrail-demo starts it.");
  app.add_option("--role", options.role, "coordinator, executor, verifier or clerk")->required();
  app.add_option("--name", options.name, "name of the agent")->required();
  app.add_option("--socket", options.socket, "attach socket of its engine")->required();
  app.add_option("--model", options.model, "weights")->required();
  app.add_option("--block-tokens", options.block_tokens, "tokens in a block");
  app.add_option("--prefill-ns", options.prefill_per_token_ns,
                 "pace of the model that ours stands for");
  app.add_option("--executor", options.executors, "coordinator: whom it hands work");
  app.add_option("--clerk", options.clerk, "coordinator: who keeps the text");
  app.add_option("--verifier", options.verifier, "executor: who checks it");
  app.add_option("--coordinator", options.coordinator, "verifier: who wants the verdict");
  app.add_flag("--same-node", options.same_node, "verifier: what it checks is on its own node");
  CLI11_PARSE(app, argc, argv);
  struct sigaction action {};
  action.sa_handler = end;  // without SA_RESTART: a sleeping call comes back
  ::sigaction(SIGTERM, &action, nullptr);
  const std::map<std::string, int (*)(const AgentOptions&)> roles{{"coordinator", run_coordinator},
                                                                  {"executor", run_executor},
                                                                  {"verifier", run_verifier},
                                                                  {"clerk", run_clerk}};
  const auto role = roles.find(options.role);
  if (role == roles.end()) {
    std::fprintf(stderr, "kvrail-demo-agent: there is no role \"%s\"\n", options.role.c_str());
    return 2;
  }
  return role->second(options);
}
