// Commit: an agent's slots become the blocks of a new immutable version. Everything is checked and
// taken first; what changes the agent's slots happens at the end and can't fail.
#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "kvrail/base/checked.h"

namespace kvrail::engine {
namespace {

struct Place {
  StoreMemory* memory = nullptr;
  std::uint64_t offset = 0;
};

// Walks the slots of a list of extents in order.
class Cursor {
 public:
  Cursor(const Store::State& state, std::span<const Extent> extents, std::uint64_t block_bytes)
      : state_(state), extents_(extents), block_bytes_(block_bytes) {}

  [[nodiscard]] Place next() noexcept {
    KVRAIL_ASSERT(extent_ < extents_.size());
    const Extent& extent = extents_[extent_];
    const Place place{state_.memory_of(extent.arena), extent.offset + slot_ * block_bytes_};
    if (++slot_ == extent.count) {
      slot_ = 0;
      ++extent_;
    }
    return place;
  }

 private:
  const Store::State& state_;
  std::span<const Extent> extents_;
  std::uint64_t block_bytes_;
  std::size_t extent_ = 0;
  std::uint64_t slot_ = 0;
};

class Commit {
 public:
  Commit(Store::State& state, AgentRecord& agent, const Name& name, std::span<const TokenId> tokens,
         std::span<const Extent> extents)
      : state_(state), agent_(agent), name_(name), tokens_(tokens), extents_(extents) {}

  [[nodiscard]] Result<VersionHandle> run(DeliveryHandle prefix) noexcept {
    Status status = check_extents();
    if (status.ok()) {
      status = take_prefix(prefix);
    }
    if (!status.ok()) {
      return status;
    }
    const auto made = state_.make_version(agent_.tenant, agent_.name, name_, agent_.layout,
                                          tokens_.size(), true, true);
    if (!made) {
      return made.status();
    }
    version_ = state_.versions.get(*made);
    version_->kv_blocks = version_->hash_count;
    status = gather();
    if (status.ok() && !state_.take_manifest(*version_)) {
      status = state_.out_of_memory(agent_.tenant);
    }
    if (!status.ok()) {
      state_.destroy(*made);
      return status;
    }
    apply();
    publish(*made);
    return *made;
  }

 private:
  [[nodiscard]] Status check_extents() noexcept {
    if (tokens_.empty()) {
      return refuse(StoreRule::no_tokens);
    }
    for (const Extent& extent : extents_) {
      const StoreMemory* memory = state_.memory_of(extent.arena);
      if (memory == nullptr || memory->tenant != agent_.tenant ||
          (memory->kind != MemoryKind::receive && memory->block_bytes != agent_.block_bytes)) {
        return refuse(StoreRule::foreign_slot);
      }
      const std::uint64_t unit =
          memory->kind == MemoryKind::receive ? kGranuleBytes : agent_.block_bytes;
      const std::uint64_t size = memory->kind == MemoryKind::receive
                                     ? memory->arena->bytes()
                                     : memory->slot_count * memory->block_bytes;
      if (extent.count == 0 || extent.offset % unit != 0 ||
          !range_fits(extent.offset, extent.count * agent_.block_bytes, size)) {
        return refuse(StoreRule::slot_unaligned);
      }
      slot_count_ += extent.count;
    }
    return {};
  }

  [[nodiscard]] Status take_prefix(DeliveryHandle handle) noexcept {
    if (!handle.valid()) {
      return {};
    }
    const DeliveryRecord* delivery = state_.deliveries.get(handle);
    if (delivery == nullptr || delivery->agent != agent_.handle) {
      return refuse(StoreRule::stale_prefix);
    }
    prefix_ = state_.versions.get(delivery->version);
    if (prefix_->layout != agent_.layout) {
      return refuse(StoreRule::stale_prefix);
    }
    epsilon_ppm_ = prefix_->epsilon_ppm;
    return {};
  }

  // Fills the version's blocks, each with a reference taken.
  [[nodiscard]] Status gather() noexcept {
    state_.fill_hashes(*version_, tokens_);
    const std::uint32_t count = version_->hash_count;
    std::uint32_t begin = 0;
    if (slot_count_ < count) {
      begin = shared_prefix();
      if (slot_count_ < count - begin) {
        return refuse(StoreRule::too_few_slots);
      }
      for (std::uint32_t i = 0; i < begin; ++i) {
        share(i, prefix_->blocks[i]);
      }
    }
    pin_previous();
    ++state_.commit_mark;
    Cursor cursor(state_, extents_, agent_.block_bytes);
    Status status;
    for (std::uint32_t i = begin; i < count && status.ok(); ++i) {
      const Place place = cursor.next();
      status = place.memory->owner == agent_.handle ? own_slot(i, place) : foreign_slot(i, place);
    }
    unpin_previous();
    return status;
  }

  // Room may be made by evicting versions, and the one before must not go meanwhile.
  void pin_previous() noexcept {
    previous_handle_ =
        state_.find_version(state_.find_context(agent_.tenant, agent_.name, name_), 0);
    previous_ = state_.versions.get(previous_handle_);
    if (previous_ != nullptr) {
      state_.lru_remove(previous_handle_);
      ++previous_->pins;
    }
  }
  void unpin_previous() noexcept {
    if (previous_ != nullptr && --previous_->pins == 0) {
      state_.idle(previous_handle_);
    }
  }

  // How many leading full blocks of the prefix are the blocks of this context.
  [[nodiscard]] std::uint32_t shared_prefix() const noexcept {
    std::uint32_t shared = 0;
    if (prefix_ == nullptr) {
      return shared;
    }
    const std::uint32_t most = std::min(prefix_->block_count, version_->hash_count);
    while (shared < most && prefix_->hashes[shared] == version_->hashes[shared]) {
      const BlockRecord* block = state_.blocks.get(prefix_->blocks[shared]);
      if (block == nullptr || !block->full() || state_.is_revoked(prefix_->blocks[shared])) {
        break;
      }
      ++shared;
    }
    return shared;
  }

  void share(std::uint32_t i, BlockHandle block) noexcept {
    state_.ref(block);
    version_->blocks[i] = block;
  }

  [[nodiscard]] bool lies_at(const BlockRecord* block, const Place& place) const noexcept {
    const SlotRecord* slot = block == nullptr ? nullptr : state_.slots.get(block->slot);
    return slot != nullptr && slot->arena == place.memory->id && slot->offset == place.offset;
  }

  // Shares the block of this very hash that lies at the place, if there is one.
  [[nodiscard]] bool try_share_at(std::uint32_t i, const Place& place) noexcept {
    BlockHandle candidates[3] = {state_.find_block(agent_.tenant, version_->hashes[i])};
    const VersionRecord* const others[2] = {prefix_, previous_};
    for (std::size_t k = 0; k < 2; ++k) {
      const VersionRecord* other = others[k];
      if (other != nullptr && i < other->block_count && other->hashes[i] == version_->hashes[i]) {
        candidates[k + 1] = other->blocks[i];
      }
    }
    for (const BlockHandle handle : candidates) {
      const BlockRecord* block = state_.blocks.get(handle);
      if (lies_at(block, place) && !state_.is_revoked(handle)) {
        epsilon_ppm_ = std::max(epsilon_ppm_, block->epsilon_ppm);
        share(i, handle);
        return true;
      }
    }
    return false;
  }

  // A slot that somebody else wrote: only the very block that lies there may be meant.
  [[nodiscard]] Status foreign_slot(std::uint32_t i, const Place& place) noexcept {
    return try_share_at(i, place) ? Status{} : refuse(StoreRule::foreign_slot);
  }

  // Pages that another agent has lent go with it, and would take this context along.
  [[nodiscard]] bool lent(BlockHandle handle) const noexcept {
    const StoreMemory& memory =
        *state_.memory_of(state_.slots.get(state_.blocks.get(handle)->slot)->arena);
    return memory.kind == MemoryKind::imported && memory.arena->fd() < 0 &&
           memory.owner != agent_.handle;
  }

  [[nodiscard]] Status own_slot(std::uint32_t i, const Place& place) noexcept {
    AgentSlot& slot = place.memory->slots[place.offset / place.memory->block_bytes];
    if (slot.state == SlotState::free) {
      return refuse(StoreRule::slot_not_writable);
    }
    if (slot.mark == state_.commit_mark) {
      return refuse(StoreRule::slot_twice);
    }
    slot.mark = state_.commit_mark;
    if (slot.state == SlotState::writable) {
      const BlockHandle held = state_.find_block(agent_.tenant, version_->hashes[i]);
      if (held && state_.blocks.get(held)->epsilon_ppm <= epsilon_ppm_ && !lent(held)) {
        share(i, held);
        return {};
      }
      return make(i, place, SlotHandle{});
    }
    // A committed slot stays named by the newest version even where another block has the same
    // hash: else it would become free behind the back of an agent that goes on growing it.
    if (try_share_at(i, place)) {
      return {};
    }
    const SlotRecord& record = *state_.slots.get(slot.record);
    // The rows that lie there must be the first rows of this block; those above them are new.
    const auto tokens = block_tokens_of(tokens_, agent_.layout.block_tokens, i);
    if (record.rows_used > tokens.size() ||
        codec::chain(parent_of(i), tokens.first(record.rows_used)) != record.hash) {
      return refuse(record.rows_used < agent_.layout.block_tokens ? StoreRule::rows_committed
                                                                  : StoreRule::slot_not_writable);
    }
    epsilon_ppm_ = std::max(epsilon_ppm_, record.epsilon_ppm);
    return make(i, place, slot.record);
  }

  [[nodiscard]] Hash128 parent_of(std::uint32_t i) const noexcept {
    return i > 0 ? version_->hashes[i - 1]
                 : codec::root_hash(state_.tenants.get(agent_.tenant)->name.view(), agent_.layout);
  }

  [[nodiscard]] Status make(std::uint32_t i, const Place& place, SlotHandle slot) noexcept {
    Store::State::NewBlock request;
    request.tenant = agent_.tenant;
    request.hash = version_->hashes[i];
    request.parent = parent_of(i);
    request.shape = BlockShape::of(agent_.layout);
    request.tokens =
        static_cast<std::uint32_t>(block_tokens_of(tokens_, agent_.layout.block_tokens, i).size());
    request.epsilon_ppm = epsilon_ppm_;
    request.slot = slot;
    request.own_arena = place.memory->id;
    request.own_offset = place.offset;
    request.slot_bytes = agent_.block_bytes;
    const auto made = state_.make_block(request);
    if (!made) {
      return made.status();
    }
    version_->blocks[i] = *made;
    version_->missing[i] = 1;  // Here: made by this commit.
    return {};
  }

  void apply() noexcept {
    for (std::uint32_t i = 0; i < version_->block_count; ++i) {
      if (version_->missing[i] == 0) {
        continue;
      }
      const BlockHandle handle = version_->blocks[i];
      const BlockRecord& block = *state_.blocks.get(handle);
      SlotRecord& slot = *state_.slots.get(block.slot);
      KVRAIL_ASSERT(block.tokens >= slot.rows_used);
      slot.rows_used = block.tokens;
      slot.epsilon_ppm = block.epsilon_ppm;
      slot.hash = block.hash;
      StoreMemory& memory = *state_.memory_of(slot.arena);
      memory.slots[slot.offset / memory.block_bytes].state = SlotState::committed;
      state_.index_block(handle);
      state_.push_fresh(handle);
    }
    std::memcpy(state_.manifest_tail(*version_), tokens_.data(), tokens_.size_bytes());
  }

  void publish(VersionHandle handle) noexcept {
    const ContextRecord* context =
        state_.contexts.get(state_.find_context(agent_.tenant, agent_.name, name_));
    const std::uint64_t last = context != nullptr
                                   ? context->last_number
                                   : state_.tenants.get(agent_.tenant)->dropped_number;
    version_->number = last + 1;
    state_.publish(handle, true);
    state_.own_context(version_->context, agent_);
  }

  Store::State& state_;
  AgentRecord& agent_;
  const Name& name_;
  std::span<const TokenId> tokens_;
  std::span<const Extent> extents_;
  std::uint64_t slot_count_ = 0;
  const VersionRecord* prefix_ = nullptr;
  VersionHandle previous_handle_;
  VersionRecord* previous_ = nullptr;
  VersionRecord* version_ = nullptr;
  std::uint32_t epsilon_ppm_ = 0;
};

}  // namespace

Result<VersionHandle> Store::commit(AgentHandle handle, const Name& context,
                                    std::span<const TokenId> tokens, std::span<const Extent> slots,
                                    DeliveryHandle prefix) noexcept {
  AgentRecord* agent = state_->agent(handle);
  if (agent == nullptr) {
    return refuse(StoreRule::no_such_agent);
  }
  return Commit(*state_, *agent, context, tokens, slots).run(prefix);
}

}  // namespace kvrail::engine
