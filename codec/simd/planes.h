// The kernels of the planes, chosen at run time for this CPU. Bit by bit what codec/planes_plain.h
// does.
#pragma once

#include "codec/planes_plain.h"

namespace kvrail::codec::simd {

/// Segments are made of tiles and rotate inside four of them: PlaneShape::tiled().
void encode_tiles(const Side& side, const std::byte* rows, const SidePlanes& planes,
                  Tally& tally) noexcept;
/// False where a step is none that an encoder writes; what is written then is finite and of no use.
[[nodiscard]] bool decode_tiles(const Side& side, const SideView& planes, std::byte* rows) noexcept;

}  // namespace kvrail::codec::simd
