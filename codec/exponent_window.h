// One chunk of the medium lossless: up to 1,024 values of one side, and where their window lies.
// lossless.cc makes a run of chunks; simd/lossless_kernels.h does whole ones with vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/simd/lossless_kernels.h"

namespace kvrail::codec {

using window::kChunkValues;
using window::kMostBase;

struct ChunkEntry {
  std::uint8_t base = 0;  // exponents base to base + 14 have a code
  bool raw = false;       // the values as they are: coding them would not make them fewer
  std::uint16_t escapes = 0;
};

/// With more of them a chunk is sent raw, which then takes no more bytes.
[[nodiscard]] constexpr std::size_t most_escapes(std::size_t values) noexcept {
  return values < 2 ? 0 : values / 2 - 1;
}
/// Bytes of a chunk's body: codes, signs and mantissas, for 4-byte values their lower halves. The
/// escapes lie elsewhere. `width` is 2 or 4, the bytes of a value.
[[nodiscard]] constexpr std::size_t body_bytes(const ChunkEntry& entry, std::size_t values,
                                               std::size_t width) noexcept {
  return entry.raw ? values * width : (values + 1) / 2 + values * (width - 1);
}
inline constexpr std::size_t kMostChunkBytes = kChunkValues * 4;
inline constexpr std::size_t kMostEscapes = kChunkValues / 2;

/// The window that the last chunk used. Neighbours are alike, so it is tried first, and kept while
/// it leaves at most `tolerated` exponents out.
struct Window {
  bool known = false;
  std::uint8_t base = 0;
  std::size_t tolerated = 0;
};

/// Writes body_bytes() of the returned entry to `body`, at most values * width bytes meanwhile, and
/// its escapes, up to kMostEscapes, to `escapes`.
[[nodiscard]] ChunkEntry encode_values(const std::byte* in, std::size_t values, std::size_t width,
                                       Window& window, std::byte* body,
                                       std::byte* escapes) noexcept;
/// Reads body_bytes() and the entry's escapes, writes values * width bytes at most. False when
/// codes and escapes contradict each other.
[[nodiscard]] bool decode_values(const std::byte* body, const std::byte* escapes,
                                 const ChunkEntry& entry, std::size_t values, std::size_t width,
                                 std::byte* out) noexcept;

}  // namespace kvrail::codec
