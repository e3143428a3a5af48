// Planes of blocks: those that came with a block and made its rows stay, all others are a cache.
#include "codec/hash.h"
#include "engine/store/state.h"
#include "transport/payload.h"

namespace kvrail::engine {
namespace {

constexpr std::array<mempool::PoolClass, kPlanes> kPlanePools{
    mempool::PoolClass::plane0, mempool::PoolClass::plane1, mempool::PoolClass::residual,
    mempool::PoolClass::lowrank};

}  // namespace

bool Store::State::take_plane(BlockRecord& block, const Coding& coding,
                              std::size_t plane) noexcept {
  PlaneRecord& record = block.planes[plane];
  const Layout layout = block.shape.layout();
  const std::uint64_t bytes = plane_bytes(layout, coding, block.tokens, plane);
  // As many digests for each layer as the largest run has, so that a layer's are found by its number.
  const std::uint32_t units = transport::units_in(most_run_bytes(layout, coding, block.tokens, plane));
  if (!reserve(record.digests, std::uint64_t{layout.layers} * units)) {
    return false;
  }
  const auto offset = take(block.tenant, bytes, kPlanePools[plane]);
  if (!offset) {
    release(record.digests);
    return false;
  }
  record.offset = *offset;
  record.bytes = bytes;
  if (plane == kVaryingPlane) block.varying = coding.rows();
  return true;
}

bool Store::State::take_planes(BlockRecord& block, const Coding& coding) noexcept {
  PlaneMask taken = 0;
  for (std::size_t plane = 0; plane < kPlanes; ++plane) {
    if (!has_plane(coding.planes(), plane) || block.planes[plane].taken()) continue;
    if (!take_plane(block, coding, plane)) {
      for (std::size_t i = 0; i < kPlanes; ++i) {
        if (has_plane(taken, i)) drop_plane(block, i);
      }
      return false;
    }
    taken = static_cast<PlaneMask>(taken | 1U << plane);
  }
  return true;
}

bool Store::State::fit_varying(BlockRecord& block, const Coding& coding, bool used) noexcept {
  PlaneRecord& plane = block.planes[kVaryingPlane];
  if (!has_plane(coding.planes(), kVaryingPlane) || !plane.taken()) return true;
  const Layout layout = block.shape.layout();
  const std::uint64_t bytes = plane_bytes(layout, coding, block.tokens, kVaryingPlane);
  if (block.varying == coding.rows() && plane.bytes == bytes) return true;
  if (used) return false;
  drop_plane(block, kVaryingPlane);
  return true;
}

void Store::State::drop_plane(BlockRecord& block, std::size_t plane) noexcept {
  PlaneRecord& record = block.planes[plane];
  if (!record.taken()) return;
  release(record.digests);
  give_back(block.tenant, record.offset, record.bytes, kPlanePools[plane]);
  record = PlaneRecord{};
  if (plane == 0) block.encoding = Hash128{};
}

void Store::State::drop_planes(BlockRecord& block) noexcept {
  for (std::size_t plane = 0; plane < kPlanes; ++plane) drop_plane(block, plane);
}

void Store::State::use_planes(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  if (block.plane_users++ == 0 && block.has_planes()) {
    plane_list_remove(block);
  }
}

void Store::State::unuse_planes(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  KVRAIL_ASSERT_MSG(block.plane_users > 0, "planes released more often than attached");
  if (--block.plane_users == 0 && block.has_planes()) {
    plane_list_add(handle);
  }
}

void Store::State::plane_list_add(BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
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

void Store::State::digest_planes(BlockRecord& block, PlaneMask planes,
                                 std::uint32_t layers) noexcept {
  const std::byte* base = receive_of(block.tenant)->arena->base();
  const std::uint32_t all = block.shape.layers;
  for (std::size_t i = 0; i < kPlanes; ++i) {
    PlaneRecord& plane = block.planes[i];
    if (!has_plane(planes, i) || !plane.taken()) continue;
    const std::uint32_t units = plane.digests.count / all;
    for (; plane.layers < layers; ++plane.layers) {
      const RunPlace run = run_of(block, i, plane.layers);
      codec::digests({base + plane.offset + run.offset, run.bytes},
                     {plane.digests.data() + std::size_t{plane.layers} * units,
                      transport::units_in(run.bytes)});
      plane.digests.done += units;
    }
  }
  if (block.planes[0].layers == all && block.encoding == Hash128{}) {
    block.encoding = codec::encoding_id({base + block.planes[0].offset, block.planes[0].bytes});
  }
}

// Exact rows can be coded again to the same bytes, so their planes may go; lossy rows can't.
void Store::State::settle_planes(const StagingRecord& staging, const Coding& coding, BlockHandle handle) noexcept {
  BlockRecord& block = *blocks.get(handle);
  if (!block.has_planes()) return;
  for (std::size_t plane = 0; plane < kPlanes; ++plane) {
    if (!has_plane(coding.planes(), plane)) drop_plane(block, plane);
  }
  block.epsilon_ppm = staging.epsilon_ppm;
  slots.get(block.slot)->epsilon_ppm = staging.epsilon_ppm;
  digest_planes(block, kAllPlanes, block.shape.layers);
  block.came_coded = !block.planes[kVaryingPlane].taken();
  if (is_sparse(staging.coding.medium)) {  // nobody will ask for them: such a version is never sent on
    drop_planes(block);
    block.plane_users = 0;
    return;
  }
  if (!block.came_coded) unuse_planes(handle);
}

// --- public ---

bool Store::attach_planes(BlockHandle handle, const Coding& coding) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr, "planes for a block that no version names");
  KVRAIL_ASSERT(coding.planes() != 0);
  if (!can_code(block->shape.layout(), coding) || coding.lowrank != state_->basis_for(coding.medium)) return false;
  const bool lossy = coding.rows() != Medium::lossless;
  for (std::size_t plane = 0; lossy && block->came_coded && plane < kPlanes; ++plane) {
    if (has_plane(coding.planes(), plane) && !block->planes[plane].taken()) return false;
  }
  // Taking memory may evict, and the block must outlive that even if its version is not pinned.
  state_->ref(handle);
  const bool used = block->plane_users > 0;
  state_->use_planes(handle);
  const bool attached =
      state_->fit_varying(*block, coding, used) && state_->take_planes(*block, coding);
  if (!attached) state_->unuse_planes(handle);
  state_->unref(handle);
  return attached;
}

void Store::release_planes(BlockHandle handle) noexcept {
  // A block that went with its version took its planes along.
  if (state_->blocks.get(handle) != nullptr) {
    state_->unuse_planes(handle);
  }
}

void Store::planes_written(BlockHandle handle, PlaneMask planes, std::uint32_t layers) noexcept {
  BlockRecord* block = state_->blocks.get(handle);
  KVRAIL_ASSERT_MSG(block != nullptr && block->has_planes() && layers <= block->shape.layers,
                    "planes are written of a block that has none");
  state_->digest_planes(*block, planes, layers);
}

}  // namespace kvrail::engine
