#include "perf/sim/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvrail/base/time.h"
#include "perf/sim/text_input.h"
#include "perf/sim/world.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint32_t kMostTransfers = 10'000'000;

struct Inputs {
  std::optional<RequestTrace> trace;
  LinkTraces links;
  std::vector<AgentGraph> graphs;
  std::vector<const Policy*> policies;
  std::vector<std::string> left_out;
};

Result<std::vector<const Policy*>> policies_of(const Options& options, const Scenario& scenario) {
  const std::vector<std::string>& names = options.policies.empty() ? scenario.policies : options.policies;
  std::vector<const Policy*> found;
  for (const std::string& name : names) {
    const Policy* const policy = find_policy(name);
    if (policy == nullptr) {
      std::string known;
      for (const Policy& one : policies()) known += (known.empty() ? "" : ", ") + std::string(one.name);
      return Error{{Code::invalid_argument}, "no policy \"" + name + "\"; there are " + known};
    }
    if (std::find(found.begin(), found.end(), policy) == found.end()) found.push_back(policy);
  }
  for (const Policy& one : policies()) {
    if (names.empty() && one.by_default) found.push_back(&one);
  }
  return found;
}

Result<Inputs> load_inputs(const Options& options, Scenario& scenario) {
  Inputs inputs;
  auto chosen = policies_of(options, scenario);
  if (!chosen.ok()) return std::move(chosen).error();
  inputs.policies = std::move(*chosen);
  if (!options.trace.empty()) {
    auto trace = load_requests(options.trace);
    if (!trace.ok()) return std::move(trace).error();
    inputs.trace = std::move(*trace);
  }
  const std::string& links = options.links.empty() ? scenario.links : options.links;
  if (!links.empty()) {
    const double scale = options.link_scale_mbit_s > 0 ? options.link_scale_mbit_s : scenario.link_scale_mbit_s;
    auto loaded = load_links(links, scale);
    if (!loaded.ok()) return std::move(loaded).error();
    inputs.links = std::move(*loaded);
    scenario.cluster.link_bytes_per_s = static_cast<std::uint64_t>(scale * 1e6 / 8);
  }
  for (const std::string& file : scenario.graphs) {
    if (inputs.trace) break;  // it replaces them
    auto text = read_text(file);
    if (!text.ok()) return std::move(text).error();
    auto graph = engine::parse_graph(*text, file);
    if (!graph.ok()) return std::move(graph).error();
    if (graph->edges.empty()) {
      inputs.left_out.push_back(file + ": no agent hands anything to another one");
    } else {
      inputs.graphs.push_back(std::move(*graph));
    }
  }
  if (!inputs.left_out.empty() && inputs.graphs.empty()) return Error{{Code::invalid_argument}, inputs.left_out[0]};
  return inputs;
}

// Each agent of each graph is one of the cluster's.
void make_room(Scenario& scenario, const std::vector<AgentGraph>& graphs) {
  if (graphs.empty()) return;
  std::uint32_t agents = 0;
  for (const AgentGraph& graph : graphs) agents += static_cast<std::uint32_t>(graph.agents.size());
  scenario.cluster.receivers = std::max(agents, scenario.cluster.receiver_nodes);
  scenario.cluster.team_nodes = std::max(scenario.cluster.receiver_nodes, 2U);
  scenario.cluster.receiver_nodes = scenario.cluster.team_nodes;
}

// `agents` on a sixteenth as many nodes, all sending and receiving, each as often as in the scenario.
void grow(Scenario& scenario, std::uint32_t agents) {
  Cluster& cluster = scenario.cluster;
  const double factor = static_cast<double>(agents) / cluster.receivers;
  scenario.traffic.per_second *= factor;
  scenario.traffic.transfers = static_cast<std::uint32_t>(std::min<double>(scenario.traffic.transfers * factor, kMostTransfers));
  cluster.receivers = agents;
  cluster.receiver_nodes = std::max(agents / 16, 2U);
  if (cluster.team_nodes == 0) cluster.team_nodes = 4;
}

Result<Point> run_point(const Scenario& scenario, const Options& options, const Inputs& inputs, const std::string& label,
                        Report& report) {
  const RequestTrace* const trace = inputs.trace ? &*inputs.trace : nullptr;
  auto workload = make_workload(scenario, options.seed, trace, inputs.links, inputs.graphs);
  if (!workload.ok()) return std::move(workload).error();
  Point point;
  point.label = label;
  for (const Policy* policy : inputs.policies) {
    const RunResult result = World(scenario, *workload, *policy).run();
    point.policies.push_back(make_figures(scenario, *workload, result, std::string(policy->name)));
    report.transfers += workload->jobs.size();
    report.decisions += result.decisions;
  }
  point.bounds = find_bounds(scenario, *workload);
  return point;
}

Status run_sweep(const Scenario& scenario, const Options& options, const Inputs& inputs, Report& report) {
  const auto run = [&](const Scenario& at, const std::string& label) {
    auto point = run_point(at, options, inputs, label, report);
    if (!point.ok()) return point.status();
    report.sweep.push_back(std::move(*point));
    return Status{};
  };
  for (const double rate : scenario.sweep_per_second) {
    Scenario at = scenario;
    at.traffic.per_second = rate;
    if (const Status status = run(at, fmt::format("{:g}/s", rate)); !status.ok()) return status;
  }
  for (const std::uint32_t agents : scenario.sweep_agents) {
    Scenario at = scenario;
    grow(at, agents);
    if (const Status status = run(at, fmt::format("{} agents", agents)); !status.ok()) return status;
  }
  return Status{};
}

}  // namespace

Result<Report> simulate(const Options& options) {
  auto scenario = load_scenario(options.scenario);
  if (!scenario.ok()) return std::move(scenario).error();
  auto inputs = load_inputs(options, *scenario);
  if (!inputs.ok()) return std::move(inputs).error();
  make_room(*scenario, inputs->graphs);
  Report report;
  report.scenario = scenario->name;
  report.seed = options.seed;
  report.left_out = inputs->left_out;
  for (const ModelClass& model : scenario->model_classes)
    report.arithmetic.push_back(arithmetic_of(model, *find(scenario->gpu_classes, scenario->gpu)));
  const SteadyClock clock;
  const TimeNs begin = clock.now_ns();
  auto main = run_point(*scenario, options, *inputs, "", report);
  if (!main.ok()) return std::move(main).error();
  report.main = std::move(*main);
  report.memory = compare_memory(*scenario, inputs->graphs, options.seed);
  // What a trace replaces can't be varied.
  if (!inputs->trace) {
    if (const Status status = run_sweep(*scenario, options, *inputs, report); !status.ok()) return status;
  }
  report.wall_s = static_cast<double>(clock.now_ns() - begin) / 1e9;
  return report;
}

}  // namespace kvrail::simulation
