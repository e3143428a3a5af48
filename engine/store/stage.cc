// Memory for what is to arrive: which blocks of a context are held, and slots for those that are
// not.
#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "codec/planes.h"
#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

class Stage {
 public:
  Stage(Store::State& state, const StageRequest& request) : state_(state), request_(request) {}

  [[nodiscard]] Result<StagingHandle> run() noexcept {
    if (const Status status = check(); !status.ok()) {
      return status;
    }
    const StagingHandle handle = state_.stagings.try_emplace();
    if (!handle) {
      return Status{Code::out_of_capacity, Scope::transfer,
                    static_cast<std::int32_t>(state_.stagings.capacity())};
    }
    staging_ = state_.stagings.get(handle);
    const auto made = state_.make_version(request_.tenant, request_.owner, request_.context,
                                          request_.layout, request_.tokens.size(), true, true);
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
    std::memcpy(state_.manifest_tail(*version_), request_.tokens.data(),
                request_.tokens.size_bytes());
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
    if (window &&
        request_.window_first_block > (request_.tokens.size() - 1) / request_.layout.block_tokens) {
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
      return {Code::too_large, Scope::transfer,
              static_cast<std::int32_t>(std::min<std::uint64_t>(total, INT32_MAX))};
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
    request.parent =
        i > 0 ? version_->hashes[i - 1]
              : codec::root_hash(state_.tenants.get(request_.tenant)->name.view(), request_.layout);
    request.shape = BlockShape::of(request_.layout);
    request.tokens = static_cast<std::uint32_t>(tokens.size());
    request.epsilon_ppm = request_.epsilon_ppm;
    request.slot_bytes = block_bytes;
    request.planes = request_.medium == Medium::int8;
    // Planes are coded over whole blocks, and a window is never merged with anything.
    const bool may_grow = i == first_missing_ && request_.medium == Medium::full;
    const BlockHandle base =
        may_grow ? state_.find_tail(request_.tenant, request.parent, tokens, limit_ppm_)
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
  [[nodiscard]] Status grow(std::uint32_t i, Store::State::NewBlock request,
                            BlockHandle base_handle) noexcept {
    state_.ref(base_handle);
    const BlockRecord& base = *state_.blocks.get(base_handle);
    const SlotRecord before = *state_.slots.get(base.slot);
    const std::uint32_t rows = base.tokens;
    const bool in_place =
        before.arena == state_.tenants.get(request_.tenant)->receive && before.rows_used == rows;
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

Result<StagingHandle> Store::stage(const StageRequest& request) noexcept {
  return Stage(*state_, request).run();
}

}  // namespace kvrail::engine
