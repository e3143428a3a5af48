#include "engine/config/agent_graph.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

#include "transport/wire/messages.h"

namespace kvrail::engine {
namespace {

using Successors = std::vector<std::vector<std::uint32_t>>;
constexpr std::size_t kMostNodes = 10'000;

constexpr std::uintmax_t kMostBytes = 1 << 20;

Error input_error(const std::string& file, std::size_t line, const std::string& what) {
  return Error{{Code::invalid_argument, Scope::engine}, file + ":" + std::to_string(line) + ": " + what};
}

struct RawGraph {
  std::vector<std::string> ids;
  std::vector<bool> computes;
  Successors next;
};

bool computes(std::string_view type) {
  constexpr std::array<std::string_view, 3> kPassed{"literal", "passthrough", "loop_counter"};
  return std::find(kPassed.begin(), kPassed.end(), type) == kPassed.end();
}

std::size_t line_of(const YAML::Node& node) {
  return static_cast<std::size_t>(std::max(node.Mark().line, 0)) + 1;
}

std::string scalar(const YAML::Node& node, const char* key) {
  return node.IsMap() && node[key] && node[key].IsScalar() ? node[key].Scalar() : std::string();
}

Result<RawGraph> read(const YAML::Node& root, const std::string& path) {
  const YAML::Node graph = root.IsMap() ? root["graph"] : YAML::Node();
  if (!graph || !graph.IsMap()) return input_error(path, 1, "needs a map \"graph\"");
  const YAML::Node nodes = graph["nodes"], edges = graph["edges"];
  if (!nodes || !nodes.IsSequence() || nodes.size() == 0 || nodes.size() > kMostNodes)
    return input_error(path, line_of(graph), "graph.nodes must be a list of 1 to 10,000 nodes");
  RawGraph raw;
  std::map<std::string, std::uint32_t> index;
  for (const YAML::Node& node : nodes) {
    const std::string id = scalar(node, "id");
    if (id.empty()) return input_error(path, line_of(node), "a node needs an id");
    if (!index.emplace(id, static_cast<std::uint32_t>(raw.ids.size())).second)
      return input_error(path, line_of(node), "a second node \"" + id + "\"");
    raw.ids.push_back(id);
    raw.computes.push_back(computes(scalar(node, "type")));
  }
  raw.next.resize(raw.ids.size());
  if (!edges) return raw;
  if (!edges.IsSequence()) return input_error(path, line_of(edges), "graph.edges must be a list");
  for (const YAML::Node& edge : edges) {
    const auto from = index.find(scalar(edge, "from")), to = index.find(scalar(edge, "to"));
    if (from == index.end() || to == index.end())
      return input_error(path, line_of(edge), "an edge must lead from a node to a node of this graph");
    raw.next[from->second].push_back(to->second);
  }
  return raw;
}

// A depth first walk from the nodes in the order of the file: what leads to a node still on the way leads back.
class LoopCutter {
 public:
  explicit LoopCutter(Successors& next) : next_(next), state_(next.size(), State::unseen) {}
  // Nodes, predecessors first.
  [[nodiscard]] std::vector<std::uint32_t> run() {
    for (std::uint32_t node = 0; node < next_.size(); ++node) {
      if (state_[node] == State::unseen) walk(node);
    }
    std::reverse(done_.begin(), done_.end());
    return done_;
  }

 private:
  enum class State : std::uint8_t { unseen, on_the_way, done };
  struct Step {
    std::uint32_t node;
    std::size_t at;
  };
  void walk(std::uint32_t first) {
    std::vector<Step> way{{first, 0}};
    state_[first] = State::on_the_way;
    while (!way.empty()) {
      const std::uint32_t node = way.back().node;
      std::vector<std::uint32_t>& next = next_[node];
      if (way.back().at == next.size()) {
        state_[node] = State::done;
        done_.push_back(node);
        way.pop_back();
        continue;
      }
      const std::uint32_t to = next[way.back().at];
      if (state_[to] == State::on_the_way) {
        next.erase(next.begin() + static_cast<std::ptrdiff_t>(way.back().at));
        continue;
      }
      ++way.back().at;
      if (state_[to] != State::unseen) continue;
      state_[to] = State::on_the_way;
      way.push_back({to, 0});
    }
  }
  Successors& next_;
  std::vector<State> state_;
  std::vector<std::uint32_t> done_;
};

// The next computing nodes behind each node, through those that compute nothing.
AgentGraph contract(const RawGraph& raw, const Successors& next, const std::vector<std::uint32_t>& order) {
  AgentGraph graph;
  std::vector<std::uint32_t> agent_of(raw.ids.size(), UINT32_MAX);
  for (const std::uint32_t node : order) {
    if (!raw.computes[node]) continue;
    agent_of[node] = static_cast<std::uint32_t>(graph.agents.size());
    graph.agents.push_back(raw.ids[node]);
  }
  Successors reach(raw.ids.size());
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    for (const std::uint32_t to : next[*it]) {
      if (raw.computes[to]) {
        reach[*it].push_back(agent_of[to]);
      } else {
        reach[*it].insert(reach[*it].end(), reach[to].begin(), reach[to].end());
      }
    }
    std::sort(reach[*it].begin(), reach[*it].end());
    reach[*it].erase(std::unique(reach[*it].begin(), reach[*it].end()), reach[*it].end());
    for (const std::uint32_t agent : reach[*it]) {
      if (raw.computes[*it]) graph.edges.emplace_back(agent_of[*it], agent);
    }
  }
  std::sort(graph.edges.begin(), graph.edges.end());
  return graph;
}

}  // namespace

Result<AgentGraph> parse_graph(const std::string& text, const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return input_error(path, static_cast<std::size_t>(std::max(error.mark.line, 0)) + 1, error.msg);
  }
  auto raw = read(root, path);
  if (!raw.ok()) return std::move(raw).error();
  const std::vector<std::uint32_t> order = LoopCutter(raw->next).run();
  AgentGraph graph = contract(*raw, raw->next, order);
  graph.name = path;
  return graph;
}

Result<DescribedWorkflow> load_workflow(const std::string& name, const std::string& path) {
  const auto refused = [&](const std::string& what) { return Error{{Code::invalid_argument, Scope::engine}, path + ": " + what}; };
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(path, unknown)) return Error{{Code::not_found, Scope::engine}, path + ": is not a regular file"};
  if (std::filesystem::file_size(path, unknown) > kMostBytes) return refused("larger than 1 MiB, this is no agent graph");
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{{Code::permission_denied, Scope::engine}, path + ": cannot be read"};
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto graph = parse_graph(text, path);
  if (!graph.ok()) return std::move(graph).error();
  if (graph->edges.empty()) return refused("no agent hands anything to another one");
  if (graph->agents.size() > transport::wire::kMaxWorkflowSteps || graph->edges.size() > transport::wire::kMaxWorkflowEdges) {
    return refused("has more than 64 agents or 256 hand-overs");
  }
  DescribedWorkflow made;
  auto workflow = make_name(name);
  if (!workflow.ok()) return std::move(workflow).error();
  made.name = *workflow;
  for (std::string agent : graph->agents) {
    std::replace(agent.begin(), agent.end(), ' ', '-');
    const auto called = make_name(agent);
    if (!called.ok()) return refused("agent \"" + agent + "\": " + called.error().message);
    made.steps.push_back({*called, 0});
  }
  for (const auto& [from, to] : graph->edges) {
    made.edges.push_back({static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to)});
  }
  return made;
}

}  // namespace kvrail::engine
