// What has arrived: look-ups by hash, publication, abandonment.
#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "codec/sparse.h"
#include "engine/core/tier_port.h"
#include "engine/store/state.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {

namespace {

// But for what was lost of it.
bool same_kv(const VersionRecord& a, const VersionRecord& b) noexcept {
  return a.number == b.number && a.has_kv() && b.has_kv() && a.hash_count == b.hash_count && a.layout == b.layout &&
         a.hashes[a.hash_count - 1] == b.hashes[b.hash_count - 1];
}

}  // namespace

bool valid_layout(const Layout& layout) noexcept {
  AllowAllocScope refusal;  // Only the sentence of a refusal is allocated, and it is dropped here.
  return codec::validate(layout).ok() && checked_block_bytes(layout).has_value();
}

void Store::State::undo_growth(const StagingRecord& staging) noexcept {
  SlotRecord* slot = slots.get(staging.grown);
  if (slot != nullptr) {
    slot->rows_used = staging.before.rows_used;
    slot->epsilon_ppm = staging.before.epsilon_ppm;
    slot->hash = staging.before.hash;
  }
}

// Another transfer may have brought the same block meanwhile: then that one is used.
BlockHandle Store::State::find_or_index(BlockHandle own) noexcept {
  const BlockRecord& block = *blocks.get(own);
  const BlockHandle other = find_block(block.tenant, block.hash);
  if (!other || blocks.get(other)->epsilon_ppm > block.epsilon_ppm) {
    index_block(own);
    return own;
  }
  ref(other);
  unref(own);
  return other;
}

void Store::State::settle_block(const StagingRecord& staging, VersionRecord& version) noexcept {
  const std::uint32_t i = staging.at;
  prefetch_after(version, i);
  const BlockHandle own = version.blocks[i];
  if (!own) {
    return;  // Left out of a window.
  }
  if (version.medium == Medium::split && i >= version.left_out_from && i < version.window_first_block) {
    unref(own);
    version.blocks[i] = BlockHandle{};
    return;
  }
  BlockHandle settled = own;
  if (version.missing != nullptr && version.missing[i] != 0) {
    settle_planes(staging, staging.coding.of_block(i), own);
    settled = is_sparse(version.medium) ? own : find_or_index(own);  // terminal: never found
  }
  version.blocks[i] = settled;
  version.epsilon_ppm = std::max(version.epsilon_ppm, blocks.get(settled)->epsilon_ppm);
}

// The i-th block's entry and token ids.
void Store::State::write_staged(const StagingRecord& staging, const VersionRecord& version) noexcept {
  const std::uint64_t first = std::uint64_t{staging.at} * version.layout.block_tokens;
  const auto part = block_tokens_of(staging.tokens, version.layout.block_tokens, staging.at);
  std::memcpy(manifest_tail(version) + first * sizeof(TokenId), part.data(), part.size_bytes());
  if (staging.at < version.block_count) {
    write_manifest_block(version, staging.at);
  }
}

// A version of the same number and tokens that is at least as good.
VersionHandle Store::State::find_equal(const VersionRecord& version,
                                       std::uint32_t epsilon_ppm) const noexcept {
  VersionHandle at =
      find_version(find_context(version.tenant, version.owner, version.name), version.number);
  for (; at; at = versions.get(at)->next_older) {
    const VersionRecord& other = *versions.get(at);
    if (other.number != version.number) {
      return {};
    }
    if (other.has_kv() == version.has_kv() &&
        other.hash_count == version.hash_count && other.layout == version.layout &&
        other.epsilon_ppm <= epsilon_ppm &&
        (version.hash_count == 0 ||
         other.hashes[other.hash_count - 1] == version.hashes[version.hash_count - 1])) {
      return at;
    }
  }
  return {};
}

VersionHandle Store::State::finest_of(VersionHandle handle) const noexcept {
  const VersionRecord& version = *versions.get(handle);
  if (!version.context || !version.has_kv()) {
    return handle;
  }
  const VersionHandle first = find_version(version.context, version.number);  // those of least loss go before
  return same_kv(*versions.get(first), version) ? first : handle;
}

void Store::State::drop_coarser_of(const VersionRecord& version) noexcept {
  const ContextRecord* context = contexts.get(version.context);
  VersionHandle at = context == nullptr ? VersionHandle{} : context->newest;
  while (const VersionRecord* other = versions.get(at)) {
    const VersionHandle next = other->next_older;
    if (same_kv(*other, version) && other->epsilon_ppm > version.epsilon_ppm && other->pins == 0) {
      destroy(at);  // the context has the finer one left
    }
    at = next;
  }
}

// Another node must not put versions into a context of an agent that lives here: what it sends can
// be delivered, but is not found by name.
bool Store::State::may_list(const VersionRecord& version) const noexcept {
  const ContextRecord* context =
      contexts.get(find_context(version.tenant, version.owner, version.name));
  return !is_partial(version.medium) && version.medium != Medium::summary &&
         (context == nullptr || !context->local_owner.valid());
}

// --- public ---

void Store::hash_chain(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::span<Hash128> out) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  KVRAIL_ASSERT_MSG(record != nullptr && layout.block_tokens != 0,
                    "hashes for no tenant or layout");
  KVRAIL_ASSERT(out.size() == (tokens.size() + layout.block_tokens - 1) / layout.block_tokens);
  Hash128 parent = codec::root_hash(record->name.view(), layout);
  for (std::size_t i = 0; i < out.size(); ++i) {
    parent = codec::chain(parent, block_tokens_of(tokens, layout.block_tokens, i));
    out[i] = parent;
  }
}

void Store::HaveScan::look_in_tier(const Hash128& hash, std::size_t tokens, bool held) noexcept {
  if (tier == nullptr || unreachable) {
    return;
  }
  if (!held) {
    const auto kept = tier->find(hash);
    if (!kept || kept->tokens != tokens || kept->epsilon_ppm > tier_limit_ppm) {
      unreachable = true;
      return;
    }
    ++tier_blocks;
    tier_bytes += kept->stored_bytes;
  }
  ++reachable_blocks;
}

bool Store::scan(HaveScan& scan, TenantHandle tenant, const Layout& layout,
                 std::span<const TokenId> tokens, std::uint64_t& budget_blocks) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  if (record == nullptr || tokens.empty() || !valid_layout(layout)) {
    return true;
  }
  if (scan.next_block == 0) {
    scan.parent = codec::root_hash(record->name.view(), layout);
  }
  const std::uint64_t blocks = (tokens.size() - 1) / layout.block_tokens + 1;
  for (; scan.next_block < blocks; ++scan.next_block, --budget_blocks) {
    if (budget_blocks == 0) {
      return false;
    }
    const auto part = block_tokens_of(tokens, layout.block_tokens, scan.next_block);
    const Hash128 hash = codec::chain(scan.parent, part);
    const BlockRecord* held = state_->blocks.get(state_->find_block(tenant, hash));
    scan.look_in_tier(hash, part.size(), held != nullptr && held->epsilon_ppm <= scan.limits_ppm[0]);
    for (std::size_t k = 0; k < scan.limits_ppm.size(); ++k) {
      HaveResult& result = scan.results[k];
      if (held != nullptr && held->epsilon_ppm <= scan.limits_ppm[k]) {
        ++result.held_blocks;
        result.leading_blocks += !scan.broken[k] && part.size() == layout.block_tokens ? 1 : 0;
      } else if (!scan.broken[k]) {
        scan.broken[k] = true;
        const BlockRecord* tail = state_->blocks.get(
            state_->find_tail(tenant, scan.parent, part, scan.limits_ppm[k]));
        result.tail_rows = tail != nullptr ? tail->tokens : 0;
      }
    }
    scan.parent = hash;
  }
  return true;
}

HaveResult Store::have(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::uint32_t epsilon_limit_ppm) const noexcept {
  HaveScan all;
  all.limits_ppm.fill(epsilon_limit_ppm);
  std::uint64_t budget = UINT64_MAX;
  KVRAIL_ASSERT(scan(all, tenant, layout, tokens, budget));
  return all.results[0];
}

bool Store::view(StagingHandle handle, StagingView& out) const noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return false;
  }
  const VersionRecord& version = *state_->versions.get(staging->version);
  out.block_count = version.block_count;
  out.tail_from_row = staging->tail_from_row;
  out.tail_block = staging->tail_block;
  out.first_plane = staging->first_plane;
  out.missing = {version.missing, version.block_count};
  out.blocks = {version.blocks, version.block_count};
  out.positions = {};
  if (version.positions_offset != kNoOffset) {
    out.positions = {state_->receive_of(version.tenant)->arena->base() + version.positions_offset, version.positions_bytes};
  }
  return true;
}

Status Store::take_positions(StagingHandle handle) noexcept {
  StagingView staged;
  if (!view(handle, staged)) {
    return Status{Code::generation_mismatch};
  }
  const VersionRecord& version = *state_->versions.get(state_->stagings.get(handle)->version);
  KVRAIL_ASSERT_MSG(version.medium == Medium::topk && !staged.positions.empty(), "positions of what has none");
  const std::uint32_t length = load_le32(staged.positions.data());
  if (length > staged.positions.size() - kRunHeadBytes) {
    return Status{Code::protocol_error};
  }
  const auto total = static_cast<std::uint32_t>(version.token_count);
  const auto read = codec::decode_positions(staged.positions.subspan(kRunHeadBytes, length), total,
                                            state_->positions_of(version));
  if (!read.ok()) {
    return read.status();
  }
  return read->size() == version.kept_tokens ? Status{} : Status{Code::protocol_error};
}

std::optional<Result<VersionHandle>> Store::advance_publish(StagingHandle handle,
                                                            std::uint64_t& budget_blocks) noexcept {
  State& state = *state_;
  StagingRecord* staging = state.stagings.get(handle);
  if (staging == nullptr) {
    return Result<VersionHandle>(Status{Code::generation_mismatch});
  }
  VersionRecord& version = *state.versions.get(staging->version);
  if (staging->step == StageStep::ready) {
    staging->step = StageStep::settle;
    staging->grown = SlotHandle{};  // From here on the longer block may be found, and built upon.
  }
  KVRAIL_ASSERT_MSG(staging->step >= StageStep::settle, "publishing what is not staged");
  for (;; ++staging->at, --budget_blocks) {
    const bool manifest = staging->step == StageStep::manifest;
    // Token ids go with the manifest's blocks, and reach beyond those where not all are held.
    if (staging->at >= (manifest ? version.hash_count : version.block_count)) {
      if (manifest) {
        break;
      }
      staging->step = StageStep::manifest;
      staging->at = 0;
    }
    if (budget_blocks == 0) {
      return std::nullopt;
    }
    staging->step == StageStep::settle ? state.settle_block(*staging, version)
                                       : state.write_staged(*staging, version);
  }
  return end_publish(handle);
}

// An equal version that is there already takes the place of the new one.
Result<VersionHandle> Store::end_publish(StagingHandle handle) noexcept {
  State& state = *state_;
  const StagingRecord staging = *state.stagings.get(handle);
  VersionRecord& version = *state.versions.get(staging.version);
  state.tenants.get(version.tenant)->staged_bytes -= staging.bytes;
  state.stagings.erase(handle);
  state.give_back_positions(version);
  if (!is_partial(version.medium) && !staging.anonymous) {
    const bool ids = version.medium == Medium::tokens || version.medium == Medium::reference;
    const VersionHandle equal = state.find_equal(version, ids ? staging.limit_ppm : version.epsilon_ppm);
    const VersionRecord* other = state.versions.get(equal);
    if (other != nullptr &&
        (!ids || (other->medium == version.medium && other->kv_blocks == version.kv_blocks))) {
      state.destroy(staging.version);
      return equal;
    }
  }
  state.write_manifest_header(version);
  state.list(staging.version, staging.again || (!staging.anonymous && state.may_list(version)));
  if (version.has_kv()) {
    state.drop_stub_of(version);
    state.drop_coarser_of(version);
  }
  return staging.version;
}

Result<VersionHandle> Store::publish(StagingHandle handle) noexcept {
  std::uint64_t all = UINT64_MAX;
  return *advance_publish(handle, all);
}

void Store::cut(StagingHandle handle, Medium medium, std::uint32_t epsilon_ppm) noexcept {
  StagingRecord* staging = state_->stagings.get(handle);
  KVRAIL_ASSERT_MSG(staging != nullptr && staging->step == StageStep::ready && is_coded(medium),
                    "only what is arriving can be cut");
  KVRAIL_ASSERT((planes_of(medium) & ~staging->coding.planes()) == 0);
  staging->coding.medium = medium;
  staging->coding.ends = {};
  staging->epsilon_ppm = epsilon_ppm;
  state_->versions.get(staging->version)->medium = medium;
}

void Store::leave_head(StagingHandle handle, std::uint32_t from, std::uint32_t tail) noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  KVRAIL_ASSERT_MSG(staging != nullptr && staging->step == StageStep::ready && from < tail, "only what is arriving is divided");
  VersionRecord& version = *state_->versions.get(staging->version);
  KVRAIL_ASSERT(tail < version.block_count && version.window_first_block == 0);
  version.medium = Medium::split;
  version.left_out_from = from;
  version.window_first_block = tail;
  version.kv_blocks -= tail - from;
}

void Store::abandon(StagingHandle handle) noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return;
  }
  const VersionHandle version = staging->version;
  state_->tenants.get(state_->versions.get(version)->tenant)->staged_bytes -= staging->bytes;
  state_->undo_growth(*staging);
  state_->destroy(version);
  state_->stagings.erase(handle);
}

}  // namespace kvrail::engine
