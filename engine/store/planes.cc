// Planes of blocks: those that came with a block stay, those encoded here for a sender are a cache.
#include "codec/planes.h"

#include "codec/hash.h"
#include "engine/store/state.h"
#include "kvrail/base/no_alloc.h"
#include "transport/payload.h"

namespace kvrail::engine {
namespace {

constexpr mempool::PoolClass kPlanePools[2] = {mempool::PoolClass::plane0,
                                               mempool::PoolClass::plane1};

}  // namespace

bool Store::State::take_planes(BlockRecord& block) noexcept {
  KVRAIL_ASSERT(!block.has_planes());
  const codec::PlaneSizes sizes = codec::plane_sizes(block.shape.layout(), block.tokens);
  const std::uint64_t bytes[2] = {sizes.plane0_bytes, sizes.plane1_bytes};
  for (int i = 0; i < 2; ++i) {
    PlaneRecord& plane = block.planes[i];
    if (!reserve(plane.digests,
                 std::uint64_t{block.shape.layers} * transport::units_in(bytes[i] / block.shape.layers))) {
      drop_planes(block);
      return false;
    }
    const auto offset = take(block.tenant, bytes[i], kPlanePools[i]);
    if (!offset) {
      drop_planes(block);
      return false;
    }
    plane.offset = *offset;
    plane.bytes = bytes[i];
  }
  return true;
}

void Store::State::drop_planes(BlockRecord& block) noexcept {
  for (int i = 0; i < 2; ++i) {
    PlaneRecord& plane = block.planes[i];
    release(plane.digests);
    if (plane.offset != kNoOffset) {
      give_back(block.tenant, plane.offset, plane.bytes, kPlanePools[i]);
    }
    plane = PlaneRecord{};
  }
  block.encoding = Hash128{};
  block.plane_layers = 0;
}

void Store::State::use_planes(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT(block.has_planes());
  if (block.plane_users++ == 0) {
    plane_list_remove(block);
  }
}

void Store::State::unuse_planes(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT_MSG(block.plane_users > 0, "planes released more often than attached");
  if (--block.plane_users > 0) {
    return;
  }
  TenantRecord& tenant = *tenants.get(block.tenant);
  block.plane_previous = tenant.plane_newest;
  block.plane_next = BlockHandle{};
  if (BlockRecord* newest = blocks.get(tenant.plane_newest)) {
    newest->plane_next = handle;
  } else {
    tenant.plane_oldest = handle;
  }
  tenant.plane_newest = handle;
}

void Store::State::plane_list_remove(BlockRecord& block) noexcept {
  TenantRecord& tenant = *tenants.get(block.tenant);
  BlockRecord* previous = blocks.get(block.plane_previous);
  BlockRecord* next = blocks.get(block.plane_next);
  (previous != nullptr ? previous->plane_next : tenant.plane_oldest) = block.plane_next;
  (next != nullptr ? next->plane_previous : tenant.plane_newest) = block.plane_previous;
}

bool Store::State::evict_planes(TenantHandle tenant) noexcept {
  BlockRecord* oldest = blocks.get(tenants.get(tenant)->plane_oldest);
  if (oldest == nullptr) {
    return false;
  }
  plane_list_remove(*oldest);
  drop_planes(*oldest);
  return true;
}

void Store::State::digest_planes(BlockRecord& block, std::uint32_t layers) noexcept {
  const std::byte* base = receive_of(block.tenant)->arena->base();
  const std::uint32_t all = block.shape.layers;
  for (; block.plane_layers < layers; ++block.plane_layers) {
    for (PlaneRecord& plane : block.planes) {
      const std::uint64_t bytes = plane.bytes / all;
      const std::uint32_t units = plane.digests.count / all;
      const std::byte* from = base + plane.offset + block.plane_layers * bytes;
      codec::digests({from, bytes}, {plane.digests.data() + std::size_t{block.plane_layers} * units, units});
      plane.digests.done += units;
    }
  }
  if (block.plane_layers == all && block.encoding == Hash128{}) {
    block.encoding = codec::encoding_id({base + block.planes[0].offset, block.planes[0].bytes});
  }
}

// --- public ---

bool Store::attach_planes(BlockHandle handle) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr, "planes for a block that no version names");
  if (block->has_planes()) {
    state_->use_planes(handle);
    return true;
  }
  {
    AllowAllocScope
        refusal;  // Only the sentence of a refusal is allocated, and it is dropped here.
    if (!codec::can_encode(block->shape.layout()).ok()) {
      return false;
    }
  }
  // Taking memory may evict, and the block must outlive that even if its version is not pinned.
  state_->ref(handle);
  const bool taken = state_->take_planes(*block);
  block->plane_users = taken ? 1 : 0;
  state_->unref(handle);
  return taken;
}

void Store::release_planes(BlockHandle handle) noexcept {
  // A block that went with its version took its planes along.
  if (state_->blocks.get(handle) != nullptr) {
    state_->unuse_planes(handle);
  }
}

void Store::planes_written(BlockHandle handle, std::uint32_t layers) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr && block->has_planes() && layers <= block->shape.layers,
                    "planes are written of a block that has none");
  state_->digest_planes(*block, layers);
}

}  // namespace kvrail::engine
