// What the node shows of itself: a row per ended transfer with the costs that were weighed, and the
// tables of agents, lanes, peers and tasks, refreshed at most once per slice.
#include <algorithm>
#include <cstring>
#include <new>

#include "engine/core/node_core.h"
#include "engine/core/task_desk.h"

namespace kvrail::engine {
namespace {

void copy_text(const char* from, std::span<char> to) noexcept {
  const std::size_t length = std::min(std::strlen(from), to.size() - 1);
  std::memcpy(to.data(), from, length);
  to[length] = '\0';
}

StatusCostLine to_row(const scheduler::CostLine& line, bool chosen) noexcept {
  StatusCostLine row;
  row.medium = line.medium;
  row.allowed = line.allowed ? 1 : 0;
  row.chosen = chosen ? 1 : 0;
  row.bytes = line.bytes;
  row.wait_ns = line.wait_ns;
  row.encode_ns = line.encode_ns;
  row.transmit_ns = line.transmit_ns;
  row.decode_ns = line.decode_ns;
  row.recompute_ns = line.recompute_ns;
  row.loss_ns = line.loss_ns;
  row.price_ns = line.price_ns;
  row.total_ns = line.total_ns;
  row.cost_ns = line.cost_ns;
  copy_text(line.why_not, row.why_not);
  return row;
}

}  // namespace

void Node::Core::count_row() noexcept {
  ++rows_;
  status_dirty_ = true;
}

void Node::Core::add_row(const StatusTransfer& row) noexcept {
  count_row();
  if (page_ == nullptr) return;
  StatusPageWrite write(*page_);
  StatusTransfer& slot = write.data().transfers[rows_ % kStatusTransfers];
  slot = row;
  slot.serial = rows_;
  slot.ended_ns = now_;
  write.data().transfer_count = rows_;
}

void Node::Core::explain_out(const Outgoing& out, std::uint64_t bytes, TimeNs observed_ns) noexcept {
  StatusTransfer row;
  row.transfer = out.id;
  row.origin_node = options_.node_id;
  row.peer_node = peer_at(out.peer).id;
  row.task = out.task;
  row.tenant = out.tenant;
  row.from = out.from_name;
  row.to = out.to_name;
  row.context = out.context;
  row.version = out.version_number;
  row.direction = StatusDirection::out;
  row.medium = out.medium;
  row.wish = out.wish;
  row.critical = out.critical;
  row.background = out.background;
  row.eager = out.eager_posted && !out.eager_failed;
  row.resumed = out.resumed;
  if (const OpenReservation* const it = reservations_.get(out.reservation)) row.reservation = it->id;
  VersionView view;
  if (store_->view(out.version, view)) {
    row.total_tokens = view.tokens.size();
    row.total_blocks = (view.tokens.size() + view.layout.block_tokens - 1) / view.layout.block_tokens;
    row.epsilon_ppm = view.epsilon_ppm;
  }
  row.missing_blocks = out.missing_blocks;
  row.bytes = bytes;
  row.submitted_ns = out.submitted_ns;
  row.predicted_ns = static_cast<std::int64_t>(out.predicted_ns);
  row.observed_ns = observed_ns;
  row.level = out.level;
  row.urgency_milli = out.urgency_milli;
  row.suspensions = out.suspensions;
  row.status = out.status;
  if (out.candidate_count == 0 && *out.why_none != '\0') {  // nobody else knows why
    row.line_count = 1;
    row.reason = static_cast<std::uint8_t>(scheduler::PickReason::none_allowed);
    row.lines[0].medium = out.wish;
    copy_text(out.why_none, row.lines[0].why_not);
  }
  add_row(row);
}

void Node::Core::explain_in(const Incoming& in) noexcept {
  StatusTransfer row;
  row.transfer = in.id;
  row.origin_node = row.peer_node = peer_at(in.peer).id;
  row.task = in.task;
  row.tenant = in.tenant;
  row.from = in.from_name;
  row.to = in.to_name;
  row.context = in.context;
  row.version = in.version_number;
  row.direction = StatusDirection::in;
  row.medium = in.medium;
  row.wish = in.wish;
  row.reason = static_cast<std::uint8_t>(in.pick.reason);
  row.critical = in.critical;
  row.background = in.background;
  row.eager = in.eager_bytes > 0;
  row.resumed = in.resumed;
  row.total_tokens = in.tokens.size();
  row.total_blocks = (in.tokens.size() + in.layout.block_tokens - 1) / std::max<std::uint64_t>(in.layout.block_tokens, 1);
  row.missing_blocks = in.missing_blocks;
  row.bytes = in.payload_bytes;
  row.submitted_ns = in.submitted_ns;
  row.predicted_ns = predicted_ns(in);
  row.observed_ns = in.delivered ? in.observed_ns : now_ - in.submitted_ns;
  row.epsilon_ppm = in.epsilon_ppm;
  row.source_epsilon_ppm = in.source_epsilon_ppm;
  row.floor_ppm = in.floor_ppm;
  row.status = in.status;
  row.line_count = static_cast<std::uint32_t>(std::min(in.pick.line_count, kStatusCostLines));
  for (std::uint32_t i = 0; i < row.line_count; ++i) {
    row.lines[i] = to_row(in.pick.lines[i], in.pick.index == static_cast<std::int32_t>(i));
  }
  add_row(row);
}

void Node::Core::explain_local(const LocalRequest& request, Medium medium, Status status) noexcept {
  if (page_ == nullptr) return count_row();  // a row takes longer than the delivery
  StatusTransfer row;
  row.transfer = request.id;
  row.origin_node = row.peer_node = options_.node_id;
  row.task = request.options.task;
  if (const LocalAgent* from = agent(request.from); from != nullptr) {
    row.tenant = from->info.tenant;
    row.from = from->info.name;
  }
  if (const LocalAgent* to = agent(request.to); to != nullptr) row.to = to->info.name;
  row.context = request.context;
  row.direction = StatusDirection::local;
  row.medium = medium;
  row.wish = request.options.medium;
  row.critical = request.options.critical;
  row.background = request.options.background;
  VersionView view;
  if (store_->view(request.version, view)) {
    row.version = view.number;
    row.total_tokens = view.tokens.size();
    row.total_blocks = view.blocks.size();
    row.epsilon_ppm = view.epsilon_ppm;
  }
  row.submitted_ns = request.submitted_ns;
  row.observed_ns = now_ - request.submitted_ns;
  row.status = status;
  add_row(row);
}

void Node::Core::explain_recompute(std::uint64_t serial, std::int64_t recompute_ns) noexcept {
  if (page_ == nullptr) return;
  StatusTransfer& row = page_->data.transfers[serial % kStatusTransfers];
  if (row.serial != serial) return;  // newer rows have taken its place
  StatusPageWrite write(*page_);
  row.recompute_ns = recompute_ns;
}

namespace {

void show_agent(const AgentInfo& info, StatusAgent& row) noexcept {
  row = StatusAgent{};
  row.tenant = info.tenant;
  row.name = info.name;
  row.role = info.role;
  row.live = 1;
  row.accepted = info.accepted;
  row.layout_fingerprint = codec::fingerprint(info.layout);
  row.block_bytes = info.layout.block_bytes();
  row.prefill_per_token_ns = info.compute.prefill_per_token_ns;
}

}  // namespace

void Node::Core::show_agents(StatusData& data) noexcept {
  std::uint32_t n = 0;
  agents_.for_each([&](AgentHandle, LocalAgent& agent) {
    if (agent.leaving || n == kStatusAgents) return;
    StatusAgent& row = data.agents[n++];
    show_agent(agent.info, row);
    row.compute_backlog_ns = static_cast<std::uint64_t>(std::max<TimeNs>(agent.compute_backlog_ns, 0));
    row.sends = agent.sends;
    row.deliveries = agent.deliveries;
  });
  remotes_.for_each([&](Handle<RemoteAgent>, RemoteAgent& remote) {
    if (n == kStatusAgents) return;
    AgentInfo info;
    info.tenant = remote.tenant;
    info.name = remote.name;
    info.role = remote.role;
    info.layout = remote.layout;
    info.accepted = remote.accepted;
    info.compute = remote.compute;
    show_agent(info, data.agents[n]);
    data.agents[n++].node = peer_at(remote.peer).id;
  });
  data.agent_count = n;
}

void Node::Core::show_lanes(StatusData& data) noexcept {
  std::uint32_t n = 0;
  lanes_.for_each([&](Handle<Lane> handle, Lane& lane) {
    if (n == kStatusLanes) return;
    StatusLane& row = data.lanes[n++];
    row = StatusLane{};
    const std::string_view name = transports_[lane.transport]->caps().name;
    std::copy_n(name.begin(), std::min(name.size(), sizeof(row.transport) - 1), row.transport);
    row.peer = peer_at(lane.peer).id;
    row.up = lane.closing ? 0 : 1;
    const scheduler::LaneEstimate estimate = scheduler_.estimate(handle.index);
    row.capacity_bytes_per_s = estimate.capacity_bytes_per_s;
    row.planning_bytes_per_s = estimate.planning_bytes_per_s;
    row.round_trip_ns = estimate.round_trip_ns;
    row.in_flight_bytes = estimate.in_flight_bytes;
    row.in_flight_limit_bytes = estimate.in_flight_limit_bytes;
    row.queued_bytes = estimate.queued_bytes;
    row.chunk_bytes = estimate.chunk_bytes;
    row.held_credits = arbiter_.held_credits(handle.index);
    row.reserved_bytes_per_s = arbiter_.reserved_bytes_per_s(handle.index);
    const transport::LaneStats stats = transports_[lane.transport]->stats(lane.id);
    row.bytes_sent = stats.bytes_sent;
    row.bytes_received = stats.bytes_received;
    row.malformed = stats.malformed;
    row.digest_failures = stats.digest_failures;
  });
  data.lane_count = n;
}

void Node::Core::show_peers_and_tasks(StatusData& data) noexcept {
  std::uint32_t n = 0;
  peers_.for_each([&](Handle<Peer>, Peer& peer) {
    if (n == kStatusPeers) return;
    StatusPeer& row = data.peers[n++];
    row = StatusPeer{};
    row.node = peer.id;
    row.incarnation = peer.incarnation;
    row.up = peer.alive && peer.lanes != 0 ? 1 : 0;
    row.last_heard_ago_ns = now_ - peer.last_heard_ns;
    if (!peer.state_known) return;
    row.receive_bytes_free = peer.state.receive_bytes_free;
    row.receive_bytes_total = peer.state.receive_bytes_total;
    row.nic_backlog_ns = peer.state.nic_backlog_ns;
    row.nic_price_ppm = peer.state.nic_price_ppm;
    row.compute_price_ppm = peer.state.compute_price_ppm;
  });
  data.peer_count = n;
  n = 0;
  desk_->tasks().for_each([&](const Task& task) {
    if (task.from_peer) return;
    StatusTask& row = data.tasks[n++ % kStatusTasks];
    row.task = task.id;
    row.workflow = task.workflow;
    row.agent = task.agent_name;
    row.begun_ns = task.begun_ns;
    row.ended_ns = task.ended_ns;
    row.deadline_ns = task.deadline_ns;
    row.transfers = task.transfers;
    row.bytes = task.bytes;
  });
  data.task_count = std::min<std::uint32_t>(n, kStatusTasks);
}

void Node::Core::show_memory(StatusData& data) noexcept {
  const Store::Counters store = store_->counters();
  data.blocks = store.blocks;
  data.versions = store.versions;
  data.deliveries = store.deliveries;
  data.stagings = store.stagings;
  data.stubs = store.stubs;
  store_total(data.receive_bytes_total, data.receive_bytes_free);
  data.leased_bytes = leased_bytes_;
  show_contexts(data);
  show_prefetch(data);
  data.tier = StatusTier{};
  if (tier_ == nullptr) return;
  const TierFigures tier = tier_->figures();
  data.tier = {1, static_cast<std::uint8_t>(tier.state), {}, tier.capacity_bytes, tier.used_bytes, tier.blocks, tier.puts, tier.gets,
               tier.bytes_written, tier.bytes_read, tier.refused, tier.damaged, tier.quarantined, tier.read_bytes_per_s,
               tier.write_bytes_per_s};
}

// A walk over the table of versions takes as long as hundreds of cycles, so it is done once a second.
void Node::Core::show_contexts(StatusData& data) noexcept {
  contexts_due_ = now_ < next_contexts_ns_;
  if (contexts_due_) return;
  next_contexts_ns_ = now_ + kSecondNs;
  std::array<VersionHandle, kStatusContexts> listed;
  data.context_count = store_->list(listed);
  for (std::size_t i = 0; i < std::min<std::size_t>(data.context_count, kStatusContexts); ++i) {
    VersionView view;
    KVRAIL_ASSERT(store_->view(listed[i], view));
    const StatusPlace place = view.stub             ? StatusPlace::left
                              : view.blocks.empty() ? StatusPlace::ids
                              : view.kept           ? StatusPlace::both
                                                    : StatusPlace::memory;
    data.contexts[i] = {view.tenant.valid() ? store_->name_of(view.tenant) : Name{}, view.owner, view.context, view.number,
                        view.tokens.size(), view.blocks.size() * view.layout.block_bytes(), view.pins,
                        view.stub ? view.stub_epsilon_ppm : view.epsilon_ppm, place, {}};
  }
}

void Node::Core::refresh_status() noexcept {
  status_dirty_ = false;
  if (page_ == nullptr) return;
  StatusPageWrite write(*page_);
  StatusData& data = write.data();
  data.refreshed_ns = now_;
  data.draining = draining_ ? 1 : 0;
  data.counters = counters_;
  data.counters.copied_bytes += store_->counters().copied_bytes;
  data.counters.suspensions = scheduler_.suspensions();
  data.active_out = outs_.size();
  data.active_in = ins_.size();
  show_agents(data);
  show_lanes(data);
  show_reservations(data);
  show_memory(data);
  show_peers_and_tasks(data);
}

}  // namespace kvrail::engine
