#include "perf/demo/stage.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "transport/verbs/verbs_transport.h"

namespace kvrail::demo {
namespace {

constexpr TimeNs kReadyLimitNs = 20 * kSecondNs;
constexpr TimeNs kHalfLimitNs = 180 * kSecondNs;  // the other half's machine may still start
constexpr TimeNs kEndLimitNs = 12 * kSecondNs;
constexpr std::uint32_t kClerkBlockTokens = 32;
constexpr int kPort = 7400;

// A port of loopback that is free at this moment.
int free_port() {
  const engine::ipc::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return kPort;
  }
  return ntohs(address.sin_port);
}

bool knows(const engine::StatusData& page, std::string_view agent) {
  const auto count = std::min<std::size_t>(page.agent_count, engine::kStatusAgents);
  return std::any_of(page.agents, page.agents + count, [agent](const engine::StatusAgent& it) {
    return it.node != 0 && it.live != 0 && it.name.view() == agent;
  });
}

}  // namespace

Result<std::unique_ptr<Stage>> Stage::start(const DemoOptions& options, const Network& network,
                                            const std::string& folder) {
  std::unique_ptr<Stage> stage(new Stage(options, folder));
  stage->namespaces_ = network.namespaces;
  if (auto done = stage->start_nodes(network); !done.ok()) return std::move(done).error();
  if (auto done = stage->start_agents(); !done.ok()) return std::move(done).error();
  if (auto done = stage->wait_ready(); !done.ok()) return std::move(done).error();
  if (auto done = stage->wait_known(); !done.ok()) return std::move(done).error();
  return stage;
}

Stage::~Stage() {
  for (ChildProcess& agent : agents_) agent.ask_to_end();
}

NodeConfig Stage::config_of(int node, const Network& network) const {
  NodeConfig config;
  config.id = static_cast<std::uint64_t>(node) + 1;
  config.socket = folder_ + (node == 0 ? "/a.sock" : "/b.sock");
  config.psk_file = options_.key.empty() ? folder_ + "/key" : options_.key;
  config.profile = options_.profile;
  config.transport = options_.transport;
  if (options_.half >= 0) {
    const auto at = [this](std::size_t number) {
      std::string address = options_.addresses[number];
      return address.append(":").append(std::to_string(kPort));
    };
    config.listen = at(static_cast<std::size_t>(node));
    if (node == 1) config.peer = at(0);
    return config;
  }
  const std::string host =
      options_.transport == "verbs" ? transport::verbs::own_address() : "127.0.0.1";
  config.listen = namespaces_ != nullptr
                      ? std::string(LinkedNamespaces::address(node)) + ":" + std::to_string(kPort)
                      : host + ":" + std::to_string(free_port());
  if (namespaces_ == nullptr && options_.transport == "tcp")
    config.pacing_bytes_per_s = network.rate_bytes_per_s;
  if (node == 1) config.peer = nodes_.front().config().listen;
  return config;
}

Result<void> Stage::start_nodes(const Network& network) {
  for (int number = 0; number < 2; ++number) {
    if (!has(number)) continue;
    auto started = NodeProcess::start(options_.kvraild, config_of(number, network), folder_,
                                      namespaces_ != nullptr ? namespaces_->name(number) : "");
    if (!started.ok()) return std::move(started).error();
    nodes_.push_back(std::move(started).value());
  }
  return {};
}

Result<void> Stage::start_agent(int number, const std::vector<std::string>& arguments) {
  const std::string& name = arguments[1];
  SpawnOptions spawn;
  spawn.program = options_.agent;
  spawn.arguments = {"--socket",     node(number).config().socket,
                     "--model",      options_.model,
                     "--prefill-ns", std::to_string(options_.prefill_per_token_ns)};
  spawn.arguments.insert(spawn.arguments.end(), arguments.begin(), arguments.end());
  if (namespaces_ != nullptr) spawn.network_namespace = namespaces_->name(number);
  spawn.log = folder_ + "/" + name + ".log";
  spawn.pipes = true;
  auto started = ChildProcess::start(spawn);
  if (!started.ok()) return std::move(started).error();
  started->set_label("agent " + name);
  agents_.push_back(std::move(started).value());
  return {};
}

Result<void> Stage::start_agents() {
  const std::string clerk_tokens = std::to_string(kClerkBlockTokens);
  const std::vector<std::pair<int, std::vector<std::string>>> cast{
      {0,
       {"--name", "coordinator", "--role", "coordinator", "--executor", "executor-1", "--executor",
        "executor-2", "--clerk", "clerk"}},
      {1, {"--name", "executor-1", "--role", "executor", "--verifier", "verifier-b"}},
      {1, {"--name", "executor-2", "--role", "executor", "--verifier", "verifier-a"}},
      {1,
       {"--name", "verifier-b", "--role", "verifier", "--coordinator", "coordinator",
        "--same-node"}},
      {0, {"--name", "verifier-a", "--role", "verifier", "--coordinator", "coordinator"}},
      {1, {"--name", "clerk", "--role", "clerk", "--block-tokens", clerk_tokens}},
  };
  for (const auto& [number, arguments] : cast) {
    if (!has(number)) continue;
    if (auto started = start_agent(number, arguments); !started.ok()) return started;
  }
  return {};
}

Result<void> Stage::wait_ready() {
  const SteadyClock clock;
  const TimeNs deadline_ns = clock.now_ns() + (options_.half < 0 ? kReadyLimitNs : kHalfLimitNs);
  for (ChildProcess& agent : agents_) {
    for (;;) {
      const auto line = agent.next_line();
      if (line == "ready") break;
      if (!agent.running() || clock.now_ns() > deadline_ns) {
        return Error{{Code::peer_down}, agent.label() + " did not attach:\n" + agent.log_tail()};
      }
      ::usleep(5'000);
    }
  }
  return {};
}

// Nodes tell each other of their agents; a send to an agent that is not known yet would fail.
Result<void> Stage::wait_known() {
  const SteadyClock clock;
  const TimeNs deadline_ns = clock.now_ns() + (options_.half < 0 ? kReadyLimitNs : kHalfLimitNs);
  const std::vector<std::vector<std::string>> wanted{
      {"executor-1", "executor-2", "verifier-b", "clerk"}, {"coordinator", "verifier-a"}};
  for (int number = 0; number < 2; ++number) {
    if (!has(number)) continue;
    for (const std::string& agent : wanted[static_cast<std::size_t>(number)]) {
      for (;;) {
        const engine::StatusData* const page = node(number).status().read();
        if (page != nullptr && knows(*page, agent)) break;
        if (auto alive = check(); !alive.ok()) return alive;
        if (clock.now_ns() > deadline_ns) {
          return Error{{Code::timed_out},
                       "node " + std::to_string(number + 1) + " does not get to know " + agent +
                           "; its log ends with:\n" + node(number).process().log_tail()};
        }
        ::usleep(5'000);
      }
    }
  }
  return {};
}

void Stage::collect(TransferLog& log) {
  for (int number = 0; number < 2; ++number) {
    if (!has(number)) continue;
    if (const engine::StatusData* page = node(number).status().read(); page != nullptr)
      log.collect(number, *page);
  }
}

Result<void> Stage::wait_for_other_half() {
  for (;;) {
    if (auto alive = check(); !alive.ok()) return alive;
    const engine::StatusData* const page = node(1).status().read();
    if (page != nullptr && !knows(*page, "coordinator")) return {};
    ::usleep(200'000);
  }
}

Result<void> Stage::check() {
  const auto ended = [](ChildProcess& process) {
    return Error{{Code::peer_down},
                 process.label() + " has ended; its last words:\n" + process.log_tail()};
  };
  for (NodeProcess& node : nodes_) {
    if (!node.process().running()) return ended(node.process());
  }
  for (ChildProcess& agent : agents_) {
    if (!agent.running()) return ended(agent);
  }
  return {};
}

Result<void> Stage::stop() {
  std::string late;
  for (ChildProcess& agent : agents_) agent.ask_to_end();
  for (ChildProcess& agent : agents_) {
    if (!agent.wait_for_end(kEndLimitNs)) late += " " + agent.label() + ": " + agent.log_tail();
  }
  for (NodeProcess& node : nodes_) node.process().ask_to_end();
  for (NodeProcess& node : nodes_) {
    if (!node.process().wait_for_end(kEndLimitNs))
      late += " " + node.process().label() + ": " + node.process().log_tail();
  }
  if (!late.empty()) return Error{{Code::timed_out}, "did not end in order:" + late};
  return {};
}

}  // namespace kvrail::demo
