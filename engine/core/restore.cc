// Blocks that come back from the tier. Two kinds of restores: a stub's, when it is sent, fetched or delivered, and
// the leading blocks of an offer, where having them from the tier is quicker than having them sent or computed. The
// one ends in the version under its name again, the other in blocks that are held while the offer is looked at anew.
// Nothing depends on success: a stub is also token ids, and an offer brings all that is missing.
#include <algorithm>
#include <utility>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

constexpr std::uint32_t kReadsAtOnce = 32;  // of one restore; a tier's queue is for several
constexpr unsigned kIndexShift = 32;
constexpr std::int64_t kPatience = 4;  // times its estimate, then who waits goes on without; between these:
constexpr TimeNs kLeastPatienceNs = 2 * kSecondNs, kMostPatienceNs = 10 * kSecondNs;

}  // namespace

// ---- beginning -------------------------------------------------------------------------------------

// Invalid: the table or the memory for the ids is full.
Handle<Restore> Node::Core::begin_restore(const StageRequest& request) noexcept {
  const Handle<Restore> handle = restores_.try_emplace();
  if (!handle.valid()) return {};
  Restore& restore = *restores_.get(handle);
  restore.tokens = scratch_.try_array<TokenId>(request.tokens.size());
  if (restore.tokens.empty()) {
    restores_.erase(handle);
    return {};
  }
  std::copy(request.tokens.begin(), request.tokens.end(), restore.tokens.begin());
  restore.request = request;
  restore.request.tokens = restore.tokens;
  restore.request.coding.medium = Medium::full;
  restore.request.whole_blocks = true;
  want(Kind::restore, handle.index);
  return handle;
}

Handle<Restore> Node::Core::restore_of(VersionHandle stub, const VersionView& view) noexcept {
  KVRAIL_ASSERT(view.stub);
  if (tier_ == nullptr || view.tokens.empty()) return {};
  Handle<Restore> handle;
  restores_.for_each([&](Handle<Restore> open, const Restore& restore) {
    if (restore.stub == stub) handle = open;
  });
  if (handle.valid()) return restores_.get(handle)->overdue ? Handle<Restore>{} : handle;
  StageRequest request = stage_request_of(view);
  request.held_limit_ppm = view.stub_epsilon_ppm;
  request.again = true;
  handle = begin_restore(request);
  if (!handle.valid()) return {};
  Restore& restore = *restores_.get(handle);
  restore.stub = stub;
  restore.scan.tier = tier_;
  restore.scan.limits_ppm.fill(view.stub_epsilon_ppm);
  restore.scan.tier_limit_ppm = UINT32_MAX;  // what the tier's coding loses, its owner has chosen
  store_->pin(stub);
  return handle;
}

void Node::Core::begin_out(std::uint32_t index, const VersionView& view) noexcept {
  Outgoing& out = out_at(index);
  if (view.stub) out.restore = restore_of(out.version, view);
  if (!out.restore.valid() && !refresh_first(index, view)) return park_or_offer(index);
  out.state = OutState::restoring;
  arm_out(index);
}

bool Node::Core::wait_for_restore(const LocalRequest& request, const VersionView& view) noexcept {
  if (local_waits_.full()) return false;
  const Handle<Restore> restore = restore_of(request.version, view);
  if (!restore.valid()) return false;
  const Handle<LocalWait> handle = local_waits_.try_emplace();
  LocalWait& wait = *local_waits_.get(handle);
  wait.request = request;
  wait.restore = restore;
  store_->pin(request.version);
  const TimeNs limit = request.options.deadline_ns != 0 ? request.options.deadline_ns : options_.accept_timeout_ns;
  timers_.set(entity(Kind::local_wait, handle.index), add_saturating(request.submitted_ns, limit));
  return true;
}

// The least that the blocks which the tier has would take otherwise: of all media whose bytes come, and of computing.
TimeNs Node::Core::without_tier_ns(const Incoming& in) noexcept {
  const std::uint64_t blocks = in.have.tier_blocks;
  TimeNs least = kNever;
  const ComputeProfile& compute = agent(in.to)->info.compute;
  for (std::uint32_t i = 0; i < in.candidate_count; ++i) {
    const scheduler::CandidateCost& offered = in.candidates[i];
    if (is_kv(offered.medium) && offered.rate_bytes_per_s > 0) {
      const double seconds = static_cast<double>(blocks * offered.block_bytes) / static_cast<double>(offered.rate_bytes_per_s);
      least = std::min(least, static_cast<TimeNs>(seconds * kSecondNs));
    } else if (offered.medium == Medium::tokens && compute.prefill_per_token_ns > 0) {
      const std::uint64_t tokens = blocks * in.layout.block_tokens;
      least = std::min(least, static_cast<TimeNs>(tokens * compute.prefill_per_token_ns));
    }
  }
  return least;
}

// True: the offer waits for blocks of the tier, and is looked at again when they are here.
bool Node::Core::restore_first(std::uint32_t index) noexcept {
  Incoming& in = in_at(index);
  if (in.have.tier_blocks == 0 || tier_->restore_ns(in.have.tier_bytes) >= without_tier_ns(in)) return false;
  StageRequest request;
  request.tenant = in.tenant_handle;
  request.owner = in.from_name;
  request.context = in.context;
  request.version = in.version_number;
  request.layout = in.layout;
  request.tokens = std::span(in.tokens).first(
      std::min<std::uint64_t>(in.have.reachable_blocks * in.layout.block_tokens, in.tokens.size()));
  request.held_limit_ppm = in.held_limit_ppm;
  request.anonymous = true;
  const Handle<Restore> handle = begin_restore(request);
  if (!handle.valid()) return false;
  Restore& restore = *restores_.get(handle);
  restore.step = RestoreStep::stage;
  restore.scan.tier_bytes = in.have.tier_bytes;
  restore.in = ins_.handle_at(index);
  in.restore = handle;
  in.decision = Decision::restore;
  ++in.restores;
  return true;
}

void Node::Core::forget_restore(Incoming& in) noexcept {
  if (Restore* restore = restores_.get(in.restore); restore != nullptr) restore->in = InHandle{};
  store_->unpin(in.restored);
}

// ---- steps -----------------------------------------------------------------------------------------

void Node::Core::run_restore(std::uint32_t index) noexcept {
  const Handle<Restore> handle = restores_.handle_at(index);
  Steps steps(*this);
  while (Restore* restore = restores_.get(handle)) {
    if (!restore_step(*restore, index, steps.left)) return;
  }
}

// False: it waits, for another cycle or for the tier, or has ended.
bool Node::Core::restore_step(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept {
  switch (restore.step) {
    case RestoreStep::look: return look_for(restore, index, budget);
    case RestoreStep::stage: return stage_restore(restore, index, budget);
    case RestoreStep::read: return read_blocks(restore, index, budget);
    case RestoreStep::publish: break;
  }
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  const auto version = store_->advance_publish(restore.staging, budget);
  if (!version) {
    want(Kind::restore, index);
    return false;
  }
  if (version->ok()) store_->pin(version->value());
  end_restore(index, version->ok() ? version->value() : VersionHandle{});
  return false;
}

bool Node::Core::look_for(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept {
  const StageRequest& request = restore.request;
  if (!store_->scan(restore.scan, request.tenant, request.layout, request.tokens, budget)) {
    want(Kind::restore, index);
    return false;
  }
  if (restore.scan.unreachable && restore.scan.reachable_blocks == 0) {
    end_restore(index, VersionHandle{});
    return false;
  }
  if (restore.scan.unreachable) {  // what follows is computed on them, by who takes token ids
    restore.partial = true;
    restore.request.tokens = restore.tokens.first(restore.scan.reachable_blocks * request.layout.block_tokens);
    restore.request.again = false;
    restore.request.anonymous = true;
  }
  restore.step = RestoreStep::stage;
  return true;
}

bool Node::Core::stage_restore(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept {
  // One takes its memory at a time, or several would have all of it in parts and none enough.
  const Handle<Restore> own = restores_.handle_at(index);
  const Restore* other = restores_.get(staging_restore_);
  if (staging_restore_ != own && other != nullptr && other->step == RestoreStep::stage) {
    want_later(Kind::restore, index);
    return false;
  }
  staging_restore_ = own;
  const AllowAllocScope allow;
  if (!restore.staging.valid()) {
    const auto staging = store_->begin_stage(restore.request);
    if (!staging.ok()) {
      end_restore(index, VersionHandle{});
      return false;
    }
    restore.staging = *staging;
  }
  const auto status = store_->advance(restore.staging, budget);
  if (!status) {
    want(Kind::restore, index);
    return false;
  }
  if (!status->ok()) {
    end_restore(index, VersionHandle{});
    return false;
  }
  restore.step = RestoreStep::read;
  const TimeNs expected_ns = std::min(tier_->restore_ns(restore.scan.tier_bytes), kMostPatienceNs);
  timers_.set(entity(Kind::restore, index), now_ + std::clamp(kPatience * expected_ns, kLeastPatienceNs, kMostPatienceNs));
  return true;
}

bool Node::Core::read_blocks(Restore& restore, std::uint32_t index, std::uint64_t& budget) noexcept {
  Store::StagingView view;
  KVRAIL_ASSERT(store_->view(restore.staging, view));
  for (; !restore.failed && restore.at < view.block_count && restore.in_flight < kReadsAtOnce; ++restore.at) {
    if (budget == 0) {
      want(Kind::restore, index);
      return false;
    }
    --budget;
    if (view.missing[restore.at] == 0) continue;
    const BlockView block = store_->block(view.blocks[restore.at]);
    const std::uint64_t cookie = std::uint64_t{index} << kIndexShift | restore.at;
    if (tier_->get({cookie, block.hash, restore.request.layout, block.tokens, block.raw})) {
      ++restore.in_flight;
      continue;
    }
    if (restore.in_flight > 0) return false;  // its completions go on
    if (tier_->figures().state != TierState::failed && !restore.overdue) {
      want_later(Kind::restore, index);
      return false;
    }
    restore.failed = true;
    break;
  }
  if (restore.in_flight > 0) return false;
  if (restore.failed) {
    store_->abandon(restore.staging);
    end_restore(index, VersionHandle{});
    return false;
  }
  restore.step = RestoreStep::publish;
  return true;
}

void Node::Core::on_block_back(const TierCompletion& done) noexcept {
  const auto index = static_cast<std::uint32_t>(done.cookie >> kIndexShift);
  if (index >= restores_.capacity()) return on_name_back(index - restores_.capacity(), done);
  Restore& restore = *must(restores_.get(restores_.handle_at(index)));
  KVRAIL_ASSERT(restore.in_flight > 0);
  --restore.in_flight;
  if (done.status.ok()) {
    Store::StagingView view;
    KVRAIL_ASSERT(store_->view(restore.staging, view));
    store_->came_back(view.blocks[static_cast<std::uint32_t>(done.cookie)], done.epsilon_ppm);
    restore.bytes += restore.request.layout.block_bytes();
  } else {
    // What could not be read is not asked for again: it would end the next restore in the same way.
    tier_->forget(done.hash);
    restore.failed = true;
  }
  want(Kind::restore, index);
}

// ---- the end ---------------------------------------------------------------------------------------

// The version, if there is one, is pinned.
void Node::Core::end_restore(std::uint32_t index, VersionHandle version) noexcept {
  const Handle<Restore> handle = restores_.handle_at(index);
  Restore restore = *must(restores_.get(handle));
  KVRAIL_ASSERT(restore.in_flight == 0);
  scratch_.give_back(restore.tokens);
  restores_.erase(handle);
  ++(version.valid() ? counters_.restores : counters_.restores_failed);
  if (version.valid()) counters_.restored_bytes += restore.bytes;
  timers_.cancel(entity(Kind::restore, index));
  if (version.valid() && restore.stub.valid() && !restore.partial && restore.scan.tier_blocks == restore.scan.reachable_blocks) store_->keep(version);
  prefetched(handle, version);
  release_waiters(handle, restore.in, version, restore.partial);
  store_->unpin(version);
  store_->unpin(restore.stub);
}

// A tier that stalls holds nobody up: they have ids, or the bytes sent. What it still writes to stays until it has.
void Node::Core::restore_overdue(std::uint32_t index) noexcept {
  const Handle<Restore> handle = restores_.handle_at(index);
  Restore* restore = restores_.get(handle);
  if (restore == nullptr) return;
  restore->overdue = true;
  const InHandle waiting = std::exchange(restore->in, InHandle{});
  if (Incoming* in = ins_.get(waiting); in != nullptr) in->restores = kRestoresOfOffer;
  release_waiters(handle, waiting, VersionHandle{}, false);
}

void Node::Core::release_waiters(Handle<Restore> handle, InHandle waiting, VersionHandle version, bool partial) noexcept {
  if (Incoming* in = ins_.get(waiting); in != nullptr) {
    store_->pin(version);
    store_->unpin(std::exchange(in->restored, version));
    in->restore = Handle<Restore>{};
    look(*in);
    return want(Kind::in, waiting.index);
  }
  outs_.for_each([&](OutHandle at, Outgoing& out) {
    if (out.state != OutState::restoring || out.restore != handle) return;
    if (version.valid() && !partial) {
      store_->pin(version);
      store_->unpin(out.version);
      out.version = version;
    }
    park_or_offer(at.index);
  });
  local_waits_.for_each([&](Handle<LocalWait> at, const LocalWait& wait) {
    if (wait.restore == handle) resume_local(at.index, version, partial);
  });
}

// Token ids of a stub, shown with the leading blocks that have come back. Invalid: no room for it.
VersionHandle Node::Core::ids_with_head(VersionHandle stub) noexcept {
  VersionView view;
  KVRAIL_ASSERT(store_->view(stub, view));
  StageRequest request = stage_request_of(view);
  request.coding.medium = Medium::tokens;
  request.held_limit_ppm = UINT32_MAX;  // what the tier's coding loses, its owner has chosen
  request.show_held = request.anonymous = true;
  const AllowAllocScope allow;  // an Error's sentence, when there is one
  const auto staging = store_->stage(request);
  if (!staging.ok()) return {};
  const auto made = store_->publish(*staging);
  return made.ok() ? *made : VersionHandle{};
}

void Node::Core::resume_local(std::uint32_t index, VersionHandle version, bool partial) noexcept {
  const Handle<LocalWait> handle = local_waits_.handle_at(index);
  LocalRequest request = local_waits_.get(handle)->request;
  const VersionHandle waited_for = request.version;
  local_waits_.erase(handle);
  timers_.cancel(entity(Kind::local_wait, index));
  request.restored = true;
  if (version.valid() && partial) version = ids_with_head(waited_for);
  if (version.valid()) request.version = version;
  VersionView view;
  KVRAIL_ASSERT(store_->view(request.version, view));
  deliver_locally(request, view);
  store_->unpin(waited_for);
}

}  // namespace kvrail::engine
