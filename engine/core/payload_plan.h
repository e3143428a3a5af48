// How the missing blocks of a transfer lie in its byte stream. Sender and receiver each build the
// same list of piece sizes from the same five facts, over their own memory:
//   full, window  blocks in ascending order; a full block is one piece (its slot), a partial one, or
//                 the first one when some of its rows are held (tail_from_row), is one piece per
//                 (layer, K|V): the rows that are to come
//   int8          plane 0 of every block, then plane 1 of every block
// Pieces never join neighbouring blocks: whether slots are neighbours is a matter of one side only.
#pragma once

#include <cstdint>
#include <span>

#include "engine/core/scratch.h"
#include "engine/core/transfer.h"
#include "engine/store/store.h"

namespace kvrail::engine {

struct PayloadShape {
  Layout layout;
  std::uint64_t total_tokens = 0;
  Medium medium = Medium::full;
  std::uint32_t tail_from_row = 0;
  std::span<const wire::BlockRange> ranges;

  [[nodiscard]] std::uint32_t block_count() const noexcept {
    return static_cast<std::uint32_t>((total_tokens + layout.block_tokens - 1) / layout.block_tokens);
  }
  [[nodiscard]] std::uint32_t rows_of(std::uint32_t block) const noexcept {
    const std::uint64_t left = total_tokens - std::uint64_t{block} * layout.block_tokens;
    return static_cast<std::uint32_t>(left < layout.block_tokens ? left : layout.block_tokens);
  }
  [[nodiscard]] std::uint32_t first_row_of(std::uint32_t block) const noexcept {
    return block == ranges[0].first ? tail_from_row : 0;
  }
  // Whether the block travels as its whole slot.
  [[nodiscard]] bool whole(std::uint32_t block) const noexcept {
    return first_row_of(block) == 0 && rows_of(block) == layout.block_tokens;
  }
  [[nodiscard]] std::uint32_t pieces_of(std::uint32_t block) const noexcept {
    return whole(block) ? 1 : 2 * layout.layers;
  }
  [[nodiscard]] std::uint64_t missing_blocks() const noexcept {
    std::uint64_t sum = 0;
    for (const wire::BlockRange& range : ranges) sum += range.count;
    return sum;
  }
  // Ranges ascend inside the context, the tail's rows exist: what a peer said may be relied on.
  [[nodiscard]] bool valid() const noexcept;
  // The n-th missing block.
  [[nodiscard]] std::uint32_t nth(std::uint64_t n) const noexcept;
};

// Builds the arrays over this node's slots; blocks[b] is block number b of the context. False: no
// scratch memory, nothing taken. int8: every missing block must have planes attached.
[[nodiscard]] bool build_payload(const PayloadShape& shape, const Store& store,
                                 std::span<const BlockHandle> blocks, bool with_digests,
                                 Scratch& scratch, PayloadArrays& out) noexcept;
void release_payload(Scratch& scratch, PayloadArrays& arrays) noexcept;

}  // namespace kvrail::engine
