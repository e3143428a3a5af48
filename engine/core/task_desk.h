// Tasks as a node deals with them: what agents and peers say of them goes in here, what a hand-over means for its task and
// whose turn comes next comes out. tasks.cc has the first, foresee.cc the second.
//
// Private to engine/core. Thread: the scheduler worker.
#pragma once

#include "engine/core/node_core.h"
#include "engine/core/tasks.h"
#include "engine/core/turns.h"
#include "engine/core/workflows.h"

namespace kvrail::engine {

class Node::Core::TaskDesk {
 public:
  explicit TaskDesk(Core& core) : core_(core), tasks_(core.options_.limits.max_tasks) {}

  // tasks.cc
  Status begin(AgentHandle agent, TicketId ticket, const Name& workflow, TimeNs deadline_ns) noexcept;
  Status end(AgentHandle agent, TaskId task) noexcept;
  // An empty tenant: all of them.
  Status describe(const Name& tenant, const Name& workflow, std::span<const WorkflowStep> steps,
                  std::span<const WorkflowEdge> edges) noexcept;
  void weigh_hand_over(Outgoing& out) noexcept;
  // False: the lane has no room now. What the peer has been told it is not told again.
  [[nodiscard]] bool tell(TaskId task, std::uint32_t peer, std::uint32_t lane) noexcept;
  void on_task(std::uint32_t lane, const wire::TaskNotice& message) noexcept;
  void on_workflow(std::uint32_t lane, const wire::Workflow& message) noexcept;
  void forget_peer(std::uint32_t peer) noexcept;
  [[nodiscard]] Tasks& tasks() noexcept { return tasks_; }

  // foresee.cc
  // A context was delivered to the agent, in its task if there is one; nullptr: it began the task itself.
  void turn_begins(TaskId task, AgentHandle agent, const Name* owner, const Name* context) noexcept;
  void turn_leads(TaskId task, AgentHandle agent, std::span<const Name> receivers, const Name& owner,
                  const Name& context) noexcept;
  void turn_uses(TaskId task, AgentHandle agent, const Name& owner, const Name& context) noexcept;
  void on_turn(std::uint32_t lane, const wire::TurnNotice& message) noexcept;

 private:
  void foresee(const Task& task, const Name& whose) noexcept;
  void expect(AgentHandle agent, std::uint64_t workflow, const Turns::Next& turn) noexcept;

  Core& core_;
  Tasks tasks_;
  Workflows workflows_;
  Turns turns_;
};

}  // namespace kvrail::engine
