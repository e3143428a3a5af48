// How the planes of coded blocks lie in memory and in a stream, and which of them a medium needs.
//
// A block has up to three planes, each made of equal runs, one for each layer:
//   0  int4: scales and high nibbles; its size follows from the Layout
//   1  the low nibbles that make int8 of it; likewise
//   2  what varies in size: the residual that makes it exact, or, alone, the lossless code. A run of it
//      has as many bytes as the offer says; it begins with the length of the code, and the rest is zero.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvrail/types.h"

namespace kvrail::engine {

inline constexpr std::size_t kPlanes = 3;
inline constexpr std::size_t kVaryingPlane = 2;
inline constexpr std::size_t kRunHeadBytes = 4;  // length of the code in a run of plane 2, little-endian

using PlaneMask = std::uint8_t;

[[nodiscard]] constexpr PlaneMask planes_of(Medium medium) noexcept {
  switch (medium) {
    case Medium::int4: return 0b001;
    case Medium::int8: return 0b011;
    case Medium::exact: return 0b111;
    case Medium::lossless: return 0b100;
    default: return 0;
  }
}
[[nodiscard]] constexpr bool has_plane(PlaneMask mask, std::size_t plane) noexcept { return (mask >> plane & 1U) != 0; }

// A medium and the sizes that were agreed for it.
struct Coding {
  Medium medium = Medium::full;         // one that is_coded(), else there are no planes
  std::uint64_t varying_full_bytes = 0; // a run of plane 2, of a full block
  std::uint64_t varying_tail_bytes = 0; // and of the partial last one

  [[nodiscard]] constexpr PlaneMask planes() const noexcept { return planes_of(medium); }
};

inline constexpr std::array kCodedMedia{Medium::lossless, Medium::int4, Medium::int8, Medium::exact};

// Whether blocks of the Layout can be coded so.
[[nodiscard]] bool can_code(const Layout& layout, Medium medium) noexcept;

// Bytes of a run (one layer of a block of `rows` tokens); 0 for a plane that the medium has not.
[[nodiscard]] std::uint64_t run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows,
                                      std::size_t plane) noexcept;
// Of all planes and layers.
[[nodiscard]] std::uint64_t coded_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows) noexcept;
// Most that a run of plane 2 can take.
[[nodiscard]] std::uint64_t varying_bound(const Layout& layout, Medium medium, std::uint32_t rows) noexcept;

// The sizes of plane 2 from those of blocks of the whole coding, as an offer tells them. False: no such
// coding can have these sizes.
[[nodiscard]] bool coding_of(const Layout& layout, Medium medium, std::uint64_t block_bytes, std::uint64_t tail_bytes,
                             std::uint32_t tail_rows, Coding& out) noexcept;

}  // namespace kvrail::engine
