// What arrives: which blocks are held, memory for those that are not, and their publication.
#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "codec/planes.h"
#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

bool valid_layout(const Layout& layout) noexcept {
  AllowAllocScope refusal;  // Only the sentence of a refusal is allocated, and it is dropped here.
  return codec::validate(layout).ok() && checked_block_bytes(layout).has_value();
}

class Stage {
 public:
  Stage(Store::State& state, const StageRequest& request) : state_(state), request_(request) {}

  [[nodiscard]] Result<StagingHandle> run() noexcept {
    if (const Status status = check(); !status.ok()) {
      return status;
    }
    const StagingHandle handle = state_.stagings.try_emplace();
    if (!handle) {
      return Status{Code::out_of_capacity, Scope::transfer, static_cast<std::int32_t>(state_.stagings.capacity())};
    }
    staging_ = state_.stagings.get(handle);
    const auto made = state_.make_version(request_.tenant, request_.owner, request_.context, request_.layout,
                                          request_.tokens.size(), true, true);
    if (!made) {
      state_.stagings.erase(handle);
      return made.status();
    }
    version_ = state_.versions.get(*made);
    staging_->version = *made;
    version_->number = request_.version;
    version_->medium = request_.medium;
    version_->window_first_block = window_first_;
    Status status = fill();
    if (status.ok() && !state_.take_manifest(*version_)) {
      status = state_.out_of_memory(request_.tenant);
    }
    if (!status.ok()) {
      undo_growth();
      state_.destroy(*made);
      state_.stagings.erase(handle);
      return status;
    }
    std::memcpy(state_.manifest_tail(*version_), request_.tokens.data(), request_.tokens.size_bytes());
    state_.tenants.get(request_.tenant)->staged_bytes += staging_->bytes;
    return handle;
  }

 private:
  [[nodiscard]] Status check() noexcept {
    if (state_.tenants.get(request_.tenant) == nullptr) {
      return Status{Code::not_found};
    }
    if (request_.tokens.empty()) {
      return refuse(StoreRule::no_tokens);
    }
    if (!valid_layout(request_.layout)) {
      return refuse(StoreRule::layout);
    }
    if (request_.version == 0 || request_.version > kMaxVersionNumber) {
      return refuse(StoreRule::version_number);
    }
    const bool window = request_.medium == Medium::window;
    if (request_.medium == Medium::int8) {
      AllowAllocScope refusal;
      if (!codec::can_encode(request_.layout).ok()) {
        return refuse(StoreRule::medium);
      }
    } else if (request_.medium != Medium::full && !window) {
      return refuse(StoreRule::medium);
    }
    if (window && request_.window_first_block > (request_.tokens.size() - 1) / request_.layout.block_tokens) {
      return refuse(StoreRule::window);
    }
    window_first_ = window ? request_.window_first_block : 0;
    limit_ppm_ = std::max(request_.epsilon_ppm, request_.held_limit_ppm);
    return {};
  }

  [[nodiscard]] bool left_out(std::uint32_t i) const noexcept { return i > 0 && i < window_first_; }

  [[nodiscard]] Status fill() noexcept {
    state_.fill_hashes(*version_, request_.tokens);
    const std::uint32_t count = version_->hash_count;
    std::uint32_t missing = 0;
    // Held blocks are referred to first, so that making room for the others can't take them away.
    for (std::uint32_t i = 0; i < count; ++i) {
      if (left_out(i)) {
        continue;
      }
      ++version_->kv_blocks;
      const BlockHandle held = state_.find_block(request_.tenant, version_->hashes[i]);
      if (held && state_.blocks.get(held)->epsilon_ppm <= limit_ppm_) {
        state_.ref(held);
        version_->blocks[i] = held;
        continue;
      }
      version_->missing[i] = 1;
      first_missing_ = missing++ == 0 ? i : first_missing_;
    }
    const std::uint64_t block_bytes = request_.layout.block_bytes();
    const std::uint64_t total = state_.receive_of(request_.tenant)->arena->bytes();
    if (missing > total / block_bytes) {
      return {Code::too_large, Scope::transfer, static_cast<std::int32_t>(std::min<std::uint64_t>(total, INT32_MAX))};
    }
    Status status;
    for (std::uint32_t i = 0; i < count && status.ok(); ++i) {
      if (version_->missing[i] != 0) {
        status = add_block(i, block_bytes);
      }
    }
    return status;
  }

  [[nodiscard]] Status add_block(std::uint32_t i, std::uint64_t block_bytes) noexcept {
    const auto tokens = block_tokens_of(request_.tokens, request_.layout.block_tokens, i);
    Store::State::NewBlock request;
    request.tenant = request_.tenant;
    request.hash = version_->hashes[i];
    request.parent = i > 0 ? version_->hashes[i - 1]
                           : codec::root_hash(state_.tenants.get(request_.tenant)->name.view(), request_.layout);
    request.shape = BlockShape::of(request_.layout);
    request.tokens = static_cast<std::uint32_t>(tokens.size());
    request.epsilon_ppm = request_.epsilon_ppm;
    request.slot_bytes = block_bytes;
    request.planes = request_.medium == Medium::int8;
    // Planes are coded over whole blocks, and a window is never merged with anything.
    const bool may_grow = i == first_missing_ && request_.medium == Medium::full;
    const BlockHandle base = may_grow ? state_.find_tail(request_.tenant, request.parent, tokens, limit_ppm_)
                                      : BlockHandle{};
    return base ? grow(i, request, base) : add(i, request);
  }

  [[nodiscard]] Status add(std::uint32_t i, const Store::State::NewBlock& request) noexcept {
    const auto made = state_.make_block(request);
    if (!made) {
      return made.status();
    }
    const BlockRecord& block = *state_.blocks.get(*made);
    version_->blocks[i] = *made;
    SlotRecord& slot = *state_.slots.get(block.slot);
    slot.rows_used = request.tokens;
    slot.epsilon_ppm = request.epsilon_ppm;
    slot.hash = request.hash;
    staging_->bytes += request.slot_bytes + block.planes[0].bytes + block.planes[1].bytes;
    return {};
  }

  // Rows of a shorter tail are kept: in their slot if it is the engine's own and has not grown
  // another way already, else as a copy.
  [[nodiscard]] Status grow(std::uint32_t i, Store::State::NewBlock request, BlockHandle base_handle) noexcept {
    state_.ref(base_handle);
    const BlockRecord& base = *state_.blocks.get(base_handle);
    const SlotRecord before = *state_.slots.get(base.slot);
    const std::uint32_t rows = base.tokens;
    const bool in_place = before.arena == state_.tenants.get(request_.tenant)->receive && before.rows_used == rows;
    request.epsilon_ppm = std::max(request.epsilon_ppm, base.epsilon_ppm);
    request.slot = in_place ? base.slot : SlotHandle{};
    const Status status = add(i, request);
    if (status.ok()) {
      staging_->tail_block = i;
      staging_->tail_from_row = rows;
      if (in_place) {
        staging_->grown = base.slot;
        staging_->before = before;
      } else {
        copy_rows(state_.blocks.get(version_->blocks[i])->slot, before, rows);
      }
    }
    state_.unref(base_handle);
    return status;
  }

  void copy_rows(SlotHandle to_handle, const SlotRecord& from, std::uint32_t rows) noexcept {
    const SlotRecord& to = *state_.slots.get(to_handle);
    std::byte* target = state_.address(to.arena, to.offset);
    const std::byte* source = state_.address(from.arena, from.offset);
    const std::uint64_t bytes = rows * request_.layout.row_bytes();
    for (std::uint32_t half = 0; half < 2 * request_.layout.layers; ++half) {
      const std::uint64_t at = request_.layout.row_offset(half / 2, half % 2, 0);
      std::memcpy(target + at, source + at, bytes);
    }
    state_.copied_bytes += bytes * 2 * request_.layout.layers;
  }

  void undo_growth() noexcept { state_.undo_growth(*staging_); }

  Store::State& state_;
  const StageRequest& request_;
  StagingRecord* staging_ = nullptr;
  VersionRecord* version_ = nullptr;
  std::uint32_t window_first_ = 0;
  std::uint32_t limit_ppm_ = 0;
  std::uint32_t first_missing_ = 0;
};

}  // namespace

void Store::State::undo_growth(const StagingRecord& staging) noexcept {
  SlotRecord* slot = slots.get(staging.grown);
  if (slot != nullptr) {
    slot->rows_used = staging.before.rows_used;
    slot->epsilon_ppm = staging.before.epsilon_ppm;
    slot->hash = staging.before.hash;
  }
}

void Store::State::settle_blocks(VersionRecord& version) noexcept {
  for (std::uint32_t i = 0; i < version.block_count; ++i) {
    if (version.missing[i] == 0) {
      continue;
    }
    const BlockHandle own = version.blocks[i];
    BlockRecord& block = *blocks.get(own);
    if (block.has_planes() && block.encoding == Hash128{}) {
      complete_planes(block);
    }
    if (version.medium == Medium::window) {
      continue;  // Terminal: never found by hash.
    }
    // Another transfer may have brought the same block meanwhile.
    const BlockHandle other = find_block(version.tenant, block.hash);
    if (other && blocks.get(other)->epsilon_ppm <= block.epsilon_ppm) {
      ref(other);
      version.blocks[i] = other;
      unref(own);
    } else {
      index_block(own);
    }
  }
}

// A version of the same number and tokens that is at least as good.
VersionHandle Store::State::find_equal(const VersionRecord& version, std::uint32_t epsilon_ppm) const noexcept {
  VersionHandle at = find_version(find_context(version.tenant, version.owner, version.name), version.number);
  for (; at; at = versions.get(at)->next_older) {
    const VersionRecord& other = *versions.get(at);
    if (other.number != version.number) {
      return {};
    }
    if ((other.block_count > 0) == (version.block_count > 0) && other.hash_count == version.hash_count &&
        other.layout == version.layout && other.epsilon_ppm <= epsilon_ppm &&
        (version.hash_count == 0 || other.hashes[other.hash_count - 1] == version.hashes[version.hash_count - 1])) {
      return at;
    }
  }
  return {};
}

// Another node must not put versions into a context of an agent that lives here: what it sends can
// be delivered, but is not found by name.
bool Store::State::may_list(const VersionRecord& version) const noexcept {
  const ContextRecord* context = contexts.get(find_context(version.tenant, version.owner, version.name));
  return version.medium != Medium::window && version.medium != Medium::summary &&
         (context == nullptr || !context->local_owner.valid());
}

// --- public ---

void Store::hash_chain(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::span<Hash128> out) const noexcept {
  const TenantRecord* record = state_->tenants.get(tenant);
  KVRAIL_ASSERT_MSG(record != nullptr && layout.block_tokens != 0, "hashes for no tenant or layout");
  KVRAIL_ASSERT(out.size() == (tokens.size() + layout.block_tokens - 1) / layout.block_tokens);
  Hash128 parent = codec::root_hash(record->name.view(), layout);
  for (std::size_t i = 0; i < out.size(); ++i) {
    parent = codec::chain(parent, block_tokens_of(tokens, layout.block_tokens, i));
    out[i] = parent;
  }
}

HaveResult Store::have(TenantHandle tenant, const Layout& layout, std::span<const TokenId> tokens,
                       std::uint32_t epsilon_limit_ppm) const noexcept {
  HaveResult result;
  const TenantRecord* record = state_->tenants.get(tenant);
  if (record == nullptr || !valid_layout(layout)) {
    return result;
  }
  Hash128 parent = codec::root_hash(record->name.view(), layout);
  bool unbroken = true;
  for (std::uint64_t first = 0, i = 0; first < tokens.size(); first += layout.block_tokens, ++i) {
    const auto part = block_tokens_of(tokens, layout.block_tokens, i);
    const Hash128 hash = codec::chain(parent, part);
    const BlockHandle held = state_->find_block(tenant, hash);
    if (held && state_->blocks.get(held)->epsilon_ppm <= epsilon_limit_ppm) {
      ++result.held_blocks;
      result.leading_blocks += unbroken && part.size() == layout.block_tokens ? 1 : 0;
    } else if (unbroken) {
      unbroken = false;
      const BlockHandle tail = state_->find_tail(tenant, parent, part, epsilon_limit_ppm);
      result.tail_rows = tail ? state_->blocks.get(tail)->tokens : 0;
    }
    parent = hash;
  }
  return result;
}

Result<StagingHandle> Store::stage(const StageRequest& request) noexcept {
  return Stage(*state_, request).run();
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
  out.missing = {version.missing, version.block_count};
  out.blocks = {version.blocks, version.block_count};
  return true;
}

Result<VersionHandle> Store::publish(StagingHandle handle) noexcept {
  const StagingRecord* staging = state_->stagings.get(handle);
  if (staging == nullptr) {
    return Status{Code::generation_mismatch};
  }
  const VersionHandle version_handle = staging->version;
  VersionRecord& version = *state_->versions.get(version_handle);
  state_->tenants.get(version.tenant)->staged_bytes -= staging->bytes;
  state_->stagings.erase(handle);
  state_->settle_blocks(version);
  std::uint32_t epsilon_ppm = 0;
  for (std::uint32_t i = 0; i < version.block_count; ++i) {
    const BlockRecord* block = state_->blocks.get(version.blocks[i]);
    epsilon_ppm = block == nullptr ? epsilon_ppm : std::max(epsilon_ppm, block->epsilon_ppm);
  }
  if (version.medium != Medium::window) {
    if (const VersionHandle equal = state_->find_equal(version, epsilon_ppm)) {
      state_->destroy(version_handle);
      return equal;
    }
  }
  state_->publish(version_handle, state_->may_list(version));
  return version_handle;
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

Result<VersionHandle> Store::publish_tokens(TenantHandle tenant, const Name& owner, const Name& context,
                                            std::uint64_t number, const Layout& layout, Medium medium,
                                            std::span<const TokenId> tokens) noexcept {
  if (state_->tenants.get(tenant) == nullptr) {
    return Status{Code::not_found};
  }
  if (!valid_layout(layout)) {
    return refuse(StoreRule::layout);
  }
  if (tokens.empty()) {
    return refuse(StoreRule::no_tokens);
  }
  if (number == 0 || number > kMaxVersionNumber) {
    return refuse(StoreRule::version_number);
  }
  const auto made = state_->make_version(tenant, owner, context, layout, tokens.size(), false, false);
  if (!made) {
    return made;
  }
  VersionRecord& version = *state_->versions.get(*made);
  version.number = number;
  version.medium = medium;
  state_->fill_hashes(version, tokens);
  if (const VersionHandle equal = state_->find_equal(version, 0); equal && state_->versions.get(equal)->medium == medium) {
    state_->destroy(*made);
    return equal;
  }
  if (!state_->take_manifest(version)) {
    state_->destroy(*made);
    return state_->out_of_memory(tenant);
  }
  std::memcpy(state_->manifest_tail(version), tokens.data(), tokens.size_bytes());
  state_->publish(*made, state_->may_list(version));
  return made;
}

Result<VersionHandle> Store::publish_summary(TenantHandle tenant, const Name& owner, const Name& context,
                                             std::uint64_t number, std::uint8_t kind,
                                             std::span<const std::byte> bytes) noexcept {
  if (state_->tenants.get(tenant) == nullptr) {
    return Status{Code::not_found};
  }
  const auto made = state_->make_version(tenant, owner, context, Layout{}, 0, false, false);
  if (!made) {
    return made;
  }
  VersionRecord& version = *state_->versions.get(*made);
  version.number = number;
  version.medium = Medium::summary;
  version.summary_kind = kind;
  version.summary_bytes = bytes.size();
  if (!state_->take_manifest(version)) {
    state_->destroy(*made);
    return state_->out_of_memory(tenant);
  }
  if (!bytes.empty()) {
    std::memcpy(state_->manifest_tail(version), bytes.data(), bytes.size());
  }
  state_->publish(*made, false);
  return made;
}

}  // namespace kvrail::engine
