// What a tenant's versions are worth that may leave memory: scheduler/value.h orders them, this file tells it what happens.
//
// A version has a value from its first idle moment until it leaves or has an owner here; meanwhile it is pinned there by
// whoever pins it here, all of them together once. What is used again is the context: a new version of it counts as one
// more use of the same thing, and so does a version that is pinned after it was idle for a while. A delivery pins and
// unpins several times within a moment, which is one use.
#include <algorithm>
#include <bit>

#include "engine/store/state.h"
#include "scheduler/cost.h"

namespace kvrail::engine {
namespace {

constexpr TimeNs kOneUseNs = kSecondNs;
constexpr std::uint32_t kMaxHints = 256;
constexpr std::uint32_t kFewestSamples = 1U << 10;

std::uint32_t rank_of(const VersionRecord& version) noexcept { return version.kept ? kRankKept : kRankOnlyHere; }

// What a use of it is to its context.
scheduler::Use use_of(const VersionRecord& version, const ContextRecord* context, TimeNs now_ns) noexcept {
  scheduler::Use use;
  use.continues = context != nullptr && context->used_ns != 0;
  use.added = version.hash_count - (use.continues ? std::min(version.hash_count, context->used_blocks) : 0);
  use.since_lineage_ns = use.continues ? now_ns - context->used_ns : 0;
  return use;
}

void count_use(VersionRecord& version, ContextRecord* context, TimeNs now_ns) noexcept {
  version.counted_ns = now_ns;
  if (context != nullptr) {
    context->used_ns = now_ns;
    context->used_blocks = version.hash_count;
  }
}

}  // namespace

std::unique_ptr<scheduler::ValueIndex> Store::State::make_values(const StoreOptions& options) {
  const std::uint32_t keys = std::bit_ceil(std::clamp(4 * options.max_versions, kFewestSamples, scheduler::ReuseModel::kSamples));
  return std::make_unique<scheduler::ValueIndex>(scheduler::ValueIndex::Config{
      .entries = options.max_versions, .hints = std::min(kMaxHints, options.max_versions), .known_keys = keys, .ranks = kRanks, .samples = keys});
}

// From the tier, where it has all blocks; else by computing the tokens, for whoever had them may be gone.
scheduler::EntryCost Store::State::cost_of(const VersionRecord& version) const noexcept {
  const std::uint64_t bytes = std::uint64_t{version.kv_blocks} * version.layout.block_bytes();
  const TimeNs tier_ns = static_cast<TimeNs>(bytes >> 20) * costs.tier_ns_per_mib;
  const TimeNs restore_ns = version.kept ? tier_ns : scheduler::prefill_ns(costs.compute, version.token_count, 0);
  return {.bytes = std::max<std::uint64_t>(bytes, 1), .restore_ns = std::max<TimeNs>(restore_ns, 1)};
}

void Store::State::value_idle(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  scheduler::ValueIndex& values = values_of(version.tenant);
  const TimeNs now_ns = version.last_used_ns;  // just now
  if (version.valued) {
    values.set_rank(handle.index, rank_of(version), now_ns);
    values.set_cost(handle.index, cost_of(version), now_ns);
    return values.unpin(handle.index, now_ns);
  }
  ContextRecord* context = contexts.get(version.context);
  const std::uint64_t hash = context != nullptr ? context->key : version.hash_count > 0 ? version.hashes[version.hash_count - 1].low : 0;
  values.insert(handle.index, hash, cost_of(version), use_of(version, context, now_ns), now_ns, rank_of(version));
  version.valued = true;
  count_use(version, context, now_ns);
}

void Store::State::value_busy(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  if (!version.valued || !version.in_lru) {
    return;
  }
  scheduler::ValueIndex& values = values_of(version.tenant);
  const TimeNs now_ns = clock.now_ns();
  if (now_ns - version.counted_ns >= kOneUseNs) {
    ContextRecord* context = contexts.get(version.context);
    values.touch(handle.index, use_of(version, context, now_ns), now_ns);
    count_use(version, context, now_ns);
  }
  values.pin(handle.index);
}

void Store::State::value_forget(VersionHandle handle) noexcept {
  VersionRecord& version = *versions.get(handle);
  if (!version.valued) {
    return;
  }
  scheduler::ValueIndex& values = values_of(version.tenant);
  if (!version.in_lru) {
    values.unpin(handle.index, clock.now_ns());
  }
  values.remove(handle.index);
  version.valued = false;
}

VersionHandle Store::State::least_worth(TenantHandle tenant) const noexcept {
  const auto victim = values_of(tenant).victim(clock.now_ns());
  return victim ? versions.handle_at(*victim) : VersionHandle{};
}

// --- public ---

void Store::expect(VersionHandle handle, std::uint32_t probability_ppm, TimeNs when_ns) noexcept {
  const VersionRecord* version = state_->versions.get(handle);
  if (version != nullptr && version->valued) {
    state_->values_of(version->tenant).hint(handle.index, probability_ppm, when_ns, state_->clock.now_ns());
  }
}

void Store::expect_no_more(VersionHandle handle) noexcept {
  const VersionRecord* version = state_->versions.get(handle);
  if (version != nullptr && version->valued) {
    state_->values_of(version->tenant).forget_hint(handle.index, state_->clock.now_ns());
  }
}

void Store::set_costs(const RestoreCosts& costs) noexcept { state_->costs = costs; }

}  // namespace kvrail::engine
