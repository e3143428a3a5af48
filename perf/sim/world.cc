#include "perf/sim/world.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/keyed_table.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint32_t kMostFlows = 1U << 18;
constexpr std::uint64_t kEndlessPool = std::uint64_t{1} << 60;

}  // namespace

World::World(const Scenario& scenario, const Workload& workload, const Policy& policy)
    : scenario_(scenario), workload_(workload), policy_(policy), loss_(scenario.profile.loss) {
  make_nodes();
  make_lanes();
  reserve();
  agents_.resize(workload.receivers.size());
  open_.resize(workload.jobs.size());
  result_.jobs.resize(workload.jobs.size());
  result_.task_ns.resize(workload.tasks);
}

void World::make_nodes() {
  senders_.resize(workload_.nodes);
  receivers_.resize(workload_.nodes);
  scheduler::ArbiterOptions options;
  options.max_lanes = static_cast<std::uint32_t>(std::max<std::size_t>(workload_.lanes.size(), 1));
  options.max_reservations = options.max_lanes;
  options.max_pools = workload_.nodes;
  options.max_leases = static_cast<std::uint32_t>(std::min<std::size_t>(workload_.jobs.size() + 1, 1U << 22));
  arbiter_ = std::make_unique<scheduler::Arbiter>(options);
  for (std::uint32_t node = 0; node < workload_.nodes; ++node) {
    senders_[node].nic = Link(scenario_.cluster.sender_nic_bytes_per_s);
    receivers_[node].nic = Link(scenario_.cluster.receiver_nic_bytes_per_s);
    receivers_[node].chooser = std::make_unique<scheduler::MediumChooser>(loss_);
    arbiter_->open_pool(node, scenario_.cluster.pool_bytes == 0 ? kEndlessPool : scenario_.cluster.pool_bytes);
  }
}

void World::make_lanes() {
  lanes_.resize(workload_.lanes.size());
  first_lane_.assign(workload_.nodes + 1, static_cast<std::uint32_t>(lanes_.size()));
  std::vector<std::uint32_t> sent(workload_.nodes, 0);
  for (const Job& job : workload_.jobs) ++sent[job.sender];
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.sender = workload_.lanes[i].sender;
    lane.receiver = workload_.lanes[i].receiver;
    lane.index = static_cast<std::uint32_t>(senders_[lane.sender].lanes.size());
    lane.path = workload_.links.empty() ? Link(scenario_.cluster.link_bytes_per_s)
                                        : Link(workload_.links[i % workload_.links.size()]);
    senders_[lane.sender].lanes.push_back(i);
    first_lane_[lane.sender] = std::min(first_lane_[lane.sender], i);
    ReceiverNode& receiver = receivers_[lane.receiver];
    receiver.peers[lane.sender].place = static_cast<std::uint32_t>(receiver.peer_order.size());
    receiver.peer_order.push_back(lane.sender);
  }
  for (ReceiverNode& receiver : receivers_)
    receiver.inflow = std::make_unique<scheduler::Inflow>(static_cast<std::uint32_t>(receiver.peer_order.size()));
  for (std::uint32_t node = 0; node < workload_.nodes; ++node) {
    SenderNode& sender = senders_[node];
    if (sender.lanes.empty()) continue;
    scheduler::SchedulerOptions options;
    options.max_lanes = static_cast<std::uint32_t>(sender.lanes.size());
    options.max_flows = std::min(sent[node] + 1, kMostFlows);
    options.min_chunk_bytes = scenario_.least_chunk_bytes;
    options.max_budgets = options.max_lanes;
    if (policy_.order != Order::scheduled || !policy_.suspends) options.suspend_below_ppm = 0;
    options.max_chunk_bytes = std::max(options.max_chunk_bytes, scenario_.least_chunk_bytes);
    sender.order = std::make_unique<scheduler::Scheduler>(options);
    for (const std::uint32_t lane : sender.lanes)
      sender.order->lane_up(lanes_[lane].index, scenario_.cluster.link_bytes_per_s, 0);
  }
}

// Each lane that carries beats asks for what they take; who is refused goes without.
void World::reserve() {
  const Critical& beat = scenario_.critical;
  if (!beat.reserved || beat.period_ns == 0) return;
  for (std::uint32_t i = 0; i < lanes_.size(); ++i) {
    arbiter_->open_lane(i, 1, 1);
    const scheduler::ReservationAnswer answer =
        arbiter_->reserve({i, beat.period_ns, 0, beat.bytes}, scenario_.cluster.link_bytes_per_s);
    if (!answer.reservation.valid()) {
      ++result_.reservations_refused;
      continue;
    }
    Lane& lane = lanes_[i];
    if (policy_.order == Order::scheduled)
      lane.budget = senders_[lane.sender].order->open_budget({lane.index, beat.period_ns, 0, beat.bytes}, 0);
  }
}

std::uint32_t World::lane_between(std::uint32_t sender, std::uint32_t receiver) const {
  const auto begin = lanes_.begin() + first_lane_[sender];
  const auto end = begin + static_cast<std::ptrdiff_t>(senders_[sender].lanes.size());
  const auto it = std::find_if(begin, end, [receiver](const Lane& lane) { return lane.receiver == receiver; });
  KVRAIL_ASSERT_MSG(it != end, "a transfer between nodes without a lane");
  return static_cast<std::uint32_t>(it - lanes_.begin());
}

// Leading blocks that are held, in tokens.
std::uint64_t World::held_tokens(const Job& job) const {
  const Agent& agent = agents_[job.receiver];
  std::uint64_t blocks = 0;
  while (blocks < job.hash_count && agent.held.contains(workload_.hashes[job.first_hash + blocks])) ++blocks;
  return std::min<std::uint64_t>(blocks * workload_.hash_tokens, job.tokens);
}

void World::note(std::uint64_t what, std::uint64_t value) noexcept {
  result_.trace_hash = scheduler::mix_key(result_.trace_hash ^ scheduler::mix_key(what * 31 + value));
}

void World::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::submit: return submit(event.index);
    case EventKind::offer: return on_offer(event.index);
    case EventKind::accept: return on_accept(event.index);
    case EventKind::ready: return on_ready(event.index);
    case EventKind::at_nic: return on_nic(event.index);
    case EventKind::ack: return on_ack(event.index);
    case EventKind::delivered: return on_delivered(event.index);
    case EventKind::finished: return on_finished(event.index);
    case EventKind::release: return on_release(event.index);
    case EventKind::turn:
      lanes_[event.index].gate.turn_armed = false;
      refresh_gate(event.index);
      return pump(lanes_[event.index].sender);
  }
  KVRAIL_UNREACHABLE();
}

// Jobs without predecessors are in the workload by time, so they need no place in the heap before theirs.
RunResult World::run() {
  std::size_t next = 0;
  const std::vector<Job>& jobs = workload_.jobs;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    open_[i].predecessors = jobs[i].predecessors;
    if (workload_.tasks > 0 && jobs[i].predecessors == 0)
      events_.push(jobs[i].submitted_ns, EventKind::submit, static_cast<std::uint32_t>(i));
  }
  if (workload_.tasks > 0) next = jobs.size();
  while (next < jobs.size() || !events_.empty()) {
    if (next < jobs.size() && (events_.empty() || jobs[next].submitted_ns <= events_.next_ns())) {
      events_.set_now(jobs[next].submitted_ns);
      submit(static_cast<std::uint32_t>(next++));
    } else {
      handle(events_.pop());
    }
  }
  result_.end_ns = std::max<TimeNs>(now(), 1);
  result_.events = events_.count();
  const auto share = [this](TimeNs busy) { return static_cast<double>(busy) / static_cast<double>(result_.end_ns); };
  for (const Lane& lane : lanes_) result_.busiest_lane = std::max(result_.busiest_lane, share(lane.path.busy_ns()));
  for (const ReceiverNode& node : receivers_)
    result_.busiest_lane = std::max(result_.busiest_lane, share(node.nic.busy_ns()));
  for (const Agent& agent : agents_) result_.busiest_gpu = std::max(result_.busiest_gpu, share(agent.gpu_busy_ns));
  if (!lanes_.empty()) {
    const scheduler::LaneEstimate lane = senders_[lanes_[0].sender].order->estimate(0);
    result_.chunk_ns = scheduler::sending_ns(lane.chunk_bytes, scenario_.cluster.link_bytes_per_s);
  }
  return std::move(result_);
}

std::uint32_t World::take_offer() {
  if (free_offers_.empty()) {
    offers_.emplace_back();
    return static_cast<std::uint32_t>(offers_.size() - 1);
  }
  const std::uint32_t index = free_offers_.back();
  free_offers_.pop_back();
  return index;
}

void World::give_offer(std::uint32_t job) {
  if (open_[job].offer == kNone) return;
  free_offers_.push_back(open_[job].offer);
  open_[job].offer = kNone;
}

}  // namespace kvrail::simulation
