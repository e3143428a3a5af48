#include "perf/sim/memory_world.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "scheduler/exp_table.h"
#include "scheduler/keyed_table.h"

namespace kvrail::simulation {
namespace {

constexpr std::uint32_t kSteps = 2;  // hand-overs ahead that are foreseen
constexpr std::uint32_t kAnnouncedPpm = 950'000;
constexpr std::uint32_t kPlanned = 256;
constexpr std::uint64_t kEveryone = 0;  // a context is its own agent's, so hints need no agent

}  // namespace

MemoryWorld::MemoryWorld(const Scenario& scenario, const std::vector<AgentGraph>& graphs, const MemoryLoad& load,
                         bool prefetch)
    : scenario_(scenario),
      graphs_(graphs),
      load_(load),
      prefetch_(prefetch),
      agents_(load.agents),
      contexts_(load.context_bytes.size()),
      nodes_(std::max(scenario.cluster.receiver_nodes, 1U)),
      transitions_(static_cast<std::uint32_t>(4 * load.agents + 64)),
      tasks_(load.tasks.size()) {
  std::vector<std::uint64_t> largest(nodes_.size(), 0);
  for (std::uint32_t i = 0; i < agents_.size(); ++i) agents_[i].node = i % static_cast<std::uint32_t>(nodes_.size());
  for (std::uint32_t i = 0; i < contexts_.size(); ++i) {
    nodes_[node_of(i)].capacity += load.context_bytes[i];
    largest[node_of(i)] = std::max(largest[node_of(i)], load.context_bytes[i]);
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    // The largest must fit, or its agent waits for ever.
    node.capacity = std::max(static_cast<std::uint64_t>(static_cast<double>(node.capacity) * scenario.memory.fraction),
                             largest[i]);
    const auto contexts = static_cast<std::uint32_t>(contexts_.size());
    node.index = std::make_unique<scheduler::ValueIndex>(
        scheduler::ValueIndex::Config{.entries = contexts, .hints = contexts, .known_keys = 1U << 12});
    node.plan = std::make_unique<scheduler::PrefetchPlan>(kPlanned);
  }
  for (std::uint32_t task = 0; task < load.tasks.size(); ++task) {
    first_turn_.push_back(static_cast<std::uint32_t>(turns_.size()));
    for (std::uint32_t member = 0; member < graphs[load.tasks[task].graph].agents.size(); ++member)
      turns_.push_back({.task = task, .member = member});
    if (task < scenario.memory.sessions) schedule(task);
  }
}

void MemoryWorld::push(TimeNs at_ns, Kind kind, std::uint32_t a, std::uint32_t b, std::uint64_t token) {
  events_.push(Event{at_ns, serial_++, kind, a, b, token});
}

std::uint32_t MemoryWorld::agent_of(const Turn& turn) const {
  return load_.first_agent[load_.tasks[turn.task].graph] + turn.member;
}
std::uint32_t MemoryWorld::context_of(const Turn& turn) const {
  return load_.tasks[turn.task].session * load_.agents + agent_of(turn);
}
TimeNs MemoryWorld::restore_ns(std::uint32_t context) const {
  return scheduler::sending_ns(load_.context_bytes[context], scenario_.memory.restore_bytes_per_s);
}
scheduler::EntryCost MemoryWorld::cost_of(std::uint32_t context) const {
  return {.bytes = load_.context_bytes[context], .restore_ns = restore_ns(context), .hit_ns = 0};
}

void MemoryWorld::handle(const Event& event) {
  switch (event.kind) {
    case Kind::announce: return announce(event.a);
    case Kind::begin: return begin_task(event.a);
    case Kind::input: return input(event.a);
    case Kind::turn_end: return end_turn(event.a);
    case Kind::restored:
      if (event.token == nodes_[event.a].token) restored(event.a);
      return;
    case Kind::plan: return start_prefetches(event.a);
  }
  KVRAIL_UNREACHABLE();
}

// --- turns

void MemoryWorld::schedule(std::uint32_t task) {
  const TimeNs begins_ns = now_ns_ + load_.tasks[task].pause_ns;
  if (prefetch_) push(std::max(now_ns_, begins_ns - announce_ns()), Kind::announce, task);
  push(begins_ns, Kind::begin, task);
}

// will_need() of who begins the task: a user is typing, a job was taken from a queue.
void MemoryWorld::announce(std::uint32_t task) {
  const MemoryTask& it = load_.tasks[task];
  const AgentGraph& graph = graphs_[it.graph];
  std::vector<bool> begins = it.takes_part;
  for (std::size_t i = 0; i < graph.edges.size(); ++i)
    if (it.taken[i]) begins[graph.edges[i].second] = false;
  for (std::uint32_t member = 0; member < begins.size(); ++member)
    if (begins[member])
      expect(context_of(turns_[first_turn_[task] + member]), kAnnouncedPpm, now_ns_ + announce_ns(), 0);
}

void MemoryWorld::begin_task(std::uint32_t task) {
  const MemoryTask& it = load_.tasks[task];
  const AgentGraph& graph = graphs_[it.graph];
  tasks_[task].begun_ns = now_ns_;
  tasks_[task].open_turns = static_cast<std::uint32_t>(std::count(it.takes_part.begin(), it.takes_part.end(), true));
  for (std::size_t i = 0; i < graph.edges.size(); ++i)
    if (it.taken[i]) ++turns_[first_turn_[task] + graph.edges[i].second].inputs;
  for (std::uint32_t member = 0; member < graph.agents.size(); ++member) {
    Turn& turn = turns_[first_turn_[task] + member];
    if (!it.takes_part[member] || turn.inputs > 0) continue;
    turn.inputs = 1;
    input(first_turn_[task] + member);
  }
}

void MemoryWorld::input(std::uint32_t turn) {
  if (--turns_[turn].inputs > 0) return;
  const std::uint32_t agent = agent_of(turns_[turn]);
  agents_[agent].waiting.push_back(turn);
  if (!agents_[agent].busy) next_turn(agent);
}

// The context is needed from here on.
void MemoryWorld::next_turn(std::uint32_t agent) {
  Agent& own = agents_[agent];
  Node& node = nodes_[own.node];
  Turn& turn = turns_[own.waiting.front()];
  const std::uint32_t context = context_of(turn);
  Context& it = contexts_[context];
  own.busy = it.in_use = true;
  turn.wanted_ns = now_ns_;
  ++figures_.turns;
  static_cast<void>(node.plan->used(kEveryone, context));
  it.plan = {};
  if (it.resident) return begin_turn(agent);
  ++figures_.waited;
  if (!it.restoring) {
    node.demands.push_back(context);
    return serve_demands(own.node);
  }
  // A prefetch that is late: before all others now.
  put_aside(node);
  const auto is_own = [context](const Restore& restore) { return restore.context == context; };
  const auto place = std::find_if(node.restores.begin(), node.restores.end(), is_own);
  const Restore restore{context, 0, place->left_ns};
  node.restores.erase(place);
  queue_restore(own.node, restore);
}

void MemoryWorld::begin_turn(std::uint32_t agent) {
  Agent& own = agents_[agent];
  Node& node = nodes_[own.node];
  const std::uint32_t number = own.waiting.front();
  Turn& turn = turns_[number];
  own.waiting.pop_front();
  turn.began_ns = now_ns_;
  exposed_ns_ += now_ns_ - turn.wanted_ns;
  node.index->touch(context_of(turn), scheduler::Use{.continues = true}, now_ns_);
  node.index->pin(context_of(turn));
  learn(turn);
  if (prefetch_) foresee(turn);
  push(now_ns_ + load_.tasks[turn.task].think_ns[turn.member], Kind::turn_end, number);
}

void MemoryWorld::end_turn(std::uint32_t number) {
  const Turn& turn = turns_[number];
  const MemoryTask& task = load_.tasks[turn.task];
  const AgentGraph& graph = graphs_[task.graph];
  for (std::size_t i = 0; i < graph.edges.size(); ++i)
    if (task.taken[i] && graph.edges[i].first == turn.member)
      push(now_ns_ + task.transfer_ns[i], Kind::input, first_turn_[turn.task] + graph.edges[i].second);
  TaskState& state = tasks_[turn.task];
  state.last_turn = number;
  if (--state.open_turns == 0) {
    state.ended_ns = now_ns_;
    const std::uint32_t next = turn.task + scenario_.memory.sessions;
    if (next < tasks_.size()) schedule(next);
  }
  const std::uint32_t agent = agent_of(turn);
  Agent& own = agents_[agent];
  const std::uint32_t context = context_of(turn);
  nodes_[own.node].index->unpin(context, now_ns_);
  contexts_[context].in_use = false;
  own.busy = false;
  if (!own.waiting.empty()) next_turn(agent);
  serve_demands(own.node);
  if (prefetch_) start_prefetches(own.node);
}

// --- what is known of the future

void MemoryWorld::learn(const Turn& turn) {
  const MemoryTask& task = load_.tasks[turn.task];
  const AgentGraph& graph = graphs_[task.graph];
  const std::uint32_t first = load_.first_agent[task.graph];
  transitions_.began(task.graph, first + turn.member);
  const auto follows = [&](const Turn& from) {
    transitions_.followed(task.graph, first + from.member, first + turn.member, turn.wanted_ns - from.began_ns);
  };
  bool led_to = false;
  for (std::size_t i = 0; i < graph.edges.size(); ++i) {
    if (!task.taken[i] || graph.edges[i].second != turn.member) continue;
    follows(turns_[first_turn_[turn.task] + graph.edges[i].first]);
    led_to = true;
  }
  // Who begins a task comes after who ended the one before.
  if (!led_to && turn.task >= scenario_.memory.sessions) follows(turns_[tasks_[turn.task - scenario_.memory.sessions].last_turn]);
}

void MemoryWorld::foresee(const Turn& turn) {
  scheduler::Transitions::Predicted room;
  for (const scheduler::NextTurn& next :
       transitions_.predict(load_.tasks[turn.task].graph, agent_of(turn), kSteps, room)) {
    expect(load_.tasks[turn.task].session * load_.agents + static_cast<std::uint32_t>(next.agent), next.probability_ppm,
           now_ns_ + std::max<TimeNs>(next.after_ns - next.spread_ns, 0), next.spread_ns);
  }
}

void MemoryWorld::expect(std::uint32_t context, std::uint32_t probability_ppm, TimeNs when_ns, TimeNs spread_ns) {
  const Context& it = contexts_[context];
  const std::uint32_t number = node_of(context);
  Node& node = nodes_[number];
  if (it.in_use) return;
  if (it.resident) static_cast<void>(node.index->hint(context, probability_ppm, when_ns, now_ns_, spread_ns));
  if (it.resident && it.plan == scheduler::PrefetchPlan::Id{}) return;
  static_cast<void>(node.plan->expect(
      {kEveryone, context, probability_ppm, when_ns, restore_ns(context), load_.context_bytes[context], spread_ns}, now_ns_));
  push(std::max(now_ns_, when_ns - restore_ns(context) * 5 / 4), Kind::plan, number);
}

void MemoryWorld::start_prefetches(std::uint32_t number) {
  Node& node = nodes_[number];
  while (const auto over = node.plan->expire(now_ns_)) {
    const auto context = static_cast<std::uint32_t>(over->hint.context);
    contexts_[context].plan = {};
    if (over->step != scheduler::PrefetchPlan::Step::running) continue;
    stop_restore(number, context);
    serve_demands(number);
  }
  if (!node.demands.empty()) return;  // they come first
  for (;;) {
    scheduler::PrefetchPlan::Room room{.free_bytes = node.capacity - node.used};
    if (const auto victim = node.index->victim(now_ns_)) room.next_victim = node.index->value(*victim);
    const auto item = node.plan->next(now_ns_, room);
    if (!item) return;
    const auto context = static_cast<std::uint32_t>(item->hint.context);
    if (!make_room(node, item->hint.bytes, &item->id)) {
      node.plan->lost(item->id);
      continue;
    }
    contexts_[context].plan = item->id;
    contexts_[context].restoring = true;
    node.used += item->hint.bytes;
    put_aside(node);
    queue_restore(number, {context, std::max<TimeNs>(item->hint.when_ns, 1), restore_ns(context)});
  }
}

// --- memory and its way back

bool MemoryWorld::make_room(Node& node, std::uint64_t bytes, const scheduler::PrefetchPlan::Id* prefetch) {
  while (node.used + bytes > node.capacity) {
    const auto victim = node.index->victim(now_ns_);
    if (!victim) return false;
    if (prefetch != nullptr && !node.plan->may_displace(*prefetch, node.index->value(*victim), now_ns_)) return false;
    node.index->remove(*victim);
    node.used -= load_.context_bytes[*victim];
    contexts_[*victim].resident = false;
    node.plan->lost(contexts_[*victim].plan);
    contexts_[*victim].plan = {};
  }
  return true;
}

void MemoryWorld::serve_demands(std::uint32_t number) {
  Node& node = nodes_[number];
  while (!node.demands.empty()) {
    const std::uint32_t context = node.demands.front();
    if (!make_room(node, load_.context_bytes[context], nullptr)) {
      // What comes for later gives its place up.
      if (node.restores.empty() || node.restores.back().needed_ns == 0) return;
      const std::uint32_t later = node.restores.back().context;
      node.plan->lost(contexts_[later].plan);
      contexts_[later].plan = {};
      stop_restore(number, later);
      continue;
    }
    node.demands.pop_front();
    contexts_[context].restoring = true;
    node.used += load_.context_bytes[context];
    put_aside(node);
    queue_restore(number, {context, 0, restore_ns(context)});
  }
}

// What is demanded goes first, then what is needed next. The one under way was put aside.
void MemoryWorld::queue_restore(std::uint32_t number, const Restore& restore) {
  auto& restores = nodes_[number].restores;
  const auto later = [](const Restore& a, const Restore& b) { return a.needed_ns < b.needed_ns; };
  restores.insert(std::upper_bound(restores.begin(), restores.end(), restore, later), restore);
  take_up(number);
}

void MemoryWorld::stop_restore(std::uint32_t number, std::uint32_t context) {
  Node& node = nodes_[number];
  put_aside(node);
  std::erase_if(node.restores, [context](const Restore& it) { return it.context == context; });
  contexts_[context].restoring = false;
  node.used -= load_.context_bytes[context];
  take_up(number);
}

// What is under way stops where it is; its rest goes on when it is taken up again.
void MemoryWorld::put_aside(Node& node) {
  if (!node.restores.empty()) node.restores.front().left_ns -= now_ns_ - node.since_ns;
  node.since_ns = now_ns_;
  ++node.token;
}
void MemoryWorld::take_up(std::uint32_t number) {
  Node& node = nodes_[number];
  node.since_ns = now_ns_;
  node.token++;
  if (!node.restores.empty())
    push(now_ns_ + std::max<TimeNs>(node.restores.front().left_ns, 0), Kind::restored, number, 0, node.token);
}

void MemoryWorld::restored(std::uint32_t number) {
  Node& node = nodes_[number];
  const std::uint32_t context = node.restores.front().context;
  node.restores.pop_front();
  Context& it = contexts_[context];
  it.restoring = false;
  it.resident = true;
  figures_.restored_bytes += load_.context_bytes[context];
  node.index->insert(context, scheduler::mix_key(context), cost_of(context), scheduler::Use{.continues = true}, now_ns_);
  if (it.plan != scheduler::PrefetchPlan::Id{}) keep_foreseen(node, context);
  take_up(number);
  if (it.in_use) begin_turn(context % load_.agents);
  serve_demands(number);
}

// What came before its use is kept by its hint.
void MemoryWorld::keep_foreseen(Node& node, std::uint32_t context) {
  node.plan->arrived(contexts_[context].plan);
  if (const auto* const hint = node.plan->hint_of(contexts_[context].plan))
    static_cast<void>(node.index->hint(context, hint->probability_ppm, hint->when_ns, now_ns_, hint->spread_ns));
}

MemoryFigures MemoryWorld::run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    handle(event);
  }
  std::uint64_t wasted = 0;
  for (Node& node : nodes_) {
    // What still lies there was for nothing.
    for (std::uint32_t i = 0; i < contexts_.size(); ++i) static_cast<void>(node.plan->cancel(kEveryone, i));
    const auto& counters = node.plan->counters();
    figures_.prefetched_bytes += counters.started_bytes;
    figures_.late += counters.late;
    wasted += counters.wasted_bytes;
  }
  double total_ms = 0;
  for (const TaskState& task : tasks_) total_ms += static_cast<double>(task.ended_ns - task.begun_ns) / 1e6;
  figures_.task_mean_ms = total_ms / static_cast<double>(std::max<std::size_t>(tasks_.size(), 1));
  figures_.restore_exposed_ms =
      static_cast<double>(exposed_ns_) / 1e6 / static_cast<double>(std::max<std::uint64_t>(figures_.turns, 1));
  if (figures_.prefetched_bytes > 0)
    figures_.prefetch_wasted = static_cast<double>(wasted) / static_cast<double>(figures_.prefetched_bytes);
  return figures_;
}

}  // namespace kvrail::simulation
