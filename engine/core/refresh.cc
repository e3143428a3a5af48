// Planes that give back what was lost of a context on its way here. Two causes: all is quiet, and a context is held with
// less than its origin has (background, one at a time, given up for whatever else is to move); or a transfer of it may
// not go on with what was lost, and its planes are nearer than the tokens' computation (forced, the transfer waits).
// Either is a fetch of the node's own: no agent hears of it, and it ends in a finer version under the same name.
#include <algorithm>
#include <utility>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kQuietNs = 100 * kMillisecondNs;  // so long nothing has moved
constexpr std::uint8_t kMostTries = 3;             // that made way for other transfers
constexpr std::uint64_t kRoomShare = 4;            // the n-th part of a receive arena stays free

// What comes with less loss than int8 has is as good as exact; what is coded otherwise has no finer planes.
constexpr Medium kNextPlane = Medium::int8;

}  // namespace

// ---- while all is quiet ----------------------------------------------------------------------------

// What has just been delivered came with fewer planes than its origin has.
void Node::Core::note_lossy(const Incoming& in) noexcept {
  if (!options_.refresh || in.medium != Medium::int4 || in.epsilon_ppm <= in.source_epsilon_ppm) return;
  const auto same = [&](const Refresh& it) { return it.agent == in.to && it.owner == in.from_name && it.context == in.context; };
  Refreshes& all = refreshes_;
  auto end = std::remove_if(all.waiting.begin(), all.waiting.begin() + all.count, same);
  if (end == all.waiting.end()) end = std::move(all.waiting.begin() + 1, end, all.waiting.begin());  // the oldest goes
  *end = Refresh{in.to, in.from_name, in.context, in.version_number, 0};
  all.count = static_cast<std::uint32_t>(end - all.waiting.begin()) + 1;
  all.next_look_ns = std::max(all.next_look_ns, now_ + kQuietNs);
}

void Node::Core::run_refresh() noexcept {
  Refreshes& all = refreshes_;
  if (all.count == 0 || now_ < all.next_look_ns) return;
  all.next_look_ns = now_ + kQuietNs;
  const std::uint64_t moved = counters_.transfers_in_ok + counters_.transfers_in_failed + counters_.transfers_out_ok +
                              counters_.transfers_out_failed + counters_.sends;
  const bool quiet = moved == std::exchange(all.seen, moved) && open_transfers() == 0;
  if (!quiet || draining_) return;
  const Refresh next = all.waiting[0];
  std::move(all.waiting.begin() + 1, all.waiting.begin() + all.count, all.waiting.begin());
  --all.count;
  VersionView view;
  if (!may_refresh(next, view)) return;
  // It evicts nothing: the rows come a second time, beside the planes.
  const TenantMemory memory = store_->memory(view.tenant);
  if (memory.free_bytes < memory.total_bytes / kRoomShare + 2 * view.blocks.size() * view.layout.block_bytes()) return;
  SendOptions options;
  options.medium = kNextPlane;
  options.background = true;
  const std::uint32_t peer = remotes_.get(remotes_.handle_at(where(agent(next.agent)->info.tenant, next.owner)->remote))->peer;
  all.fetch = open_fetch(next.agent, 0, peer, next.owner, next.context, next.version, options);
  if (Fetch* fetch = fetches_.get(all.fetch)) fetch->refresh = true;
  all.running = next;
}

// Whether the context is still here with its loss, and its origin can be asked.
bool Node::Core::may_refresh(const Refresh& of, VersionView& view) noexcept {
  const LocalAgent* to = agent(of.agent);
  if (to == nullptr || (to->info.accepted & mask_of(kNextPlane)) == 0) return false;
  const VersionHandle version = store_->find(to->tenant, of.owner, of.context, of.version);
  if (!version.valid() || !store_->view(version, view) || view.blocks.empty() || view.epsilon_ppm == 0) return false;
  if (!store_->block(view.blocks.front()).came_coded) return false;
  const AgentWhere* owner = where(to->info.tenant, of.owner);
  return owner != nullptr && !owner->local.valid() &&
         best_lane(remotes_.get(remotes_.handle_at(owner->remote))->peer) != kNoIndex;
}

// For whatever else is to move. It is tried again when all is quiet.
void Node::Core::yield_refresh() noexcept {
  const Fetch* fetch = fetches_.get(refreshes_.fetch);
  if (fetch == nullptr) return;
  const InHandle in = fetch->in;
  end_fetch(refreshes_.fetch.index, Status{Code::cancelled}, nullptr);
  if (ins_.get(in) != nullptr) fail_in(in.index, Status{Code::cancelled});
}

// ---- before a transfer -----------------------------------------------------------------------------

// True: the transfer waits for planes without which it would be under its floor. They must take less than computing
// the tokens at its receiver would: those it can have at once.
bool Node::Core::refresh_first(std::uint32_t index, const VersionView& view) noexcept {
  Outgoing& out = out_at(index);
  const std::uint32_t floor = std::max(out.fidelity_floor_ppm, out.wish_is_policy ? options_.lineage_floor_ppm : 0);
  const std::uint32_t most = scheduler::most_loss_ppm(floor);
  if (view.epsilon_ppm <= most || agent(out.from) == nullptr) return false;
  const Refresh of{out.from, view.owner, view.context, view.number, 0};
  VersionView held;
  if (!may_refresh(of, held)) return false;
  const AgentWhere* to = where(out.tenant, out.to_name);
  if (to == nullptr || to->local.valid()) return false;
  const RemoteAgent& receiver = *remotes_.get(remotes_.handle_at(to->remote));
  const std::uint32_t origin = remotes_.get(remotes_.handle_at(where(out.tenant, view.owner)->remote))->peer;
  const std::uint32_t int8 = loss_.at(view.tokens.size()).media[static_cast<std::size_t>(kNextPlane)].epsilon_ppm;
  SendOptions options;
  options.medium = int8 <= most ? kNextPlane : Medium::exact;
  options.critical = out.critical;
  options.deadline_ns = out.deadline_ns == 0 ? 0 : std::max<TimeNs>(out.deadline_ns - now_, 1);
  const scheduler::LaneEstimate lane = scheduler_.estimate(best_lane(origin));
  // A plane of int8 is a quarter of the rows, the residual less than half of them.
  const std::uint64_t bytes = view.blocks.size() * view.layout.block_bytes() / (options.medium == kNextPlane ? 4 : 1);
  const TimeNs planes_ns = lane.round_trip_ns + scheduler::sending_ns(bytes, lane.planning_bytes_per_s);
  if (planes_ns >= scheduler::prefill_ns(receiver.compute, view.tokens.size(), 0)) return false;
  out.refresh = open_fetch(out.from, 0, origin, view.owner, view.context, view.number, options);
  Fetch* fetch = fetches_.get(out.refresh);
  if (fetch == nullptr) return false;
  fetch->refresh = true;
  return true;
}

// ---- the end ---------------------------------------------------------------------------------------

// The fetch is erased already. Who waited goes on with the finest that is here.
void Node::Core::end_refresh(Handle<Fetch> handle, const Fetch& fetch, Status status) noexcept {
  ++(status.ok() ? counters_.refreshes : counters_.refreshes_failed);
  if (handle == refreshes_.fetch) {
    Refreshes& all = refreshes_;
    all.fetch = Handle<Fetch>{};
    const bool again = status.code == Code::cancelled && ++all.running.tries < kMostTries && all.count < Refreshes::kMost;
    if (again) all.waiting[all.count++] = all.running;
    all.next_look_ns = now_ + kQuietNs;
    return;
  }
  ++counters_.refreshes_forced;
  outs_.for_each([&](OutHandle at, Outgoing& out) {
    if (out.state != OutState::restoring || out.refresh != handle) return;
    VersionView view;
    KVRAIL_ASSERT(store_->view(out.version, view));
    const VersionHandle finer = store_->find(view.tenant, fetch.owner, fetch.context, out.version_number);
    VersionView found;
    if (finer.valid() && store_->view(finer, found) && found.epsilon_ppm < view.epsilon_ppm && !found.blocks.empty()) {
      store_->pin(finer);
      store_->unpin(out.version);
      out.version = finer;
    }
    park_or_offer(at.index);
  });
}

TimeNs Node::Core::refresh_deadline() const noexcept {
  return refreshes_.count > 0 && !refreshes_.fetch.valid() ? refreshes_.next_look_ns : kNever;
}

}  // namespace kvrail::engine
