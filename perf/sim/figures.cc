#include "perf/sim/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "scheduler/cost.h"

namespace kvrail::simulation {
namespace {

double ms_of(TimeNs ns) {
  return static_cast<double>(ns) / 1e6;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// What the transfer would take alone by the quickest medium: what sizes are measured by when agents are compared.
double alone_ns(const Scenario& scenario, const Job& job, const RunModel& model) {
  double least = static_cast<double>(scheduler::prefill_ns(model.compute, job.tokens, 0));
  const double plain = static_cast<double>(job.tokens) * static_cast<double>(model.layout.token_bytes());
  for (const Medium medium : scenario.media) {
    if (!is_kv(medium) || model.foreign) continue;
    const double bytes = plain / scenario.profile.media[static_cast<std::size_t>(medium)].ratio;
    least = std::min(least, bytes / static_cast<double>(scenario.cluster.link_bytes_per_s) * 1e9);
  }
  return least + static_cast<double>(scenario.cluster.round_trip_ns);
}

struct PerAgent {
  double speed = 0, queued_ms = 0;
  std::uint64_t count = 0;
};

double least_jain(const Workload& workload, const std::vector<PerAgent>& agents) {
  double least = 1;
  for (std::uint32_t model = 0; model < workload.models.size(); ++model) {
    std::vector<double> speeds;
    for (std::size_t i = 0; i < agents.size(); ++i) {
      if (workload.receivers[i].model == model && agents[i].count > 0)
        speeds.push_back(agents[i].speed / static_cast<double>(agents[i].count));
    }
    least = std::min(least, jain_index(speeds));
  }
  return least;
}

}  // namespace

double percentile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::min(index, values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double jain_index(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return squares == 0 ? 1 : sum * sum / (static_cast<double>(values.size()) * squares);
}

Figures make_figures(const Scenario& scenario, const Workload& workload, const RunResult& result, std::string policy) {
  Figures out;
  out.policy = std::move(policy);
  std::vector<double> contexts, criticals;
  std::vector<PerAgent> agents(workload.receivers.size());
  double fidelity = 0, queued = 0;
  std::uint64_t in_time = 0;
  for (std::size_t i = 0; i < result.jobs.size(); ++i) {
    const JobResult& it = result.jobs[i];
    const Job& job = workload.jobs[i];
    if (job.critical) {
      criticals.push_back(ms_of(it.latency_ns));
      continue;
    }
    if (it.medium == Medium::reference) continue;  // within a node
    contexts.push_back(ms_of(it.latency_ns));
    const Medium rows = it.medium == Medium::split ? it.rows : it.medium;
    const scheduler::MediumLoss& loss = scenario.profile.loss.media[static_cast<std::size_t>(rows)];
    fidelity += static_cast<double>(scheduler::fidelity_ppm(loss, loss.epsilon_ppm)) / 1e6;
    in_time += it.latency_ns <= scenario.traffic.slo_ns ? 1 : 0;
    queued += ms_of(it.queued_ns);
    PerAgent& agent = agents[job.receiver];
    const RunModel& model = workload.models[workload.receivers[job.receiver].model];
    agent.speed += alone_ns(scenario, job, model) / static_cast<double>(std::max<TimeNs>(it.latency_ns, 1));
    agent.queued_ms += ms_of(it.queued_ns);
    ++agent.count;
  }
  const double count = std::max(static_cast<double>(contexts.size()), 1.0);
  out.fidelity = contexts.empty() ? 1 : fidelity / count;
  out.slo = contexts.empty() ? 1 : static_cast<double>(in_time) / count;
  out.queue_ms = queued / count;
  for (const PerAgent& agent : agents) {
    if (agent.count > 0) out.worst_agent_queue_ms = std::max(out.worst_agent_queue_ms, agent.queued_ms / static_cast<double>(agent.count));
  }
  out.jain = least_jain(workload, agents);
  out.per_second = static_cast<double>(contexts.size()) / (static_cast<double>(result.end_ns) / 1e9);
  std::vector<double> tasks;
  for (const TimeNs task : result.task_ns) tasks.push_back(ms_of(task));
  std::vector<double>& users = tasks.empty() ? contexts : tasks;
  out.mean_ms = mean(users);
  out.p50_ms = percentile(users, 0.5);
  out.p99_ms = percentile(users, 0.99);
  std::sort(users.begin(), users.end());
  for (std::size_t q = 0; q < out.quantiles_ms.size() && !users.empty(); ++q) out.quantiles_ms[q] = users[(users.size() - 1) * q / 100];
  out.jitter = out.p50_ms > 0 ? out.p99_ms / out.p50_ms : 1;
  if (!criticals.empty()) out.critical_p99_ms = percentile(criticals, 0.99);
  out.bytes = result.bytes;
  out.recompute_s = static_cast<double>(result.prefill_ns) / 1e9;
  out.lane_utilisation = result.busiest_lane;
  out.gpu_utilisation = result.busiest_gpu;
  out.flaps = result.flaps;
  out.decisions = result.decisions;
  out.laters = result.laters;
  out.reservations_refused = result.reservations_refused;
  out.chosen = result.chosen;
  out.trace_hash = result.trace_hash;
  out.chunk_ms = ms_of(result.chunk_ns);
  return out;
}

}  // namespace kvrail::simulation
