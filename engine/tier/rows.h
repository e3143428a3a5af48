// The valid rows of a block without the room between them: [layer][K|V] halves of `tokens` rows each, one behind the
// other. That is what tiers keep, because a tail's slot is mostly room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kvrail/types.h"

namespace kvrail::engine {

[[nodiscard]] constexpr std::uint64_t packed_bytes(const Layout& layout, std::uint32_t tokens) noexcept {
  return tokens * layout.token_bytes();
}

// Calls with (offset in the slot, offset in the packed form, bytes) for each half of each layer.
template <class With>
void for_each_half(const Layout& layout, std::uint32_t tokens, With with) {
  const std::uint64_t bytes = tokens * layout.row_bytes();
  for (std::uint32_t half = 0; half < 2 * layout.layers; ++half) {
    with(half * layout.block_tokens * layout.row_bytes(), half * bytes, bytes);
  }
}

inline void pack_rows(const Layout& layout, std::uint32_t tokens, const std::byte* rows, std::byte* packed) noexcept {
  for_each_half(layout, tokens, [&](std::uint64_t in_slot, std::uint64_t at, std::uint64_t bytes) {
    std::memcpy(packed + at, rows + in_slot, bytes);
  });
}

inline void unpack_rows(const Layout& layout, std::uint32_t tokens, const std::byte* packed, std::byte* rows) noexcept {
  for_each_half(layout, tokens, [&](std::uint64_t in_slot, std::uint64_t at, std::uint64_t bytes) {
    std::memcpy(rows + in_slot, packed + at, bytes);
  });
}

}  // namespace kvrail::engine
