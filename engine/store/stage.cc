// Memory for what is to arrive: which blocks of a context are held, and slots for those that are
// not.
#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {
namespace {

Status judge(const Store::State& state, const StageRequest& request) noexcept {
  if (state.tenants.get(request.tenant) == nullptr) {
    return Status{Code::not_found};
  }
  if (request.tokens.empty()) {
    return refuse(StoreRule::no_tokens);
  }
  if (!valid_layout(request.layout)) {
    return refuse(StoreRule::layout);
  }
  if (request.version == 0 || request.version > kMaxVersionNumber) {
    return refuse(StoreRule::version_number);
  }
  const Medium medium = request.coding.medium;
  const Medium rows = request.coding.rows();
  const bool plain = is_sparse(medium) ? rows == Medium::full : is_kv(medium);
  const bool known = is_coded(rows) ? can_code(request.layout, request.coding)
                                    : plain || medium == Medium::tokens || medium == Medium::reference;
  if (!known || request.coding.lowrank != state.basis_for(medium)) {
    return refuse(StoreRule::medium);
  }
  if (medium == Medium::window &&
      request.window_first_block > (request.tokens.size() - 1) / request.layout.block_tokens) {
    return refuse(StoreRule::window);
  }
  const bool some = request.kept_tokens > 0 && request.kept_tokens <= request.tokens.size();
  if (medium == Medium::topk ? !some : request.kept_tokens != 0) {
    return refuse(StoreRule::kept);
  }
  return {};
}

// One block of one step of a staging.
class StageWork {
 public:
  StageWork(Store::State& state, StagingRecord& staging)
      : state_(state), staging_(staging), version_(*state.versions.get(staging.version)) {}

  [[nodiscard]] Status advance() noexcept {
    const std::uint32_t i = staging_.at++;
    switch (staging_.step) {
      case StageStep::hash:
        version_.hashes[i] = codec::chain(parent_of(i), part(i));
        break;
      case StageStep::hold: hold(i); break;
      case StageStep::take:
        if (packed()) {
          return add_packed(i);
        }
        return version_.missing[i] != 0 ? add_block(i) : Status{};
      default: KVRAIL_UNREACHABLE();
    }
    return {};
  }
  [[nodiscard]] bool through() const noexcept {
    return staging_.at >= (packed() ? version_.block_count : version_.hash_count);
  }
  // What follows on the step that is through.
  [[nodiscard]] Status next_step() noexcept {
    staging_.at = 0;
    if (staging_.step == StageStep::hash) {
      staging_.step = StageStep::hold;
      return {};
    }
    if (staging_.step == StageStep::hold && is_kv(version_.medium)) {
      staging_.step = StageStep::take;
      return fits();
    }
    staging_.step = StageStep::ready;
    if (packed() && !state_.take_positions_room(version_, staging_.tokens.size())) {
      return state_.out_of_memory(version_.tenant);
    }
    if (staging_.outgoing) {
      return {};
    }
    if (!is_kv(version_.medium)) {
      version_.block_count = version_.kv_blocks;
    }
    return state_.take_manifest(version_) ? Status{} : state_.out_of_memory(version_.tenant);
  }

  [[nodiscard]] Status fits() const noexcept {
    const std::uint64_t total = state_.receive_of(version_.tenant)->arena->bytes();
    if (staging_.missing <= total / version_.layout.block_bytes()) {
      return state_.may_fit(version_.tenant, staging_.missing * version_.layout.block_bytes())
                 ? Status{}
                 : state_.out_of_memory(version_.tenant);
    }
    return {Code::too_large, Scope::transfer,
            static_cast<std::int32_t>(std::min<std::uint64_t>(total, INT32_MAX))};
  }

 private:
  // topk: blocks have the rows that are kept, one behind the other, and neither hashes nor holds.
  [[nodiscard]] bool packed() const noexcept { return version_.medium == Medium::topk; }

  [[nodiscard]] Status add_packed(std::uint32_t i) noexcept {
    const std::uint64_t left = version_.kept_tokens - std::uint64_t{i} * version_.layout.block_tokens;
    const std::uint64_t rows = std::min<std::uint64_t>(left, version_.layout.block_tokens);
    version_.missing[i] = 1;
    Store::State::NewBlock request = Store::State::new_block(version_, i, Hash128{}, rows);
    request.epsilon_ppm = staging_.epsilon_ppm;
    request.coding = staging_.coding;
    return add(i, request);
  }

  [[nodiscard]] std::span<const TokenId> part(std::uint32_t i) const noexcept {
    return block_tokens_of(staging_.tokens, version_.layout.block_tokens, i);
  }
  [[nodiscard]] Hash128 parent_of(std::uint32_t i) const noexcept {
    return i > 0 ? version_.hashes[i - 1]
                 : codec::root_hash(state_.tenants.get(version_.tenant)->name.view(), version_.layout);
  }

  // Held blocks are referred to first, so that making room for the others can't take them away.
  void hold(std::uint32_t i) noexcept {
    const bool kv = is_kv(version_.medium);
    if (kv && i > 0 && i < version_.window_first_block) {
      return;  // Left out.
    }
    state_.prefetch_after(version_, i);
    const BlockHandle held = state_.find_block(version_.tenant, version_.hashes[i]);
    const BlockRecord* block = state_.blocks.get(held);
    const bool usable = block != nullptr && block->epsilon_ppm <= staging_.limit_ppm;
    if (!kv && !(usable && block->full())) {
      staging_.at = version_.hash_count;  // Who gets the ids recomputes all that follows.
      return;
    }
    ++version_.kv_blocks;
    if (usable) {
      state_.ref(held);
      version_.blocks[i] = held;
      return;
    }
    version_.missing[i] = 1;
    staging_.first_plane = std::min(staging_.first_plane, planes_of_coarser(block));
    staging_.first_missing = staging_.missing++ == 0 ? i : staging_.first_missing;
  }

  // How many planes of the coding, from the first on, a copy that is too lossy has: they refine what it
  // was decoded from.
  [[nodiscard]] std::size_t planes_of_coarser(const BlockRecord* held) const noexcept {
    std::size_t count = 0;
    while (held != nullptr && held->came_coded && count < kNestedPlanes && held->planes[count].taken() &&
           held->planes[count].layers == held->shape.layers) {
      ++count;
    }
    return count;
  }

  // The coarser copy may have gone meanwhile; then all planes are to come.
  void copy_planes(std::uint32_t i) noexcept {
    const BlockHandle handle = version_.blocks[i];
    const BlockRecord& to = *state_.blocks.get(handle);
    const BlockRecord* from = state_.blocks.get(state_.find_block(version_.tenant, version_.hashes[i]));
    if (planes_of_coarser(from) < staging_.first_plane) {
      staging_.first_plane = 0;
      return;
    }
    std::byte* base = state_.receive_of(version_.tenant)->arena->base();
    for (std::size_t plane = 0; plane < staging_.first_plane; ++plane) {
      KVRAIL_ASSERT(to.planes[plane].bytes == from->planes[plane].bytes);
      std::memcpy(base + to.planes[plane].offset, base + from->planes[plane].offset, to.planes[plane].bytes);
      state_.copied_bytes += to.planes[plane].bytes;
    }
    state_.digest_planes(*state_.blocks.get(handle), static_cast<PlaneMask>((1U << staging_.first_plane) - 1),
                         version_.layout.layers);
  }

  [[nodiscard]] Status add_block(std::uint32_t i) noexcept {
    Store::State::NewBlock request = Store::State::new_block(version_, i, parent_of(i), part(i).size());
    request.epsilon_ppm = staging_.epsilon_ppm;
    request.coding = staging_.coding.of_block(i);
    // Planes are coded over whole blocks, and a window is never merged with anything.
    const bool may_grow = i == staging_.first_missing && version_.medium == Medium::full && !staging_.whole_blocks;
    const BlockHandle base =
        may_grow ? state_.find_tail(version_.tenant, request.parent, part(i), staging_.limit_ppm)
                 : BlockHandle{};
    return base ? grow(i, request, base) : add(i, request);
  }

  [[nodiscard]] Status add(std::uint32_t i, const Store::State::NewBlock& request) noexcept {
    const auto made = state_.make_block(request);
    if (!made) {
      return made.status();
    }
    const BlockRecord& block = *state_.blocks.get(*made);
    version_.blocks[i] = *made;
    SlotRecord& slot = *state_.slots.get(block.slot);
    slot.rows_used = request.tokens;
    slot.epsilon_ppm = request.epsilon_ppm;
    slot.hash = request.hash;
    std::uint64_t bytes = request.slot_bytes;
    for (const PlaneRecord& plane : block.planes) bytes += plane.bytes;
    staging_.bytes += bytes;
    state_.tenants.get(version_.tenant)->staged_bytes += bytes;
    if (staging_.first_plane > 0) copy_planes(i);
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
        before.arena == state_.tenants.get(version_.tenant)->receive && before.rows_used == rows;
    request.epsilon_ppm = std::max(request.epsilon_ppm, base.epsilon_ppm);
    request.slot = in_place ? base.slot : SlotHandle{};
    const Status status = add(i, request);
    if (status.ok()) {
      staging_.tail_block = i;
      staging_.tail_from_row = rows;
      if (in_place) {
        staging_.grown = base.slot;
        staging_.before = before;
      } else {
        copy_rows(state_.blocks.get(version_.blocks[i])->slot, before, rows);
      }
    }
    state_.unref(base_handle);
    return status;
  }

  void copy_rows(SlotHandle to_handle, const SlotRecord& from, std::uint32_t rows) noexcept {
    const Layout& layout = version_.layout;
    const SlotRecord& to = *state_.slots.get(to_handle);
    std::byte* target = state_.address(to.arena, to.offset);
    const std::byte* source = state_.address(from.arena, from.offset);
    const std::uint64_t bytes = rows * layout.row_bytes();
    for (std::uint32_t half = 0; half < 2 * layout.layers; ++half) {
      const std::uint64_t at = layout.row_offset(half / 2, half % 2, 0);
      std::memcpy(target + at, source + at, bytes);
    }
    state_.copied_bytes += bytes * 2 * layout.layers;
  }

  Store::State& state_;
  StagingRecord& staging_;
  VersionRecord& version_;
};

}  // namespace

Result<StagingHandle> Store::begin_stage(const StageRequest& request) noexcept {
  State& state = *state_;
  if (const Status status = judge(state, request); !status.ok()) {
    return status;
  }
  const StagingHandle handle = state.stagings.try_emplace();
  if (!handle) {
    return Status{Code::out_of_capacity, Scope::transfer,
                  static_cast<std::int32_t>(state.stagings.capacity())};
  }
  const Medium medium = request.coding.medium;
  const bool kv = is_kv(medium);
  const std::uint64_t tokens = request.outgoing ? request.kept_tokens : request.tokens.size();
  const auto made = state.make_version(request.tenant, request.owner, request.context, request.layout,
                                       tokens, kv || request.show_held, kv);
  if (!made) {
    state.stagings.erase(handle);
    return made.status();
  }
  VersionRecord& version = *state.versions.get(*made);
  version.number = request.version;
  version.medium = medium;
  version.window_first_block = medium == Medium::window ? request.window_first_block : 0;
  StagingRecord& staging = *state.stagings.get(handle);
  staging.version = *made;
  staging.tokens = request.tokens;
  staging.coding = request.coding;
  // At least one plane is to come: a block that has them all is no coarser copy.
  staging.first_plane = request.build_on_planes && medium != Medium::lossless && is_coded(medium)
                            ? static_cast<std::size_t>(std::popcount(request.coding.planes())) - 1
                            : 0;
  staging.epsilon_ppm = request.epsilon_ppm;
  staging.limit_ppm = std::max(request.epsilon_ppm, request.held_limit_ppm);
  staging.outgoing = request.outgoing;
  staging.whole_blocks = request.whole_blocks;
  staging.anonymous = request.anonymous;
  staging.again = request.again;
  if (medium != Medium::topk) {
    return handle;
  }
  version.kept_tokens = request.kept_tokens;
  version.block_count = version.kv_blocks = staging.missing =
      static_cast<std::uint32_t>((request.kept_tokens - 1) / request.layout.block_tokens + 1);
  staging.step = StageStep::take;
  const Status fits = StageWork(state, staging).fits();
  if (!fits.ok()) {
    abandon(handle);
    return fits;
  }
  return handle;
}

std::optional<Status> Store::advance(StagingHandle handle, std::uint64_t& budget_blocks) noexcept {
  StagingRecord* staging = state_->stagings.get(handle);
  KVRAIL_ASSERT_MSG(staging != nullptr, "a staging that has ended goes on");
  StageWork work(*state_, *staging);
  // Ids that show no blocks have nothing to hold.
  const bool shows = state_->versions.get(staging->version)->block_count > 0;
  Status status;
  while (status.ok() && staging->step < StageStep::ready) {
    if (work.through() || (staging->step == StageStep::hold && !shows)) {
      status = work.next_step();
    } else if (budget_blocks == 0) {
      return std::nullopt;
    } else {
      --budget_blocks;
      status = work.advance();
    }
  }
  if (!status.ok()) {
    abandon(handle);
  }
  return status;
}

Result<StagingHandle> Store::stage(const StageRequest& request) noexcept {
  const auto handle = begin_stage(request);
  if (!handle) {
    return handle;
  }
  std::uint64_t all = UINT64_MAX;
  const Status status = *advance(*handle, all);
  return status.ok() ? handle : Result<StagingHandle>(status);
}

}  // namespace kvrail::engine
