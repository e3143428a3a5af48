// Blocks that are written to the tier ahead of need: while a tenant's receive memory is short, those of the contexts
// that would go next, one at a time. They stay until the room is wanted, and then go at once (Store::take). Off the
// data path: nothing here waits, a slow tier only means that contexts go whose KV is nowhere else.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr std::uint32_t kWritesAtOnce = 16;
constexpr std::uint32_t kBlocksPerCycle = 256;       // looked at, of those that the tier has already
constexpr TimeNs kAfterFailureNs = kSecondNs;
constexpr TimeNs kPollNs = kMillisecondNs;           // of a tier that has nothing to wait on

}  // namespace

std::size_t Node::Core::poll_tier() noexcept {
  if (tier_ == nullptr) return 0;
  const std::size_t count = tier_->poll(tier_done_);
  for (std::size_t i = 0; i < count; ++i) {
    switch (tier_done_[i].event) {
      case TierEvent::get: on_block_back(tier_done_[i]); break;
      case TierEvent::put:
        KVRAIL_ASSERT(offload_.in_flight > 0);
        --offload_.in_flight;
        offload_.failed |= !tier_done_[i].status.ok() && !offload_.named;  // blocks are found without a name
        break;
      case TierEvent::gone: break;  // who needs it will see
    }
  }
  if (now_ >= next_memory_look_ns_) look_at_memory();
  if (!recalls_.empty()) drop_overdue_recalls();
  run_offload();
  run_prefetch();
  return count;
}

std::uint64_t Node::Core::publications() const noexcept {
  return counters_.transfers_in_ok + counters_.commits + counters_.restores;
}

TimeNs Node::Core::tier_deadline() const noexcept {
  if (tier_ == nullptr) return kNever;
  TimeNs next = std::min(prefetch_deadline(), looked_after_ != publications() ? next_memory_look_ns_ : kNever);
  const bool reads = (!restores_.empty() && tier_->wake_fd() < 0) || !recalls_.empty();
  if (offload_.version.valid() && (offload_.in_flight == 0 || tier_->wake_fd() < 0)) next = std::min(next, now_ + kPollNs);
  return reads ? std::min(next, now_ + kPollNs) : next;
}

void Node::Core::look_at_memory() noexcept {
  next_memory_look_ns_ = now_ + options_.scheduler.slice_ns;
  looked_after_ = publications();
  tell_costs();
  if (offload_.version.valid() || tier_->figures().state != TierState::ready) return;
  begin_offload(store_->next_to_leave(options_.offload_below_ppm));
}

// What contexts would take to have again is part of what they are worth here: the tier's reads, or the slowest prefill
// that an agent has told.
void Node::Core::tell_costs() noexcept {
  constexpr std::uint64_t kMiB = 1U << 20;
  RestoreCosts costs;
  if (tier_ != nullptr) costs.tier_ns_per_mib = tier_->restore_ns(kMiB);
  bool told = false;
  agents_.for_each([&](AgentHandle, const LocalAgent& agent) {
    const ComputeProfile& compute = agent.info.compute;
    if (compute.prefill_per_token_ns == 0 || (told && compute.prefill_per_token_ns <= costs.compute.prefill_per_token_ns)) return;
    costs.compute = compute;
    told = true;
  });
  store_->set_costs(costs);
}

void Node::Core::begin_offload(VersionHandle version) noexcept {
  VersionView view;
  if (!version.valid() || !store_->view(version, view)) return;
  store_->pin(version);
  offload_ = Offload{};
  offload_.version = version;
  offload_.tenant = view.tenant;
}

void Node::Core::run_offload() noexcept {
  if (!offload_.version.valid()) return;
  VersionView view;
  KVRAIL_ASSERT(store_->view(offload_.version, view));
  for (std::uint32_t n = 0; n < kBlocksPerCycle; ++n) {
    if (offload_.failed || offload_.at == view.blocks.size() || offload_.in_flight == kWritesAtOnce) break;
    const BlockView block = store_->block(view.blocks[offload_.at]);
    const auto kept = tier_->find(block.hash);
    if (!kept || (!tier_->lossy() && kept->epsilon_ppm > block.epsilon_ppm)) {
      if (!tier_->put({offload_.at, block.hash, view.layout, block.tokens, block.epsilon_ppm, block.raw})) {
        offload_.failed = tier_->figures().state != TierState::ready;
        break;
      }
      ++offload_.in_flight;
    }
    ++offload_.at;
  }
  if (offload_.in_flight > 0 || (!offload_.failed && offload_.at < view.blocks.size())) return;
  if (!offload_.failed && !offload_.named) put_name(view);
  if (offload_.in_flight == 0) end_offload();
}

// One after the other until there is room enough.
void Node::Core::end_offload() noexcept {
  scratch_.give_back(offload_.record);
  const Offload ended = offload_;
  offload_ = Offload{};
  if (!ended.failed) store_->keep(ended.version);
  store_->unpin(ended.version);
  status_dirty_ = true;
  ++(ended.failed ? counters_.offloads_failed : counters_.offloads);
  if (ended.failed) {
    next_memory_look_ns_ = now_ + kAfterFailureNs;
    return;
  }
  if (store_->short_of_memory(ended.tenant, options_.offload_until_ppm)) begin_offload(store_->next_to_leave(ended.tenant));
}

}  // namespace kvrail::engine
