#include "codec/exponent_window.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvrail::codec {
namespace {

using namespace window;

constexpr int kWindow = 15;  // exponents that have a code
// A window that leaves out so many more than the best one, and an eighth, costs half a per cent,
// less than looking for a new one for every chunk.
constexpr std::size_t kSlack = 8;
constexpr std::size_t tolerated(std::size_t escapes) noexcept {
  return escapes + escapes / 8 + kSlack;
}

std::uint8_t* bytes_of(std::byte* bytes) noexcept {
  return reinterpret_cast<std::uint8_t*>(bytes);
}
const std::uint8_t* bytes_of(const std::byte* bytes) noexcept {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

// The window that ends at the greatest exponent: for values from a bell it leaves out next to
// nothing.
std::uint8_t top_base(const std::uint8_t* words, std::size_t values) noexcept {
  return static_cast<std::uint8_t>(
      std::max<int>(greatest_exponent(words, values) - (kWindow - 1), 0));
}

struct Best {
  std::uint8_t base;
  std::size_t escapes;
};

// The base whose window covers most of the words, the lowest of equals.
Best best_base(const std::uint8_t* words, std::size_t values) noexcept {
  // Four tables: neighbours have equal exponents, and a counter can be raised only so often.
  std::array<std::array<std::uint16_t, 256>, 4> counts{};
  for (std::size_t i = 0; i < values; ++i) ++counts[i % 4][exponent_of(words + 2 * i)];
  for (std::size_t e = 0; e < 256; ++e)
    counts[0][e] =
        static_cast<std::uint16_t>(counts[0][e] + counts[1][e] + counts[2][e] + counts[3][e]);
  std::uint32_t covered = 0;
  for (std::size_t e = 0; e < std::size_t{kWindow}; ++e) covered += counts[0][e];
  std::uint32_t most = covered;
  std::size_t best = 0;
  for (std::size_t base = 1; base <= kMostBase; ++base) {
    covered += counts[0][base + kWindow - 1];
    covered -= counts[0][base - 1];
    if (covered > most) {
      most = covered;
      best = base;
    }
  }
  return {static_cast<std::uint8_t>(best), values - most};
}

}  // namespace

ChunkEntry encode_values(const std::byte* in, std::size_t values, std::size_t width, Window& window,
                         std::byte* body, std::byte* escapes) noexcept {
  const std::size_t half = (values + 1) / 2;
  std::uint8_t* const to = bytes_of(body);
  const ChunkOut out{to, to + half, bytes_of(escapes)};
  alignas(64) std::array<std::uint8_t, 2 * kChunkValues> upper;
  const std::uint8_t* words = bytes_of(in);
  if (width == 4) {
    split(words, values, upper.data(), to + half + values);
    words = upper.data();
  }
  const std::size_t most = most_escapes(values);
  std::size_t count = kTooMany;
  if (window.known)
    count = encode(words, values, window.base, std::min(most, window.tolerated), out);
  // Not where the top was no good a moment ago.
  if (count == kTooMany && window.tolerated <= kSlack) {
    window = {true, top_base(words, values), kSlack};
    count = encode(words, values, window.base, std::min(most, kSlack), out);
  }
  if (count == kTooMany) {
    const Best best = best_base(words, values);
    window = {true, best.base, tolerated(best.escapes)};
    if (best.escapes <= most) count = encode(words, values, window.base, most, out);
  }
  if (count != kTooMany) return {window.base, false, static_cast<std::uint16_t>(count)};
  std::memcpy(body, in, values * width);
  return {0, true, 0};
}

bool decode_values(const std::byte* body, const std::byte* escapes, const ChunkEntry& entry,
                   std::size_t values, std::size_t width, std::byte* out) noexcept {
  if (entry.raw) {
    std::memcpy(out, body, values * width);
    return true;
  }
  const std::size_t half = (values + 1) / 2;
  const std::uint8_t* const from = bytes_of(body);
  const ChunkIn in{from, from + half, bytes_of(escapes), entry.escapes};
  alignas(64) std::array<std::uint8_t, 2 * kChunkValues> upper;
  std::uint8_t* const words = width == 4 ? upper.data() : bytes_of(out);
  if (!decode(in, values, entry.base, words)) return false;
  if (width == 4) join(words, from + half + values, values, bytes_of(out));
  return true;
}

}  // namespace kvrail::codec
