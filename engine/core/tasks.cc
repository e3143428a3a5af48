// Tasks: what users wait for. A task's id travels with every transfer that serves it, and what it stands for goes ahead of
// the first one: its workflow and the time it has left. From the workflow's graph comes how critical a hand-over is and by
// when it should be there (scheduler/workflow.h).
#include <algorithm>

#include "engine/core/task_desk.h"

namespace kvrail::engine {

static_assert(wire::kMaxWorkflowSteps == scheduler::WorkflowGraph::kMostSteps &&
              wire::kMaxWorkflowEdges == scheduler::WorkflowGraph::kMostEdges);

Task* Tasks::find(TaskId id) noexcept {
  const std::uint32_t* found = id == 0 ? nullptr : by_id_.find(id);
  return found == nullptr ? nullptr : table_.get(table_.handle_at(*found));
}

Task* Tasks::add(TaskId id, const Name& tenant, const Name& workflow, TimeNs now_ns, TimeNs deadline_ns) noexcept {
  if (!make_room()) return nullptr;
  const Handle<Task> made = table_.try_emplace();
  KVRAIL_ASSERT(by_id_.insert(id, made.index) != nullptr);
  Task& task = *table_.get(made);
  task.id = id;
  task.tenant = tenant;
  task.workflow = workflow;
  task.workflow_key = workflow_key(tenant, workflow);
  task.begun_ns = now_ns;
  task.deadline_ns = deadline_ns;
  return &task;
}

bool Tasks::make_room() noexcept {
  if (!table_.full()) return true;
  Handle<Task> goes;
  const auto sooner = [](const Task& a, const Task& b) {
    if ((a.ended_ns != 0) != (b.ended_ns != 0)) return a.ended_ns != 0;
    return a.ended_ns != b.ended_ns ? a.ended_ns < b.ended_ns : a.begun_ns < b.begun_ns;
  };
  table_.for_each([&](Handle<Task> handle, Task& task) {
    if (task.ended_ns == 0 && !task.from_peer) return;
    if (!goes.valid() || sooner(task, *table_.get(goes))) goes = handle;
  });
  if (!goes.valid()) return false;
  by_id_.erase(table_.get(goes)->id);
  table_.erase(goes);
  return true;
}

void Tasks::count_transfer(TaskId id, std::uint64_t bytes) noexcept {
  Task* task = find(id);
  if (task == nullptr) return;  // none, or nobody said what it is
  ++task->transfers;
  task->bytes += bytes;
}

void Tasks::end_those_of(AgentHandle agent, TimeNs now_ns) noexcept {
  for_each([&](Task& task) {
    if (task.agent == agent && task.ended_ns == 0) task.ended_ns = now_ns;
  });
}

void Tasks::forget_peer(std::uint32_t peer) noexcept {
  for_each([&](Task& task) { task.told &= ~(std::uint64_t{1} << peer); });
}

// ---- what agents say -------------------------------------------------------------------------------

Status Node::Core::TaskDesk::begin(AgentHandle handle, TicketId ticket, const Name& workflow,
                              TimeNs deadline_ns) noexcept {
  LocalAgent* owner = core_.agent(handle);
  if (owner == nullptr) return Status{Code::not_found};
  if (ticket == 0 || deadline_ns < 0) return Status{Code::invalid_argument};
  if (core_.draining_) return Status{Code::shutting_down, Scope::engine};
  if (!core_.reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  // Unique among nodes that talk to each other: the counter in the low half, the life above it.
  const TaskId id = (mix_bits(core_.options_.node_id ^ mix_bits(core_.options_.incarnation)) << 32) | (core_.next_task_++ & 0xffffffffU);
  Task* task = tasks_.add(id, owner->info.tenant, workflow, core_.now_, deadline_ns == 0 ? 0 : add_saturating(core_.now_, deadline_ns));
  if (task == nullptr) {
    core_.release_reserved(handle, 1);
    return Status{Code::out_of_capacity};
  }
  task->agent = handle;
  task->agent_name = owner->info.name;
  AgentEvent event;
  event.kind = AgentEventKind::task;
  event.ticket = ticket;
  event.task = id;
  core_.push_event(handle, event);
  turn_begins(id, handle, nullptr, nullptr);
  return Status{};
}

Status Node::Core::TaskDesk::end(AgentHandle handle, TaskId id) noexcept {
  if (core_.agent(handle) == nullptr) return Status{Code::not_found};
  Task* task = tasks_.find(id);
  if (task == nullptr || task->agent != handle || task->ended_ns != 0) return Status{Code::not_found};
  task->ended_ns = core_.now_;
  core_.status_dirty_ = true;
  return Status{};
}

// What the hand-over means for its task. The deadline ends none of the transfers, as one of their own does: it makes them urgent.
void Node::Core::TaskDesk::weigh_hand_over(Outgoing& out) noexcept {
  const Task* task = tasks_.find(out.task);
  if (task == nullptr || task->ended_ns != 0) return;
  scheduler::HandOver hand_over;
  if (const Workflow* workflow = workflows_.find(task->tenant, task->workflow); workflow != nullptr) {
    hand_over = workflow->graph.hand_over(name_key(out.from_name), name_key(out.to_name));
  }
  out.criticality_milli = static_cast<std::uint16_t>(hand_over.criticality_milli);
  if (task->deadline_ns != 0) out.urgent_by_ns = scheduler::share_of_deadline(hand_over, task->deadline_ns, core_.now_);
}

// ---- what peers are told ---------------------------------------------------------------------------

bool Node::Core::TaskDesk::tell(TaskId id, std::uint32_t peer, std::uint32_t lane) noexcept {
  Task* task = tasks_.find(id);
  const std::uint64_t bit = std::uint64_t{1} << peer;
  if (task == nullptr || task->ended_ns != 0 || (task->told & bit) != 0) return true;
  Workflow* workflow = workflows_.find(task->tenant, task->workflow);
  const bool says_graph = workflow != nullptr && workflow->text.tenant.length() > 0 && (workflow->told & bit) == 0 &&
                          core_.message_limit(*core_.lane_at(lane)) >= wire::kMaxWorkflowBytes;
  if (says_graph) {
    if (!core_.post(lane, workflow->text)) return false;
    workflow->told |= bit;
  }
  const TimeNs remaining = task->deadline_ns == 0 ? 0 : std::max<TimeNs>(task->deadline_ns - core_.now_, 1);
  if (!core_.post(lane, wire::TaskNotice{id, task->tenant, task->workflow, static_cast<std::uint64_t>(remaining)})) return false;
  task->told |= bit;
  return true;
}

void Node::Core::TaskDesk::on_task(std::uint32_t lane, const wire::TaskNotice& message) noexcept {
  const std::uint64_t bit = std::uint64_t{1} << core_.lane_at(lane)->peer;
  if (Task* known = tasks_.find(message.task); known != nullptr) {
    known->told |= bit;
    return;
  }
  const auto remaining = static_cast<TimeNs>(std::min<std::uint64_t>(message.remaining_ns, INT64_MAX / 4));
  Task* task = tasks_.add(message.task, message.tenant, message.workflow, core_.now_, remaining == 0 ? 0 : add_saturating(core_.now_, remaining));
  if (task == nullptr) return;  // its transfers are as those of no task
  task->from_peer = true;
  task->told = bit;
}

void Node::Core::TaskDesk::on_workflow(std::uint32_t lane, const wire::Workflow& message) noexcept {
  // What can't be is nobody's fault but the peer's agents'; its tasks then have no graph here.
  if (!workflows_.describe(message, core_.lane_at(lane)->peer).ok()) ++core_.counters_.workflows_refused;
}

Status Node::Core::TaskDesk::describe(const Name& tenant, const Name& name, std::span<const WorkflowStep> steps,
                                std::span<const WorkflowEdge> edges) noexcept {
  using Fault = scheduler::WorkflowGraph::Fault;
  const auto refused = [](Fault fault) { return Status{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(fault)}; };
  if (steps.size() > wire::kMaxWorkflowSteps || edges.size() > wire::kMaxWorkflowEdges) return refused(Fault::too_many);
  wire::Workflow text;
  text.tenant = tenant;
  text.workflow = name;
  text.step_count = static_cast<std::uint8_t>(steps.size());
  text.edge_count = static_cast<std::uint32_t>(edges.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].duration_ns < 0) return refused(Fault::bad_duration);
    text.steps[i] = {steps[i].agent, static_cast<std::uint64_t>(steps[i].duration_ns)};
  }
  for (std::size_t i = 0; i < edges.size(); ++i) text.edges[i] = {edges[i].from, edges[i].to};
  return workflows_.describe(text, kNoIndex);
}

void Node::Core::TaskDesk::forget_peer(std::uint32_t peer) noexcept {
  tasks_.forget_peer(peer);
  workflows_.forget_peer(peer);
}

}  // namespace kvrail::engine
