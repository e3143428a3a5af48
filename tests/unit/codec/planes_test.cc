#include "codec/planes.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codec/float_convert.h"
#include "kvrail/base/prng.h"

namespace kvrail::codec {
namespace {

constexpr std::byte kPoison{0xa5};

Layout layout_of(std::uint32_t layers, std::uint32_t heads, std::uint32_t dim, Dtype dtype) {
  Layout layout;
  layout.layers = layers;
  layout.kv_heads = heads;
  layout.head_dim = dim;
  layout.block_tokens = 16;
  layout.dtype = dtype;
  return layout;
}

float gauss(Prng& prng) {
  const double u = 1.0 - prng.uniform01();
  return static_cast<float>(std::sqrt(-2 * std::log(u)) *
                            std::cos(6.283185307179586 * prng.uniform01()));
}

void put(Dtype dtype, std::byte* at, float value) {
  if (dtype == Dtype::fp32) {
    std::memcpy(at, &value, 4);
  } else {
    const std::uint16_t bits = dtype == Dtype::bf16 ? float_to_bf16(value) : float_to_fp16(value);
    std::memcpy(at, &bits, 2);
  }
}

float get(Dtype dtype, const std::byte* at) {
  float value = 0;
  std::uint16_t bits = 0;
  std::memcpy(&value, at, dtype == Dtype::fp32 ? 4 : 2);
  if (dtype == Dtype::fp32) return value;
  std::memcpy(&bits, at, 2);
  return dtype == Dtype::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

// A block of `tokens` valid rows; K has a few channels ten times as wide, as real K has.
std::vector<std::byte> block_of(const Layout& layout, std::uint32_t tokens, std::uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> slot(layout.block_bytes(), kPoison);
  const std::uint32_t step = dtype_bytes(layout.dtype);
  for (std::uint32_t half = 0; half < layout.layers * 2; ++half) {
    for (std::uint32_t token = 0; token < tokens; ++token) {
      std::byte* row = slot.data() + layout.row_offset(half / 2, half % 2, token);
      for (std::uint32_t i = 0; i < layout.kv_heads * layout.head_dim; ++i) {
        const float wide = half % 2 == 0 && i % layout.head_dim == 3 ? 10.0F : 1.0F;
        put(layout.dtype, row + std::size_t{i} * step, gauss(prng) * wide);
      }
    }
  }
  return slot;
}

struct Coded {
  std::vector<std::byte> plane0, plane1;
  CodecReport report;
};

Coded encode(const Layout& layout, std::uint32_t tokens, const std::vector<std::byte>& slot) {
  const PlaneSizes sizes = plane_sizes(layout, tokens);
  Coded coded{std::vector<std::byte>(sizes.plane0_bytes, kPoison),
              std::vector<std::byte>(sizes.plane1_bytes, kPoison),
              {}};
  coded.report = encode_int8(layout, tokens, slot, 0, layout.layers, coded.plane0, coded.plane1);
  return coded;
}

double nmse(const Layout& layout, std::uint32_t tokens, const std::vector<std::byte>& a,
            const std::vector<std::byte>& b) {
  double noise = 0;
  double energy = 0;
  const std::uint32_t step = dtype_bytes(layout.dtype);
  for (std::uint32_t half = 0; half < layout.layers * 2; ++half) {
    for (std::uint32_t token = 0; token < tokens; ++token) {
      const std::uint64_t at = layout.row_offset(half / 2, half % 2, token);
      for (std::uint64_t i = at; i < at + layout.row_bytes(); i += step) {
        const double x = get(layout.dtype, a.data() + i);
        const double e = x - static_cast<double>(get(layout.dtype, b.data() + i));
        noise += e * e;
        energy += x * x;
      }
    }
  }
  return noise / energy;
}

TEST_CASE("int8 / the error is that of 8 and 4 bits for every shape and type") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    for (const auto& shape : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
             {2, 64}, {8, 128}, {1, 8}, {4, 8}, {3, 24}, {1, 80}, {5, 96}, {1, 576}, {2, 112}}) {
      const std::uint32_t heads = shape.first;
      const std::uint32_t dim = shape.second;
      for (const std::uint32_t tokens : {1U, 7U, 16U}) {
        CAPTURE(heads);
        CAPTURE(dim);
        CAPTURE(tokens);
        const Layout layout = layout_of(2, heads, dim, dtype);
        REQUIRE(can_encode(layout).ok());
        const auto slot = block_of(layout, tokens, 11);
        const Coded coded = encode(layout, tokens, slot);
        std::vector<std::byte> back(layout.block_bytes(), kPoison);
        decode_int8(layout, tokens, coded.plane0, coded.plane1, 0, layout.layers, back);
        const double error8 = nmse(layout, tokens, slot, back);
        CHECK(error8 < 1.5e-4);
        CHECK(coded.report.nmse > error8 / 3);  // the estimate is of the right size
        CHECK(coded.report.nmse < error8 * 3);
        decode_int8(layout, tokens, coded.plane0, {}, 0, layout.layers, back);
        const double error4 = nmse(layout, tokens, slot, back);
        CHECK(error4 < 3e-2);
        CHECK(error4 > error8 * 20);
      }
    }
  }
}

TEST_CASE("int8 / rows that are not valid stay untouched, valid ones are all written") {
  const Layout layout = layout_of(2, 2, 64, Dtype::bf16);
  const auto slot = block_of(layout, 5, 3);
  const Coded coded = encode(layout, 5, slot);
  for (const auto& plane : {coded.plane0, coded.plane1}) CHECK(plane.size() > 0);
  std::vector<std::byte> a(layout.block_bytes(), std::byte{0});
  std::vector<std::byte> b(layout.block_bytes(), std::byte{0xff});
  decode_int8(layout, 5, coded.plane0, coded.plane1, 0, 2, a);
  decode_int8(layout, 5, coded.plane0, coded.plane1, 0, 2, b);
  for (std::uint32_t half = 0; half < 4; ++half) {
    for (std::uint32_t token = 0; token < 16; ++token) {
      const auto at = static_cast<std::ptrdiff_t>(layout.row_offset(half / 2, half % 2, token));
      const auto bytes = static_cast<std::ptrdiff_t>(layout.row_bytes());
      const bool equal = std::equal(a.begin() + at, a.begin() + at + bytes, b.begin() + at);
      CHECK(equal == (token < 5));
    }
  }
}

TEST_CASE("int8 / encoding by ranges of layers gives the same planes as in one go") {
  const Layout layout = layout_of(5, 2, 64, Dtype::bf16);
  const auto slot = block_of(layout, 16, 5);
  const Coded whole = encode(layout, 16, slot);
  Coded parts{
      std::vector<std::byte>(whole.plane0.size()), std::vector<std::byte>(whole.plane1.size()), {}};
  for (const auto& [from, to] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{3, 5}, {0, 1}, {1, 3}}) {
    parts.report = encode_int8(layout, 16, slot, from, to, parts.plane0, parts.plane1);
  }
  CHECK(parts.plane0 == whole.plane0);
  CHECK(parts.plane1 == whole.plane1);
}

TEST_CASE("int8 / 8.25 bits a value at groups of 64") {
  const Layout layout = layout_of(4, 2, 64, Dtype::bf16);
  const PlaneSizes sizes = plane_sizes(layout, 16);
  const double values = static_cast<double>(layout.block_bytes()) / 2;
  CHECK(static_cast<double>(sizes.plane0_bytes + sizes.plane1_bytes) * 8 / values ==
        doctest::Approx(8.25));
  CHECK(static_cast<double>(sizes.plane0_bytes) * 8 / values == doctest::Approx(4.25));
}

TEST_CASE("int8 / zeros, constants, subnormals and the largest values stay finite and near") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    const Layout layout = layout_of(1, 1, 64, dtype);
    const float largest = dtype == Dtype::fp16 ? 65504.0F : bf16_to_float(0x7f7f);
    const float tiny = dtype == Dtype::fp16 ? 0x1p-24F : 1e-40F;
    for (const float value : {0.0F, 1.0F, -3.0F, largest, -largest, tiny}) {
      auto slot = block_of(layout, 16, 1);
      for (std::size_t i = 0; i < slot.size(); i += dtype_bytes(dtype)) {
        put(dtype, slot.data() + i, (i / 128) % 2 == 0 ? value : -value);
      }
      const Coded coded = encode(layout, 16, slot);
      // Rotating values near the end of the float range overflows: reported, so full is sent.
      CHECK(coded.report.has_non_finite == (std::fabs(value) > 1e37F));
      if (coded.report.has_non_finite) continue;
      std::vector<std::byte> back(layout.block_bytes());
      decode_int8(layout, 16, coded.plane0, coded.plane1, 0, 1, back);
      for (std::size_t i = 0; i < slot.size(); i += dtype_bytes(dtype)) {
        const float got = get(dtype, back.data() + i);
        REQUIRE(std::isfinite(got));
        // Rotation packs a constant row into one coefficient sqrt(d)*v; each of the d coefficients
        // is off by at most half a step of sqrt(d)*v/128, and all of them can add up in one value.
        // No step but 0 is smaller than 2^-126.
        REQUIRE(std::fabs(got - get(dtype, slot.data() + i)) <=
                std::fabs(value) * 0.26F + 0x1p-126F * 4);
      }
    }
  }
}

TEST_CASE("int8 / an Inf or NaN anywhere is reported, and nothing else breaks") {
  const Layout layout = layout_of(2, 2, 64, Dtype::bf16);
  for (const std::uint16_t special :
       {std::uint16_t{0x7f80}, std::uint16_t{0xff80}, std::uint16_t{0x7fc1}}) {
    auto slot = block_of(layout, 16, 2);
    std::memcpy(slot.data() + layout.row_offset(1, 1, 9) + 40, &special, 2);
    const Coded coded = encode(layout, 16, slot);
    CHECK(coded.report.has_non_finite);
  }
}

TEST_CASE("int8 / planes of random bytes decode to finite values") {
  const Layout layout = layout_of(2, 2, 64, Dtype::fp16);
  Prng prng(99);
  const PlaneSizes sizes = plane_sizes(layout, 16);
  std::vector<std::byte> plane0(sizes.plane0_bytes);
  std::vector<std::byte> plane1(sizes.plane1_bytes);
  for (auto* plane : {&plane0, &plane1}) {
    for (std::byte& byte : *plane) byte = static_cast<std::byte>(prng.next_u64());
  }
  std::vector<std::byte> back(layout.block_bytes());
  decode_int8(layout, 16, plane0, plane1, 0, 2, back);
  for (std::size_t i = 0; i < back.size(); i += 2)
    REQUIRE(std::isfinite(get(Dtype::fp16, back.data() + i)));
}

TEST_CASE("int8 / layouts it cannot encode are refused with the reason") {
  CHECK_FALSE(can_encode(layout_of(1, 1, 127, Dtype::bf16)).ok());
  CHECK_FALSE(can_encode(layout_of(1, 1, 64, Dtype::fp8_e4m3)).ok());
  CHECK(can_encode(layout_of(1, 1024, 576, Dtype::bf16)).error().message.find("16384") !=
        std::string::npos);
}

}  // namespace
}  // namespace kvrail::codec
