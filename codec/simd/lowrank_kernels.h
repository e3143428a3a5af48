// The inner loops of lowrank, compiled for each instruction set and chosen at run time. Each sum is
// taken in the order of its index, whatever the width of a vector: all give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvrail::codec::simd {

inline constexpr std::size_t kTileRows = 4;
inline constexpr std::size_t kSumLanes = 16;

/// out[t][j] = init[j] + Σ_k coefficients[t][k] × matrix[row(k)][j] for t < kTileRows,
/// j < columns, a multiple of 16; row(k) is rows[k], or k where rows is null. `init` null: zero.
struct Mix {
  const float* coefficients;
  std::size_t coefficient_stride;
  const std::uint32_t* rows;
  std::size_t count;
  const float* matrix;
  std::size_t matrix_stride;
  const float* init;
  float* out;
  std::size_t out_stride;
  std::size_t columns;
};
void mix_rows(const Mix& mix) noexcept;

/// codes[c] = floor(y[c] × inverse[c]), kept within -half[c] to half[c] - 1, plus half[c]. Adds to
/// lane c % 16 of `explained` what the code takes from the square of y[c]. A component without bits
/// has inverse, step and half 0; its code means nothing. `columns` is a multiple of 16.
struct Quantise {
  const float* y;
  const float* inverse;
  const float* step;
  const float* half;
  std::int32_t* codes;
  std::size_t columns;
};
void quantise(const Quantise& of, float* explained) noexcept;

/// out[i] = x[i] - mean[i]; adds squares of both to lane i % 16. `count` is a multiple of 16.
void centre(const float* x, const float* mean, std::size_t count, float* out, float* energy,
            float* centred) noexcept;

}  // namespace kvrail::codec::simd
