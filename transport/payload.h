// A Payload is a logical byte stream laid over pieces of memory: the gather list of a sender or the
// scatter list of a receiver. Both sides of a transfer build payloads of equal piece sizes, so a
// byte range of the stream names the same content on both, wherever each keeps it.
//
// A digest unit is up to kDigestUnitBytes of ONE piece (units restart at every piece), so a unit is
// contiguous in memory on both sides and can be verified in place while it is hot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/assert.h"
#include "kvrail/types.h"

namespace kvrail::transport {

struct Piece {
  std::byte* address = nullptr;  // a sender's pieces are never written through this pointer
  std::uint64_t bytes = 0;       // > 0
};

// Views over arrays owned by the engine, alive until the transport has given back every chunk
// (sender) or has reported the lease withdrawn (receiver).
struct Payload {
  std::span<const Piece> pieces;
  std::span<const std::uint64_t> starts;      // stream offset of each piece; same length as pieces
  std::span<const std::uint32_t> first_unit;  // index of each piece's first unit; same length
  std::uint64_t total_bytes = 0;
  std::uint32_t total_units = 0;
  // Sender only: one XXH3-64 per unit, valid for every unit that a posted chunk completes.
  // Empty: integrity is off for this transfer.
  std::span<const std::uint64_t> digests;

  // Index of the piece that holds stream offset `offset` (< total_bytes).
  [[nodiscard]] std::size_t piece_at(std::uint64_t offset) const noexcept {
    KVRAIL_ASSERT(offset < total_bytes);
    std::size_t low = 0;
    std::size_t high = pieces.size();
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      (starts[middle] <= offset ? low : high) = middle;
    }
    return low;
  }
};

[[nodiscard]] constexpr std::uint32_t units_in(std::uint64_t piece_bytes) noexcept {
  return static_cast<std::uint32_t>((piece_bytes + kDigestUnitBytes - 1) / kDigestUnitBytes);
}

}  // namespace kvrail::transport
