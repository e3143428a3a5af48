#include "transport/shm/shm_lane.h"

#include <new>

#include "kvrail/base/assert.h"

namespace kvrail::transport::shm {
namespace {

// gcc's thread sanitizer does not model fences and says so. These order two processes' mappings,
// which it does not see either.
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
void release_fence() noexcept {
  __atomic_thread_fence(__ATOMIC_RELEASE);
}
void acquire_fence() noexcept {
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
}
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace

void LaneMemory::create() const noexcept {
  KVRAIL_ASSERT(memory.size() == kBytes);
  for (const int side : {0, 1}) {
    ::new (memory.data() + static_cast<std::size_t>(side) * kCacheLineBytes)
        std::atomic<std::uint32_t>(0);
    for (const std::size_t lane_class : {kControl, kBulk}) {
      RingMemory::create(ring(side, lane_class));
    }
  }
}

std::atomic<std::uint32_t>& LaneMemory::closed(int side) const noexcept {
  return *std::launder(reinterpret_cast<std::atomic<std::uint32_t>*>(
      memory.data() + static_cast<std::size_t>(side) * kCacheLineBytes));
}

std::span<std::byte> LaneMemory::ring(int from, std::size_t lane_class) const noexcept {
  const std::size_t index = static_cast<std::size_t>(from) * 2 + lane_class;
  return memory.subspan(kFlagsBytes + index * kRingBytes, kRingBytes);
}

std::span<std::byte> LaneMemory::staging(int from, std::size_t lane_class) const noexcept {
  const std::size_t index = static_cast<std::size_t>(from) * 2 + lane_class;
  return memory.subspan(kFlagsBytes + 4 * kRingBytes + index * kStagingBytes, kStagingBytes);
}

Lane::Lane(UniqueFd connected, bool dials, const Handshake& machine) noexcept
    : socket(std::move(connected)),
      dialer(dials),
      handshake(machine),
      parser(wire::FrameRules{}, handshake_payload, {}) {
  arenas.reserve(kMaxPeerArenas);
}

void Lane::make_rings() noexcept {
  for (const std::size_t lane_class : {kControl, kBulk}) {
    classes[lane_class].out.emplace(memory().ring(side(), lane_class), kRingCells);
    classes[lane_class].in.emplace(memory().ring(1 - side(), lane_class), kRingCells);
  }
}

void Lane::close_memory() noexcept {
  if (!mapping.valid()) return;
  memory().closed(side()).store(1, std::memory_order_relaxed);
  release_fence();  // X1
}

bool Lane::peer_closed() const noexcept {
  acquire_fence();  // X2
  return memory().closed(1 - side()).load(std::memory_order_relaxed) != 0;
}

void Lane::wake_peer() noexcept {
  const Packet packet{};
  static_cast<void>(send_packet(socket.get(), std::as_bytes(std::span(&packet, 1))));
}

}  // namespace kvrail::transport::shm
