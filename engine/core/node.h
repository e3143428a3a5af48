// The heart of an engine: composes store, scheduler, codec and transports into the protocol of
// transfers (life of a transfer: transport/wire/messages.h; files of this folder: README).
//
// Thread: one, the scheduler worker; the caller drives it by cycle(). Functions marked Conductor map
// memory or resolve names and may block and allocate; they too are called on the worker's thread,
// by command, outside of cycle().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "codec/profile.h"
#include "engine/core/agent_port.h"
#include "engine/core/status_page.h"
#include "engine/core/tier_port.h"
#include "engine/store/store.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "scheduler/medium_choice.h"
#include "scheduler/scheduler.h"
#include "transport/transport.h"

namespace kvrail::engine {

// Capacities, all taken at creation.
struct NodeLimits {
  std::uint32_t max_out = 2048;           // transfers that this node sends, ended ones drained
  std::uint32_t max_in = 2048;            // transfers that arrive
  std::uint32_t max_peers = 64;           // at most 64
  std::uint32_t max_lanes = 64;
  std::uint32_t max_dials = 64;
  std::uint32_t max_remote_agents = 4096;
  std::uint32_t max_chunks = 1U << 14;    // posted, not completed, over all lanes
  std::uint32_t max_events = 1U << 14;    // waiting for agents, over all agents
  std::uint32_t max_tasks = 1024;
  std::uint32_t max_reservations = 256;
  std::uint32_t max_ended = 1U << 15;     // ids of ended transfers remembered
  std::uint64_t scratch_bytes = 64ULL << 20;  // token ids and piece lists of open transfers
};

struct NodeOptions {
  NodeId node_id = 0;
  Incarnation incarnation = 0;
  NodeLimits limits;
  StoreOptions store;
  scheduler::SchedulerOptions scheduler;     // its slice is the node's slice
  scheduler::DepthLoss loss;                 // what media lose: built in, or of a calibration
  codec::Protection protection;              // blocks that int4 sends as int8; layers are not looked at
  bool integrity = true;                     // digests of every 64 KiB, verified by the receiver
  Medium policy = Medium::automatic;         // automatic: adaptive; else forced on every send
  scheduler::ChoicePolicy choice = scheduler::ChoicePolicy::model;  // of what is adaptive
  // λ that what stays of a lineage keeps (scheduler/cost.h, under_floor); 0: none. Another choice goes before it only where
  // nothing else is possible.
  std::uint32_t lineage_floor_ppm = 900'000;
  bool refresh = true;                       // planes that refine what came with loss are fetched while all is quiet
  std::uint32_t eager_limit_bytes = 16 * 1024;  // 0: never
  std::uint32_t window_tokens = 0;           // 0: the window medium is not offered
  std::uint32_t topk_percent = 50;           // of a context's tokens, 0: topk is not offered
  Medium sparse_values = Medium::full;       // what rows of topk and window are coded as, where they can be
  std::uint32_t summary_tokens = 0;          // of summaries that the engine makes, 0: it makes none
  std::vector<TokenId> summary_separators;   // ascending: where sentences end
  std::uint64_t work_bytes_per_cycle = 512 * 1024;  // digests, encoding, decoding in one cycle
  std::uint64_t work_blocks_per_cycle = 1024;  // steps of commits, look-ups, staging, publication; 0.1 to 0.4 µs each
  TimeNs keepalive_period_ns = 1'000'000'000;
  TimeNs dead_after_ns = 2'500'000'000;      // of silence of a peer
  TimeNs accept_timeout_ns = 30'000'000'000; // OFFER and LATER are repeated that long, or until the deadline
  TimeNs receive_idle_ns = 10'000'000'000;   // a lease on which nothing arrives is taken back
  TimeNs ended_memory_ns = 60'000'000'000;   // how long ids of ended transfers are remembered
  TimeNs first_dial_ns = 50'000'000;         // back-off of connect(), doubled with jitter up to
  TimeNs last_dial_ns = 2'000'000'000;
  std::uint64_t lane_rate_hint_bytes_per_s = 0;  // 0: the scheduler's initial rate
  std::uint64_t first_encode_ns_per_mib = 100'000;  // of coded media, until measured
  std::uint64_t first_decode_ns_per_mib = 100'000;
  // With a tier: when less than the first share of a tenant's receive memory could be had at once, contexts that
  // nobody uses are written to it until the second can.
  std::uint32_t offload_below_ppm = 250'000, offload_until_ppm = 400'000;
  std::span<std::byte> status_page;          // sizeof(StatusPage) zeroed bytes, or empty
  std::span<std::byte> recording;            // what was decided goes there (scheduler/record.h), or empty: nowhere
};

struct AgentInfo {
  Name tenant;
  Name name;
  RoleWeight role = kRoleExecutor;
  Layout layout;
  MediumMask accepted = 0;                   // media that the agent can receive
  Hash128 tokenizer;
  ComputeProfile compute;
  std::uint64_t arena_bytes = 0;             // 0: StoreOptions::agent_arena_bytes
  std::uint64_t summary_bytes = 0;           // 0: the agent makes no summaries
  std::uint64_t summary_ns = 0;              // what one takes it
};

// The agent's arena, and the receive arena of its tenant in case it is the first one.
struct AttachMemory {
  StoreMemoryPtr tenant, agent;
};

class Node final : public AgentCommands {
 public:
  // Conductor. Refuses contradictory options with one line.
  [[nodiscard]] static Result<std::unique_ptr<Node>> create(const NodeOptions& options, Clock& clock);
  ~Node() override;

  // Conductor. The transport outlives the node. Returns its index for connect().
  std::uint32_t add_transport(transport::Transport& transport);
  // Conductor. Dials until a lane is up, and again whenever it is lost.
  [[nodiscard]] Result<void> connect(std::string_view address, std::uint32_t transport_index);
  // Any thread. How the dial stands that connect() began as number `dial`: why the last try failed; ok
  // with detail 1 when there is a lane, with 0 before the first try has ended.
  [[nodiscard]] Status dial_state(std::uint32_t dial) const noexcept;
  // The worker's thread. Puts what the Conductor knows of the `at`-th configured peer on the status page; beyond
  // kStatusDials nothing happens.
  void show_dial(std::uint32_t at, const StatusDial& row) noexcept;

  // Maps the memory that an agent needs, on any thread; attach() on the worker adopts it at once.
  // Without the tenant's arena it is enough for a tenant that has agents here already.
  [[nodiscard]] static Result<AttachMemory> prepare_attach(const StoreOptions& options, const AgentInfo& info,
                                                           bool with_tenant = true);
  [[nodiscard]] Result<AgentHandle> attach(const AgentInfo& info, AttachMemory memory);
  // Conductor. Both in turn.
  [[nodiscard]] Result<AgentHandle> attach(const AgentInfo& info);
  // The agent is gone, in good order or not: its writable memory and deliveries return, what was to
  // come to it ends, what it has sent goes on (its committed contexts stay until their TTL); no event
  // is pushed for it any more.
  void detach(AgentHandle agent) noexcept;
  void set_sink(AgentSink& sink) noexcept;
  // Conductor, at most once, after the last add_transport(). Where blocks go that leave memory. The node touches it in
  // cycle() only; what it still reads and writes is the node's memory, so it ends before the node does.
  void set_tier(TierPort& tier) noexcept;
  // What tasks of that workflow are like, for tenants that don't describe it themselves; before the first cycle(). Refused
  // as AgentCommands::describe_workflow() is.
  [[nodiscard]] Status describe_for_all(const Name& workflow, std::span<const WorkflowStep> steps,
                                        std::span<const WorkflowEdge> edges) noexcept;
  // What the agent's Probe says; idle_until 0: unknown.
  void update_compute(AgentHandle agent, const ComputeProfile& compute, TimeNs backlog_ns,
                      TimeNs idle_until_ns) noexcept;
  // Memory that an agent brought along, used in place (Store::import_range): made on any thread, adopted
  // by the worker at once.
  [[nodiscard]] static Result<StoreMemoryPtr> prepare_import(const StoreOptions& options, const Layout& layout,
                                                             std::byte* base, std::uint64_t bytes, int fd);
  [[nodiscard]] Result<Extent> import_range(AgentHandle agent, StoreMemoryPtr memory);
  // Conductor. Both in turn.
  [[nodiscard]] Result<Extent> import_range(AgentHandle agent, std::byte* base, std::uint64_t bytes, int fd);
  // Any thread: unmaps what the worker needs no more; it never does so itself while somebody else does.
  void free_retired() noexcept;
  [[nodiscard]] std::uint64_t retirements() const noexcept;  // the worker's; grows when there is more to unmap
  // Memory that was prepared and is not needed.
  void retire(StoreMemoryPtr unused) noexcept;
  // Whether pages that a detached agent had brought by address are still read.
  [[nodiscard]] bool lends(AgentHandle agent) const noexcept;

  // One bounded duty cycle; returns the work done, 0 when there was none.
  std::size_t cycle(TimeNs now_ns) noexcept;
  // The next time cycle() must run even without I/O or commands, kNever when nothing waits.
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept;
  // To park: poll() on the fds until one is readable, then cycle. arm() false: there is work.
  [[nodiscard]] std::span<const int> wait_fds() const noexcept;
  [[nodiscard]] bool arm() noexcept;

  // Takes nothing new (Code::shutting_down); transfers in flight go on until `deadline_ns`.
  void drain(TimeNs deadline_ns) noexcept;
  [[nodiscard]] bool drained() const noexcept;   // nothing is open, or the deadline has passed

  // For engine/ipc (arenas, manifests) and tests.
  [[nodiscard]] Store& store() noexcept;
  [[nodiscard]] TenantHandle tenant_of(AgentHandle agent) const noexcept;
  [[nodiscard]] const StatusCounters& counters() const noexcept;
  [[nodiscard]] std::uint32_t open_transfers() const noexcept;   // both directions, being drained too
  [[nodiscard]] bool knows(const Name& tenant, const Name& agent) const noexcept;
  [[nodiscard]] bool peer_up(NodeId peer) const noexcept;
  void check() const noexcept;                   // asserts every conservation rule; slow
  void refresh_status(TimeNs now_ns) noexcept;   // at once, for tests and shutdown

  // AgentCommands
  Status allocate(AgentHandle agent, TicketId ticket, std::uint32_t blocks) noexcept override;
  Status free_blocks(AgentHandle agent, const Extent& extent) noexcept override;
  Status commit(AgentHandle agent, TicketId ticket, const Name& name, std::span<const TokenId> tokens,
                std::span<const Extent> slots, DeliveryHandle prefix, std::uint32_t first_block) noexcept override;
  [[nodiscard]] bool ready(AgentHandle agent) const noexcept override;
  Status send(AgentHandle agent, TicketId ticket, const Name& name, std::uint64_t version,
              std::span<const Name> receivers, const SendOptions& options) noexcept override;
  Status fetch(AgentHandle agent, TicketId ticket, const Name& owner, const Name& context,
               std::uint64_t version, const SendOptions& options) noexcept override;
  Status cancel(AgentHandle agent, TicketId ticket) noexcept override;
  Status release(AgentHandle agent, DeliveryHandle delivery, std::int64_t recompute_ns) noexcept override;
  Status claim(AgentHandle agent, TicketId ticket, DeliveryHandle delivery, std::uint32_t most_tokens) noexcept override;
  Status set_importance(AgentHandle agent, const Name& name, std::uint64_t version, std::uint64_t first,
                        std::span<const float> importance) noexcept override;
  Status drop_context(AgentHandle agent, const Name& name) noexcept override;
  Status will_need(AgentHandle agent, const Name& owner, const Name& context, std::int64_t in_ns,
                   std::uint32_t probability_ppm) noexcept override;
  Status summary(AgentHandle agent, TransferId request, std::uint8_t kind,
                 std::span<const std::byte> bytes) noexcept override;
  Status begin_task(AgentHandle agent, TicketId ticket, const Name& workflow,
                    std::int64_t deadline_ns) noexcept override;
  Status end_task(AgentHandle agent, TaskId task) noexcept override;
  Status describe_workflow(AgentHandle agent, const Name& workflow, std::span<const WorkflowStep> steps,
                           std::span<const WorkflowEdge> edges) noexcept override;
  Status reserve(AgentHandle agent, TicketId ticket, const Name& receiver,
                 const ReservationAsk& ask) noexcept override;
  Status unreserve(AgentHandle agent, ReservationId reservation) noexcept override;

 private:
  class Core;
  explicit Node(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace kvrail::engine
