// The tasks that this node knows: begun by its agents, or said by peers whose transfers serve them. Fixed memory: the one that
// ended first makes room, then the oldest of those begun elsewhere, since nobody says here when those end.
//
// Private to engine/core. Thread: the scheduler worker.
#pragma once

#include <cstdint>

#include "engine/core/agent_port.h"
#include "engine/core/flat_map.h"
#include "kvrail/base/time.h"

namespace kvrail::engine {

struct Task {
  TaskId id = 0;
  AgentHandle agent;                  // who began it; none if that was on another node
  Name tenant, workflow, agent_name;
  std::uint64_t workflow_key = 0;     // as Turns knows it
  TimeNs begun_ns = 0, ended_ns = 0, deadline_ns = 0;
  std::uint64_t transfers = 0, bytes = 0;
  std::uint64_t told = 0;             // peers (bit per index) that know what it is
  bool from_peer = false;
};

class Tasks {
 public:
  explicit Tasks(std::uint32_t capacity) : table_(capacity), by_id_(capacity) {}

  [[nodiscard]] Task* find(TaskId id) noexcept;
  // An id that is not known. nullptr: all are open, and begun here.
  [[nodiscard]] Task* add(TaskId id, const Name& tenant, const Name& workflow, TimeNs now_ns, TimeNs deadline_ns) noexcept;
  void count_transfer(TaskId id, std::uint64_t bytes) noexcept;
  void end_those_of(AgentHandle agent, TimeNs now_ns) noexcept;
  void forget_peer(std::uint32_t peer) noexcept;
  template <class F>
  void for_each(F&& f) {
    table_.for_each([&](Handle<Task>, Task& task) { f(task); });
  }

 private:
  [[nodiscard]] bool make_room() noexcept;

  SlotTable<Task> table_;
  FlatMap<TaskId, std::uint32_t, WordHash> by_id_;
};

}  // namespace kvrail::engine
