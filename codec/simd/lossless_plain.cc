// The same as lossless_kernels.cc value by value, for chunks of any length: the last of a side, and
// all of them on a processor without vectors.
#include <algorithm>
#include <cstring>

#include "codec/simd/lossless_kernels.h"

namespace kvrail::codec::window {

std::size_t encode_plain(const std::uint8_t* words, std::size_t values, std::uint8_t base,
                         std::size_t most, const ChunkOut& out) noexcept {
  const std::size_t half = (values + 1) / 2;
  std::size_t count = 0;
  for (std::size_t i = 0; i < half; ++i) {
    unsigned codes = 0;
    for (unsigned upper = 0; upper < 2; ++upper) {
      const std::size_t value = i + upper * half;
      if (value == values) break;
      const std::uint8_t* const word = words + 2 * value;
      const std::uint8_t exponent = exponent_of(word);
      const auto code = std::min<std::uint8_t>(static_cast<std::uint8_t>(exponent - base), kEscape);
      out.signs[value] = static_cast<std::uint8_t>((word[1] & 0x80) | (word[0] & 0x7f));
      codes |= static_cast<unsigned>(code) << (4 * upper);
      if (code != kEscape) continue;
      if (count == most) return kTooMany;
      out.escapes[count++] = exponent;
    }
    out.codes[i] = static_cast<std::uint8_t>(codes);
  }
  return count;
}

bool decode_plain(const ChunkIn& in, std::size_t values, std::uint8_t base,
                  std::uint8_t* words) noexcept {
  const std::size_t half = (values + 1) / 2;
  std::size_t count = 0;
  for (std::size_t i = 0; i < half; ++i) {
    for (unsigned upper = 0; upper < 2; ++upper) {
      const std::size_t value = i + upper * half;
      const unsigned code = in.codes[i] >> (4 * upper) & 15U;
      if (value == values) {
        if (code != 0) return false;  // there is no such value
        break;
      }
      unsigned exponent = base + code;
      if (code == kEscape) {
        if (count == in.escape_count) return false;
        exponent = in.escapes[count++];
      }
      const unsigned sign = in.signs[value];
      words[2 * value] = static_cast<std::uint8_t>((exponent << 7 & 0x80U) | (sign & 0x7fU));
      words[2 * value + 1] = static_cast<std::uint8_t>((sign & 0x80U) | exponent >> 1);
    }
  }
  return count == in.escape_count;
}

std::uint8_t greatest_plain(const std::uint8_t* words, std::size_t values) noexcept {
  std::uint8_t greatest = 0;
  for (std::size_t i = 0; i < values; ++i)
    greatest = std::max(greatest, exponent_of(words + 2 * i));
  return greatest;
}

void split_plain(const std::uint8_t* in, std::size_t values, std::uint8_t* upper,
                 std::uint8_t* lower) noexcept {
  for (std::size_t i = 0; i < values; ++i) {
    std::memcpy(lower + 2 * i, in + 4 * i, 2);
    std::memcpy(upper + 2 * i, in + 4 * i + 2, 2);
  }
}

void join_plain(const std::uint8_t* upper, const std::uint8_t* lower, std::size_t values,
                std::uint8_t* out) noexcept {
  for (std::size_t i = 0; i < values; ++i) {
    std::memcpy(out + 4 * i, lower + 2 * i, 2);
    std::memcpy(out + 4 * i + 2, upper + 2 * i, 2);
  }
}

}  // namespace kvrail::codec::window
