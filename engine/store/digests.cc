// Digests of blocks and planes: computed once per content, in bounded steps.
#include <algorithm>

#include "codec/hash.h"
#include "engine/store/state.h"
#include "transport/payload.h"

namespace kvrail::engine {
namespace {

// Those of one layer, if they are there.
std::span<const std::uint64_t> of_layer(const DigestList& list, std::uint32_t layers,
                                        std::uint32_t layer) noexcept {
  const std::uint32_t units = list.count / layers;
  if (layer >= layers || list.done < (layer + 1) * units) {
    return {};
  }
  return {list.data() + std::size_t{layer} * units, units};
}

}  // namespace

bool Store::State::reserve(DigestList& list, std::uint64_t units) noexcept {
  KVRAIL_ASSERT(list.count == 0);
  if (units > UINT32_MAX) {
    return false;
  }
  if (units > 1) {
    list.many = memory->try_array<std::uint64_t>(units).data();
    if (list.many == nullptr) {
      return false;
    }
  }
  list.count = static_cast<std::uint32_t>(units);
  return true;
}

void Store::State::release(DigestList& list) noexcept {
  memory->give_back(list.many);
  list = DigestList{};
}

bool Store::State::digest(BlockRecord& block, std::uint32_t layers,
                          std::uint64_t& budget_bytes) noexcept {
  DigestList& list = block.digests;
  const std::uint32_t end = list.count / block.shape.layers * layers;
  if (list.done >= end) {
    return true;
  }
  const Layout layout = block.shape.layout();
  const SlotRecord& slot = *slots.get(block.slot);
  const std::byte* base = address(slot.arena, slot.offset);
  const std::uint32_t pieces = block.full() ? 1 : 2;  // of a layer
  const std::uint64_t piece_bytes = 2 / pieces * block.tokens * layout.row_bytes();
  const std::uint32_t units = transport::units_in(piece_bytes);
  while (list.done < end && budget_bytes > 0) {
    const std::uint32_t piece = list.done / units;
    const std::uint64_t from = std::uint64_t{list.done % units} * kDigestUnitBytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(piece_bytes - from, kDigestUnitBytes);
    const std::byte* start = base + layout.row_offset(piece / pieces, piece % pieces, 0) + from;
    list.data()[list.done] = codec::digest({start, bytes});
    ++list.done;
    budget_bytes -= std::min(budget_bytes, bytes);
  }
  return list.done == end;
}

void Store::State::push_fresh(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT(!block.fresh);
  block.fresh = true;
  block.fresh_previous = fresh_last;
  block.fresh_next = BlockHandle{};
  if (BlockRecord* last = blocks.get(fresh_last)) {
    last->fresh_next = handle;
  } else {
    fresh_first = handle;
  }
  fresh_last = handle;
}

void Store::State::drop_fresh(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT(block.fresh);
  BlockRecord* previous = blocks.get(block.fresh_previous);
  BlockRecord* next = blocks.get(block.fresh_next);
  (previous != nullptr ? previous->fresh_next : fresh_first) = block.fresh_next;
  (next != nullptr ? next->fresh_previous : fresh_last) = block.fresh_previous;
  block.fresh = false;
}

// --- public ---

bool Store::ensure_digests(BlockHandle handle, std::uint32_t layers,
                           std::uint64_t& budget_bytes) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr, "digests of a block that no version names");
  KVRAIL_ASSERT(layers <= block->shape.layers);
  return state_->digest(*block, layers, budget_bytes);
}

std::span<const std::uint64_t> Store::raw_digests(BlockHandle handle,
                                                  std::uint32_t layer) const noexcept {
  const BlockRecord* block = state_->blocks.get(handle);
  return block == nullptr ? std::span<const std::uint64_t>{}
                          : of_layer(block->digests, block->shape.layers, layer);
}

std::span<const std::uint64_t> Store::plane_digests(BlockHandle handle, std::size_t plane,
                                                    std::uint32_t layer) const noexcept {
  KVRAIL_ASSERT(plane < kPlanes);
  const BlockRecord* block = state_->blocks.get(handle);
  if (block == nullptr || !block->planes[plane].taken()) {
    return {};
  }
  const auto digests = of_layer(block->planes[plane].digests, block->shape.layers, layer);
  if (digests.empty()) return digests;
  return digests.first(transport::units_in(state_->run_of(*block, plane, layer).bytes));
}

}  // namespace kvrail::engine
