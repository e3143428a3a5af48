// What this node's own resources cost those who come next: its sending side, its receiving side, and
// the compute of its agents. Critical transfers overtake, so nobody keeps them waiting: they count for
// no rate.
#include <algorithm>
#include <bit>

#include "engine/core/node_core.h"
#include "scheduler/cost.h"
#include "scheduler/exp_table.h"

namespace kvrail::engine {

TimeNs Node::Core::sending_backlog_ns() const noexcept {
  TimeNs backlog = 0;
  lanes_.for_each([&](Handle<Lane> handle, const Lane&) { backlog += scheduler_.backlog_ns(handle.index, false); });
  return backlog;
}

std::uint64_t Node::Core::sending_price_ppm() const noexcept {
  return sending_price_.price_ppm(now_, sending_backlog_ns());
}

// Also for what ended up as token ids: it might have gone as KV, had there been less to wait for.
void Node::Core::note_sending(const Outgoing& out, TimeNs use_ns) noexcept {
  if (out.critical || !has_kv(std::span(out.candidates).first(out.candidate_count))) return;
  sending_price_.arrival(now_, sending_backlog_ns() + use_ns);
}

TimeNs Node::Core::sending_use_ns(const Outgoing& out, const wire::Accept& message) noexcept {
  std::uint64_t blocks = 0;
  for (std::uint32_t i = 0; i < message.range_count; ++i) blocks += message.missing[i].count;
  for (std::uint32_t i = 0; is_kv(message.medium) && i < out.candidate_count; ++i) {
    const scheduler::CandidateCost& it = out.candidates[i];
    if (it.medium != message.medium) continue;
    const std::uint64_t of_blocks = is_sparse(it.medium) ? 0 : scheduler::mul_div(it.block_bytes, blocks, 1);
    return scheduler::sending_ns(of_blocks + it.fixed_bytes, it.rate_bytes_per_s);
  }
  return 0;
}

// What comes from an engine of this machine takes no interface.
bool Node::Core::through_interface(std::uint32_t peer) noexcept {
  for (std::uint64_t mask = peer_at(peer).lanes; mask != 0; mask &= mask - 1) {
    const Lane& lane = *lane_at(static_cast<std::uint32_t>(std::countr_zero(mask)));
    if (transports_[lane.transport]->caps().same_machine) return false;
  }
  return true;
}

// Corrupt units come again, and so does what a lane lost; the ledger counts each byte once.
void Node::Core::note_arrival(std::uint32_t index, std::uint64_t bytes) noexcept {
  const Incoming& in = in_at(index);
  LeaseSlot& lease = leases_[in.lease_slot];
  const std::uint64_t announced = std::min(lease.announced, bytes);
  lease.announced -= announced;
  inflow_.arrived(in.peer, announced, now_);
}

// What one peer's transfers wait for among themselves is in that peer's price already, so for an offer
// from it only the others count here; else a link between two nodes would be paid for twice.
void Node::Core::note_receiving(const Incoming& in) noexcept {
  const scheduler::CostLine& chosen = in.pick.lines[static_cast<std::size_t>(in.pick.index)];
  if (in.critical || chosen.bytes == 0) return;
  LocalAgent& to = *agent(in.to);
  to.compute_price.arrival(now_, scheduler::compute_taken_ns(chosen, to.compute_backlog_ns));
  if (!has_kv(std::span(in.candidates).first(in.candidate_count))) return;
  const std::uint64_t rate = in.candidates[static_cast<std::size_t>(in.pick.index)].rate_bytes_per_s;
  const TimeNs use_ns = is_kv(in.medium) ? chosen.transmit_ns : 0;
  peers_.for_each([&](Handle<Peer> handle, Peer& other) {
    if (handle.index == in.peer) return;
    other.others_price.arrival(now_, add_saturating(inflow_.others_ns(handle.index, rate), use_ns));
  });
}

}  // namespace kvrail::engine
