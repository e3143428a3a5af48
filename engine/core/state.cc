// STATE: once per slice each peer with open transfers learns how much room and backlog this node has.
#include "engine/core/node_core.h"

namespace kvrail::engine {

std::size_t Node::Core::send_states() noexcept {
  if (now_ < next_slice_ns_) return 0;
  next_slice_ns_ = now_ + options_.scheduler.slice_ns;
  if (open_transfers() == 0) return 0;
  std::size_t posted = 0;
  wire::State state;
  store_total(state.receive_bytes_total, state.receive_bytes_free);
  TimeNs compute_backlog = 0;
  std::uint64_t compute_price = 0;
  agents_.for_each([&](AgentHandle, LocalAgent& agent) {
    compute_backlog += agent.compute_backlog_ns;
    compute_price += agent.compute_price.price_ppm(now_, agent.compute_backlog_ns);
  });
  state.nic_price_ppm = sending_price_ppm();
  state.compute_price_ppm = compute_price;
  peers_.for_each([&](Handle<Peer> handle, Peer& peer) {
    if (peer.open == 0) return;
    const std::uint32_t lane = best_lane(handle.index);
    if (lane == kNoIndex) return;
    state.nic_backlog_ns = static_cast<std::uint64_t>(scheduler_.backlog_ns(lane, false));
    if (post(lane, state)) ++posted;  // a full lane will have newer news next slice
  });
  return posted;
}

// Over all tenants: what a peer may hope for, not a promise to any.
void Node::Core::store_total(std::uint64_t& total, std::uint64_t& free) const noexcept {
  total = free = 0;
  std::array<TenantHandle, 64> seen;
  std::size_t count = 0;
  agents_.for_each([&](AgentHandle, const LocalAgent& agent) {
    for (std::size_t i = 0; i < count; ++i) {
      if (seen[i] == agent.tenant) return;
    }
    if (count == seen.size()) return;
    seen[count++] = agent.tenant;
    const TenantMemory memory = store_->memory(agent.tenant);
    total += memory.total_bytes;
    free += memory.free_bytes;
  });
}

void Node::Core::on_state(std::uint32_t lane, const wire::State& message) noexcept {
  Peer& peer = peer_at(lane_at(lane)->peer);
  peer.state = message;
  peer.state_known = true;
  peer.state_at_ns = now_;
}

}  // namespace kvrail::engine
