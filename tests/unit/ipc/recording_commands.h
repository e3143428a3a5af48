// An AgentCommands that writes down what it is asked, for the tests of parsing.
#pragma once

#include <string>
#include <vector>

#include "engine/core/agent_port.h"

namespace kvrail::engine::ipc::test {

struct Call {
  std::string what;
  AgentHandle agent;
  TicketId ticket = 0;
  std::string name;
  std::vector<TokenId> tokens;
  std::vector<Extent> extents;
  std::vector<std::string> names;
  SendOptions options;
  std::uint64_t number = 0;
  std::int64_t time_ns = 0;
  std::vector<std::byte> bytes;
};

class RecordingCommands final : public AgentCommands {
 public:
  std::vector<Call> calls;
  Status answer;  // what every call returns
  bool accepts = true;
  [[nodiscard]] bool ready(AgentHandle) const noexcept override { return accepts; }

  Status allocate(AgentHandle agent, TicketId ticket, std::uint32_t blocks) noexcept override {
    Call& call = add("allocate", agent, ticket);
    call.number = blocks;
    return answer;
  }
  Status free_blocks(AgentHandle agent, const Extent& extent) noexcept override {
    add("free_blocks", agent, 0).extents.push_back(extent);
    return answer;
  }
  Status commit(AgentHandle agent, TicketId ticket, const Name& name, std::span<const TokenId> tokens,
                std::span<const Extent> slots, DeliveryHandle prefix, std::uint32_t first_block) noexcept override {
    Call& call = add("commit", agent, ticket);
    call.name = name.view();
    call.tokens.assign(tokens.begin(), tokens.end());
    call.extents.assign(slots.begin(), slots.end());
    call.number = prefix.packed();
    call.time_ns = first_block;
    return answer;
  }
  Status send(AgentHandle agent, TicketId ticket, const Name& name, std::uint64_t version,
              std::span<const Name> receivers, const SendOptions& options) noexcept override {
    Call& call = add("send", agent, ticket);
    call.name = name.view();
    call.number = version;
    for (const Name& receiver : receivers) call.names.emplace_back(receiver.view());
    call.options = options;
    return answer;
  }
  Status fetch(AgentHandle agent, TicketId ticket, const Name& owner, const Name& context, std::uint64_t version,
               const SendOptions& options) noexcept override {
    Call& call = add("fetch", agent, ticket);
    call.name = context.view();
    call.names.emplace_back(owner.view());
    call.number = version;
    call.options = options;
    return answer;
  }
  Status cancel(AgentHandle agent, TicketId ticket) noexcept override {
    add("cancel", agent, ticket);
    return answer;
  }
  Status release(AgentHandle agent, DeliveryHandle delivery, std::int64_t recompute_ns) noexcept override {
    Call& call = add("release", agent, 0);
    call.number = delivery.packed();
    call.time_ns = recompute_ns;
    return answer;
  }
  Status claim(AgentHandle agent, TicketId ticket, DeliveryHandle delivery, std::uint32_t most_tokens) noexcept override {
    Call& call = add("claim", agent, ticket);
    call.number = delivery.packed();
    call.time_ns = most_tokens;
    return answer;
  }
  Status will_need(AgentHandle agent, const Name& owner, const Name& context, std::int64_t in_ns,
                   std::uint32_t probability_ppm) noexcept override {
    Call& call = add("will_need", agent, 0);
    call.name = context.view();
    call.names.emplace_back(owner.view());
    call.time_ns = in_ns;
    call.number = probability_ppm;
    return answer;
  }
  Status drop_context(AgentHandle agent, const Name& name) noexcept override {
    add("drop_context", agent, 0).name = name.view();
    return answer;
  }
  Status set_importance(AgentHandle agent, const Name& name, std::uint64_t version, std::uint64_t first,
                        std::span<const float> importance) noexcept override {
    Call& call = add("set_importance", agent, 0);
    call.name = name.view();
    call.number = version;
    call.time_ns = static_cast<std::int64_t>(first);
    const auto bytes = std::as_bytes(importance);
    call.bytes.assign(bytes.begin(), bytes.end());
    return answer;
  }
  Status summary(AgentHandle agent, TransferId request, std::uint8_t kind,
                 std::span<const std::byte> bytes) noexcept override {
    Call& call = add("summary", agent, 0);
    call.number = request;
    call.time_ns = kind;
    call.bytes.assign(bytes.begin(), bytes.end());
    return answer;
  }
  Status describe_workflow(AgentHandle agent, const Name& workflow, std::span<const WorkflowStep> steps,
                           std::span<const WorkflowEdge> edges) noexcept override {
    Call& call = add("describe_workflow", agent, 0);
    call.name = workflow.view();
    for (const WorkflowStep& step : steps) call.names.emplace_back(step.agent.view());
    call.number = edges.size();
    return answer;
  }
  Status begin_task(AgentHandle agent, TicketId ticket, const Name& workflow, std::int64_t deadline_ns) noexcept override {
    Call& call = add("begin_task", agent, ticket);
    call.name = workflow.view();
    call.time_ns = deadline_ns;
    return answer;
  }
  Status end_task(AgentHandle agent, TaskId task) noexcept override {
    add("end_task", agent, 0).number = task;
    return answer;
  }
  Status reserve(AgentHandle agent, TicketId ticket, const Name& receiver, const ReservationAsk& ask) noexcept override {
    Call& call = add("reserve", agent, ticket);
    call.name = receiver.view();
    call.number = ask.bytes;
    call.time_ns = ask.period_ns + ask.offset_ns;
    return answer;
  }
  Status unreserve(AgentHandle agent, ReservationId reservation) noexcept override {
    add("unreserve", agent, 0).number = reservation;
    return answer;
  }

 private:
  Call& add(const char* what, AgentHandle agent, TicketId ticket) {
    Call call;
    call.what = what;
    call.agent = agent;
    call.ticket = ticket;
    return calls.emplace_back(std::move(call));
  }
};

}  // namespace kvrail::engine::ipc::test
