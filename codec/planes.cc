// Blocks of the engine as planes: each layer is a run of its own in each plane.
#include "codec/planes.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "codec/planes_run.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {
namespace {

constexpr std::uint32_t kMaxRowValues = 16384;  // one row on the stack: 64 KiB of floats

PlaneShape cut_of(const Layout& layout) noexcept {
  return {layout.kv_heads, layout.head_dim};
}

// Rows of one layer in a slot: K's or V's valid ones lie one after the other.
template <class Byte>
std::span<Byte> rows_of(const Layout& layout, const RunShape& shape, std::span<Byte> slot,
                        std::uint32_t layer, std::uint32_t kv) noexcept {
  return slot.subspan(layout.row_offset(layer, kv, 0), shape.side_bytes());
}

}  // namespace

Result<void> can_encode(const Layout& layout) {
  const std::uint64_t row_values = std::uint64_t{layout.kv_heads} * layout.head_dim;
  if (layout.dtype != Dtype::bf16 && layout.dtype != Dtype::fp16 && layout.dtype != Dtype::fp32) {
    return Error{{Code::unsupported, Scope::transfer, static_cast<std::int32_t>(layout.dtype)},
                 "int8 encodes bf16, fp16 and fp32; this layout is sent by full or tokens"};
  }
  if (layout.head_dim % kOctet != 0) {
    return Error{
        {Code::unsupported, Scope::transfer, static_cast<std::int32_t>(layout.head_dim)},
        "int8 needs a head_dim that is a multiple of 8; this layout is sent by full or tokens"};
  }
  if (row_values > kMaxRowValues) {
    return Error{
        {Code::unsupported, Scope::transfer, static_cast<std::int32_t>(row_values)},
        "int8 takes at most " + std::to_string(kMaxRowValues) + " values per token and layer"};
  }
  return {};
}

PlaneSizes plane_sizes(const Layout& layout, std::uint32_t tokens) noexcept {
  const RunPlaneBytes layer = run_plane_bytes(cut_of(layout), tokens);
  return {layout.layers * layer.plane0, layout.layers * layer.plane1};
}

CodecReport encode_int8(const Layout& layout, std::uint32_t tokens, std::span<const std::byte> slot,
                        std::uint32_t layer_begin, std::uint32_t layer_end,
                        std::span<std::byte> plane0, std::span<std::byte> plane1) noexcept {
  const PlaneSizes sizes = plane_sizes(layout, tokens);
  const RunPlaneBytes bytes = run_plane_bytes(cut_of(layout), tokens);
  KVRAIL_ASSERT(plane0.size() == sizes.plane0_bytes && plane1.size() == sizes.plane1_bytes);
  KVRAIL_ASSERT(layer_begin <= layer_end && layer_end <= layout.layers &&
                slot.size() >= layout.block_bytes());
  alignas(64) std::array<float, kMaxRowValues> buffer;
  const PlaneRun run{run_shape(layout, tokens), false, buffer.data()};
  RunTally sum;
  for (std::uint32_t layer = layer_begin; layer < layer_end; ++layer) {
    const RunTally tally = encode_planes(
        run,
        {rows_of(layout, run.shape, slot, layer, 0), rows_of(layout, run.shape, slot, layer, 1)},
        plane0.subspan(layer * bytes.plane0, bytes.plane0),
        plane1.subspan(layer * bytes.plane1, bytes.plane1));
    sum.refused = sum.refused || tally.refused;
    sum.noise += tally.noise;
    sum.energy += tally.energy;
  }
  return {sum.nmse(), epsilon_of(sum.nmse()), sum.refused};
}

void decode_int8(const Layout& layout, std::uint32_t tokens, std::span<const std::byte> plane0,
                 std::span<const std::byte> plane1, std::uint32_t layer_begin,
                 std::uint32_t layer_end, std::span<std::byte> slot) noexcept {
  const PlaneSizes sizes = plane_sizes(layout, tokens);
  const RunPlaneBytes bytes = run_plane_bytes(cut_of(layout), tokens);
  KVRAIL_ASSERT(plane0.size() == sizes.plane0_bytes);
  KVRAIL_ASSERT(plane1.empty() || plane1.size() == sizes.plane1_bytes);
  KVRAIL_ASSERT(layer_begin <= layer_end && layer_end <= layout.layers &&
                slot.size() >= layout.block_bytes());
  alignas(64) std::array<float, kMaxRowValues> buffer;
  const PlaneRun run{run_shape(layout, tokens), false, buffer.data()};
  for (std::uint32_t layer = layer_begin; layer < layer_end; ++layer) {
    const MutableRun rows{rows_of(layout, run.shape, slot, layer, 0),
                          rows_of(layout, run.shape, slot, layer, 1)};
    const bool legal = decode_planes(
        run, plane0.subspan(layer * bytes.plane0, bytes.plane0),
        plane1.empty() ? plane1 : plane1.subspan(layer * bytes.plane1, bytes.plane1), rows);
    if (!legal) {
      std::fill(rows.k.begin(), rows.k.end(), std::byte{0});
      std::fill(rows.v.begin(), rows.v.end(), std::byte{0});
    }
  }
}

}  // namespace kvrail::codec
