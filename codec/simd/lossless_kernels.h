// The inner loops of the medium lossless: one chunk of up to kChunkValues 16-bit words to its parts
// and back. Whole chunks are done with vectors, compiled for every instruction set and chosen at
// run time; all of them give the same bytes.
//
// A word is sign, eight bits of exponent, seven of mantissa: bf16, or the upper half of fp32. Of n
// values, i and i + (n + 1) / 2 share code byte i: the lower and the upper four bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvrail::codec::window {

inline constexpr std::size_t kChunkValues = 1024;
inline constexpr std::size_t kChunkHalf = kChunkValues / 2;
inline constexpr std::uint8_t kEscape = 15;  // the code that says: the exponent stands elsewhere
inline constexpr std::uint8_t kMostBase = 255 - 14;  // bases above would let codes wrap around
inline constexpr std::size_t kTooMany = ~std::size_t{0};

[[nodiscard]] inline std::uint8_t exponent_of(const std::uint8_t* word) noexcept {
  return static_cast<std::uint8_t>(word[1] << 1 | word[0] >> 7);
}

/// Where the parts of a chunk lie: codes (half as many bytes as values, rounded up), sign and
/// mantissa (a byte a value), exponents that have no code, in the order of code bytes, lower four
/// bits first.
struct ChunkOut {
  std::uint8_t* codes;
  std::uint8_t* signs;
  std::uint8_t* escapes;
};
struct ChunkIn {
  const std::uint8_t* codes;
  const std::uint8_t* signs;
  const std::uint8_t* escapes;
  std::size_t escape_count;
};

/// Codes exponents base to base + 14 of up to kChunkValues words; returns how many had no code, or
/// kTooMany when these are more than `most`, the room for escapes. base <= kMostBase.
[[nodiscard]] std::size_t encode(const std::uint8_t* words, std::size_t values, std::uint8_t base,
                                 std::size_t most, const ChunkOut& out) noexcept;
/// Reads and writes within the chunk whatever the planes hold. False when the codes do not need
/// exactly escape_count exponents.
[[nodiscard]] bool decode(const ChunkIn& in, std::size_t values, std::uint8_t base,
                          std::uint8_t* words) noexcept;
/// The greatest exponent among the words.
[[nodiscard]] std::uint8_t greatest_exponent(const std::uint8_t* words,
                                             std::size_t values) noexcept;
/// 32-bit values to their upper halves and their lower halves, and back.
void split(const std::uint8_t* in, std::size_t values, std::uint8_t* upper,
           std::uint8_t* lower) noexcept;
void join(const std::uint8_t* upper, const std::uint8_t* lower, std::size_t values,
          std::uint8_t* out) noexcept;

// The same value by value.
[[nodiscard]] std::size_t encode_plain(const std::uint8_t* words, std::size_t values,
                                       std::uint8_t base, std::size_t most,
                                       const ChunkOut& out) noexcept;
[[nodiscard]] bool decode_plain(const ChunkIn& in, std::size_t values, std::uint8_t base,
                                std::uint8_t* words) noexcept;
[[nodiscard]] std::uint8_t greatest_plain(const std::uint8_t* words, std::size_t values) noexcept;
void split_plain(const std::uint8_t* in, std::size_t values, std::uint8_t* upper,
                 std::uint8_t* lower) noexcept;
void join_plain(const std::uint8_t* upper, const std::uint8_t* lower, std::size_t values,
                std::uint8_t* out) noexcept;

}  // namespace kvrail::codec::window
