// How the missing blocks of a transfer lie in its byte stream. Sender and receiver each build the
// same list of piece sizes from the same five facts, over their own memory. Layer by layer, so that
// whoever computes can begin with the first layer of all blocks while the others are on their way:
//   full, window  for each layer, blocks in ascending order; a full block's K and V of the layer are
//                 one piece, as they lie in its slot; of a partial block, or the first one when some of
//                 its rows are held (tail_from_row), the rows to come of K and of V are a piece each
//   topk          as full, of the rows that are kept as if they were the whole context; then their positions,
//                 one piece
//   coded media   the same with the first plane of every block, a piece for each (layer, block), then
//                 with the next plane; rows of topk and window may be coded so too: cut short, the stream is
//                 usable as far as whole planes came. Behind the plane of int4 comes that of int8 of the missing
//                 blocks which are protected
// A split's stream is tail first: block after block from the last one down, of each all planes one behind the other and
// of a plane all layers, so that whoever computes the head meets it.
// Pieces never join neighbouring blocks: whether slots are neighbours is a matter of one side only.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "engine/core/scratch.h"
#include "engine/core/transfer.h"
#include "engine/store/store.h"

namespace kvrail::engine {

struct PayloadShape {
  Layout layout;
  std::uint64_t total_tokens = 0;
  Coding coding;
  std::uint32_t tail_from_row = 0;
  std::span<const wire::BlockRange> ranges;
  std::size_t first_plane = 0;  // of a coded medium: those before it are held
  std::span<std::byte> positions{};  // topk: the last piece; total_tokens are those that are kept
  bool tail_first = false;

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
  // Whether all rows of the block's slot are to come.
  [[nodiscard]] bool whole(std::uint32_t block) const noexcept {
    return first_row_of(block) == 0 && rows_of(block) == layout.block_tokens;
  }
  // In each layer, and plane of a coded medium that the block has.
  [[nodiscard]] std::uint32_t pieces_of(std::uint32_t block) const noexcept {
    return coded() || whole(block) ? 1 : 2;
  }
  [[nodiscard]] bool coded() const noexcept { return coding.coded(); }
  // That travel.
  [[nodiscard]] PlaneMask planes() const noexcept {
    const unsigned finer = finer_blocks() > 0 ? coding.finer().planes() : 0;
    return static_cast<PlaneMask>((coding.planes() | finer) >> first_plane << first_plane);
  }
  [[nodiscard]] std::uint32_t plane_count() const noexcept {
    return static_cast<std::uint32_t>(std::popcount(planes()));
  }
  // The n-th plane of the stream, as the store numbers them.
  [[nodiscard]] std::size_t plane_at(std::uint64_t n) const noexcept {
    std::size_t plane = 0;
    for (; !has_plane(planes(), plane) || n-- > 0; ++plane) {
    }
    return plane;
  }
  [[nodiscard]] std::uint64_t missing_blocks() const noexcept {
    std::uint64_t sum = 0;
    for (const wire::BlockRange& range : ranges) sum += range.count;
    return sum;
  }
  // (layer, block) pairs of the first plane, numbered in stream order. Which of the missing blocks, and which layer.
  [[nodiscard]] std::uint64_t runs() const noexcept { return missing_blocks() * layout.layers; }
  [[nodiscard]] std::uint64_t run_at(std::uint64_t run) const noexcept {
    return tail_first ? missing_blocks() - 1 - run / layout.layers : run % missing_blocks();
  }
  [[nodiscard]] std::uint32_t run_block(std::uint64_t run) const noexcept { return nth(run_at(run)); }
  [[nodiscard]] std::uint32_t run_layer(std::uint64_t run) const noexcept {
    return static_cast<std::uint32_t>(tail_first ? run % layout.layers : run / missing_blocks());
  }
  // Missing blocks that are protected: all of them, and those before `block`.
  [[nodiscard]] std::uint64_t finer_blocks() const noexcept { return coding.ends.any() ? finer_before(block_count()) : 0; }
  [[nodiscard]] std::uint64_t finer_before(std::uint32_t block) const noexcept;
  // Of the n-th plane of the stream: whether only protected blocks have it; its blocks; its first piece (of one
  // behind the last: all pieces).
  [[nodiscard]] bool only_finer(std::uint64_t n) const noexcept { return !has_plane(coding.planes(), plane_at(n)); }
  [[nodiscard]] bool in_plane(std::uint64_t n, std::uint32_t block) const noexcept {
    return !only_finer(n) || coding.ends.cover(block);
  }
  [[nodiscard]] std::uint64_t first_piece(std::uint64_t n) const noexcept;
  // The piece in it of a run of the first plane, whose block has that plane.
  [[nodiscard]] std::uint64_t piece_of(std::uint64_t n, std::uint64_t run) const noexcept;
  // Of a coded medium: the first piece that needs more than the first so many runs to be encoded.
  [[nodiscard]] std::uint64_t ready_piece(std::uint64_t runs) const noexcept;
  // Tail first: pieces of the last so many missing blocks.
  [[nodiscard]] std::uint64_t tail_pieces(std::uint64_t blocks) const noexcept;
  // Ranges ascend inside the context, the tail's rows exist: what a peer said may be relied on.
  [[nodiscard]] bool valid() const noexcept;
  // The n-th missing block.
  [[nodiscard]] std::uint32_t nth(std::uint64_t n) const noexcept;
};

// Takes the arrays: false (nothing is kept) when the scratch memory is short. Digests have room but
// are not filled in.
[[nodiscard]] bool begin_payload(const PayloadShape& shape, bool with_digests, Scratch& scratch,
                                 PayloadArrays& out) noexcept;
// Fills in pieces for at most `budget` runs, and lowers it. True: `out.payload` is complete. `blocks`
// are those of the whole context, by block number.
[[nodiscard]] bool build_payload(const PayloadShape& shape, const Store& store, std::span<const BlockHandle> blocks,
                                 PayloadArrays& out, std::uint64_t& budget) noexcept;
void release_payload(Scratch& scratch, PayloadArrays& arrays) noexcept;

}  // namespace kvrail::engine
