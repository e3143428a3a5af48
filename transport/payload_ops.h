// Arithmetic over payloads that every transport needs: the pieces under a byte range, and the
// digest units that a chunk completes. Pure functions over views; nothing allocates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/assert.h"
#include "kvrail/base/checked.h"
#include "transport/payload.h"

namespace kvrail::transport {

// Calls f(std::byte* address, std::uint64_t bytes) for each contiguous part of [offset, offset +
// bytes), in stream order. f returns false to stop. The range must lie in the payload.
template <class F>
void for_each_part(const Payload& payload, std::uint64_t offset, std::uint64_t bytes, F&& f) {
  KVRAIL_ASSERT(range_fits(offset, bytes, payload.total_bytes));
  if (bytes == 0) return;
  for (std::size_t i = payload.piece_at(offset); bytes != 0; ++i) {
    const Piece& piece = payload.pieces[i];
    const std::uint64_t within = offset - payload.starts[i];
    const std::uint64_t count = std::min(bytes, piece.bytes - within);
    if (!f(piece.address + within, count)) return;
    offset += count;
    bytes -= count;
  }
}

// Copies [offset, offset + bytes) of one stream to the same place of another, whatever their pieces.
void copy_range(const Payload& from, const Payload& to, std::uint64_t offset,
                std::uint64_t bytes) noexcept;

// The units whose last byte lies in the chunk, which is why it can tell whether they are right.
struct UnitRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};
[[nodiscard]] UnitRange completed_units(const Payload& payload, std::uint64_t offset,
                                        std::uint64_t bytes) noexcept;

// The memory of one unit.
[[nodiscard]] std::span<std::byte> unit_memory(const Payload& payload, std::uint32_t unit) noexcept;

// Checks the units that the chunk completes against `digests` (one each, in order), reading the
// lease's own memory. Earlier chunks of a unit that began before this one must have landed.
[[nodiscard]] bool verify_units(const Payload& sink, std::uint64_t offset, std::uint64_t bytes,
                                std::span<const std::uint64_t> digests) noexcept;

// Whether the arrays agree with each other, for assertions at the contract's edge. O(pieces).
[[nodiscard]] bool is_consistent(const Payload& payload) noexcept;

}  // namespace kvrail::transport
