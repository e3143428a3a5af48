// LEB128 of 32 bits: seven bits a byte, the lowest first, bit 7 set where more follow. Each number
// has one form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvrail::codec {

inline constexpr std::size_t kMostVarintBytes = 5;

[[nodiscard]] constexpr std::size_t varint_size(std::uint32_t value) noexcept {
  std::size_t bytes = 1;
  while ((value >>= 7) != 0) ++bytes;
  return bytes;
}

/// Writes varint_size(value) bytes from `out` on; returns how many.
inline std::size_t put_varint(std::uint32_t value, std::byte* out) noexcept {
  std::size_t at = 0;
  for (; value >= 0x80U; value >>= 7) out[at++] = static_cast<std::byte>((value & 0x7fU) | 0x80U);
  out[at++] = static_cast<std::byte>(value);
  return at;
}

enum class VarintFault : std::uint8_t {
  none,
  ends_inside,  // `at` is the input's end
  too_large,    // `at` is behind the byte that says so
  padded,       // likewise: a last byte of 0, so another, shorter form means the same
};

/// Moves `at` behind the number, or to where the fault is.
[[nodiscard]] inline VarintFault get_varint(std::span<const std::byte> in, std::size_t& at,
                                            std::uint32_t& value) noexcept {
  value = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (at == in.size()) return VarintFault::ends_inside;
    const auto byte = static_cast<std::uint32_t>(in[at++]);
    if (shift == 28 && byte > 0x0fU) return VarintFault::too_large;
    value |= (byte & 0x7fU) << shift;
    if ((byte & 0x80U) != 0) continue;
    return byte == 0 && shift != 0 ? VarintFault::padded : VarintFault::none;
  }
}

}  // namespace kvrail::codec
