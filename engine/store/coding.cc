#include "engine/store/coding.h"

#include <algorithm>

#include "codec/codec.h"

namespace kvrail::engine {
namespace {

std::uint64_t fixed_run_bytes(const Layout& layout, Medium medium, std::uint32_t rows, std::size_t plane) noexcept {
  return codec::codec_for(medium)->bound(codec::run_shape(layout, rows), plane);
}

// What plane 2 has of `bytes`, the size of one layer's runs in all planes.
bool varying_part(const Layout& layout, Medium medium, std::uint32_t rows, std::uint64_t bytes,
                  std::uint64_t& out) noexcept {
  std::uint64_t fixed = 0;
  for (std::size_t plane = 0; plane < kVaryingPlane; ++plane) {
    if (has_plane(planes_of(medium), plane)) fixed += fixed_run_bytes(layout, medium, rows, plane);
  }
  const bool varies = has_plane(planes_of(medium), kVaryingPlane);
  if (bytes < fixed || (!varies && bytes != fixed)) return false;
  out = bytes - fixed;
  return !varies || (out > kRunHeadBytes && out <= varying_bound(layout, medium, rows));
}

}  // namespace

bool can_code(const Layout& layout, const Coding& coding) noexcept {
  if (is_sparse(coding.medium) && !may_be_values(coding.values)) return false;
  if (coding.medium == Medium::lowrank) return coding.lowrank != nullptr && coding.lowrank->takes(layout);
  const codec::Codec* const codec = codec::codec_for(coding.rows());
  return is_coded(coding.rows()) && codec != nullptr && codec->takes(codec::run_shape(layout, 1));
}

std::uint64_t run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows, std::size_t plane,
                        std::uint32_t layer) noexcept {
  if (!has_plane(coding.planes(), plane)) return 0;
  if (plane == kLowRankPlane) return coding.lowrank->run_bytes(rows, layer);
  if (plane != kVaryingPlane) return fixed_run_bytes(layout, coding.rows(), rows, plane);
  return rows == layout.block_tokens ? coding.varying_full_bytes : coding.varying_tail_bytes;
}

std::uint64_t most_run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows,
                             std::size_t plane) noexcept {
  const bool lowrank = plane == kLowRankPlane && has_plane(coding.planes(), plane);
  return lowrank ? coding.lowrank->most_run_bytes(rows) : run_bytes(layout, coding, rows, plane, 0);
}

std::uint64_t plane_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows, std::size_t plane) noexcept {
  const bool lowrank = plane == kLowRankPlane && has_plane(coding.planes(), plane);
  return lowrank ? coding.lowrank->offset(rows, layout.layers) : layout.layers * run_bytes(layout, coding, rows, plane, 0);
}

std::uint64_t coded_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t plane = 0; plane < kPlanes; ++plane) sum += plane_bytes(layout, coding, rows, plane);
  return sum;
}

std::uint64_t varying_bound(const Layout& layout, Medium medium, std::uint32_t rows) noexcept {
  const codec::Codec* const codec = codec::codec_for(medium);
  return kRunHeadBytes + codec->bound(codec::run_shape(layout, rows), codec->planes() - 1);
}

std::uint32_t window_first_block(const Layout& layout, std::uint64_t tokens, std::uint32_t rows) noexcept {
  const std::uint64_t blocks = (tokens + layout.block_tokens - 1) / layout.block_tokens;
  const std::uint64_t last = std::max<std::uint64_t>(rows / layout.block_tokens, 2) - 1;
  return static_cast<std::uint32_t>(blocks - std::min(blocks, last));
}

bool take_sizes(const Layout& layout, std::uint64_t block_bytes, std::uint64_t tail_bytes, std::uint32_t tail_rows,
                Coding& coding) noexcept {
  if (!can_code(layout, coding)) return false;
  if (coding.medium == Medium::lowrank) {
    return block_bytes == coded_bytes(layout, coding, layout.block_tokens) &&
           (tail_rows == 0 || tail_bytes == coded_bytes(layout, coding, tail_rows));
  }
  if (block_bytes % layout.layers != 0 || tail_bytes % layout.layers != 0) return false;
  if (!varying_part(layout, coding.rows(), layout.block_tokens, block_bytes / layout.layers, coding.varying_full_bytes)) {
    return false;
  }
  return tail_rows == 0 ||
         varying_part(layout, coding.rows(), tail_rows, tail_bytes / layout.layers, coding.varying_tail_bytes);
}

}  // namespace kvrail::engine
