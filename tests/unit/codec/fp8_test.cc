// fp8 to float: values from the definition of the formats, and every code against the tables of
// ml_dtypes where these are present.
#include "codec/fp8.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

using namespace kvrail::codec;

namespace {

// (-1)^s * 2^(e - bias) * 1.m, or 2^(1 - bias) * 0.m: the formats' definition, in double.
double defined(unsigned code, unsigned mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1U << mantissa_bits) - 1);
  const unsigned exponent = (code & 0x7fU) >> mantissa_bits;
  const double fraction = std::ldexp(mantissa, -static_cast<int>(mantissa_bits));
  const double value = exponent == 0
                           ? std::ldexp(fraction, 1 - bias)
                           : std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
  return (code & 0x80U) != 0 ? -value : value;
}

std::filesystem::path tables_archive() {
  const char* const folder = std::getenv("KVRAIL_DATA");
  return std::filesystem::path(
             folder != nullptr ? folder : std::string(KVRAIL_SOURCE_ROOT) + "/../shared/data") /
         "vectors/fp8_decode_tables.tar.xz";
}

// The f32 bits of all 256 codes, of the table "decode_float8_NAME.csv" of the archive.
std::vector<std::uint32_t> table(const std::string& name) {
  const std::string command =
      "tar -xJOf '" + tables_archive().string() + "' 'fp8_mldtypes/decode_float8_" + name + ".csv'";
  std::vector<std::uint32_t> bits;
  FILE* const pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char line[128];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    unsigned code = 0;
    unsigned value = 0;
    if (std::sscanf(line, "%2x,%8x,", &code, &value) == 2 && code == bits.size())
      bits.push_back(value);
  }
  REQUIRE(::pclose(pipe) == 0);
  return bits;
}

}  // namespace

TEST_CASE("fp8 / every code has the value that its format defines") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    const auto byte = static_cast<std::uint8_t>(code);
    if ((code & 0x7fU) == 0x7fU) {
      CHECK(std::isnan(e4m3_to_float(byte)));
    } else {
      CHECK(static_cast<double>(e4m3_to_float(byte)) == defined(code, 3, 7));
    }
    if ((code & 0x7fU) > 0x7cU) {
      CHECK(std::isnan(e5m2_to_float(byte)));
    } else if ((code & 0x7fU) == 0x7cU) {
      CHECK(std::isinf(e5m2_to_float(byte)));
    } else {
      CHECK(static_cast<double>(e5m2_to_float(byte)) == defined(code, 2, 15));
    }
    CHECK(std::signbit(e4m3_to_float(byte)) == (code >= 128));
    CHECK(std::signbit(e5m2_to_float(byte)) == (code >= 128));
  }
  CHECK(e4m3_to_float(0x7e) == 448.0F);
  CHECK(e4m3_to_float(0x01) == 0x1p-9F);
  CHECK(e4m3_to_float(0x38) == 1.0F);
  CHECK(e5m2_to_float(0x7b) == 57344.0F);
  CHECK(e5m2_to_float(0x01) == 0x1p-16F);
  CHECK(e5m2_to_float(0xbc) == -1.0F);
}

TEST_CASE("fp8 / every code decodes to the bits that another implementation gives") {
  if (!std::filesystem::exists(tables_archive())) {
    MESSAGE("SKIP: no ", tables_archive().string(), " (set KVRAIL_DATA)");
    return;
  }
  const std::vector<std::uint32_t> e4m3 = table("e4m3fn");
  const std::vector<std::uint32_t> e5m2 = table("e5m2");
  REQUIRE(e4m3.size() == 256);
  REQUIRE(e5m2.size() == 256);
  for (std::size_t code = 0; code < 256; ++code) {
    CAPTURE(code);
    CHECK(std::bit_cast<std::uint32_t>(e4m3_to_float(static_cast<std::uint8_t>(code))) ==
          e4m3[code]);
    CHECK(std::bit_cast<std::uint32_t>(e5m2_to_float(static_cast<std::uint8_t>(code))) ==
          e5m2[code]);
  }
}
