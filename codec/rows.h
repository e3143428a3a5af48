// Rows of KV as floats and back; bf16, fp16 and fp32 at any alignment.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codec/float_convert.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/types.h"

namespace kvrail::codec {

/// Returns the greatest magnitude's bits, those of NaN and Inf being the greatest.
[[nodiscard]] inline std::uint32_t load_row(Dtype dtype, const std::byte* from, std::size_t count,
                                            float* to) noexcept {
  if (dtype == Dtype::fp32) {
    std::memcpy(to, from, 4 * count);
  } else if (dtype == Dtype::bf16) {
    for (std::size_t i = 0; i < count; ++i) to[i] = bf16_to_float(load_le16(from + 2 * i));
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = fp16_to_float(load_le16(from + 2 * i));
  }
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < count; ++i)
    greatest = std::max(greatest, std::bit_cast<std::uint32_t>(to[i]) & 0x7fffffffU);
  return greatest;
}

/// Finite input only.
inline void store_row(Dtype dtype, const float* from, std::size_t count, std::byte* to) noexcept {
  if (dtype == Dtype::fp32) {
    std::memcpy(to, from, 4 * count);
  } else if (dtype == Dtype::bf16) {
    for (std::size_t i = 0; i < count; ++i) store_le16(to + 2 * i, float_to_bf16(from[i]));
  } else {
    for (std::size_t i = 0; i < count; ++i) store_le16(to + 2 * i, float_to_fp16(from[i]));
  }
}

}  // namespace kvrail::codec
