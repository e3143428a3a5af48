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
    tasks_.erase(oldest);
  }
  Task& task = *tasks_.get(tasks_.try_emplace());
  // Unique among nodes that talk to each other: the counter in the low half, the life above it.
  task.id = (mix_bits(options_.node_id ^ mix_bits(options_.incarnation)) << 32) | (next_task_++ & 0xffffffffU);
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
  Status status{Code::not_found};
  tasks_.for_each([&](Handle<Task>, Task& task) {
    if (task.id != id || task.agent != handle || task.ended_ns != 0) return;
    task.ended_ns = now_;
    status = Status{};
  });
  status_dirty_ = true;
  return status;
}

void Node::Core::note_task(TaskId id, std::uint64_t bytes) noexcept {
  if (id == 0) return;
  tasks_.for_each([&](Handle<Task>, Task& task) {
    if (task.id != id) return;
    ++task.transfers;
    task.bytes += bytes;
  });
}

}  // namespace kvrail::engine
