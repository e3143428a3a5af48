#include "scheduler/exp_table.h"

#include <algorithm>
#include <array>

#include "kvrail/base/bits.h"

namespace kvrail::scheduler {
namespace {

constexpr std::size_t kSteps = 256;
constexpr double kLn2 = 0.69314718055994530942;

// Evaluated by the compiler with plain IEEE operations in a fixed order; what is left after
// rounding to 32 bits is the same everywhere.
constexpr double series_exp(double x) {
  double sum = 1.0;
  for (int n = 20; n >= 1; --n) sum = 1.0 + sum * x / static_cast<double>(n);
  return sum;
}
constexpr double series_ln(double x) {  // x in [1, 2]
  const double z = (x - 1.0) / (x + 1.0);
  double sum = 0.0;
  for (int odd = 41; odd >= 1; odd -= 2) sum = sum * z * z + 1.0 / static_cast<double>(odd);
  return 2.0 * z * sum;
}

constexpr auto kExp2 = [] {
  std::array<std::uint64_t, kSteps + 1> table{};
  for (std::size_t i = 0; i <= kSteps; ++i) {
    const double value = series_exp(kLn2 * static_cast<double>(i) / static_cast<double>(kSteps));
    table[i] = static_cast<std::uint64_t>(value * 4294967296.0 + 0.5);
  }
  return table;
}();
constexpr auto kLog2 = [] {
  std::array<std::uint64_t, kSteps + 1> table{};
  for (std::size_t i = 0; i <= kSteps; ++i) {
    const double value = series_ln(1.0 + static_cast<double>(i) / static_cast<double>(kSteps));
    table[i] = static_cast<std::uint64_t>(value / kLn2 * 4294967296.0 + 0.5);
  }
  return table;
}();
static_assert(kExp2[0] == std::uint64_t{1} << 32 && kExp2[kSteps] == std::uint64_t{1} << 33);
static_assert(kLog2[0] == 0 && kLog2[kSteps] == std::uint64_t{1} << 32);

}  // namespace

std::int64_t log2_q32(std::uint64_t value) noexcept {
  const unsigned whole = log2_floor(value);
  const std::uint64_t mantissa = value << (63U - whole);  // bit 63 is set
  const std::size_t step = (mantissa >> 55) & 0xFF;
  const std::uint64_t rest_q32 = (mantissa >> 23) & 0xFFFF'FFFF;
  const std::uint64_t low = kLog2[step];
  const std::uint64_t fraction = low + (((kLog2[step + 1] - low) * rest_q32) >> 32);
  return (static_cast<std::int64_t>(whole) << 32) + static_cast<std::int64_t>(fraction);
}

std::int64_t ln_ratio_q32(std::uint64_t a, std::uint64_t b) noexcept {
  const std::int64_t log2 = log2_q32(a) - log2_q32(b);
  const std::uint64_t size = static_cast<std::uint64_t>(log2 < 0 ? -log2 : log2);
  const auto ln =
      static_cast<std::int64_t>((Wide{size} * static_cast<std::uint64_t>(kLn2Q32)) >> 32);
  return log2 < 0 ? -ln : ln;
}

std::uint64_t scaled_exp2(std::uint64_t scale, std::int64_t x_q32) noexcept {
  if (scale == 0) return 0;
  const std::int64_t whole = x_q32 >> 32;  // rounds down, so the fraction is in [0, 1)
  const std::uint64_t fraction = static_cast<std::uint64_t>(x_q32) & 0xFFFF'FFFF;
  const std::size_t step = fraction >> 24;
  const std::uint64_t rest_q24 = fraction & 0xFF'FFFF;
  const std::uint64_t low = kExp2[step];
  const std::uint64_t mantissa = low + (((kExp2[step + 1] - low) * rest_q24) >> 24);
  const Wide product = Wide{scale} * mantissa;  // below 2^97
  if (whole <= -97) return 0;
  if (whole < 32) {
    const Wide value = product >> (32 - whole);
    return value > kLargest ? kLargest : static_cast<std::uint64_t>(value);
  }
  if (whole >= 64) return kLargest;  // scale >= 1
  const auto shift = static_cast<unsigned>(whole - 32);
  if (product > (Wide{kLargest} >> shift)) return kLargest;
  return static_cast<std::uint64_t>(product << shift);
}

std::uint64_t scaled_exp(std::uint64_t scale, std::int64_t x_q32) noexcept {
  const std::int64_t x = std::clamp(x_q32, -40 * kOneQ32, 40 * kOneQ32);
  // |x| < 2^38 and log2 e < 2^33: the product needs the wide type.
  const std::uint64_t size = static_cast<std::uint64_t>(x < 0 ? -x : x);
  const auto log2 =
      static_cast<std::int64_t>((Wide{size} * static_cast<std::uint64_t>(kLog2eQ32)) >> 32);
  return scaled_exp2(scale, x < 0 ? -log2 : log2);
}

}  // namespace kvrail::scheduler
