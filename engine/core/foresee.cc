// Whose turn comes next in a task, and what it will want: learned from earlier tasks of the workflow (turns.h), or read from
// its graph. For an agent of this node its contexts are expected (prefetch.cc); the node of another one is told.
#include <algorithm>

#include "engine/core/task_desk.h"

namespace kvrail::engine {

void Node::Core::TaskDesk::turn_begins(TaskId id, AgentHandle handle, const Name* owner, const Name* context) noexcept {
  const Task* task = tasks_.find(id);
  const LocalAgent* whose = core_.agent(handle);
  if (task == nullptr || whose == nullptr) return;
  const bool begins = turns_.began(id, task->workflow_key, whose->info.name, core_.now_);
  if (context != nullptr) {
    turns_.used(task->workflow_key, whose->info.name, *owner, *context);
    core_.note_used(handle, whose->tenant, *owner, *context);
  }
  if (begins) foresee(*task, whose->info.name);
}

void Node::Core::TaskDesk::turn_leads(TaskId id, AgentHandle handle, std::span<const Name> receivers, const Name& owner,
                                      const Name& context) noexcept {
  const Task* task = tasks_.find(id);
  if (task == nullptr) return;
  const Name& from = core_.agent(handle)->info.name;
  for (const Name& to : receivers) turns_.led(id, task->workflow_key, from, to, core_.now_);
  turns_.used(task->workflow_key, from, owner, context);
}

void Node::Core::TaskDesk::turn_uses(TaskId id, AgentHandle handle, const Name& owner, const Name& context) noexcept {
  if (const Task* task = tasks_.find(id); task != nullptr) {
    turns_.used(task->workflow_key, core_.agent(handle)->info.name, owner, context);
  }
}

void Node::Core::TaskDesk::foresee(const Task& task, const Name& whose) noexcept {
  const Workflow* workflow = workflows_.find(task.tenant, task.workflow);
  Turns::Room room;
  for (const Turns::Next& next : turns_.next(task.workflow_key, whose, workflow == nullptr ? nullptr : &workflow->text, room)) {
    if (next.probability_ppm < scheduler::PrefetchPlan::kLeastProbabilityPpm) continue;
    const AgentWhere* place = core_.where(task.tenant, next.agent);
    if (place == nullptr) continue;
    if (place->local.valid()) {
      expect(place->local, task.workflow_key, next);
      continue;
    }
    const std::uint32_t lane = core_.best_lane(core_.remotes_.get(core_.remotes_.handle_at(place->remote))->peer);
    // A lane without room has more urgent things to carry.
    const wire::TurnNotice notice{task.tenant, task.workflow, next.agent, static_cast<std::uint64_t>(next.in_ns),
                                  static_cast<std::uint64_t>(next.spread_ns), next.probability_ppm};
    if (lane != kNoIndex && core_.post(lane, notice)) ++core_.counters_.turns_told;
  }
}

void Node::Core::TaskDesk::on_turn(std::uint32_t /*lane*/, const wire::TurnNotice& message) noexcept {
  const AgentWhere* place = core_.where(message.tenant, message.agent);
  if (place == nullptr || !place->local.valid()) return;
  const auto bounded = [](std::uint64_t ns) { return static_cast<TimeNs>(std::min<std::uint64_t>(ns, INT64_MAX / 4)); };
  expect(place->local, workflow_key(message.tenant, message.workflow),
              {message.agent, bounded(message.in_ns), bounded(message.spread_ns), message.probability_ppm});
}

void Node::Core::TaskDesk::expect(AgentHandle handle, std::uint64_t workflow, const Turns::Next& turn) noexcept {
  const LocalAgent* whose = core_.agent(handle);
  if (whose == nullptr) return;
  ++core_.counters_.turns_expected;
  for (const Turns::Used& used : turns_.used_by(workflow, turn.agent)) {
    const Hint hint{used.owner, used.context, turn.in_ns, turn.spread_ns, turn.probability_ppm, true};
    static_cast<void>(core_.expect_use(handle, *whose, hint));  // what is not known here, or finds no room, comes when it is asked for
  }
}

}  // namespace kvrail::engine
