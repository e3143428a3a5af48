#include "transport/payload_ops.h"

#include <cstring>

// The library's own dispatcher takes the widest vectors that this processor has, where the inlined
// code would use what the whole build may assume; same digests, half the time of a hot unit.
#include <xxhash.h>
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#endif

namespace kvrail::transport {
namespace {

// Units of piece `i` that end at or before stream offset `end` (which lies in or at its end).
std::uint32_t units_ended(const Payload& payload, std::size_t i, std::uint64_t end) noexcept {
  const std::uint64_t within = end - payload.starts[i];
  return within == payload.pieces[i].bytes ? units_in(payload.pieces[i].bytes)
                                           : static_cast<std::uint32_t>(within / kDigestUnitBytes);
}

// Units of the whole payload that end at or before `end`.
std::uint32_t units_before(const Payload& payload, std::uint64_t end) noexcept {
  if (end == 0) return 0;
  const std::size_t i = payload.piece_at(end - 1);
  return payload.first_unit[i] + units_ended(payload, i, end);
}

// Index of the piece that holds `unit`.
std::size_t piece_of_unit(const Payload& payload, std::uint32_t unit) noexcept {
  std::size_t low = 0;
  std::size_t high = payload.pieces.size();
  while (high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    (payload.first_unit[middle] <= unit ? low : high) = middle;
  }
  return low;
}

std::span<std::byte> unit_in_piece(const Payload& payload, std::size_t i,
                                   std::uint32_t unit) noexcept {
  const std::uint64_t at = std::uint64_t{unit - payload.first_unit[i]} * kDigestUnitBytes;
  const Piece& piece = payload.pieces[i];
  KVRAIL_ASSERT(at < piece.bytes);
  return {piece.address + at,
          static_cast<std::size_t>(std::min<std::uint64_t>(kDigestUnitBytes, piece.bytes - at))};
}

}  // namespace

void copy_range(const Payload& from, const Payload& to, std::uint64_t offset,
                std::uint64_t bytes) noexcept {
  KVRAIL_ASSERT(range_fits(offset, bytes, to.total_bytes));
  if (bytes == 0) return;
  std::size_t target = to.piece_at(offset);
  std::uint64_t within = offset - to.starts[target];
  for_each_part(from, offset, bytes, [&](const std::byte* source, std::uint64_t left) {
    while (left != 0) {
      const Piece& piece = to.pieces[target];
      const std::uint64_t count = std::min(left, piece.bytes - within);
      std::memcpy(piece.address + within, source, count);
      source += count;
      left -= count;
      within += count;
      if (within == piece.bytes) {
        ++target;
        within = 0;
      }
    }
    return true;
  });
}

UnitRange completed_units(const Payload& payload, std::uint64_t offset,
                          std::uint64_t bytes) noexcept {
  KVRAIL_ASSERT(range_fits(offset, bytes, payload.total_bytes));
  const std::uint32_t first = units_before(payload, offset);
  return UnitRange{first, units_before(payload, offset + bytes) - first};
}

std::span<std::byte> unit_memory(const Payload& payload, std::uint32_t unit) noexcept {
  KVRAIL_ASSERT(unit < payload.total_units);
  return unit_in_piece(payload, piece_of_unit(payload, unit), unit);
}

bool verify_units(const Payload& sink, std::uint64_t offset, std::uint64_t bytes,
                  std::span<const std::uint64_t> digests) noexcept {
  const UnitRange units = completed_units(sink, offset, bytes);
  if (units.count != digests.size()) return false;
  if (units.count == 0) return true;
  std::size_t piece = piece_of_unit(sink, units.first);
  for (std::uint32_t i = 0; i < units.count; ++i) {
    const std::uint32_t unit = units.first + i;
    while (piece + 1 < sink.pieces.size() && sink.first_unit[piece + 1] <= unit) ++piece;
    const std::span<std::byte> memory = unit_in_piece(sink, piece, unit);
    if (XXH3_64bits(memory.data(), memory.size()) != digests[i]) return false;
  }
  return true;
}

bool is_consistent(const Payload& payload) noexcept {
  const std::size_t count = payload.pieces.size();
  if (count == 0 || payload.starts.size() != count || payload.first_unit.size() != count) {
    return false;
  }
  std::uint64_t start = 0;
  std::uint64_t unit = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Piece& piece = payload.pieces[i];
    if (piece.bytes == 0 || piece.address == nullptr || payload.starts[i] != start ||
        payload.first_unit[i] != unit) {
      return false;
    }
    start += piece.bytes;
    unit += units_in(piece.bytes);
  }
  return payload.total_bytes == start && payload.total_units == unit &&
         (payload.digests.empty() || payload.digests.size() == unit);
}

}  // namespace kvrail::transport
