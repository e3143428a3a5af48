// Tasks: what users wait for. A task's id travels with every transfer that serves it.
#include "engine/core/node_core.h"

namespace kvrail::engine {

Status Node::Core::begin_task(AgentHandle handle, TicketId ticket, const Name& workflow,
                              TimeNs deadline_ns) noexcept {
  LocalAgent* owner = agent(handle);
  if (owner == nullptr) return Status{Code::not_found};
  if (ticket == 0 || deadline_ns < 0) return Status{Code::invalid_argument};
  if (draining_) return Status{Code::shutting_down, Scope::engine};
  if (!reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  if (tasks_.full()) {  // the oldest ended one makes room
    Handle<Task> oldest;
    tasks_.for_each([&](Handle<Task> h, Task& task) {
      if (task.ended_ns == 0) return;
      if (!oldest.valid() || task.ended_ns < tasks_.get(oldest)->ended_ns) oldest = h;
    });
    if (!oldest.valid()) {
      release_reserved(handle, 1);
      return Status{Code::out_of_capacity};
    }
    task_of_.erase(tasks_.get(oldest)->id);
    tasks_.erase(oldest);
  }
  const Handle<Task> made = tasks_.try_emplace();
  Task& task = *tasks_.get(made);
  // Unique among nodes that talk to each other: the counter in the low half, the life above it.
  task.id = (mix_bits(options_.node_id ^ mix_bits(options_.incarnation)) << 32) | (next_task_++ & 0xffffffffU);
  KVRAIL_ASSERT(task_of_.insert(task.id, made.index) != nullptr);
  task.agent = handle;
  task.workflow = workflow;
  task.agent_name = owner->info.name;
  task.begun_ns = now_;
  task.deadline_ns = deadline_ns == 0 ? 0 : add_saturating(now_, deadline_ns);
  AgentEvent event;
  event.kind = AgentEventKind::task;
  event.ticket = ticket;
  event.task = task.id;
  push_event(handle, event);
  return Status{};
}

Status Node::Core::end_task(AgentHandle handle, TaskId id) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  const std::uint32_t* found = task_of_.find(id);
  Task* task = found == nullptr ? nullptr : tasks_.get(tasks_.handle_at(*found));
  if (task == nullptr || task->agent != handle || task->ended_ns != 0) return Status{Code::not_found};
  task->ended_ns = now_;
  status_dirty_ = true;
  return Status{};
}

void Node::Core::note_task(TaskId id, std::uint64_t bytes) noexcept {
  const std::uint32_t* found = task_of_.find(id);
  if (found == nullptr) return;  // none, or begun on another node
  Task& task = *must(tasks_.get(tasks_.handle_at(*found)));
  ++task.transfers;
  task.bytes += bytes;
}

// 0: none. What a task's transfers are urgent by; they do not end with it, as with a deadline of their own.
TimeNs Node::Core::task_deadline(TaskId id) const noexcept {
  const std::uint32_t* found = task_of_.find(id);
  if (found == nullptr) return 0;
  const Task& task = *must(tasks_.get(tasks_.handle_at(*found)));
  return task.ended_ns == 0 ? task.deadline_ns : 0;
}

}  // namespace kvrail::engine
