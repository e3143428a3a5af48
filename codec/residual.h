// The third plane: what is missing from the approximation of two planes to the exact bf16 or fp16
// values, entropy-coded (docs/codecs.md, "Residual plane").
//
// Bit patterns are taken as integers in the order of their values, so that neighbours differ by 1
// and a residual is a small number whose width follows from the approximation alone: the step over
// the spacing of values at its exponent. That is the context; each has a Rice parameter of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/planes_shape.h"
#include "kvrail/types.h"

namespace kvrail::codec {

inline constexpr std::size_t kResidualContexts = 16;
/// Rice parameters of K and of V, two to a byte, and how many bytes K takes.
inline constexpr std::size_t kResidualHeader = 1 + kResidualContexts + 8;

struct ResidualSide {
  Dtype dtype = Dtype::bf16;
  const std::byte* scales = nullptr;  // of plane 0
  std::uint32_t segment_values = 0;
  std::uint64_t values = 0;
};

/// Most bytes of a plane: it is sent raw where coding would not make it smaller.
[[nodiscard]] constexpr std::uint64_t residual_bound(std::uint64_t raw_bytes) noexcept {
  return raw_bytes == 0 ? 0 : 1 + raw_bytes;
}

/// `exact` and `approximation` are K's and V's rows. `out` has residual_bound() bytes, and there is
/// something to code; returns how many are used.
[[nodiscard]] std::uint64_t encode_residual(
    const std::array<ResidualSide, 2>& sides,
    const std::array<std::span<const std::byte>, 2>& exact,
    const std::array<std::span<const std::byte>, 2>& approximation,
    std::span<std::byte> out) noexcept;
/// Makes the approximations in `rows` exact. False where the plane is no encoding of such a run;
/// `rows` then hold anything.
[[nodiscard]] bool decode_residual(const std::array<ResidualSide, 2>& sides,
                                   std::span<const std::byte> plane,
                                   const std::array<std::span<std::byte>, 2>& rows) noexcept;

}  // namespace kvrail::codec
