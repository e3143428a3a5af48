#include "engine/core/payload_plan.h"

#include <algorithm>

#include "kvrail/base/assert.h"

namespace kvrail::engine {
namespace {

void add(PayloadArrays& out, std::byte* address, std::uint64_t bytes) noexcept {
  const std::uint64_t at = out.built_pieces++;
  KVRAIL_ASSERT(at < out.pieces.size() && bytes > 0 && address != nullptr);
  out.pieces[at] = {address, bytes};
  out.starts[at] = out.built_bytes;
  out.first_unit[at] = out.built_units;
  out.built_bytes += bytes;
  out.built_units += transport::units_in(bytes);
}

void add_rows(const PayloadShape& shape, std::uint32_t block, std::uint32_t layer, std::byte* slot,
              PayloadArrays& out) noexcept {
  const Layout& layout = shape.layout;
  const std::uint32_t from = shape.first_row_of(block);
  const std::uint64_t bytes = (shape.rows_of(block) - from) * layout.row_bytes();
  if (shape.whole(block)) return add(out, slot + layout.row_offset(layer, 0, 0), 2 * bytes);
  for (std::uint32_t kv = 0; kv < 2; ++kv) add(out, slot + layout.row_offset(layer, kv, from), bytes);
}

// Blocks that do not travel whole: the first one, if some rows are held, and the context's last one.
std::uint32_t partial_blocks(const PayloadShape& shape, std::array<std::uint32_t, 2>& out) noexcept {
  std::uint32_t count = 0;
  const std::uint32_t first = shape.ranges.front().first;
  const std::uint32_t last = shape.ranges.back().first + shape.ranges.back().count - 1;
  if (!shape.whole(first)) out[count++] = first;
  if (last != first && !shape.whole(last)) out[count++] = last;
  return count;
}

struct Totals {
  std::uint64_t pieces = 0;
  std::uint64_t units = 0;
};

// Of all layers of a block, in the planes of `coding` that travel. Only lowrank's runs differ by layer.
std::uint64_t coded_units(const PayloadShape& shape, const Coding& coding, std::uint32_t rows) noexcept {
  const Layout& layout = shape.layout;
  std::uint64_t units = 0;
  for (std::size_t plane = 0; plane < kPlanes; ++plane) {
    if (!has_plane(static_cast<PlaneMask>(coding.planes() & shape.planes()), plane)) continue;
    const std::uint32_t different = plane == kLowRankPlane ? layout.layers : 1;
    std::uint64_t of_plane = 0;
    for (std::uint32_t layer = 0; layer < different; ++layer) {
      of_plane += transport::units_in(run_bytes(layout, coding, rows, plane, layer));
    }
    units += of_plane * (layout.layers / different);
  }
  return units;
}

Totals coded_totals(const PayloadShape& shape, std::uint64_t whole, std::span<const std::uint32_t> partial) noexcept {
  const std::uint32_t full_rows = shape.layout.block_tokens;
  std::uint64_t finer = shape.finer_blocks();
  std::uint64_t units = 0;
  for (const std::uint32_t block : partial) {
    units += coded_units(shape, shape.coding.of_block(block), shape.rows_of(block));
    finer -= shape.coding.ends.cover(block) ? 1 : 0;
  }
  units += finer * coded_units(shape, shape.coding.finer(), full_rows);
  units += (whole - finer) * coded_units(shape, shape.coding, full_rows);
  return {shape.first_piece(shape.plane_count()), units};
}

// The n-th (plane, run) of a coded stream, those that a block has not got included; of rows the n-th run.
struct StreamPlace {
  std::uint64_t run = 0, plane = 0;
};
StreamPlace place_of(const PayloadShape& shape, std::uint64_t n) noexcept {
  if (!shape.coded()) return {n, 0};
  if (!shape.tail_first) return {n % shape.runs(), n / shape.runs()};
  const std::uint64_t layers = shape.layout.layers;
  const std::uint64_t of_block = n % (layers * shape.plane_count());
  return {n / (layers * shape.plane_count()) * layers + of_block % layers, of_block / layers};
}

// Of the context's blocks [from, to) those that are missing.
std::uint64_t missing_in(const PayloadShape& shape, std::uint64_t from, std::uint64_t to) noexcept {
  std::uint64_t sum = 0;
  for (const wire::BlockRange& range : shape.ranges) {
    const std::uint64_t begin = std::max<std::uint64_t>(range.first, from);
    const std::uint64_t end = std::min<std::uint64_t>(std::uint64_t{range.first} + range.count, to);
    sum += begin < end ? end - begin : 0;
  }
  return sum;
}

Totals raw_totals(const PayloadShape& shape, std::uint64_t whole, std::span<const std::uint32_t> partial) noexcept {
  const Layout& layout = shape.layout;
  Totals in_layer{whole, whole * transport::units_in(2 * layout.block_tokens * layout.row_bytes())};
  for (const std::uint32_t block : partial) {
    const std::uint32_t rows = shape.rows_of(block) - shape.first_row_of(block);
    in_layer.pieces += 2;
    in_layer.units += 2 * std::uint64_t{transport::units_in(rows * layout.row_bytes())};
  }
  return {in_layer.pieces * layout.layers, in_layer.units * layout.layers};
}

Totals totals_of(const PayloadShape& shape) noexcept {
  std::array<std::uint32_t, 2> partial{};
  const std::uint32_t partials = partial_blocks(shape, partial);
  const std::uint64_t whole = shape.missing_blocks() - partials;
  const std::span<const std::uint32_t> these = std::span(partial).first(partials);
  Totals all = shape.coded() ? coded_totals(shape, whole, these) : raw_totals(shape, whole, these);
  if (!shape.positions.empty()) {
    ++all.pieces;
    all.units += transport::units_in(shape.positions.size());
  }
  return all;
}

}  // namespace

bool PayloadShape::valid() const noexcept {
  if (ranges.empty() || total_tokens == 0) return false;
  std::uint64_t end = 0;
  for (const wire::BlockRange& range : ranges) {
    if (range.count == 0 || range.first < end) return false;
    end = std::uint64_t{range.first} + range.count;
  }
  if (end > block_count()) return false;
  if (coded() ? planes() == 0 : first_plane != 0) return false;
  if (tail_from_row != 0 && (coded() || tail_from_row >= rows_of(ranges[0].first))) return false;
  return true;
}

std::uint32_t PayloadShape::nth(std::uint64_t n) const noexcept {
  for (const wire::BlockRange& range : ranges) {
    if (n < range.count) return range.first + static_cast<std::uint32_t>(n);
    n -= range.count;
  }
  KVRAIL_UNREACHABLE();
}

std::uint64_t PayloadShape::finer_before(std::uint32_t block) const noexcept {
  const ProtectedEnds& ends = coding.ends;
  const std::uint32_t last_from = std::max(ends.first, ends.blocks - std::min(ends.last, ends.blocks));
  return missing_in(*this, 0, std::min(ends.first, block)) + missing_in(*this, last_from, block);
}

std::uint64_t PayloadShape::first_piece(std::uint64_t n) const noexcept {
  std::uint64_t pieces = 0;
  for (std::uint64_t before = 0; before < n; ++before) {
    pieces += only_finer(before) ? finer_blocks() * layout.layers : runs();
  }
  return pieces;
}

std::uint64_t PayloadShape::piece_of(std::uint64_t n, std::uint64_t run) const noexcept {
  if (tail_first) return tail_pieces(run / layout.layers) + n * layout.layers + run % layout.layers;
  if (!only_finer(n)) return first_piece(n) + run;
  const std::uint64_t missing = missing_blocks();
  return first_piece(n) + run / missing * finer_blocks() + finer_before(nth(run % missing));
}

std::uint64_t PayloadShape::tail_pieces(std::uint64_t blocks) const noexcept {
  const std::uint64_t missing = missing_blocks();
  if (blocks == 0) return 0;
  if (coded()) {
    const std::uint64_t finer = finer_blocks() > 0 ? finer_blocks() - finer_before(nth(missing - blocks)) : 0;
    return layout.layers * (blocks * static_cast<std::uint64_t>(std::popcount(planes())) - (plane_count() > 1 && only_finer(1) ? blocks - finer : 0));
  }
  std::uint64_t pieces = blocks;
  pieces += whole(nth(missing - 1)) ? 0 : 1;
  if (blocks == missing && missing > 1) pieces += whole(nth(0)) ? 0 : 1;
  return pieces * layout.layers;
}

// Plane by plane the first plane comes first, a piece for each run, and the others are ready with the last run. Tail
// first a block is ready with its last layer.
std::uint64_t PayloadShape::ready_piece(std::uint64_t prepared) const noexcept {
  return tail_first ? tail_pieces(prepared / layout.layers) : prepared;
}

bool begin_payload(const PayloadShape& shape, bool with_digests, Scratch& scratch, PayloadArrays& out) noexcept {
  KVRAIL_ASSERT(shape.valid() && out.pieces.empty());
  const Totals totals = totals_of(shape);
  out.pieces = scratch.try_array<transport::Piece>(totals.pieces);
  out.starts = scratch.try_array<std::uint64_t>(totals.pieces);
  out.first_unit = scratch.try_array<std::uint32_t>(totals.pieces);
  if (with_digests) out.digests = scratch.try_array<std::uint64_t>(totals.units);
  const bool room = !out.pieces.empty() && !out.starts.empty() && !out.first_unit.empty() &&
                    (!with_digests || !out.digests.empty());
  if (!room) release_payload(scratch, out);
  return room;
}

bool build_payload(const PayloadShape& shape, const Store& store, std::span<const BlockHandle> blocks,
                   PayloadArrays& out, std::uint64_t& budget) noexcept {
  const std::uint64_t runs = shape.runs();
  const std::uint64_t end = shape.coded() ? shape.plane_count() * runs : runs;
  for (; out.built_runs < end; ++out.built_runs, --budget) {
    if (budget == 0) return false;
    const StreamPlace place = place_of(shape, out.built_runs);
    const std::uint32_t block = shape.run_block(place.run);
    const std::uint32_t layer = shape.run_layer(place.run);
    const BlockView view = store.block(blocks[block]);
    if (!shape.coded()) {
      add_rows(shape, block, layer, view.raw, out);
      continue;
    }
    if (!shape.in_plane(place.plane, block)) continue;
    const std::span<std::byte> bytes = view.planes[shape.plane_at(place.plane)].run(layer);
    add(out, bytes.data(), bytes.size());
  }
  if (!shape.positions.empty()) add(out, shape.positions.data(), shape.positions.size());
  KVRAIL_ASSERT(out.built_pieces == out.pieces.size());
  KVRAIL_ASSERT(out.digests.empty() || out.digests.size() == out.built_units);
  out.payload = {out.pieces, out.starts, out.first_unit, out.built_bytes, out.built_units, out.digests};
  return true;
}

void release_payload(Scratch& scratch, PayloadArrays& arrays) noexcept {
  scratch.give_back(arrays.pieces);
  scratch.give_back(arrays.starts);
  scratch.give_back(arrays.first_unit);
  scratch.give_back(arrays.digests);
  arrays = PayloadArrays{};
}

}  // namespace kvrail::engine
