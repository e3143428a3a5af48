// The arithmetic of the planes in plain C++, for any form: the code to read first, the one that
// shapes without tiles take, and the one that every SIMD kernel must equal bit by bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kvrail/types.h"

namespace kvrail::codec {

/// K or V of a run, or part of it: whole segments, or one that is shorter.
struct Side {
  Dtype dtype = Dtype::bf16;
  std::uint32_t rotation = 1;        // Hadamard order, 1 for none; divides a row
  std::uint32_t segment_values = 0;  // > 0, a multiple of kOctet
  std::uint64_t segments = 0;
};

/// Where a side's planes lie. `low` is null where only the first plane is wanted.
struct SidePlanes {
  std::byte* scales = nullptr;
  std::byte* high = nullptr;
  std::byte* low = nullptr;
};
struct SideView {
  const std::byte* scales = nullptr;
  const std::byte* high = nullptr;
  const std::byte* low = nullptr;
};

/// What an encoder learned. Sums are taken in a fixed order: 16 partial sums of squares (that of
/// value i of a group goes to i % 32 / 2), 4 of squared steps (that of group g goes to g % 4),
/// added up after every kFlushGroups groups and at the end.
struct Tally {
  double energy = 0;         // squares of all values, after rotation
  double squared_steps = 0;  // a step counts as often as its group has octets
  bool refused = false;      // NaN, Inf, or values that are too large
};
inline constexpr std::uint32_t kFlushGroups = 256;

/// 1 / sqrt(order): the factor of an orthonormal transform.
[[nodiscard]] float rotation_scale(std::uint32_t order) noexcept;

namespace plain {

/// `buffer` has room for a segment.
void encode(const Side& side, const std::byte* rows, const SidePlanes& planes, float* buffer,
            Tally& tally) noexcept;
/// False where a step is none that an encoder writes; what is written then is finite and of no use.
[[nodiscard]] bool decode(const Side& side, const SideView& planes, float* buffer,
                          std::byte* rows) noexcept;

}  // namespace plain
}  // namespace kvrail::codec
