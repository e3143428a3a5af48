#include "perf/sim/workload.h"

#include <algorithm>
#include <cmath>

#include "kvrail/base/prng.h"
#include "scheduler/workflow.h"

namespace kvrail::simulation {
namespace {

constexpr double kTwoPi = 6.283185307179586;
constexpr std::size_t kMostJobs = 50'000'000;

double normal(Prng& prng) {
  const double radius = std::sqrt(-2.0 * portable_log(1.0 - prng.uniform01()));
  return radius * std::cos(kTwoPi * prng.uniform01());
}

TimeNs ns_of(double seconds) {
  return static_cast<TimeNs>(seconds * 1e9);
}

class Maker {
 public:
  Maker(const Scenario& scenario, std::uint64_t seed)
      : scenario_(scenario), cluster_(scenario.cluster), root_(seed), sizes_(root_.split("sizes")), places_(root_.split("places")) {}

  Workload take() && { return std::move(out_); }

  void place_nodes() {
    const bool teams = cluster_.team_nodes > 0;
    out_.nodes = teams ? cluster_.receiver_nodes : cluster_.senders + cluster_.receiver_nodes;
    const std::uint32_t first = teams ? 0 : cluster_.senders;
    for (std::uint32_t i = 0; i < cluster_.receivers; ++i)
      out_.receivers.push_back({first + i % cluster_.receiver_nodes, i % static_cast<std::uint32_t>(scenario_.models.size())});
    for (std::uint32_t node = 0; teams && node < out_.nodes; ++node) {
      const std::uint32_t begin = node / cluster_.team_nodes * cluster_.team_nodes;
      for (std::uint32_t to = begin; to < std::min(begin + cluster_.team_nodes, out_.nodes); ++to) {
        if (to != node) out_.lanes.push_back({node, to});
      }
    }
    for (std::uint32_t node = 0; !teams && node < cluster_.senders; ++node) {
      for (std::uint32_t to = 0; to < cluster_.receiver_nodes; ++to) out_.lanes.push_back({node, cluster_.senders + to});
    }
  }

  void make_models() {
    const GpuClass& gpu = *find(scenario_.gpu_classes, scenario_.gpu);
    for (const std::string& name : scenario_.models) {
      const bool foreign = name.starts_with("foreign:");
      const ModelClass& model = *find(scenario_.model_classes, foreign ? std::string_view(name).substr(8) : name);
      out_.models.push_back({layout_of(model, scenario_.block_tokens, foreign ? 2 : 1), compute_of(model, gpu), foreign});
    }
  }

  // Who sends and who receives: evenly at random; within teams from another node of the same team.
  void place(Job& job) {
    job.receiver = static_cast<std::uint32_t>(places_.uniform(cluster_.receivers));
    place_sender(job);
  }
  void place_sender(Job& job) {
    if (cluster_.team_nodes == 0) {
      job.sender = static_cast<std::uint32_t>(places_.uniform(cluster_.senders));
      job.sender_agent = job.sender;
      return;
    }
    const std::uint32_t to = out_.receivers[job.receiver].node;
    const std::uint32_t begin = to / cluster_.team_nodes * cluster_.team_nodes;
    const std::uint32_t team = std::min(cluster_.team_nodes, out_.nodes - begin);
    job.sender = to;
    if (team < 2) return;
    const auto other = static_cast<std::uint32_t>(places_.uniform(team - 1));
    job.sender = begin + other + (begin + other >= to ? 1 : 0);
    job.sender_agent = job.sender;
  }

  [[nodiscard]] std::uint32_t draw_tokens() {
    return draw_context_tokens(scenario_.traffic, sizes_);
  }

  void add_contexts() {
    Prng times = root_.split("arrivals");
    const Traffic& traffic = scenario_.traffic;
    const bool bursts = traffic.arrivals == Arrivals::pareto_on_off;
    // In the long run as many come as without pauses.
    const double rate = bursts ? traffic.per_second * (traffic.on_s + traffic.off_s) / traffic.on_s : traffic.per_second;
    const auto phase = [&](double mean) {  // Pareto of that mean
      const double least = mean * (traffic.shape - 1) / traffic.shape;
      return std::min(least / std::pow(1.0 - times.uniform01(), 1.0 / traffic.shape), 1000 * mean);
    };
    double now = 0, on_until = bursts ? phase(traffic.on_s) : 1e300;
    for (std::uint32_t i = 0; i < traffic.transfers; ++i) {
      double wait = times.exponential(1 / rate);
      while (now + wait > on_until) {  // the rest of the wait passes in the next burst
        wait -= on_until - now;
        now = on_until + phase(traffic.off_s);
        on_until = now + phase(traffic.on_s);
      }
      now += wait;
      add_context(ns_of(now), draw_tokens());
    }
  }

  void add_trace(const RequestTrace& trace) {
    out_.hashes = trace.hashes;
    out_.hash_tokens = RequestTrace::kHashTokens;
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const Request& request = trace.requests[i];
      Job job;
      job.submitted_ns = request.at_ns;
      job.tokens = request.tokens;
      job.first_hash = request.first_hash;
      job.hash_count = request.hash_count;
      job.receiver = static_cast<std::uint32_t>((i + 1) % cluster_.receivers);  // lines count from 1
      place_sender(job);
      finish(job);
    }
  }

  void add_criticals() {
    const Critical& critical = scenario_.critical;
    const TimeNs end = out_.jobs.empty() ? 0 : out_.jobs.back().submitted_ns;
    Prng times = root_.split("critical");
    for (double now = 0; critical.per_second > 0;) {
      now += times.exponential(1 / critical.per_second);
      if (ns_of(now) > end) break;
      add_critical(ns_of(now), kNone);
    }
    for (std::uint32_t sender = 0; critical.period_ns > 0 && sender < cluster_.senders; ++sender) {
      for (TimeNs now = 0; now <= end; now += critical.period_ns) add_critical(now, sender);
    }
    const auto earlier = [](const Job& a, const Job& b) { return a.submitted_ns < b.submitted_ns; };
    std::stable_sort(out_.jobs.begin(), out_.jobs.end(), earlier);
  }

  // Each task walks through its graph: an edge is a transfer, which starts when all transfers into its sender have
  // ended and the agent has thought.
  void add_tasks(const std::vector<AgentGraph>& graphs) {
    std::vector<std::uint32_t> first_agent;
    std::vector<scheduler::WorkflowGraph> ways;
    std::uint32_t agents = 0;
    for (const AgentGraph& graph : graphs) {
      first_agent.push_back(agents);
      ways.push_back(described(graph));
      agents += static_cast<std::uint32_t>(graph.agents.size());
    }
    Prng thinks = root_.split("thinks");
    out_.tasks = scenario_.tasks;
    out_.task_starts.assign(out_.tasks, 0);
    for (std::uint32_t task = 0; task < out_.tasks; ++task) {
      const std::size_t graph = task % graphs.size();
      add_task(task, graphs[graph], ways[graph], first_agent[graph], thinks);
    }
  }

  [[nodiscard]] const Workload& out() const { return out_; }

 private:
  void finish(Job& job) {
    job.deadline_ns = scenario_.traffic.deadline_ns;
    out_.jobs.push_back(job);
  }
  void add_context(TimeNs at, std::uint32_t tokens) {
    Job job;
    job.submitted_ns = at;
    job.tokens = tokens;
    place(job);
    finish(job);
  }
  void add_critical(TimeNs at, std::uint32_t sender) {
    Job job;
    job.submitted_ns = at;
    place(job);
    job.beat = sender != kNone;
    if (job.beat) job.sender = job.sender_agent = sender;
    job.opaque_bytes = scenario_.critical.bytes;
    job.critical = true;
    job.weight = 6;
    out_.jobs.push_back(job);
  }
  // What the coordinator would say of it: who hands over to whom, and the mean time that each takes. Graphs that are too
  // large are not described.
  [[nodiscard]] scheduler::WorkflowGraph described(const AgentGraph& graph) const {
    std::vector<scheduler::WorkflowStep> steps;
    std::vector<scheduler::WorkflowEdge> edges;
    for (std::uint32_t agent = 0; agent < graph.agents.size(); ++agent) steps.push_back({agent, ns_of(scenario_.think_s)});
    scheduler::WorkflowGraph made;
    if (!scenario_.describe || steps.size() > scheduler::WorkflowGraph::kMostSteps) return made;
    for (const auto& [from, to] : graph.edges) edges.push_back({static_cast<std::uint8_t>(from), static_cast<std::uint8_t>(to)});
    static_cast<void>(made.assign(steps, edges));
    return made;
  }
  void add_task(std::uint32_t task, const AgentGraph& graph, const scheduler::WorkflowGraph& ways, std::uint32_t first_agent,
                Prng& thinks) {
    const auto first_job = static_cast<std::uint32_t>(out_.jobs.size());
    std::vector<TimeNs> think(graph.agents.size());
    for (TimeNs& it : think) it = ns_of(thinks.exponential(scenario_.think_s));
    for (const auto& [from, to] : graph.edges) {
      Job job;
      job.task = task;
      job.criticality_milli = ways.hand_over(from, to).criticality_milli;
      job.tokens = draw_tokens();
      job.think_ns = think[from];
      job.submitted_ns = think[from];  // stays so where there are no predecessors
      job.sender_agent = (first_agent + from) % cluster_.receivers;
      job.sender = out_.receivers[job.sender_agent].node;
      job.receiver = (first_agent + to) % cluster_.receivers;
      finish(job);
    }
    for (std::uint32_t i = 0; i < graph.edges.size(); ++i) {
      Job& job = out_.jobs[first_job + i];
      job.first_successor = static_cast<std::uint32_t>(out_.successors.size());
      for (std::uint32_t k = 0; k < graph.edges.size(); ++k) {
        if (graph.edges[k].first != graph.edges[i].second) continue;
        out_.successors.push_back(first_job + k);
        ++out_.jobs[first_job + k].predecessors;
        ++job.successor_count;
      }
    }
  }

  const Scenario& scenario_;
  const Cluster& cluster_;
  Prng root_;
  Prng sizes_, places_;
  Workload out_;
};

}  // namespace

std::uint32_t draw_context_tokens(const Traffic& traffic, Prng& prng) {
  const double drawn = traffic.median_tokens * std::exp(traffic.sigma * normal(prng));
  return static_cast<std::uint32_t>(std::clamp(drawn, static_cast<double>(traffic.least_tokens), static_cast<double>(traffic.most_tokens)));
}

Result<Workload> make_workload(const Scenario& scenario, std::uint64_t seed, const RequestTrace* trace, LinkTraces links,
                               const std::vector<AgentGraph>& graphs) {
  Maker maker(scenario, seed);
  maker.place_nodes();
  maker.make_models();
  if (trace != nullptr) {
    maker.add_trace(*trace);
  } else if (!graphs.empty()) {
    maker.add_tasks(graphs);
  } else {
    maker.add_contexts();
  }
  if (graphs.empty()) maker.add_criticals();
  if (maker.out().jobs.size() > kMostJobs)
    return Error{{Code::invalid_argument}, "the scenario has more than 50,000,000 transfers"};
  Workload workload = std::move(maker).take();
  workload.links = std::move(links);
  return workload;
}

}  // namespace kvrail::simulation
