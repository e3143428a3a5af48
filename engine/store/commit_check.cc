// What can be said of a commit at once, before it takes anything.
#include "engine/store/state.h"
#include "kvrail/base/checked.h"

namespace kvrail::engine {
namespace {

Status check_extents(const Store::State& state, const AgentRecord& agent,
                     std::span<const Extent> extents, std::uint64_t& slots) noexcept {
  for (const Extent& extent : extents) {
    const StoreMemory* memory = state.memory_of(extent.arena);
    if (memory == nullptr || memory->tenant != agent.tenant ||
        (memory->kind != MemoryKind::receive && memory->block_bytes != agent.block_bytes)) {
      return refuse(StoreRule::foreign_slot);
    }
    const bool receive = memory->kind == MemoryKind::receive;
    const std::uint64_t unit = receive ? kGranuleBytes : agent.block_bytes;
    const std::uint64_t size =
        receive ? memory->arena->bytes() : memory->slot_count * memory->block_bytes;
    if (extent.count == 0 || extent.offset % unit != 0 ||
        !range_fits(extent.offset, extent.count * agent.block_bytes, size)) {
      return refuse(StoreRule::slot_unaligned);
    }
    slots += extent.count;
  }
  return {};
}

}  // namespace

Status Store::State::judge_commit(const AgentRecord& agent, const CommitRequest& request,
                                  CommitRecord& open) const noexcept {
  if (agent.open_commit) {
    return Code::busy;
  }
  if (request.tokens.empty()) {
    return refuse(StoreRule::no_tokens);
  }
  std::uint64_t named = 0;
  if (const Status status = check_extents(*this, agent, request.slots, named); !status.ok()) {
    return status;
  }
  if (request.prefix.valid()) {
    const DeliveryRecord* delivery = deliveries.get(request.prefix);
    if (delivery == nullptr || delivery->agent != agent.handle ||
        versions.get(delivery->version)->layout != agent.layout) {
      return refuse(StoreRule::stale_prefix);
    }
    open.prefix = delivery->version;
    open.epsilon_ppm = versions.get(open.prefix)->epsilon_ppm;
  }
  const std::uint64_t count = (request.tokens.size() - 1) / agent.layout.block_tokens + 1;
  if (count > options.max_blocks) {
    return {Code::too_large, Scope::transfer, static_cast<std::int32_t>(options.max_blocks)};
  }
  const bool covered = request.first_block <= count && named >= count - request.first_block;
  return covered ? Status{} : refuse(StoreRule::too_few_slots);
}

}  // namespace kvrail::engine
