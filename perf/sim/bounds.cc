#include "perf/sim/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kvrail/base/bits.h"
#include "scheduler/cost.h"

namespace kvrail::simulation {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Seconds; what a lane carries in a time, and the reverse.
class Rate {
 public:
  Rate() = default;
  explicit Rate(double bytes_per_s) : constant_(bytes_per_s) {}
  explicit Rate(const LinkTrace& trace) : trace_(&trace) {}
  [[nodiscard]] double end(double start_s, double bytes) const {
    if (trace_ == nullptr) return start_s + bytes / constant_;
    double now = start_s, left = bytes;
    while (true) {
      const auto [rate, until] = step(now);
      if (rate * (until - now) >= left) return now + left / rate;
      left -= rate * (until - now);
      now = until;
    }
  }
  [[nodiscard]] double bytes(double start_s, double end_s) const {
    if (trace_ == nullptr) return (end_s - start_s) * constant_;
    double now = start_s, sum = 0;
    while (now < end_s) {
      const auto [rate, until] = step(now);
      sum += rate * (std::min(until, end_s) - now);
      now = until;
    }
    return sum;
  }

 private:
  struct Step {
    double rate, until;
  };
  [[nodiscard]] Step step(double now) const {
    const double length = static_cast<double>(trace_->length_ns) / 1e9;
    const double turn = std::floor(now / length) * length;
    // A hair on, so that a step's end is not its beginning once more.
    const auto at = static_cast<TimeNs>((now - turn) * 1e9 + 0.5);
    const auto next = std::upper_bound(trace_->starts_ns.begin(), trace_->starts_ns.end(), at);
    const auto index = static_cast<std::size_t>(next - trace_->starts_ns.begin() - 1);
    const double until = next == trace_->starts_ns.end() ? turn + length : turn + static_cast<double>(*next) / 1e9;
    return {trace_->rates[index], std::max(until, now + 1e-9)};
  }
  double constant_ = 1;
  const LinkTrace* trace_ = nullptr;
};

// A way to make one transfer.
struct Way {
  double bytes = 0;     // on its lane, or
  double prefill_s = 0;  // on its GPU
  double extra_s = 0;   // before and after, whatever the queues
  double loss_s = 0;
};
struct Case {
  double at_s = 0;
  std::size_t lane = 0, gpu = 0;
  bool counts = true;
  std::vector<Way> ways;
};

// What is being served on one resource: seconds of work on a GPU, bytes on a lane.
struct Work {
  double left = 0;
  std::size_t of = 0;
};

struct Problem {
  std::vector<Case> cases;
  std::vector<Rate> lanes;
  std::size_t gpus = 0;
  [[nodiscard]] std::size_t counted() const {
    return static_cast<std::size_t>(std::count_if(cases.begin(), cases.end(), [](const Case& it) { return it.counts; }));
  }
};

class Reducer {
 public:
  Reducer(const Scenario& scenario, const Workload& workload) : scenario_(scenario), workload_(workload) {}
  Problem make() {
    const Cluster& cluster = scenario_.cluster;
    // Where lanes share an interface no wider than a lane, that is the resource.
    by_receiver_ = cluster.receiver_nic_bytes_per_s != 0 && cluster.receiver_nic_bytes_per_s <= cluster.link_bytes_per_s;
    by_sender_ = !by_receiver_ && cluster.sender_nic_bytes_per_s != 0 && cluster.sender_nic_bytes_per_s <= cluster.link_bytes_per_s;
    Problem problem;
    problem.gpus = workload_.receivers.size();
    if (by_receiver_ || by_sender_) {
      const std::uint64_t rate = by_receiver_ ? cluster.receiver_nic_bytes_per_s : cluster.sender_nic_bytes_per_s;
      problem.lanes.assign(workload_.nodes, Rate(static_cast<double>(rate)));
    } else {
      for (std::size_t i = 0; i < workload_.lanes.size(); ++i)
        problem.lanes.push_back(workload_.links.empty() ? Rate(static_cast<double>(cluster.link_bytes_per_s))
                                                        : Rate(workload_.links[i % workload_.links.size()]));
    }
    for (const Job& job : workload_.jobs) {
      if (workload_.receivers[job.receiver].node != job.sender) problem.cases.push_back(reduce(job));
    }
    return problem;
  }

 private:
  Case reduce(const Job& job) {
    const std::uint32_t node = workload_.receivers[job.receiver].node;
    Case out;
    out.at_s = static_cast<double>(job.submitted_ns) / 1e9;
    out.gpu = job.receiver;
    out.counts = job.opaque_bytes == 0;
    const double rtt = static_cast<double>(scenario_.cluster.round_trip_ns) / 1e9;
    const auto place = std::find_if(workload_.lanes.begin(), workload_.lanes.end(), [&](const LanePlace& lane) {
      return lane.sender == job.sender && lane.receiver == node;
    });
    out.lane = by_receiver_ ? node : by_sender_ ? job.sender : static_cast<std::size_t>(place - workload_.lanes.begin());
    if (!out.counts) {
      out.ways.push_back({static_cast<double>(job.opaque_bytes), 0, 1.5 * rtt, 0});
      return out;
    }
    for (const Medium medium : scenario_.media) add_way(job, medium, rtt, out);
    if (out.ways.empty()) add_way(job, Medium::tokens, rtt, out);
    return out;
  }
  void add_way(const Job& job, Medium medium, double rtt, Case& out) {
    const RunModel& model = workload_.models[workload_.receivers[job.receiver].model];
    const MediumClass& it = scenario_.profile.media[static_cast<std::size_t>(medium)];
    const scheduler::MediumLoss& loss = scenario_.profile.loss.media[static_cast<std::size_t>(medium)];
    Way way;
    way.loss_s = loss.extra_tokens_milli / 1e3 * static_cast<double>(model.compute.decode_per_token_ns) / 1e9;
    if (medium == Medium::tokens) {
      way.prefill_s = static_cast<double>(scheduler::prefill_ns(model.compute, job.tokens, 0)) / 1e9;
      way.extra_s = rtt / 2;
      out.ways.push_back(way);
      return;
    }
    if (model.foreign) return;
    const double plain = static_cast<double>(job.tokens) * static_cast<double>(model.layout.token_bytes());
    way.bytes = plain / it.ratio;
    way.extra_s = 1.5 * rtt;
    const double blocks = std::ceil(static_cast<double>(job.tokens) / model.layout.block_tokens);
    const bool coded = scenario_.cluster.codec_takes_time;
    const double sending = way.bytes / static_cast<double>(scenario_.cluster.link_bytes_per_s);
    double longest = sending, others = 0;
    for (const double speed : {it.encode_bytes_per_s, it.decode_bytes_per_s}) {
      if (!coded || speed <= 0) continue;
      longest = std::max(longest, plain / speed);
      others += plain / speed / blocks;
    }
    way.extra_s += longest - sending + others;
    out.ways.push_back(way);
  }

  const Scenario& scenario_;
  const Workload& workload_;
  bool by_receiver_ = false, by_sender_ = false;
};

// ---- with no knowledge of what comes ----

class BestChoice {
 public:
  explicit BestChoice(const Problem& problem)
      : problem_(problem), lanes_(problem.lanes.size()), gpu_free_(problem.gpus, 0), end_(problem.cases.size(), 0) {}
  double mean_s() {
    for (std::size_t i = 0; i < problem_.cases.size(); ++i) arrive(i);
    double sum = 0;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) serve(lane, kInfinite);
    for (std::size_t i = 0; i < problem_.cases.size(); ++i) {
      if (problem_.cases[i].counts) sum += end_[i] - problem_.cases[i].at_s;
    }
    return sum / static_cast<double>(problem_.counted());
  }

 private:
  void arrive(std::size_t index) {
    const Case& it = problem_.cases[index];
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) serve(lane, it.at_s);
    now_ = it.at_s;
    const Way* best = nullptr;
    double least = kInfinite;
    for (const Way& way : it.ways) {
      const double costs = added(it, way);
      if (costs < least) {
        least = costs;
        best = &way;
      }
    }
    end_[index] = best->extra_s + best->loss_s;
    if (best->prefill_s > 0) {
      gpu_free_[it.gpu] = std::max(gpu_free_[it.gpu], now_) + best->prefill_s;
      end_[index] += gpu_free_[it.gpu];
      return;
    }
    auto& queue = lanes_[it.lane];
    const auto longer = [&](const Work& work) { return work.left > best->bytes; };
    queue.insert(std::find_if(queue.begin(), queue.end(), longer), Work{best->bytes, index});
  }
  // Its own latency, and what it adds to those behind it on the lane, each of which waits for all of it.
  [[nodiscard]] double added(const Case& it, const Way& way) const {
    if (way.prefill_s > 0) return std::max(gpu_free_[it.gpu] - now_, 0.0) + way.prefill_s + way.extra_s + way.loss_s;
    double before = 0, sum = way.extra_s + way.loss_s;
    for (const Work& work : lanes_[it.lane]) {
      if (work.left <= way.bytes) {
        before += work.left;
      } else if (problem_.cases[work.of].counts) {
        sum += problem_.lanes[it.lane].end(now_, way.bytes) - now_;
      }
    }
    return sum + problem_.lanes[it.lane].end(now_, before + way.bytes) - now_;
  }
  void serve(std::size_t lane, double until) {
    auto& queue = lanes_[lane];
    double now = now_;
    while (!queue.empty() && now < until) {
      const double end = problem_.lanes[lane].end(now, queue.front().left);
      if (end > until) {
        queue.front().left -= problem_.lanes[lane].bytes(now, until);
        return;
      }
      now = end;
      end_[queue.front().of] += end;
      queue.erase(queue.begin());
    }
  }

  const Problem& problem_;
  std::vector<std::vector<Work>> lanes_;  // shortest first
  std::vector<double> gpu_free_;
  std::vector<double> end_;
  double now_ = 0;
};

// ---- with all of it ----

// Completions of work that is served by what has least left, at any time.
class LeastLeft {
 public:
  // Work in the order of its arrival; returns the sum of completion times of the counted ones.
  double sum(const Problem& problem, const Rate& rate, const std::vector<std::pair<std::size_t, double>>& arrivals) {
    present_.clear();
    double now = 0, total = 0;
    for (std::size_t i = 0; i <= arrivals.size(); ++i) {
      const double until = i < arrivals.size() ? problem.cases[arrivals[i].first].at_s : kInfinite;
      while (!present_.empty() && now < until) {
        const double end = rate.end(now, present_.front().left);
        if (end > until) {
          present_.front().left -= rate.bytes(now, until);
          break;
        }
        now = end;
        if (problem.cases[present_.front().of].counts) total += end;
        present_.erase(present_.begin());
      }
      now = until;
      if (i == arrivals.size()) break;
      const Work work{arrivals[i].second, arrivals[i].first};
      const auto longer = [&](const Work& other) { return other.left > work.left; };
      present_.insert(std::find_if(present_.begin(), present_.end(), longer), work);
    }
    return total;
  }

 private:
  std::vector<Work> present_;
};

class Clairvoyant {
 public:
  explicit Clairvoyant(const Problem& problem) : problem_(problem), chosen_(problem.cases.size(), 0) {}
  double mean_s() {
    double least = kInfinite;
    do {
      least = std::min(least, sum());
    } while (advance());
    return least / static_cast<double>(problem_.counted());
  }

 private:
  bool advance() {
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      if (++chosen_[i] < problem_.cases[i].ways.size()) return true;
      chosen_[i] = 0;
    }
    return false;
  }
  double sum() {
    double total = 0;
    lanes_.assign(problem_.lanes.size(), {});
    gpus_.assign(problem_.gpus, {});
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      const Case& it = problem_.cases[i];
      const Way& way = it.ways[chosen_[i]];
      if (it.counts) total += way.extra_s + way.loss_s - it.at_s;
      if (way.prefill_s > 0) {
        gpus_[it.gpu].emplace_back(i, way.prefill_s);
      } else {
        lanes_[it.lane].emplace_back(i, way.bytes);
      }
    }
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].empty()) total += served_.sum(problem_, problem_.lanes[i], lanes_[i]);
    }
    for (const auto& gpu : gpus_) {
      if (!gpu.empty()) total += served_.sum(problem_, Rate(1), gpu);
    }
    return total;
  }

  const Problem& problem_;
  std::vector<std::size_t> chosen_;
  std::vector<std::vector<std::pair<std::size_t, double>>> lanes_, gpus_;
  LeastLeft served_;
};

}  // namespace

std::optional<Bounds> find_bounds(const Scenario& scenario, const Workload& workload) {
  // What is held already depends on what was decided before.
  if (workload.tasks > 0 || !workload.hashes.empty()) return {};
  const auto splits = std::find(scenario.media.begin(), scenario.media.end(), Medium::split);
  if (splits != scenario.media.end()) return {};
  const auto opaque = static_cast<std::size_t>(
      std::count_if(workload.jobs.begin(), workload.jobs.end(), [](const Job& job) { return job.opaque_bytes > 0; }));
  if (workload.jobs.size() - opaque > kMostContexts || opaque > kMostOpaque) return {};
  const Problem problem = Reducer(scenario, workload).make();
  if (problem.counted() == 0) return {};
  return Bounds{BestChoice(problem).mean_s() * 1e3, Clairvoyant(problem).mean_s() * 1e3};
}

}  // namespace kvrail::simulation
