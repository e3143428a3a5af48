// Arithmetic on sizes that came from outside: the answer, or nothing where it does not fit 64 bits.
#pragma once

#include <cstdint>
#include <optional>

namespace kvrail {

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a,
                                                                 std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    return std::nullopt;
  }
  return sum;
}

[[nodiscard]] constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a,
                                                                 std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return std::nullopt;
  }
  return product;
}

/// a × b × c × …: nothing as soon as one step does not fit.
template <class... Rest>
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_product(std::uint64_t first,
                                                                     Rest... rest) noexcept {
  std::optional<std::uint64_t> product = first;
  ((product = product ? checked_mul(*product, static_cast<std::uint64_t>(rest)) : product), ...);
  return product;
}

/// True if [offset, offset + length) lies in [0, size), without forming a sum that could wrap.
[[nodiscard]] constexpr bool range_fits(std::uint64_t offset, std::uint64_t length,
                                        std::uint64_t size) noexcept {
  return offset <= size && length <= size - offset;
}

/// `value` as a smaller unsigned type, or nothing if it does not fit.
template <class To>
[[nodiscard]] constexpr std::optional<To> checked_narrow(std::uint64_t value) noexcept {
  if (value > static_cast<std::uint64_t>(static_cast<To>(-1))) {
    return std::nullopt;
  }
  return static_cast<To>(value);
}

}  // namespace kvrail
