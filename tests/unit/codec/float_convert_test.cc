#include "codec/float_convert.h"

#include <doctest/doctest.h>

#include <limits>

namespace kvrail::codec {
namespace {

TEST_CASE("float conversion / every finite 16-bit value survives the round trip") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7f80U) != 0x7f80U) REQUIRE(float_to_bf16(bf16_to_float(half)) == half);
    if ((half & 0x7c00U) != 0x7c00U) REQUIRE(float_to_fp16(fp16_to_float(half)) == half);
  }
  CHECK(std::isinf(fp16_to_float(0x7c00)));
  CHECK(std::isnan(fp16_to_float(0x7e01)));
}

TEST_CASE("float conversion / rounds to nearest even and clamps to the largest finite value") {
  CHECK(bf16_to_float(float_to_bf16(1.0F + 0x1p-8F)) == 1.0F);             // a tie goes to even
  CHECK(bf16_to_float(float_to_bf16(1.0F + 0x1.8p-7F)) == 1.0F + 0x1p-6F);  // a tie goes to even
  CHECK(fp16_to_float(float_to_fp16(65504.0F)) == 65504.0F);
  CHECK(fp16_to_float(float_to_fp16(1e9F)) == 65504.0F);
  CHECK(fp16_to_float(float_to_fp16(-1e9F)) == -65504.0F);
  CHECK(fp16_to_float(float_to_fp16(0x1p-24F)) == 0x1p-24F);
  CHECK(fp16_to_float(float_to_fp16(0x1p-26F)) == 0.0F);
  CHECK(std::isfinite(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max()))));
}

}  // namespace
}  // namespace kvrail::codec
