// The seam between an agent (in another process over shared-memory rings, or embedded) and the
// core of the engine: commands in, events out. engine/ipc validates everything that comes from
// shared memory BEFORE it becomes a Command; the core may rely on what is said here.
// Thread: the scheduler worker.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kvrail/base/handle.h"
#include "kvrail/base/status.h"
#include "kvrail/types.h"

namespace kvrail::engine {

struct AgentTag;
struct VersionTag;
struct DeliveryTag;
using AgentHandle = Handle<AgentTag>;        // a local agent
using VersionHandle = Handle<VersionTag>;    // one version of a context in this node's store
using DeliveryHandle = Handle<DeliveryTag>;  // a version (or summary) handed to a local agent
using ReservationId = std::uint16_t;          // chosen by the node, unique within it, never 0
using TicketId = std::uint64_t;              // chosen by the agent, unique within it, never 0

// A run of `count` block slots at `offset` in the arena `arena`, slots block_bytes apart.
struct Extent {
  std::uint32_t arena = 0;
  std::uint32_t count = 0;
  std::uint64_t offset = 0;
};

struct SendOptions {
  TaskId task = 0;
  std::int64_t deadline_ns = 0;      // from submit; 0 = none
  std::uint32_t fidelity_floor_ppm = 0;
  Medium medium = Medium::automatic;
  bool critical = false;
  bool background = false;
  ReservationId reservation = 0;     // of the sender, for one of the receivers; 0: none
};

// What an agent asks to be set aside for what it sends to one receiver: bytes each period, periods starting offset after
// its multiples of the clock.
struct ReservationAsk {
  std::int64_t period_ns = 0;
  std::int64_t offset_ns = 0;
  std::uint64_t bytes = 0;
};

// Of a workflow: what one agent does in it, and which step hands over to which.
struct WorkflowStep {
  Name agent;
  std::int64_t duration_ns = 0;      // 0: not known
};
struct WorkflowEdge {
  std::uint8_t from = 0, to = 0;     // indices of steps
};

// Where a delivered context lies: its manifest (engine/core/manifest.h), readable by the agent.
struct ManifestRef {
  std::uint32_t arena = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

enum class AgentEventKind : std::uint8_t {
  allocated,         // ticket, status, extent
  committed,         // ticket, status, version_number, version handle
  sent,              // ticket, receiver index, status: terminal, once per receiver
  delivery,          // a context arrived: delivery, manifest, medium, ids
  fetched,           // ticket, status; a delivery event came before when ok
  summary_request,   // request id, version handle: the agent answers with a summary command
  task,              // ticket, task id
  imported,          // ticket, status, extent
  claimed,           // ticket, status; extent: first token and tokens to compute; or with a delivery: the tail is there
  reserved,          // ticket, status, reservation; figures in bytes/s: needed, available, half of the lane
  reservation_ended, // reservation, status: why; it was not the agent that released it
};

struct AgentEvent {
  AgentEventKind kind = AgentEventKind::delivery;
  Medium medium = Medium::tokens;
  bool critical = false;
  std::uint16_t receiver = 0;        // index in the receiver list of the send
  Status status;
  TicketId ticket = 0;
  TaskId task = 0;
  TransferId transfer = 0;
  Extent extent;
  VersionHandle version;
  std::uint64_t version_number = 0;
  DeliveryHandle delivery;
  ManifestRef manifest;
  std::uint64_t bytes = 0;           // payload bytes moved
  std::uint64_t missing_blocks = 0;  // blocks that were not held before
  std::int64_t predicted_ns = 0;
  std::int64_t observed_ns = 0;
  ReservationId reservation = 0;
  std::array<std::uint64_t, 3> figures{};
};

// Implemented by engine/ipc. try_push false: the agent's completion ring is full; the core keeps
// the event in its own bounded queue and tries again in the next duty cycle.
class AgentSink {
 public:
  AgentSink() = default;
  AgentSink(const AgentSink&) = delete;
  AgentSink& operator=(const AgentSink&) = delete;
  virtual ~AgentSink() = default;
  [[nodiscard]] virtual bool try_push(AgentHandle agent, const AgentEvent& event) noexcept = 0;
};

// Implemented by engine/core (Node). Calls answer at once with a Status; anything later comes as an
// event with the ticket. On a status that is not ok no event follows.
class AgentCommands {
 public:
  AgentCommands() = default;
  AgentCommands(const AgentCommands&) = delete;
  AgentCommands& operator=(const AgentCommands&) = delete;
  virtual ~AgentCommands() = default;

  virtual Status allocate(AgentHandle agent, TicketId ticket, std::uint32_t blocks) noexcept = 0;
  virtual Status free_blocks(AgentHandle agent, const Extent& extent) noexcept = 0;
  // Makes a new immutable version of the agent's context `name`. `slots` are block slots of the
  // agent (writable, or the blocks of the version before); tokens.size() decides how many rows of
  // the last slot are valid. Both spans are copied before the call returns. `prefix`: the version
  // on whose (perhaps lossy) blocks this one was computed; its ε is inherited. Invalid: none.
  // The first slot is for block `first_block`; those before are the prefix's, or without one those of
  // the context's version before.
  virtual Status commit(AgentHandle agent, TicketId ticket, const Name& name,
                        std::span<const TokenId> tokens, std::span<const Extent> slots,
                        DeliveryHandle prefix, std::uint32_t first_block) noexcept = 0;
  // False while a command of the agent takes more than one duty cycle: its next ones wait.
  [[nodiscard]] virtual bool ready(AgentHandle /*agent*/) const noexcept { return true; }
  // Version 0 means the newest version of the agent's own context `name`, which may also be one
  // that was delivered to it (forwarding).
  virtual Status send(AgentHandle agent, TicketId ticket, const Name& name, std::uint64_t version,
                      std::span<const Name> receivers, const SendOptions& options) noexcept = 0;
  virtual Status fetch(AgentHandle agent, TicketId ticket, const Name& owner, const Name& context,
                       std::uint64_t version, const SendOptions& options) noexcept = 0;
  virtual Status cancel(AgentHandle agent, TicketId ticket) noexcept = 0;
  // The agent is through with a delivery; recompute_ns tells what a tokens delivery cost it.
  virtual Status release(AgentHandle agent, DeliveryHandle delivery,
                         std::int64_t recompute_ns) noexcept = 0;
  // Of a delivery of the medium split: the next tokens for the agent to compute, at most so many, a block at least.
  // When there are none left the event comes with the delivery of what the network has brought.
  virtual Status claim(AgentHandle agent, TicketId ticket, DeliveryHandle delivery,
                       std::uint32_t most_tokens) noexcept = 0;
  // What the tokens from `first` on mean, in a version that the agent has committed (0: its newest). NaN: least.
  virtual Status set_importance(AgentHandle agent, const Name& name, std::uint64_t version, std::uint64_t first,
                                std::span<const float> importance) noexcept = 0;
  virtual Status drop_context(AgentHandle agent, const Name& name) noexcept = 0;
  // The agent will ask for that context in so long, with that probability (0: not any more).
  virtual Status will_need(AgentHandle agent, const Name& owner, const Name& context, std::int64_t in_ns,
                           std::uint32_t probability_ppm) noexcept = 0;
  // No bytes: the agent has no summary to give, and the transfer ends with Code::rejected.
  virtual Status summary(AgentHandle agent, TransferId request, std::uint8_t kind,
                         std::span<const std::byte> bytes) noexcept = 0;
  virtual Status begin_task(AgentHandle agent, TicketId ticket, const Name& workflow,
                            std::int64_t deadline_ns) noexcept = 0;
  virtual Status end_task(AgentHandle agent, TaskId task) noexcept = 0;
  // In place of an earlier description of that name. Status detail: the scheduler::WorkflowGraph::Fault.
  virtual Status describe_workflow(AgentHandle agent, const Name& workflow, std::span<const WorkflowStep> steps,
                                   std::span<const WorkflowEdge> edges) noexcept = 0;
  // A refusal comes as an event too, for its figures.
  virtual Status reserve(AgentHandle agent, TicketId ticket, const Name& receiver,
                         const ReservationAsk& ask) noexcept = 0;
  virtual Status unreserve(AgentHandle agent, ReservationId reservation) noexcept = 0;
};

}  // namespace kvrail::engine
