// The outside of the node: creation, and the calls that go through to the core.
#include "engine/core/node.h"

#include <algorithm>
#include <new>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr std::size_t kEventsPerPoll = 256;
constexpr std::size_t kActionsPerStep = 64;
constexpr std::uint32_t kMaxFetches = 1024;
constexpr std::uint32_t kMaxLocalWaits = 256;
constexpr std::uint32_t kMaxRestores = 64;
constexpr std::uint32_t kMaxRecalls = 64;
constexpr std::uint32_t kMaxOpenDeliveries = 4096;
constexpr std::uint32_t kMaxBeliefs = 8192;

Error refused(const char* text) { return Error{Status{Code::invalid_argument, Scope::engine}, text}; }

Result<void> validate(const NodeOptions& options) {
  const NodeLimits& limits = options.limits;
  if (options.node_id == 0 || options.incarnation == 0) return refused("node id and incarnation must not be 0");
  if (limits.max_peers == 0 || limits.max_peers > 64) return refused("max_peers must be 1 to 64");
  if (limits.max_lanes == 0 || limits.max_lanes > 64) return refused("max_lanes must be 1 to 64");
  if (limits.max_out == 0 || limits.max_in == 0 || limits.max_chunks == 0 || limits.max_events == 0 ||
      limits.max_ended == 0 || limits.max_tasks == 0 || limits.max_remote_agents == 0 || limits.max_reservations == 0) {
    return refused("every limit of a node must be at least 1");
  }
  if (options.scheduler.max_lanes < limits.max_lanes) return refused("the scheduler's max_lanes is below the node's");
  if (options.scheduler.max_budgets < limits.max_reservations) return refused("the scheduler's max_budgets is below max_reservations");
  if (options.scheduler.slice_ns < kMillisecondNs) return refused("the slice must be at least 1 ms");
  if (options.eager_limit_bytes > wire::kMaxEagerBytes) return refused("eager_limit_bytes must be at most 16384");
  if (options.work_bytes_per_cycle < kDigestUnitBytes) return refused("work_bytes_per_cycle must be at least 65536");
  if (options.lineage_floor_ppm >= 1'000'000) return refused("lineage_floor_ppm must be below 1000000");
  if (options.work_blocks_per_cycle == 0) return refused("work_blocks_per_cycle must be at least 1");
  if (options.keepalive_period_ns <= 0 || options.dead_after_ns < 2 * options.keepalive_period_ns) {
    return refused("dead_after must be at least twice the keepalive period");
  }
  if (std::max(options.protection.first_blocks, options.protection.last_blocks) > codec::kMaxProtectedBlocks) {
    return refused("protection must be of at most 64 blocks at either end");
  }
  if (!options.status_page.empty() && options.status_page.size() < sizeof(StatusPage)) {
    return refused("the memory for the status page is too small");
  }
  return {};
}

// Rows of another model than the basis was calibrated on lose most of what they are: docs/codecs.md. What the profile
// promises is a mean over layers and contexts, which single runs may well exceed.
std::uint32_t lowrank_limit_ppm(const scheduler::DepthLoss& loss) noexcept {
  constexpr std::uint32_t kLeastPpm = 250'000;
  constexpr std::uint32_t kTimesMean = 4;
  std::uint32_t promised = 0;
  for (const scheduler::LossProfile& depth : loss.depths) {
    promised = std::max(promised, std::min(depth.media[static_cast<std::size_t>(Medium::lowrank)].epsilon_ppm, 1'000'000U));
  }
  return std::max(kLeastPpm, kTimesMean * promised);
}

}  // namespace

Node::Core::Core(const NodeOptions& options, Clock& clock, std::unique_ptr<Store> store)
    : options_(options),
      clock_(clock),
      store_(std::move(store)),
      scheduler_(options.scheduler),
      loss_(scheduler::weighed(options.loss)),
      chooser_(loss_),
      arbiter_({options.limits.max_lanes, options.store.max_tenants, options.limits.max_in, options.limits.max_reservations}),
      scratch_(options.limits.scratch_bytes),
      prng_(mix_bits(options.node_id) ^ options.incarnation),
      now_(clock.now_ns()),
      codecs_({options.first_encode_ns_per_mib, options.first_decode_ns_per_mib}, options.store.lowrank.get(),
              lowrank_limit_ppm(options.loss)),
      lineage_most_ppm_(scheduler::most_loss_ppm(options.lineage_floor_ppm)),
      frame_(wire::kMaxMessageBytes),
      eager_(wire::kMaxEagerBytes),
      events_(kEventsPerPoll),
      actions_(kActionsPerStep),
      agents_(options.store.max_agents),
      remotes_(options.limits.max_remote_agents),
      directory_(options.store.max_agents + options.limits.max_remote_agents),
      peers_(options.limits.max_peers),
      lanes_(options.limits.max_lanes),
      lane_ids_(options.limits.max_lanes),
      outs_(options.limits.max_out),
      out_ids_(options.limits.max_out),
      leaders_(options.limits.max_out),
      ins_(options.limits.max_in),
      in_ids_(options.limits.max_in),
      chunks_(options.limits.max_chunks),
      inflow_(options.limits.max_peers),
      ended_(options.limits.max_ended),
      ended_order_(options.limits.max_ended),
      beliefs_(kMaxBeliefs),
      fetches_(kMaxFetches),
      reservations_(options.limits.max_reservations),
      local_waits_(kMaxLocalWaits),
      open_deliveries_(kMaxOpenDeliveries),
      restores_(kMaxRestores),
      recalls_(kMaxRecalls),
      splits_(options.limits.max_in),
      split_of_(options.limits.max_in),
      event_nodes_(options.limits.max_events),
      timers_(entity_count()),
      work_(entity_count()),
      event_agents_(options.store.max_agents) {
  desk_ = std::make_unique<TaskDesk>(*this);
  if (!options.recording.empty()) {
    recorder_.emplace(options.recording, options.scheduler, options.loss);
    scheduler_.record(&*recorder_);
    chooser_.record(&*recorder_);
  }
  dials_.reserve(options.limits.max_dials);
  dial_states_ = std::make_unique<DialState[]>(options.limits.max_dials);
  store_->on_retire(&Core::unregister_arena, this);
  for (std::uint32_t i = 0; i < event_nodes_.size(); ++i) {
    event_nodes_[i].next = i + 1 < event_nodes_.size() ? i + 1 : kNoIndex;
  }
  event_free_ = 0;
  if (options.status_page.empty()) return;
  page_ = new (options.status_page.data()) StatusPage{};
  page_->page_bytes = sizeof(StatusPage);
  page_->data.node = options.node_id;
  page_->data.incarnation = options.incarnation;
  page_->data.started_ns = now_;
  page_->data.policy = static_cast<std::uint8_t>(options.policy);
  page_->magic = kStatusPageMagic;
}

std::uint32_t Node::Core::entity_count() const noexcept { return entity(Kind::local_wait, local_waits_.capacity()); }

std::uint32_t Node::Core::open_transfers() const noexcept {
  return outs_.size() + ins_.size() + fetches_.size() + local_waits_.size() + restores_.size() + recalls_.size();
}

// Every rule of conservation, over all tables.
void Node::Core::check() const noexcept {
  store_->check();
  arbiter_.audit();
  std::uint64_t in_flight = 0;
  std::array<std::uint32_t, 64> open{};
  outs_.for_each([&](OutHandle handle, const Outgoing& out) {
    in_flight += out.chunks_in_flight;
    ++open[out.peer];
    const std::uint32_t* index = out_ids_.find(out.id);
    KVRAIL_ASSERT(index != nullptr && *index == handle.index);
    KVRAIL_ASSERT(out.state == OutState::sending || !out.flow.valid());
  });
  KVRAIL_ASSERT_MSG(in_flight == chunks_.size(), "every chunk belongs to one transfer");
  std::uint32_t leased = 0;
  std::uint64_t leased_bytes = 0;
  std::array<std::uint64_t, 64> announced{};
  ins_.for_each([&](InHandle handle, const Incoming& in) {
    ++open[in.peer];
    if (in.lease_slot == kNoIndex) return;
    ++leased;
    leased_bytes += leases_[in.lease_slot].bytes;
    announced[in.peer] += leases_[in.lease_slot].announced;
    KVRAIL_ASSERT(leases_[in.lease_slot].in == handle);
  });
  peers_.for_each([&](Handle<Peer> handle, const Peer& peer) {
    KVRAIL_ASSERT(peer.open == open[handle.index]);
    KVRAIL_ASSERT(inflow_.left_bytes(handle.index) == announced[handle.index]);
  });
  std::uint32_t free = 0;
  for (std::uint32_t at = lease_free_head_; at != kNoIndex; at = leases_[at].next_free) ++free;
  KVRAIL_ASSERT_MSG(leased + free == leases_.size(), "every lease slot is leased or free");
  KVRAIL_ASSERT(leased_bytes == leased_bytes_);
  std::uint32_t unused = 0;
  for (std::uint32_t at = event_free_; at != kNoIndex; at = event_nodes_[at].next) ++unused;
  KVRAIL_ASSERT_MSG(unused + events_used_ == event_nodes_.size(), "every event node is used or free");
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
  agents_.for_each([&](AgentHandle, const LocalAgent& agent) {
    used += agent.events;
    reserved += agent.reserved;
  });
  KVRAIL_ASSERT(used == events_used_ && reserved == events_reserved_);
  const bool tier_has_none = restores_.empty() && recalls_.empty() && offload_.record.empty();
  if (outs_.empty() && ins_.empty() && tier_has_none) KVRAIL_ASSERT_MSG(scratch_.used() == 0, "scratch memory of ended transfers");
}

// ---- Node ------------------------------------------------------------------------------------------

Result<std::unique_ptr<Node>> Node::create(const NodeOptions& options, Clock& clock) {
  if (auto valid = validate(options); !valid.ok()) return std::move(valid).error();
  auto store = Store::create(options.store, clock);
  if (!store.ok()) return std::move(store).error();
  auto core = std::make_unique<Core>(options, clock, std::move(store).value());
  return std::unique_ptr<Node>(new Node(std::move(core)));
}

Node::Node(std::unique_ptr<Core> core) : core_(std::move(core)) {}
Node::~Node() = default;

std::uint32_t Node::add_transport(transport::Transport& transport) { return core_->add_transport(transport); }
Result<void> Node::connect(std::string_view address, std::uint32_t transport_index) {
  return core_->connect(address, transport_index);
}
Status Node::dial_state(std::uint32_t dial) const noexcept { return core_->dial_state(dial); }
void Node::show_dial(std::uint32_t at, const StatusDial& row) noexcept {
  if (core_->page_ == nullptr || at >= kStatusDials) return;
  StatusPageWrite write(*core_->page_);
  write.data().dials[at] = row;
  write.data().dial_count = std::max(write.data().dial_count, at + 1);
}
Result<AttachMemory> Node::prepare_attach(const StoreOptions& options, const AgentInfo& info, bool with_tenant) {
  return Core::prepare(options, info, with_tenant);
}
Result<AgentHandle> Node::attach(const AgentInfo& info, AttachMemory memory) {
  return core_->attach(info, std::move(memory));
}
Result<AgentHandle> Node::attach(const AgentInfo& info) {
  auto memory = prepare_attach(core_->options_.store, info, !core_->store_->find_tenant(info.tenant).valid());
  if (!memory.ok()) return std::move(memory).error();
  return attach(info, std::move(memory).value());
}
void Node::free_retired() noexcept { (void)core_->store_->take_retired(); }
std::uint64_t Node::retirements() const noexcept { return core_->store_->retirements(); }
void Node::retire(StoreMemoryPtr unused) noexcept { core_->store_->retire(std::move(unused)); }
bool Node::lends(AgentHandle agent) const noexcept { return core_->store_->lends(agent); }
void Node::detach(AgentHandle agent) noexcept { core_->detach(agent); }
void Node::set_tier(TierPort& tier) noexcept {
  core_->tier_ = &tier;
  if (tier.wake_fd() >= 0) core_->wait_fds_[core_->wait_fd_count_++] = tier.wake_fd();
}
void Node::set_sink(AgentSink& sink) noexcept { core_->sink_ = &sink; }

void Node::update_compute(AgentHandle handle, const ComputeProfile& compute, TimeNs backlog_ns,
                          TimeNs idle_until_ns) noexcept {
  LocalAgent* agent = core_->agent(handle);
  if (agent == nullptr) return;
  agent->info.compute = compute;
  agent->compute_backlog_ns = std::max<TimeNs>(backlog_ns, 0);
  agent->idle_until_ns = idle_until_ns;
}

Result<Extent> Node::import_range(AgentHandle agent, std::byte* base, std::uint64_t bytes, int fd) {
  const LocalAgent* known = core_->agent(agent);
  if (known == nullptr) return Status{Code::not_found};
  auto memory = prepare_import(core_->options_.store, known->info.layout, base, bytes, fd);
  if (!memory.ok()) return std::move(memory).error();
  return import_range(agent, std::move(memory).value());
}
Result<StoreMemoryPtr> Node::prepare_import(const StoreOptions& options, const Layout& layout, std::byte* base,
                                            std::uint64_t bytes, int fd) {
  return Store::prepare_import(options, layout, base, bytes, fd);
}
Result<Extent> Node::import_range(AgentHandle agent, StoreMemoryPtr memory) {
  return core_->import_range(agent, std::move(memory));
}

std::size_t Node::cycle(TimeNs now_ns) noexcept { return core_->cycle(now_ns); }
TimeNs Node::next_deadline_ns() const noexcept { return core_->next_deadline(); }
std::span<const int> Node::wait_fds() const noexcept {
  return std::span(core_->wait_fds_).first(core_->wait_fd_count_);
}
bool Node::arm() noexcept { return core_->arm(); }

void Node::drain(TimeNs deadline_ns) noexcept {
  core_->yield_refresh();
  core_->draining_ = core_->status_dirty_ = true;
  core_->drain_deadline_ns_ = deadline_ns;
}
bool Node::drained() const noexcept {
  if (!core_->draining_) return false;
  return (core_->open_transfers() == 0 && core_->events_used_ == 0 && core_->open_commits_ == 0) || core_->now_ >= core_->drain_deadline_ns_;
}

Store& Node::store() noexcept { return *core_->store_; }
TenantHandle Node::tenant_of(AgentHandle handle) const noexcept {
  const LocalAgent* agent = core_->agent(handle);
  return agent == nullptr ? TenantHandle{} : agent->tenant;
}
const StatusCounters& Node::counters() const noexcept { return core_->counters_; }
std::uint32_t Node::open_transfers() const noexcept { return core_->open_transfers(); }
bool Node::knows(const Name& tenant, const Name& agent) const noexcept {
  return core_->where(tenant, agent) != nullptr;
}
bool Node::peer_up(NodeId peer) const noexcept {
  const std::uint32_t index = core_->find_peer(peer);
  return index != kNoIndex && core_->best_lane(index) != kNoIndex;
}
void Node::check() const noexcept { core_->check(); }
void Node::refresh_status(TimeNs now_ns) noexcept {
  core_->now_ = std::max(core_->now_, now_ns);
  core_->next_contexts_ns_ = 0;
  core_->refresh_status();
}

// Commands come between two cycles, so the clock is read anew for them.
Status Node::allocate(AgentHandle agent, TicketId ticket, std::uint32_t blocks) noexcept {
  core_->tick();
  return core_->allocate(agent, ticket, blocks);
}
Status Node::free_blocks(AgentHandle agent, const Extent& extent) noexcept {
  return core_->agent(agent) == nullptr ? Status{Code::not_found} : core_->store_->free_blocks(agent, extent);
}
Status Node::commit(AgentHandle agent, TicketId ticket, const Name& name, std::span<const TokenId> tokens,
                    std::span<const Extent> slots, DeliveryHandle prefix, std::uint32_t first_block) noexcept {
  core_->tick();
  return core_->commit(agent, ticket, name, tokens, slots, prefix, first_block);
}
bool Node::ready(AgentHandle handle) const noexcept {
  const LocalAgent* agent = core_->agent(handle);
  return agent == nullptr || !agent->commit.valid();
}
Status Node::send(AgentHandle agent, TicketId ticket, const Name& name, std::uint64_t version,
                  std::span<const Name> receivers, const SendOptions& options) noexcept {
  core_->tick();
  return core_->send(agent, ticket, name, version, receivers, options);
}
Status Node::fetch(AgentHandle agent, TicketId ticket, const Name& owner, const Name& context,
                   std::uint64_t version, const SendOptions& options) noexcept {
  core_->tick();
  return core_->fetch(agent, ticket, owner, context, version, options);
}
Status Node::cancel(AgentHandle agent, TicketId ticket) noexcept {
  core_->tick();
  return core_->cancel(agent, ticket);
}
Status Node::release(AgentHandle agent, DeliveryHandle delivery, std::int64_t recompute_ns) noexcept {
  core_->tick();
  return core_->release(agent, delivery, recompute_ns);
}
Status Node::claim(AgentHandle agent, TicketId ticket, DeliveryHandle delivery, std::uint32_t most_tokens) noexcept {
  core_->tick();
  return core_->claim(agent, ticket, delivery, most_tokens);
}
Status Node::set_importance(AgentHandle agent, const Name& name, std::uint64_t version, std::uint64_t first,
                            std::span<const float> importance) noexcept {
  core_->tick();
  if (core_->agent(agent) == nullptr) return Status{Code::not_found};
  return core_->store_->set_importance(agent, name, version, first, importance);
}
Status Node::will_need(AgentHandle agent, const Name& owner, const Name& context, std::int64_t in_ns,
                       std::uint32_t probability_ppm) noexcept {
  core_->tick();
  return core_->will_need(agent, owner, context, in_ns, probability_ppm);
}
Status Node::drop_context(AgentHandle agent, const Name& name) noexcept {
  if (core_->agent(agent) == nullptr) return Status{Code::not_found};
  core_->store_->drop_context(agent, name);
  return Status{};
}
Status Node::summary(AgentHandle agent, TransferId request, std::uint8_t kind,
                     std::span<const std::byte> bytes) noexcept {
  core_->tick();
  return core_->summary(agent, request, kind, bytes);
}
Status Node::begin_task(AgentHandle agent, TicketId ticket, const Name& workflow,
                        std::int64_t deadline_ns) noexcept {
  core_->tick();
  return core_->desk_->begin(agent, ticket, workflow, deadline_ns);
}
Status Node::end_task(AgentHandle agent, TaskId task) noexcept {
  core_->tick();
  return core_->desk_->end(agent, task);
}
Status Node::describe_for_all(const Name& workflow, std::span<const WorkflowStep> steps,
                              std::span<const WorkflowEdge> edges) noexcept {
  return core_->desk_->describe(Name{}, workflow, steps, edges);
}
Status Node::describe_workflow(AgentHandle agent, const Name& workflow, std::span<const WorkflowStep> steps,
                               std::span<const WorkflowEdge> edges) noexcept {
  const LocalAgent* owner = core_->agent(agent);
  return owner == nullptr ? Status{Code::not_found} : core_->desk_->describe(owner->info.tenant, workflow, steps, edges);
}
Status Node::reserve(AgentHandle agent, TicketId ticket, const Name& receiver, const ReservationAsk& ask) noexcept {
  core_->tick();
  return core_->reserve(agent, ticket, receiver, ask);
}
Status Node::unreserve(AgentHandle agent, ReservationId reservation) noexcept {
  core_->tick();
  return core_->unreserve(agent, reservation);
}

}  // namespace kvrail::engine
