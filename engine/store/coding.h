// How the planes of coded blocks lie in memory and in a stream, and which of them a medium needs.
//
// A block has up to four planes, each made of a run for each layer:
//   0  int4: scales and high nibbles; its size follows from the Layout
//   1  the low nibbles that make int8 of it; likewise
//   2  what varies in size: the residual that makes it exact, or, alone, the lossless code. A run of it
//      has as many bytes as the offer says; it begins with the length of the code, and the rest is zero.
//   3  lowrank, alone; its size follows from the node's basis, for each layer another
// Runs of planes 0 to 2 are equal in all layers. Only planes 0 to 2 refine each other, so that lowrank has a plane
// that no other medium ever reads.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "codec/sparse.h"
#include "engine/store/lowrank_basis.h"
#include "kvrail/types.h"

namespace kvrail::engine {

inline constexpr std::size_t kPlanes = 4;
inline constexpr std::size_t kNestedPlanes = 3;  // from the first on, those that refine each other
inline constexpr std::size_t kVaryingPlane = 2;
inline constexpr std::size_t kLowRankPlane = 3;
inline constexpr std::size_t kRunHeadBytes = 4;  // length of the code in a run of plane 2, little-endian

using PlaneMask = std::uint8_t;
inline constexpr PlaneMask kAllPlanes = (1U << kPlanes) - 1;

[[nodiscard]] constexpr PlaneMask planes_of(Medium medium) noexcept {
  switch (medium) {
    case Medium::int4: return 0b0001;
    case Medium::int8: return 0b0011;
    case Medium::exact: return 0b0111;
    case Medium::lossless: return 0b0100;
    case Medium::lowrank: return 0b1000;
    default: return 0;
  }
}
[[nodiscard]] constexpr bool has_plane(PlaneMask mask, std::size_t plane) noexcept { return (mask >> plane & 1U) != 0; }

// Of int4: blocks at the ends of a context that get plane 1 too, and so arrive as int8. What a profile protects.
struct ProtectedEnds {
  std::uint32_t first = 0, last = 0;  // blocks
  std::uint32_t blocks = 0;           // of the whole context

  [[nodiscard]] constexpr bool any() const noexcept { return (first | last) != 0; }
  [[nodiscard]] constexpr bool cover(std::uint32_t block) const noexcept {
    return block < first || (block < blocks && blocks - block <= last);
  }
};

// A medium and what its sizes follow from beside the Layout.
struct Coding {
  Medium medium = Medium::full;         // there are planes if its rows are coded
  std::uint64_t varying_full_bytes = 0; // a run of plane 2, of a full block: as was agreed
  std::uint64_t varying_tail_bytes = 0; // and of the partial last one
  const LowRankBasis* lowrank = nullptr;  // of lowrank, the node's
  Medium values = Medium::full;         // topk, window: what their rows are coded as
  ProtectedEnds ends{};                 // int4

  [[nodiscard]] constexpr Medium rows() const noexcept { return is_sparse(medium) ? values : medium; }
  [[nodiscard]] constexpr PlaneMask planes() const noexcept { return planes_of(rows()); }
  [[nodiscard]] constexpr bool coded() const noexcept { return planes() != 0; }
  // Whether the first planes alone are of use.
  [[nodiscard]] constexpr bool refines() const noexcept { return std::popcount(planes()) > 1 || ends.any(); }
  // What a protected block is coded as.
  [[nodiscard]] constexpr Coding finer() const noexcept { return {.medium = Medium::int8}; }
  [[nodiscard]] constexpr Coding of_block(std::uint32_t block) const noexcept {
    return ends.cover(block) ? finer() : *this;
  }
};

inline constexpr std::array kCodedMedia{Medium::lossless, Medium::int4, Medium::int8, Medium::exact, Medium::lowrank};

// What rows of topk and window may be coded as; lowrank's code depends on the positions being neighbours.
[[nodiscard]] constexpr bool may_be_values(Medium medium) noexcept {
  return medium == Medium::full || (is_coded(medium) && medium != Medium::lowrank);
}

// Whether rows of the Layout's form can be coded so. What they mean is not asked: LowRankBasis::fits().
[[nodiscard]] bool can_code(const Layout& layout, const Coding& coding) noexcept;

// Where the run of a layer lies in its plane.
struct RunPlace {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
// Of a plane of so many bytes, of a block of `rows`. `lowrank` is null but for plane 3.
[[nodiscard]] inline RunPlace run_place(const LowRankBasis* lowrank, std::uint64_t plane_bytes, std::uint32_t layers,
                                        std::uint32_t rows, std::uint32_t layer) noexcept {
  if (lowrank != nullptr) return {lowrank->offset(rows, layer), lowrank->run_bytes(rows, layer)};
  return {layer * (plane_bytes / layers), plane_bytes / layers};
}

// Bytes of a run (one layer of a block of `rows` tokens); 0 for a plane that the medium has not.
[[nodiscard]] std::uint64_t run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows,
                                      std::size_t plane, std::uint32_t layer) noexcept;
// Of the largest; exact where all are equal.
[[nodiscard]] std::uint64_t most_run_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows,
                                           std::size_t plane) noexcept;
// Of all layers.
[[nodiscard]] std::uint64_t plane_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows,
                                        std::size_t plane) noexcept;
// Of all planes and layers.
[[nodiscard]] std::uint64_t coded_bytes(const Layout& layout, const Coding& coding, std::uint32_t rows) noexcept;
// Most that a run of plane 2 can take.
[[nodiscard]] std::uint64_t varying_bound(const Layout& layout, Medium medium, std::uint32_t rows) noexcept;

// Positions of topk as they travel, behind all rows: their length as in a run of plane 2, then as
// docs/codecs.md has them, and zeros.
[[nodiscard]] constexpr std::uint64_t positions_room(std::uint64_t kept, std::uint64_t total) noexcept {
  return kRunHeadBytes + codec::positions_bound(static_cast<std::uint32_t>(kept), static_cast<std::uint32_t>(total));
}

// A window of that many tokens: block 0, and from this one on all that fit. 0: all blocks.
[[nodiscard]] std::uint32_t window_first_block(const Layout& layout, std::uint64_t tokens, std::uint32_t rows) noexcept;

// Puts the sizes of plane 2 into `coding`, from those of blocks of the whole coding, as an offer tells them. False:
// no such coding can have these sizes.
[[nodiscard]] bool take_sizes(const Layout& layout, std::uint64_t block_bytes, std::uint64_t tail_bytes,
                              std::uint32_t tail_rows, Coding& coding) noexcept;

}  // namespace kvrail::engine
