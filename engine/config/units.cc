#include <array>
#include <charconv>
#include <utility>

#include "engine/config/config.h"
#include "kvrail/base/checked.h"

namespace kvrail::engine {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
  std::uint64_t divisor;
};

Error bad(std::string_view text, const std::string& what) {
  return Error{{Code::invalid_argument, Scope::engine}, std::string("\"").append(text).append("\" ").append(what)};
}

// A whole number, blanks, then exactly one of the units.
template <std::size_t N>
Result<std::uint64_t> parse(std::string_view text, const std::array<Unit, N>& units, const char* form) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return bad(text, "is too large");
  if (error != std::errc{}) return bad(text, std::string("is not a number with a unit, as in ") + form);
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  for (const Unit& unit : units) {
    if (rest != unit.name) continue;
    std::uint64_t value = 0;
    if (__builtin_mul_overflow(number, unit.factor, &value) || value / unit.divisor > INT64_MAX) {
      return bad(text, "is too large");
    }
    if (value / unit.divisor == 0) return bad(text, "must be greater than zero");
    return value / unit.divisor;
  }
  std::string names;
  for (const Unit& unit : units) names += (names.empty() ? "" : ", ") + std::string(unit.name);
  return bad(text, "needs one of the units " + names);
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 5> kUnits{{{"B", 1, 1},
                                               {"KiB", 1ULL << 10, 1},
                                               {"MiB", 1ULL << 20, 1},
                                               {"GiB", 1ULL << 30, 1},
                                               {"TiB", 1ULL << 40, 1}}};
  return parse(text, kUnits, "\"64 MiB\"");
}

Result<TimeNs> parse_duration(std::string_view text) {
  static constexpr std::array<Unit, 5> kUnits{
      {{"ns", 1, 1}, {"us", 1'000, 1}, {"ms", 1'000'000, 1}, {"s", 1'000'000'000, 1}, {"min", 60'000'000'000, 1}}};
  auto value = parse(text, kUnits, "\"10 ms\"");
  if (!value.ok()) return std::move(value).error();
  return static_cast<TimeNs>(value.value());
}

Result<std::uint64_t> parse_rate(std::string_view text) {
  static constexpr std::array<Unit, 7> kUnits{{{"bit/s", 1, 8},
                                               {"kbit/s", 1'000, 8},
                                               {"Mbit/s", 1'000'000, 8},
                                               {"Gbit/s", 1'000'000'000, 8},
                                               {"kB/s", 1'000, 1},
                                               {"MB/s", 1'000'000, 1},
                                               {"GB/s", 1'000'000'000, 1}}};
  return parse(text, kUnits, "\"10 Gbit/s\"");
}

}  // namespace kvrail::engine
