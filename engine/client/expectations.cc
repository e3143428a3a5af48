// What an agent says beforehand.
#include "engine/client/state.h"

namespace kvrail {

using client::Deadline;
using client::Bytes;
using engine::ipc::Command;
using engine::ipc::SubmitRecord;

Result<void> Agent::will_need(std::string_view owner, std::string_view context, Nanoseconds in, double probability,
                              Nanoseconds timeout) {
  const Result<Name> from = make_name(owner);
  if (!from.ok()) return Error{from.status(), "owner '" + std::string(owner) + "': " + from.error().message};
  const Result<Name> name = make_name(context);
  if (!name.ok()) return Error{name.status(), "context '" + std::string(context) + "': " + name.error().message};
  if (in.count() < 0 || !(probability >= 0 && probability <= 1)) {
    return Error{{Code::invalid_argument}, "a context is needed in a time that is not negative, with a probability of 0 to 1"};
  }
  SubmitRecord record;
  record.command = Command::will_need;
  record.flags = engine::ipc::kFlagAnswer;
  record.name = *name;
  record.b = in.count();
  record.d = static_cast<std::uint32_t>(probability * 1e6);
  const Bytes payload = std::as_bytes(std::span{&*from, 1});
  auto reply = state_->call(record, {&payload, 1}, Deadline(timeout), "cannot expect the context");
  return reply.ok() ? Result<void>() : Result<void>(std::move(reply).error());
}

namespace {

// Its numbers are part of the protocol (docs/ipc.md).
using Fault = scheduler::WorkflowGraph::Fault;

const char* fault_text(Fault fault) {
  switch (fault) {
    case Fault::no_steps: return "a workflow has one step at least";
    case Fault::too_many: return "a workflow has at most 64 steps and 256 hand-overs";
    case Fault::bad_step: return "a hand-over names a step that is not there";
    case Fault::bad_duration: return "a step takes a time that is not negative, and at most a day";
    case Fault::loop: return "the hand-overs lead in a circle; give an agent a step for each of its turns";
    case Fault::none: break;
  }
  return "cannot describe the workflow";
}

}  // namespace

Result<void> Agent::describe_workflow(std::string_view name, const WorkflowDescription& description, Nanoseconds timeout) {
  using engine::ipc::WorkflowEdgeRecord;
  using engine::ipc::WorkflowStepRecord;
  const auto refused = [](Fault fault) {
    return Error{{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(fault)}, fault_text(fault)};
  };
  const Result<Name> workflow = make_name(name);
  if (!workflow.ok()) return Error{workflow.status(), "workflow '" + std::string(name) + "': " + workflow.error().message};
  if (description.steps.empty()) return refused(Fault::no_steps);
  if (description.steps.size() > engine::ipc::kMaxWorkflowSteps ||
      description.hand_overs.size() > engine::ipc::kMaxWorkflowEdges) {
    return refused(Fault::too_many);
  }
  std::vector<WorkflowStepRecord> steps;
  for (const WorkflowDescription::Step& step : description.steps) {
    const Result<Name> agent = make_name(step.agent);
    if (!agent.ok()) return Error{agent.status(), "agent '" + step.agent + "': " + agent.error().message};
    steps.push_back({*agent, step.duration.count()});
  }
  std::vector<WorkflowEdgeRecord> edges;
  for (const WorkflowDescription::HandOver& one : description.hand_overs) {
    if (one.from >= steps.size() || one.to >= steps.size()) return refused(Fault::bad_step);
    edges.push_back({static_cast<std::uint8_t>(one.from), static_cast<std::uint8_t>(one.to)});
  }
  SubmitRecord record;
  record.command = Command::describe_workflow;
  record.flags = engine::ipc::kFlagAnswer;
  record.name = *workflow;
  record.count = static_cast<std::uint32_t>(steps.size());
  const std::array<Bytes, 2> payload{std::as_bytes(std::span{steps}), std::as_bytes(std::span{edges})};
  auto reply = state_->call(record, payload, Deadline(timeout), "cannot describe the workflow");
  if (reply.ok()) return {};
  if (reply.status().code == Code::invalid_argument && reply.status().detail > 0) return refused(static_cast<Fault>(reply.status().detail));
  return std::move(reply).error();
}

}  // namespace kvrail
