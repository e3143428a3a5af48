// A seeded generator whose every draw is the same on every machine, with named sub-streams: adding
// a draw to one part of a simulation leaves the draws of all other parts as they were.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "kvrail/base/assert.h"

namespace kvrail {

/// Natural logarithm by its series after range reduction, with basic operations in a fixed order
/// only: libm's differs between versions in the last bit, which would make a recorded seed replay
/// differently.
[[nodiscard]] inline double portable_log(double x) noexcept {
  KVRAIL_ASSERT(x >= 2.2250738585072014e-308);  // Positive and not subnormal.
  constexpr double kLn2 = 0.69314718055994530942;
  const auto raw = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<int>((raw >> 52) & 0x7FF) - 1023;
  double mantissa =
      std::bit_cast<double>((raw & 0x000FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);  // In [1, 2).
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(z), z = (m-1)/(m+1), |z| < 0.172: twelve terms reach the last bit.
  const double z = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = z * z;
  double sum = 0.0;
  for (int odd = 23; odd >= 1; odd -= 2) {
    sum = sum * square + 1.0 / static_cast<double>(odd);
  }
  return 2.0 * z * sum + static_cast<double>(exponent) * kLn2;
}

/// xoshiro256**, seeded by splitmix64. Not for secrets. Thread: its owner.
class Prng {
 public:
  explicit Prng(std::uint64_t seed) noexcept {
    std::uint64_t state = seed;
    for (std::uint64_t& word : state_) {
      word = split_mix(state);
    }
  }

  [[nodiscard]] std::uint64_t next_u64() noexcept {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }
  [[nodiscard]] std::uint32_t next_u32() noexcept {
    return static_cast<std::uint32_t>(next_u64() >> 32);
  }

  /// Uniform in [0, n), without bias; n must not be 0.
  [[nodiscard]] std::uint64_t uniform(std::uint64_t n) noexcept {
    KVRAIL_ASSERT(n != 0);
    const std::uint64_t rejected_below =
        (0 - n) % n;  // 2^64 mod n: the draws that would be one too many.
    std::uint64_t draw = next_u64();
    while (draw < rejected_below) {
      draw = next_u64();
    }
    return draw % n;
  }
  /// Uniform in [low, high], both included.
  [[nodiscard]] std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept {
    KVRAIL_ASSERT(low <= high);
    const std::uint64_t width = high - low + 1;
    return width == 0 ? next_u64() : low + uniform(width);
  }
  /// Uniform in [0, 1), in steps of 2^-53.
  [[nodiscard]] double uniform01() noexcept {
    return static_cast<double>(next_u64() >> 11) * 0x1.0p-53;
  }
  /// True with the given probability; 0 never, 1 always.
  [[nodiscard]] bool chance(double probability) noexcept { return uniform01() < probability; }

  /// Exponentially distributed with the given mean, >= 0.
  [[nodiscard]] double exponential(double mean) noexcept {
    return -mean * portable_log(1.0 - uniform01());
  }

  /// An independent generator named `stream`. It depends on this generator's present state and the
  /// name, and draws nothing from it: split("a") before or after split("b") is the same stream.
  [[nodiscard]] Prng split(std::string_view stream) const noexcept {
    std::uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a of the name, then mixed with the state.
    for (const char letter : stream) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
    }
    for (const std::uint64_t word : state_) {
      hash ^= word;
      hash = split_mix(hash);
    }
    return Prng{hash};
  }

 private:
  static std::uint64_t split_mix(std::uint64_t& state) noexcept {
    state += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::uint64_t state_[4]{};
};

}  // namespace kvrail
