// Local agents: attaching, leaving, the events that wait for their rings, and the commands that the
// store answers at once.
#include <algorithm>
#include <utility>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

constexpr std::uint32_t kMaxEventsPerAgent = 4096;   // waiting or promised
constexpr std::uint32_t kEventsPerFlush = 256;
constexpr MediumMask kKnownMedia = (MediumMask{1} << kMediumCount) - 1;

}  // namespace

Result<AttachMemory> Node::Core::prepare(const StoreOptions& options, const AgentInfo& info, bool with_tenant) {
  if (auto valid = codec::validate(info.layout); !valid.ok()) return std::move(valid).error();
  AttachMemory memory;
  if (with_tenant) {
    auto tenant = Store::prepare_tenant(options, info.tenant);
    if (!tenant.ok()) return std::move(tenant).error();
    memory.tenant = std::move(tenant).value();
  }
  const std::uint64_t bytes = info.arena_bytes == 0 ? options.agent_arena_bytes : info.arena_bytes;
  auto agent = Store::prepare_agent(options, info.layout, bytes);
  if (!agent.ok()) return std::move(agent).error();
  memory.agent = std::move(agent).value();
  return memory;
}

Result<AgentHandle> Node::Core::attach(const AgentInfo& info, AttachMemory memory) {
  const AllowAllocScope allow;
  auto handle = try_attach(info, memory);
  // What was not taken is the Conductor's to unmap.
  store_->retire(std::move(memory.tenant));
  store_->retire(std::move(memory.agent));
  return handle;
}

Result<AgentHandle> Node::Core::try_attach(const AgentInfo& info, AttachMemory& memory) {
  if (draining_) return Error{Status{Code::shutting_down, Scope::engine}, "the engine is draining"};
  if (info.role == 0) return Error{Status{Code::invalid_argument}, "an agent's role weight must be at least 1"};
  if ((info.accepted & ~kKnownMedia) != 0) {
    return Error{Status{Code::invalid_argument}, "the accepted media hold a bit that is no medium"};
  }
  // An embedded agent fills the names itself; peers would take a bad one for a broken frame.
  if (auto name = make_name(info.name.view()); !name.ok()) return std::move(name).error();
  if (auto name = make_name(info.tenant.view()); !name.ok()) return std::move(name).error();
  if (auto valid = codec::validate(info.layout); !valid.ok()) return std::move(valid).error();
  const AgentKey key{info.tenant, info.name};
  if (const AgentWhere* known = where(info.tenant, info.name); known != nullptr) {
    return Error{Status{Code::already_exists}, "an agent of that name is attached; choose another name"};
  }
  auto tenant = store_->find_tenant(info.tenant);
  const bool new_tenant = !tenant.valid();
  if (new_tenant) {
    if (memory.tenant == nullptr) {
      return Error{Status{Code::busy, Scope::engine}, "the tenant's first agent is being attached; attach again"};
    }
    auto made = store_->ensure_tenant(info.tenant, std::move(memory.tenant));
    if (!made.ok()) return std::move(made).error();
    tenant = made.value();
  }
  const AgentHandle handle = agents_.try_emplace();
  if (!handle.valid() || directory_.insert(key, AgentWhere{handle, kNoIndex}) == nullptr) {
    if (handle.valid()) agents_.erase(handle);
    return Error{Status{Code::out_of_capacity, Scope::engine}, "no room for another agent; raise max_agents"};
  }
  auto added = store_->add_agent(handle, info.name, tenant, info.layout, std::move(memory.agent));
  if (!added.ok()) {
    directory_.erase(key);
    agents_.erase(handle);
    return std::move(added).error();
  }
  codecs_.make_room(info.layout);
  LocalAgent& agent = *agents_.get(handle);
  agent.info = info;
  agent.tenant = tenant;
  // An AGENT_DOWN still owed for a namesake would undo our AGENT_UP.
  agents_.for_each([&](AgentHandle, LocalAgent& other) {
    if (other.leaving && other.info.name == info.name && other.info.tenant == info.tenant) other.down_pending = 0;
  });
  if (new_tenant) {
    arbiter_.open_pool(tenant.index, store_->memory(tenant).total_bytes);
    register_arena(store_->receive_arena(tenant));
  }
  register_arena(store_->agent_arena(handle));
  peers_.for_each([&](Handle<Peer> peer, Peer& p) {
    if (p.alive) agent.up_pending |= std::uint64_t{1} << peer.index;
  });
  announce_dirty_ = status_dirty_ = true;
  tell_costs();
  return handle;
}

// A transport that can't have the range still works; it then copies, or refuses on its own terms.
void Node::Core::register_arena(std::uint32_t arena_id) {
  const mempool::Arena* arena = store_->arena(arena_id);
  if (arena == nullptr) return;
  for (std::uint32_t t = 0; t < transport_count_; ++t) {
    if (!transports_[t]->caps().registers_memory) continue;
    (void)transports_[t]->register_memory(arena->base(), arena->bytes(), arena->fd()).ok();
  }
}

// A transport must forget a range before other memory can have its address. The store retires an arena
// when no version names it, and a chunk in flight pins its version: so no chunk is concerned.
void Node::Core::unregister_arena(void* core, const mempool::Arena& arena) noexcept {
  const auto& self = *static_cast<const Core*>(core);
  for (std::uint32_t t = 0; t < self.transport_count_; ++t) {
    if (self.transports_[t]->caps().registers_memory) self.transports_[t]->unregister_memory(arena.base());
  }
}

Result<Extent> Node::Core::import_range(AgentHandle handle, StoreMemoryPtr memory) {
  const AllowAllocScope allow;
  if (agent(handle) == nullptr) {
    store_->retire(std::move(memory));
    return Status{Code::not_found};
  }
  auto extent = store_->import_range(handle, std::move(memory));
  if (extent.ok()) register_arena(extent.value().arena);
  return extent;
}

void Node::Core::detach(AgentHandle handle) noexcept {
  LocalAgent* agent = this->agent(handle);
  if (agent == nullptr) return;
  agent->leaving = true;
  directory_.erase(AgentKey{agent->info.tenant, agent->info.name});
  drop_events(*agent);
  drop_open_work(handle);
  if (agent->commit.valid()) --open_commits_;
  agent->commit = CommitHandle{};
  store_->remove_agent(handle);  // its open commit too
  if (store_->lends(handle)) cancel_revoked();
  agent->up_pending = 0;
  peers_.for_each([&](Handle<Peer> peer, Peer& p) {
    if (p.alive) agent->down_pending |= std::uint64_t{1} << peer.index;
  });
  announce_dirty_ = status_dirty_ = true;
}

// What it sent goes on (its committed contexts live on too); what was to come to it ends.
void Node::Core::drop_open_work(AgentHandle handle) noexcept {
  outs_.for_each([&](OutHandle out_handle, Outgoing& out) {
    if (out.from != handle) return;
    out.from = AgentHandle{};
    if (out.state == OutState::summarising && !out.summary_ready && !out.extract.open()) {
      cancel_out(out_handle.index, Status{Code::not_found});
    }
  });
  ins_.for_each([&](InHandle in_handle, Incoming& in) {
    if (in.to == handle) fail_in(in_handle.index, Status{Code::not_found});
  });
  fetches_.for_each([&](Handle<Fetch> fetch_handle, Fetch& fetch) {
    if (fetch.agent == handle) end_fetch(fetch_handle.index, Status{Code::cancelled}, nullptr);
  });
  local_waits_.for_each([&](Handle<LocalWait> summary, LocalWait& open) {
    if (open.request.from == handle || open.request.to == handle) {
      end_local_wait(summary.index, Status{Code::not_found}, VersionHandle{});
    }
  });
  recalls_.for_each([&](Handle<Recall>, Recall& recall) { recall.ended |= recall.agent == handle; });
  desk_->tasks().end_those_of(handle, now_);
  drop_splits_of(handle);
  drop_expected_of(handle);
  drop_reservations_of(handle);
}

// The agent's pages must be read no longer than it takes the chunks in flight to end.
void Node::Core::cancel_revoked() noexcept {
  outs_.for_each([&](OutHandle out_handle, Outgoing& out) {
    if (out.state != OutState::draining && store_->revoked(out.version)) {
      cancel_out(out_handle.index, Status{Code::not_found});
    }
  });
}

LocalAgent* Node::Core::agent(AgentHandle handle) noexcept {
  LocalAgent* agent = agents_.get(handle);
  return agent == nullptr || agent->leaving ? nullptr : agent;
}

// ---- events ----------------------------------------------------------------------------------------

// Every event that may come later is paid for before the command is taken, so a terminal event can't
// be lost for want of room.
bool Node::Core::reserve_events(AgentHandle handle, std::uint32_t count) noexcept {
  LocalAgent* agent = this->agent(handle);
  KVRAIL_ASSERT(agent != nullptr);
  if (agent->events + agent->reserved + count > kMaxEventsPerAgent) return false;
  if (events_used_ + events_reserved_ + count > event_nodes_.size()) return false;
  agent->reserved += count;
  events_reserved_ += count;
  return true;
}

void Node::Core::release_reserved(AgentHandle handle, std::uint32_t count) noexcept {
  LocalAgent* agent = this->agent(handle);
  if (agent == nullptr) return;  // they went back when it left
  KVRAIL_ASSERT(agent->reserved >= count && events_reserved_ >= count);
  agent->reserved -= count;
  events_reserved_ -= count;
}

void Node::Core::push_event(AgentHandle handle, const AgentEvent& event) noexcept {
  LocalAgent* agent = this->agent(handle);
  if (agent == nullptr) return;
  release_reserved(handle, 1);
  status_dirty_ = true;
  // At once, where nothing waits before it: a message need not wait for the rest of the duty cycle.
  if (agent->event_head == kNoIndex && sink_ != nullptr && direct_events_ < kEventsPerFlush) {
    ++direct_events_;
    if (sink_->try_push(handle, event)) return;
  }
  const std::uint32_t node = event_free_;
  KVRAIL_ASSERT(node != kNoIndex);
  event_free_ = event_nodes_[node].next;
  event_nodes_[node] = EventNode{event, kNoIndex};
  (agent->event_tail == kNoIndex ? agent->event_head : event_nodes_[agent->event_tail].next) = node;
  agent->event_tail = node;
  event_agents_.push(handle.index);
  ++agent->events;
  ++events_used_;
}

std::size_t Node::Core::flush_events() noexcept {
  if (sink_ == nullptr) return 0;
  std::size_t pushed = std::exchange(direct_events_, 0);
  for (std::uint32_t n = event_agents_.size(); n > 0 && pushed < kEventsPerFlush; --n) {
    const std::uint32_t index = event_agents_.pop();
    const AgentHandle handle = agents_.handle_at(index);
    if (LocalAgent* agent = this->agent(handle); agent != nullptr) {
      pushed += flush_agent(handle, *agent);
      if (agent->event_head != kNoIndex) event_agents_.push(index);
    }
  }
  return pushed;
}

std::size_t Node::Core::flush_agent(AgentHandle handle, LocalAgent& agent) noexcept {
  std::size_t pushed = 0;
  while (agent.event_head != kNoIndex && pushed < kEventsPerFlush) {
    const std::uint32_t node = agent.event_head;
    if (!sink_->try_push(handle, event_nodes_[node].event)) {
      ++counters_.events_deferred;
      break;
    }
    agent.event_head = event_nodes_[node].next;
    if (agent.event_head == kNoIndex) agent.event_tail = kNoIndex;
    event_nodes_[node].next = event_free_;
    event_free_ = node;
    --agent.events;
    --events_used_;
    ++pushed;
  }
  return pushed;
}

void Node::Core::drop_events(LocalAgent& agent) noexcept {
  while (agent.event_head != kNoIndex) {
    const std::uint32_t node = agent.event_head;
    agent.event_head = event_nodes_[node].next;
    event_nodes_[node].next = event_free_;
    event_free_ = node;
    --events_used_;
  }
  KVRAIL_ASSERT(events_reserved_ >= agent.reserved);
  events_reserved_ -= agent.reserved;
  agent.event_tail = kNoIndex;
  agent.events = agent.reserved = 0;
}

// ---- commands that the store answers ---------------------------------------------------------------

Status Node::Core::allocate(AgentHandle handle, TicketId ticket, std::uint32_t blocks) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  if (ticket == 0 || blocks == 0) return Status{Code::invalid_argument};
  if (!reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  const auto extent = store_->allocate(handle, blocks);
  AgentEvent event;
  event.kind = AgentEventKind::allocated;
  event.ticket = ticket;
  event.status = extent.status();
  if (extent.ok()) event.extent = extent.value();
  push_event(handle, event);
  return Status{};
}

Status Node::Core::commit(AgentHandle handle, TicketId ticket, const Name& name, std::span<const TokenId> tokens,
                          std::span<const Extent> slots, DeliveryHandle prefix, std::uint32_t first_block) noexcept {
  LocalAgent* from = agent(handle);
  if (from == nullptr) return Status{Code::not_found};
  if (ticket == 0) return Status{Code::invalid_argument};
  if (from->commit.valid()) return Status{Code::busy};
  if (tokens.size() > wire::kMaxContextTokens) return Status{Code::too_large};
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  if (!make_name(name.view()).ok()) return Status{Code::invalid_argument};
  if (!reserve_events(handle, 1)) return Status{Code::out_of_capacity};
  const auto open = store_->begin_commit({handle, name, tokens, slots, first_block, prefix});
  if (!open.ok()) {
    push_committed(handle, ticket, open.status());
    return Status{};
  }
  from->commit = open.value();
  from->commit_ticket = ticket;
  ++open_commits_;
  run_commit(handle.index);
  return Status{};
}

// A commit of many blocks takes as many cycles as they want.
void Node::Core::run_commit(std::uint32_t index) noexcept {
  const AgentHandle handle = agents_.handle_at(index);
  LocalAgent* from = agent(handle);
  if (from == nullptr || !from->commit.valid()) return;
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  Steps steps(*this);
  const auto version = store_->advance(from->commit, steps.left);
  if (!version) return want(Kind::commit, index);
  from->commit = CommitHandle{};
  --open_commits_;
  push_committed(handle, from->commit_ticket, *version);
}

void Node::Core::push_committed(AgentHandle handle, TicketId ticket, const Result<VersionHandle>& version) noexcept {
  AgentEvent event;
  event.kind = AgentEventKind::committed;
  event.ticket = ticket;
  event.status = version.status();
  VersionView view;
  if (version.ok() && store_->view(version.value(), view)) {
    event.version = version.value();
    event.version_number = view.number;
    event.manifest = view.manifest;
    ++counters_.commits;
  }
  push_event(handle, event);
}

Status Node::Core::release(AgentHandle handle, DeliveryHandle delivery, std::int64_t recompute_ns) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  drop_split(handle, delivery);
  if (!store_->release(handle, delivery)) return Status{Code::generation_mismatch};
  const OpenDelivery* open = open_deliveries_.find(delivery.packed());
  if (open == nullptr) return Status{};
  const OpenDelivery known = *open;
  open_deliveries_.erase(delivery.packed());
  if (recompute_ns < 0) return Status{};
  if (known.medium == Medium::tokens && known.predicted_ns > 0) {
    chooser_.observe(known.lane, known.medium, known.bytes, known.predicted_ns,
                     add_saturating(known.arrived_ns, recompute_ns));
  }
  explain_recompute(known.serial, recompute_ns);
  return Status{};
}

}  // namespace kvrail::engine
