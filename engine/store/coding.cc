#include "engine/store/coding.h"

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

bool can_code(const Layout& layout, Medium medium) noexcept {
  const codec::Codec* const codec = codec::codec_for(medium);
  return is_coded(medium) && codec != nullptr && codec->takes(codec::run_shape(layout, 1));
}

std::uint64_t run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows, std::size_t plane) noexcept {
  if (!has_plane(coding.planes(), plane)) return 0;
  if (plane != kVaryingPlane) return fixed_run_bytes(layout, coding.medium, rows, plane);
  return rows == layout.block_tokens ? coding.varying_full_bytes : coding.varying_tail_bytes;
}

std::uint64_t coded_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows) noexcept {
  std::uint64_t of_layer = 0;
  for (std::size_t plane = 0; plane < kPlanes; ++plane) of_layer += run_bytes(layout, coding, rows, plane);
  return of_layer * layout.layers;
}

std::uint64_t varying_bound(const Layout& layout, Medium medium, std::uint32_t rows) noexcept {
  const codec::Codec* const codec = codec::codec_for(medium);
  return kRunHeadBytes + codec->bound(codec::run_shape(layout, rows), codec->planes() - 1);
}

bool coding_of(const Layout& layout, Medium medium, std::uint64_t block_bytes, std::uint64_t tail_bytes,
               std::uint32_t tail_rows, Coding& out) noexcept {
  if (!can_code(layout, medium)) return false;
  out = Coding{medium, 0, 0};
  if (block_bytes % layout.layers != 0 || tail_bytes % layout.layers != 0) return false;
  if (!varying_part(layout, medium, layout.block_tokens, block_bytes / layout.layers, out.varying_full_bytes)) {
    return false;
  }
  return tail_rows == 0 ||
         varying_part(layout, medium, tail_rows, tail_bytes / layout.layers, out.varying_tail_bytes);
}

}  // namespace kvrail::engine
