#include "engine/core/payload_plan.h"

#include "codec/planes.h"
#include "kvrail/base/assert.h"

namespace kvrail::engine {
namespace {

// Fills piece after piece and keeps the running offsets.
class PieceWriter {
 public:
  explicit PieceWriter(PayloadArrays& arrays) noexcept : arrays_(arrays) {}

  void add(std::byte* address, std::uint64_t bytes) noexcept {
    KVRAIL_ASSERT(at_ < arrays_.pieces.size() && bytes > 0 && address != nullptr);
    arrays_.pieces[at_] = {address, bytes};
    arrays_.starts[at_] = offset_;
    arrays_.first_unit[at_] = unit_;
    offset_ += bytes;
    unit_ += transport::units_in(bytes);
    ++at_;
  }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }
  [[nodiscard]] std::uint32_t units() const noexcept { return unit_; }
  [[nodiscard]] std::size_t count() const noexcept { return at_; }

 private:
  PayloadArrays& arrays_;
  std::size_t at_ = 0;
  std::uint64_t offset_ = 0;
  std::uint32_t unit_ = 0;
};

template <class F>
void for_each_missing(const PayloadShape& shape, F&& f) {
  for (const wire::BlockRange& range : shape.ranges) {
    for (std::uint32_t i = 0; i < range.count; ++i) f(range.first + i);
  }
}

void add_raw(const PayloadShape& shape, std::uint32_t block, std::byte* slot, PieceWriter& out) noexcept {
  if (shape.whole(block)) {
    out.add(slot, shape.layout.block_bytes());
    return;
  }
  const std::uint32_t from = shape.first_row_of(block);
  const std::uint64_t bytes = (shape.rows_of(block) - from) * shape.layout.row_bytes();
  for (std::uint32_t layer = 0; layer < shape.layout.layers; ++layer) {
    for (std::uint32_t kv = 0; kv < 2; ++kv) {
      out.add(slot + shape.layout.row_offset(layer, kv, from), bytes);
    }
  }
}

void add_pieces(const PayloadShape& shape, const Store& store, std::span<const BlockHandle> blocks,
                PieceWriter& out) noexcept {
  if (shape.medium != Medium::int8) {
    for_each_missing(shape, [&](std::uint32_t b) { add_raw(shape, b, store.block(blocks[b]).raw, out); });
    return;
  }
  for_each_missing(shape, [&](std::uint32_t b) {
    const BlockView view = store.block(blocks[b]);
    out.add(view.plane0, view.plane0_bytes);
  });
  for_each_missing(shape, [&](std::uint32_t b) {
    const BlockView view = store.block(blocks[b]);
    out.add(view.plane1, view.plane1_bytes);
  });
}

std::uint64_t count_pieces(const PayloadShape& shape) noexcept {
  if (shape.medium == Medium::int8) return 2 * shape.missing_blocks();
  std::uint64_t sum = 0;
  for_each_missing(shape, [&](std::uint32_t b) { sum += shape.pieces_of(b); });
  return sum;
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
  if (tail_from_row != 0 && (medium == Medium::int8 || tail_from_row >= rows_of(ranges[0].first))) return false;
  return true;
}

std::uint32_t PayloadShape::nth(std::uint64_t n) const noexcept {
  for (const wire::BlockRange& range : ranges) {
    if (n < range.count) return range.first + static_cast<std::uint32_t>(n);
    n -= range.count;
  }
  KVRAIL_UNREACHABLE();
}

bool build_payload(const PayloadShape& shape, const Store& store, std::span<const BlockHandle> blocks,
                   bool with_digests, Scratch& scratch, PayloadArrays& out) noexcept {
  KVRAIL_ASSERT(shape.valid());
  const std::uint64_t count = count_pieces(shape);
  out.pieces = scratch.try_array<transport::Piece>(count);
  out.starts = scratch.try_array<std::uint64_t>(count);
  out.first_unit = scratch.try_array<std::uint32_t>(count);
  if (out.pieces.empty() || out.starts.empty() || out.first_unit.empty()) {
    release_payload(scratch, out);
    return false;
  }
  PieceWriter writer(out);
  add_pieces(shape, store, blocks, writer);
  KVRAIL_ASSERT(writer.count() == count);
  if (with_digests) {
    out.digests = scratch.try_array<std::uint64_t>(writer.units());
    if (out.digests.empty()) {
      release_payload(scratch, out);
      return false;
    }
  }
  out.payload = {out.pieces, out.starts, out.first_unit, writer.offset(), writer.units(), out.digests};
  return true;
}

void release_payload(Scratch& scratch, PayloadArrays& arrays) noexcept {
  scratch.give_back(arrays.pieces);
  scratch.give_back(arrays.starts);
  scratch.give_back(arrays.first_unit);
  scratch.give_back(arrays.digests);
  arrays.payload = {};
}

}  // namespace kvrail::engine
