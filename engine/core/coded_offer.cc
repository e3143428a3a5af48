// What coded media would take of a version, for the offer: their sizes, which blocks are protected, and whether
// their planes are there already.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

// What the finer plane of the blocks that are protected takes.
std::uint64_t finer_bytes(const Layout& layout, const Coding& coding, std::uint64_t tokens) noexcept {
  const ProtectedEnds& ends = coding.ends;
  if (!ends.any()) return 0;
  const std::uint64_t all = std::min<std::uint64_t>(std::uint64_t{ends.first} + ends.last, ends.blocks);
  const auto tail_rows = static_cast<std::uint32_t>(tokens % layout.block_tokens);
  const bool tail = tail_rows != 0 && ends.cover(ends.blocks - 1);
  const std::size_t plane = 1;
  return (all - (tail ? 1 : 0)) * plane_bytes(layout, coding.finer(), layout.block_tokens, plane) +
         (tail ? plane_bytes(layout, coding.finer(), tail_rows, plane) : 0);
}

}  // namespace

Coding Node::Core::coding_of(const scheduler::CandidateCost& offered, const Layout& layout, std::uint64_t tokens) noexcept {
  Coding coding{.medium = offered.medium, .values = offered.values};
  if (offered.medium == Medium::int4) {
    const auto blocks = static_cast<std::uint32_t>((tokens + layout.block_tokens - 1) / layout.block_tokens);
    coding.ends = {offered.first_blocks, offered.last_blocks, blocks};
  }
  return coding;
}

// One full block stands for all: whether its planes are there, and whether more can be made of it. It is the last
// that is not protected, for what came with protection has one plane more at its ends.
void Node::Core::fill_coded(const VersionView& view, const RemoteAgent& to, scheduler::SenderFacts& facts) const noexcept {
  const Layout& layout = view.layout;
  const auto tail_rows = static_cast<std::uint32_t>(view.tokens.size() % layout.block_tokens);
  const std::size_t full_blocks = view.tokens.size() / layout.block_tokens;
  const std::size_t behind = std::min<std::size_t>(options_.protection.last_blocks + 1, full_blocks);
  const BlockView sample = full_blocks > 0 ? store_->block(view.blocks[full_blocks - behind]) : BlockView{};
  for (const Medium medium : kCodedMedia) {
    Coding coding;
    if (!codecs_.plan(layout, medium, tail_rows, coding)) continue;
    if (medium == Medium::lowrank && to.lowrank != codecs_.lowrank_code(layout)) continue;
    const bool there = planes_there(sample, coding.planes(), layout.layers);
    if (sample.came_coded && medium != Medium::lossless && !there) continue;
    if (medium == Medium::int4) coding.ends = protected_of(view);
    scheduler::CodedFacts& coded = facts.coded[static_cast<std::size_t>(medium)];
    coded.block_bytes = coded_bytes(layout, coding, layout.block_tokens);
    coded.tail_bytes = tail_rows == 0 ? 0 : coded_bytes(layout, coding, tail_rows);
    coded.fixed_bytes = finer_bytes(layout, coding, view.tokens.size());
    coded.first_blocks = static_cast<std::uint16_t>(coding.ends.first);
    coded.last_blocks = static_cast<std::uint16_t>(coding.ends.last);
    coded.came_so = there && sample.came_coded;
    coded.encode_ns_per_block = there ? 0 : codecs_.encode_ns(medium, layout.block_bytes());
  }
}

// As many blocks at either end as the node's profile protects, or, of blocks that came coded, as have the plane for it.
ProtectedEnds Node::Core::protected_of(const VersionView& view) const noexcept {
  const auto blocks = static_cast<std::uint32_t>(view.blocks.size());
  const auto count = [&](std::uint32_t most, auto nth) {
    std::uint32_t n = 0;
    for (; n < std::min<std::uint32_t>(most, blocks); ++n) {
      const BlockView block = store_->block(view.blocks[nth(n)]);
      if (block.came_coded && !planes_there(block, planes_of(Medium::int8), view.layout.layers)) break;
    }
    return n;
  };
  const std::uint32_t first = count(options_.protection.first_blocks, [](std::uint32_t n) { return n; });
  const std::uint32_t last = count(options_.protection.last_blocks, [&](std::uint32_t n) { return blocks - 1 - n; });
  return {first, last, blocks};
}

}  // namespace kvrail::engine
