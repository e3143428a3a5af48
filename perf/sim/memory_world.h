// The nodes of memory_run.h: memory, the way back from the offload tier, and the agents' turns.
#pragma once

#include <deque>
#include <memory>
#include <queue>
#include <vector>

#include "perf/sim/memory_run.h"
#include "scheduler/prefetch.h"
#include "scheduler/transitions.h"
#include "scheduler/value.h"

namespace kvrail::simulation {

// Drawn once, whatever the memory does.
struct MemoryTask {
  std::uint32_t session = 0, graph = 0;
  TimeNs pause_ns = 0;  // since the end of the session's task before
  std::vector<bool> takes_part;     // of the graph's agents
  std::vector<bool> taken;          // of its edges
  std::vector<TimeNs> think_ns;     // of its agents
  std::vector<TimeNs> transfer_ns;  // of its edges
};
struct MemoryLoad {
  std::vector<MemoryTask> tasks;
  std::vector<std::uint32_t> first_agent;    // of each graph
  std::uint32_t agents = 0;
  std::vector<std::uint64_t> context_bytes;  // of each session, of each agent
};
[[nodiscard]] MemoryLoad draw_memory_load(const Scenario& scenario, const std::vector<AgentGraph>& graphs, std::uint64_t seed);

class MemoryWorld {
 public:
  MemoryWorld(const Scenario& scenario, const std::vector<AgentGraph>& graphs, const MemoryLoad& load, bool prefetch);
  [[nodiscard]] MemoryFigures run();

 private:
  enum class Kind : std::uint8_t { announce, begin, input, turn_end, restored, plan };
  struct Event {
    TimeNs at_ns = 0;
    std::uint64_t serial = 0;
    Kind kind = Kind::begin;
    std::uint32_t a = 0, b = 0;
    std::uint64_t token = 0;
    [[nodiscard]] bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : serial > other.serial;
    }
  };
  struct Turn {
    std::uint32_t task = 0, member = 0;  // of its graph
    std::uint32_t inputs = 0;            // that have not come
    TimeNs began_ns = 0, wanted_ns = 0;
  };
  struct Agent {
    std::uint32_t node = 0;
    std::deque<std::uint32_t> waiting;  // turns
    bool busy = false;
  };
  struct Context {
    bool in_use = false;  // by its agent, which may be waiting for it
    bool resident = false, restoring = false;
    scheduler::PrefetchPlan::Id plan;  // where a prefetch brought or brings it
  };
  struct Restore {
    std::uint32_t context = 0;
    TimeNs needed_ns = 0;  // 0: demanded
    TimeNs left_ns = 0;
  };
  struct Node {
    std::uint64_t capacity = 0, used = 0;
    std::unique_ptr<scheduler::ValueIndex> index;  // handles are contexts
    std::unique_ptr<scheduler::PrefetchPlan> plan;
    std::deque<std::uint32_t> demands;             // contexts that wait for room
    std::deque<Restore> restores;                  // the front one is under way
    TimeNs since_ns = 0;                           // when it was taken up
    std::uint64_t token = 0;                       // of its end
  };

  void push(TimeNs at_ns, Kind kind, std::uint32_t a, std::uint32_t b = 0, std::uint64_t token = 0);
  void handle(const Event& event);
  [[nodiscard]] std::uint32_t agent_of(const Turn& turn) const;
  [[nodiscard]] std::uint32_t context_of(const Turn& turn) const;
  [[nodiscard]] std::uint32_t node_of(std::uint32_t context) const { return agents_[context % load_.agents].node; }
  [[nodiscard]] TimeNs restore_ns(std::uint32_t context) const;
  [[nodiscard]] TimeNs announce_ns() const { return static_cast<TimeNs>(scenario_.memory.announce_s * 1e9); }
  [[nodiscard]] scheduler::EntryCost cost_of(std::uint32_t context) const;
  void schedule(std::uint32_t task);
  void announce(std::uint32_t task);
  void begin_task(std::uint32_t task);
  void input(std::uint32_t turn);
  void next_turn(std::uint32_t agent);
  void begin_turn(std::uint32_t agent);
  void end_turn(std::uint32_t turn);
  void learn(const Turn& turn);
  void foresee(const Turn& turn);
  void expect(std::uint32_t context, std::uint32_t probability_ppm, TimeNs when_ns, TimeNs spread_ns);
  void serve_demands(std::uint32_t node);
  void start_prefetches(std::uint32_t node);
  [[nodiscard]] bool make_room(Node& node, std::uint64_t bytes, const scheduler::PrefetchPlan::Id* prefetch);
  void queue_restore(std::uint32_t node, const Restore& restore);
  void stop_restore(std::uint32_t node, std::uint32_t context);
  void put_aside(Node& node);
  void take_up(std::uint32_t node);
  void restored(std::uint32_t node);
  void keep_foreseen(Node& node, std::uint32_t context);

  const Scenario& scenario_;
  const std::vector<AgentGraph>& graphs_;
  const MemoryLoad& load_;
  bool prefetch_;
  TimeNs now_ns_ = 0;
  std::uint64_t serial_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Turn> turns_;
  std::vector<std::uint32_t> first_turn_;  // of each task
  std::vector<Agent> agents_;
  std::vector<Context> contexts_;
  std::vector<Node> nodes_;
  scheduler::Transitions transitions_;
  struct TaskState {
    TimeNs begun_ns = 0, ended_ns = 0;
    std::uint32_t open_turns = 0, last_turn = 0;
  };
  std::vector<TaskState> tasks_;
  TimeNs exposed_ns_ = 0;
  MemoryFigures figures_;
};

}  // namespace kvrail::simulation
