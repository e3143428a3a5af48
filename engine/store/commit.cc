// Commit: an agent's slots become the blocks of a new immutable version, some blocks at a time. Until
// `apply` nothing can be seen of it and a refusal gives all back; from then on nothing can fail.
#include <algorithm>
#include <cstring>

#include "codec/hash.h"
#include "engine/store/state.h"

namespace kvrail::engine {
namespace {

struct Place {
  StoreMemory* memory = nullptr;
  std::uint64_t offset = 0;
};

// One block of one step of an open commit.
class CommitWork {
 public:
  CommitWork(Store::State& state, CommitRecord& open)
      : state_(state),
        open_(open),
        agent_(*state.agent(open.agent)),
        version_(*state.versions.get(open.version)),
        tokens_(state.tokens_of(version_)) {}

  [[nodiscard]] bool through() const noexcept { return open_.at >= end(); }

  void advance() noexcept {
    const std::uint32_t i = open_.at++;
    switch (open_.step) {
      case CommitStep::hash:
        version_.hashes[i] = codec::chain(parent_of(i), part(i));
        return;
      case CommitStep::prefix: return note(share_of_prefix(i));
      case CommitStep::slots: return note(take_slot(i));
      case CommitStep::undo: return undo(i);
      case CommitStep::apply: return apply(i);
      case CommitStep::manifest: return state_.write_manifest_block(version_, i);
    }
  }
  // True when there is none after it.
  [[nodiscard]] bool next_step() noexcept {
    const CommitStep done = open_.step;
    if (done == CommitStep::undo || done == CommitStep::manifest) {
      return true;
    }
    open_.at = done == CommitStep::prefix ? open_.first_block : 0;
    open_.step = static_cast<CommitStep>(static_cast<std::uint8_t>(done) + 1);
    if (open_.step == CommitStep::undo) {  // Nothing was refused.
      open_.step = CommitStep::apply;
    }
    return false;
  }

 private:
  [[nodiscard]] std::uint32_t end() const noexcept {
    return open_.step == CommitStep::prefix ? open_.first_block : version_.hash_count;
  }
  [[nodiscard]] std::span<const TokenId> part(std::uint32_t i) const noexcept {
    return block_tokens_of(tokens_, agent_.layout.block_tokens, i);
  }
  [[nodiscard]] Hash128 parent_of(std::uint32_t i) const noexcept {
    return i > 0 ? version_.hashes[i - 1]
                 : codec::root_hash(state_.tenants.get(agent_.tenant)->name.view(), agent_.layout);
  }

  void note(Status status) noexcept {
    if (!status.ok()) {
      open_.refusal = status;
      open_.step = CommitStep::undo;
      open_.at = 0;
    }
  }

  // A block before the first slot: the prefix's, or without one that of the context's version before.
  [[nodiscard]] Status share_of_prefix(std::uint32_t i) noexcept {
    const VersionRecord* from =
        state_.versions.get(open_.prefix ? open_.prefix : open_.previous);
    // What topk has in its blocks are other tokens' rows.
    const bool same = from != nullptr && from->kept_tokens == 0 && i < from->block_count && from->blocks[i] &&
                      from->hashes[i] == version_.hashes[i];
    if (!same || state_.is_revoked(from->blocks[i])) {
      return refuse(StoreRule::too_few_slots);
    }
    open_.epsilon_ppm =
        std::max(open_.epsilon_ppm, state_.blocks.get(from->blocks[i])->epsilon_ppm);
    share(i, from->blocks[i]);
    return {};
  }

  [[nodiscard]] Status take_slot(std::uint32_t i) noexcept {
    KVRAIL_ASSERT(open_.extent < open_.slots.size());
    const Extent& extent = open_.slots[open_.extent];
    const Place place{state_.memory_of(extent.arena),
                      extent.offset + open_.slot * agent_.block_bytes};
    if (++open_.slot == extent.count) {
      open_.slot = 0;
      ++open_.extent;
    }
    if (place.memory == nullptr) {
      return refuse(StoreRule::foreign_slot);  // It has gone since the commit began.
    }
    return place.memory->owner == agent_.handle ? own_slot(i, place) : foreign_slot(i, place);
  }

  void share(std::uint32_t i, BlockHandle block) noexcept {
    state_.ref(block);
    version_.blocks[i] = block;
  }

  [[nodiscard]] bool lies_at(const BlockRecord* block, const Place& place) const noexcept {
    const SlotRecord* slot = block == nullptr ? nullptr : state_.slots.get(block->slot);
    return slot != nullptr && slot->arena == place.memory->id && slot->offset == place.offset;
  }

  // Shares the block of this very hash that lies at the place, if there is one.
  [[nodiscard]] bool try_share_at(std::uint32_t i, const Place& place) noexcept {
    BlockHandle candidates[3] = {state_.find_block(agent_.tenant, version_.hashes[i])};
    const VersionHandle others[2] = {open_.prefix, open_.previous};
    for (std::size_t k = 0; k < 2; ++k) {
      const VersionRecord* other = state_.versions.get(others[k]);
      if (other != nullptr && other->kept_tokens == 0 && i < other->block_count && other->hashes[i] == version_.hashes[i]) {
        candidates[k + 1] = other->blocks[i];
      }
    }
    for (const BlockHandle handle : candidates) {
      const BlockRecord* block = state_.blocks.get(handle);
      if (lies_at(block, place) && !state_.is_revoked(handle)) {
        open_.epsilon_ppm = std::max(open_.epsilon_ppm, block->epsilon_ppm);
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
    if (slot.mark == open_.mark) {
      return refuse(StoreRule::slot_twice);
    }
    slot.mark = open_.mark;
    if (slot.state == SlotState::writable) {
      state_.prefetch_after(version_, i);
      const BlockHandle held = state_.find_block(agent_.tenant, version_.hashes[i]);
      if (held && state_.blocks.get(held)->epsilon_ppm <= open_.epsilon_ppm && !lent(held)) {
        share(i, held);
        return {};
      }
      const Status status = make(i, place, SlotHandle{});
      if (status.ok()) {
        slot.state = SlotState::committed;  // Until undo() at the least it is not the agent's.
      }
      return status;
    }
    // A committed slot stays named by the newest version even where another block has the same
    // hash: else it would become free behind the back of an agent that goes on growing it.
    if (try_share_at(i, place)) {
      return {};
    }
    const SlotRecord& record = *state_.slots.get(slot.record);
    // The rows that lie there must be the first rows of this block; those above them are new.
    if (record.rows_used > part(i).size() ||
        codec::chain(parent_of(i), part(i).first(record.rows_used)) != record.hash) {
      return refuse(record.rows_used < agent_.layout.block_tokens ? StoreRule::rows_committed
                                                                  : StoreRule::slot_not_writable);
    }
    open_.epsilon_ppm = std::max(open_.epsilon_ppm, record.epsilon_ppm);
    return make(i, place, slot.record);
  }

  [[nodiscard]] Status make(std::uint32_t i, const Place& place, SlotHandle slot) noexcept {
    Store::State::NewBlock request = Store::State::new_block(version_, i, parent_of(i), part(i).size());
    request.epsilon_ppm = open_.epsilon_ppm;
    request.slot = slot;
    request.own_arena = place.memory->id;
    request.own_offset = place.offset;
    const auto made = state_.make_block(request);
    if (!made) {
      return made.status();
    }
    version_.blocks[i] = *made;
    version_.missing[i] = 1;  // Here: made by this commit.
    return {};
  }

  // A slot that no version holds is the agent's again.
  void undo(std::uint32_t i) noexcept {
    const BlockHandle handle = version_.blocks[i];
    if (!handle) {
      return;
    }
    const SlotRecord& slot = *state_.slots.get(state_.blocks.get(handle)->slot);
    if (version_.missing[i] != 0 && slot.rows_used == 0) {
      StoreMemory& memory = *state_.memory_of(slot.arena);
      memory.slots[slot.offset / memory.block_bytes].state = SlotState::writable;
    }
    version_.blocks[i] = BlockHandle{};
    state_.unref(handle);
  }

  void apply(std::uint32_t i) noexcept {
    const BlockHandle handle = version_.blocks[i];
    const BlockRecord& block = *state_.blocks.get(handle);
    version_.epsilon_ppm = std::max(version_.epsilon_ppm, block.epsilon_ppm);
    if (version_.missing[i] == 0) {
      return;
    }
    SlotRecord& slot = *state_.slots.get(block.slot);
    KVRAIL_ASSERT(block.tokens >= slot.rows_used);
    slot.rows_used = block.tokens;
    slot.epsilon_ppm = block.epsilon_ppm;
    slot.hash = block.hash;
    state_.index_block(handle);
    state_.push_fresh(handle);
  }

  Store::State& state_;
  CommitRecord& open_;
  const AgentRecord& agent_;
  VersionRecord& version_;
  std::span<const TokenId> tokens_;
};

}  // namespace

Result<CommitHandle> Store::begin_commit(const CommitRequest& request) noexcept {
  State& state = *state_;
  AgentRecord* agent = state.agent(request.agent);
  if (agent == nullptr) {
    return refuse(StoreRule::no_such_agent);
  }
  CommitRecord open;
  if (const Status status = state.judge_commit(*agent, request, open); !status.ok()) {
    return status;
  }
  // Room may be made by evicting versions, and those that are built upon must not go meanwhile.
  open.previous = state.find_version(state.find_context(agent->tenant, agent->name, request.context), 0);
  state.pin(open.prefix);
  state.pin(open.previous);
  const auto made = state.make_version(agent->tenant, agent->name, request.context, agent->layout,
                                       request.tokens.size(), true, true);
  Status status = made.status();
  if (made) {
    VersionRecord& version = *state.versions.get(*made);
    version.kv_blocks = version.hash_count;
    open.slots = state.memory->try_array<Extent>(request.slots.size());
    const bool room = state.take_manifest(version) && open.slots.size() == request.slots.size();
    status = room ? Status{} : state.out_of_memory(agent->tenant);
  }
  if (!status.ok()) {
    state.memory->give_back(open.slots.data());
    if (made) {
      state.destroy(*made);
    }
    state.unpin(open.prefix);
    state.unpin(open.previous);
    return status;
  }
  open.version = *made;
  open.agent = request.agent;
  open.first_block = request.first_block;
  open.mark = ++state.commit_mark;
  std::copy(request.slots.begin(), request.slots.end(), open.slots.begin());
  std::memcpy(state.manifest_tail(*state.versions.get(*made)), request.tokens.data(),
              request.tokens.size_bytes());
  const CommitHandle handle = state.commits.try_emplace(open);
  KVRAIL_ASSERT_MSG(handle.valid(), "an agent has one open commit, and there is room for each");
  agent->open_commit = handle;
  return handle;
}

std::optional<Result<VersionHandle>> Store::advance(CommitHandle handle,
                                                    std::uint64_t& budget_blocks) noexcept {
  CommitRecord* open = state_->commits.get(handle);
  KVRAIL_ASSERT_MSG(open != nullptr, "a commit that has ended goes on");
  CommitWork work(*state_, *open);
  for (;;) {
    while (!work.through()) {
      if (budget_blocks == 0) {
        return std::nullopt;
      }
      --budget_blocks;
      work.advance();
    }
    if (work.next_step()) {
      return state_->end_commit(handle);
    }
  }
}

Result<VersionHandle> Store::State::end_commit(CommitHandle handle) noexcept {
  const CommitRecord open = *commits.get(handle);
  AgentRecord& owner = *agent(open.agent);
  VersionRecord& version = *versions.get(open.version);
  if (open.step == CommitStep::undo) {
    destroy(open.version);
  } else {
    const ContextRecord* context = contexts.get(find_context(version.tenant, version.owner, version.name));
    const std::uint64_t last =
        context != nullptr ? context->last_number : tenants.get(version.tenant)->dropped_number;
    version.number = last + 1;
    write_manifest_header(version);
    list(open.version, true);
    own_context(version.context, owner);
  }
  close_commit(handle);
  return open.refusal.ok() ? Result<VersionHandle>(open.version) : Result<VersionHandle>(open.refusal);
}

void Store::State::close_commit(CommitHandle handle) noexcept {
  const CommitRecord open = *commits.get(handle);
  agent(open.agent)->open_commit = CommitHandle{};
  memory->give_back(open.slots.data());
  commits.erase(handle);
  unpin(open.prefix);
  unpin(open.previous);
}

// The agent has gone: its slots are given back with the blocks that were made of them.
void Store::State::drop_commit(CommitHandle handle) noexcept {
  destroy(commits.get(handle)->version);
  close_commit(handle);
}

Result<VersionHandle> Store::commit(const CommitRequest& request) noexcept {
  const auto open = begin_commit(request);
  if (!open) {
    return open.status();
  }
  std::uint64_t all = UINT64_MAX;
  return *advance(*open, all);
}

}  // namespace kvrail::engine
