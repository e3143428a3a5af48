// The medium lossless: exact for every bit pattern, never much larger than what it codes, the same
// bytes on every instruction set, and no damage that it doesn't tell. What all codecs promise:
// codec_test.cc.
#include "codec/lossless.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "codec/exponent_window.h"
#include "codec/hash.h"
#include "kvrail/base/byte_order.h"
#include "kvrail/base/prng.h"
#include "tests/unit/codec/runs.h"
#include "tests/unit/codec/targets.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

namespace {

Run run_of(const RunShape& shape, std::uint32_t (*value)(std::uint64_t)) {
  Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
  const std::uint32_t width = dtype_bytes(shape.dtype);
  for (std::uint64_t i = 0; i < 2 * shape.side_values(); ++i) {
    const std::uint32_t bits = value(i);
    std::memcpy(run.bytes.data() + i * width, &bits, width);
  }
  return run;
}

void check_exact(const Run& run) {
  const Coded coded = encode(lossless_codec(), run.shape, run);
  REQUIRE(coded.report.status.ok());
  CHECK(coded.report.encoded_bytes <= run.shape.raw_bytes() + kLosslessHeaderBytes);
  CHECK(coded.report.epsilon_ppm == 0);
  const Decoded out = decode(lossless_codec(), run.shape, coded);
  REQUIRE(out.report.status.ok());
  CHECK(out.written);
  CHECK(out.run.bytes == run.bytes);
}

std::uint32_t noise(std::uint64_t i) {
  return static_cast<std::uint32_t>(Prng(i).next_u64());
}

// Ordinary values with a few that are far away, and lengths that leave a short chunk.
std::vector<Run> typical_runs() {
  std::vector<Run> runs;
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp32}) {
    for (const std::uint32_t tokens : {1U, 9U, 16U, 37U, 64U})
      runs.push_back(random_run({dtype, 2, 64, tokens}, tokens));
    runs.push_back(random_run({dtype, 1, 63, 33}, 3));
    runs.push_back(run_of({dtype, 1, 64, 48}, noise));
  }
  return runs;
}

}  // namespace

TEST_CASE("lossless / every bit pattern comes back") {
  check_exact(run_of({Dtype::bf16, 8, 128, 32},
                     [](std::uint64_t i) { return static_cast<std::uint32_t>(i); }));
  // The same patterns with neighbours alike, so that the chunks are coded and not raw.
  check_exact(run_of({Dtype::bf16, 8, 128, 64},
                     [](std::uint64_t i) { return static_cast<std::uint32_t>(i >> 1 & 0xffff); }));
  check_exact(run_of({Dtype::fp16, 8, 128, 32},
                     [](std::uint64_t i) { return static_cast<std::uint32_t>(i); }));
  check_exact(run_of({Dtype::fp32, 8, 128, 32}, noise));
  check_exact(run_of({Dtype::fp8_e4m3, 8, 64, 8},
                     [](std::uint64_t i) { return static_cast<std::uint32_t>(i); }));
}

TEST_CASE("lossless / constants, zeros, subnormals, NaN, Inf, outliers and extremes are exact") {
  const auto bf16 = [](std::uint32_t (*value)(std::uint64_t)) {
    check_exact(run_of({Dtype::bf16, 1, 64, 64}, value));
  };
  bf16([](std::uint64_t) { return 0U; });
  bf16([](std::uint64_t) { return 0x8000U; });
  bf16([](std::uint64_t) { return 0x3f80U; });
  bf16([](std::uint64_t i) { return static_cast<std::uint32_t>(i % 127 + 1); });  // subnormal
  bf16([](std::uint64_t i) {
    return 0x7f80U | static_cast<std::uint32_t>(i % 128);
  });                                                                    // NaN payloads, Inf
  bf16([](std::uint64_t i) { return i % 2 == 0 ? 0x7f7fU : 0xff7fU; });  // +-max
  bf16([](std::uint64_t i) { return i == 700 ? 0x461cU : 0x3f80U + noise(i) % 64; });  // 10^4
  bf16([](std::uint64_t i) {
    return i % 1000 == 5 ? 0x7f80U : 0x3c00U + noise(i) % 1024;
  });                                                                                // some Inf
  bf16([](std::uint64_t i) { return i % 3 == 0 ? 0U : 0x3f00U + noise(i) % 256; });  // many zeros
}

TEST_CASE("lossless / what has no pattern is sent as it is, and costs the header") {
  const Run run = run_of({Dtype::bf16, 8, 128, 16}, noise);
  CHECK(encode(lossless_codec(), run.shape, run).report.encoded_bytes ==
        run.shape.raw_bytes() + kLosslessHeaderBytes);
  // Half of it without a pattern: whole chunks of that half are raw, the others are not.
  const Run half = run_of({Dtype::bf16, 8, 128, 16}, [](std::uint64_t i) {
    return (i / kChunkValues) % 2 == 0 ? noise(i) : 0x3f80U + noise(i) % 128;
  });
  const std::uint64_t bytes = encode(lossless_codec(), half.shape, half).report.encoded_bytes;
  CHECK(bytes < half.shape.raw_bytes() * 9 / 10);
  CHECK(bytes > half.shape.raw_bytes() * 8 / 10);
  check_exact(half);
}

TEST_CASE("lossless / every instruction set writes the same bytes and reads them") {
  for (const Run& run : typical_runs()) {
    std::vector<std::byte> first;
    for_each_target([&] {
      const Coded coded = encode(lossless_codec(), run.shape, run);
      if (first.empty()) first = coded.planes[0];
      CHECK(coded.planes[0] == first);
      CHECK(decode(lossless_codec(), run.shape, coded).run.bytes == run.bytes);
    });
  }
}

TEST_CASE("lossless / any flipped bit, and any other form of run, is refused") {
  const Run run = random_run({Dtype::bf16, 1, 64, 17}, 5);  // a whole chunk and a short one each
  const Coded whole = encode(lossless_codec(), run.shape, run);
  for (std::size_t bit = 0; bit < 8 * whole.planes[0].size(); bit += 3) {
    Coded flipped = whole;
    flipped.planes[0][bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    REQUIRE(decode(lossless_codec(), run.shape, flipped).report.status.code == Code::corrupt);
  }
  for (const RunShape& other : {RunShape{Dtype::fp16, 1, 64, 17}, RunShape{Dtype::bf16, 2, 32, 17},
                                RunShape{Dtype::bf16, 17, 64, 1}, RunShape{Dtype::bf16, 1, 64, 16}})
    CHECK(decode(lossless_codec(), other, whole).report.status.code == Code::corrupt);
}

TEST_CASE(
    "lossless / planes with a lie and a right checksum stay within bounds on every instruction "
    "set") {
  const Run run = random_run({Dtype::bf16, 1, 64, 17}, 5);
  const Coded whole = encode(lossless_codec(), run.shape, run);
  Prng prng(7);
  std::size_t refused = 0;
  for_each_target([&] {
    for (int i = 0; i < 2000; ++i) {
      Coded lie = whole;
      // The header and the table half of the time, else anywhere.
      const std::size_t most = i % 2 == 0 ? 32 : lie.planes[0].size();
      lie.planes[0][8 + prng.uniform(most - 8)] = static_cast<std::byte>(prng.uniform(256));
      if (i % 4 == 0) lie.planes[0].resize(9 + prng.uniform(lie.planes[0].size() - 9));
      lie.meta.bytes[0] = lie.planes[0].size();
      seal_lossless(run.shape, lie.planes[0]);
      const Decoded out = decode(lossless_codec(), run.shape, lie);
      CHECK(out.written);
      refused += out.report.status.ok() ? 0U : 1U;
    }
  });
  CHECK(refused > 1000);
}

TEST_CASE("lossless / the bytes are those of the format's description") {
  // 1,024 values a side and one more: exponents 120 to 127, of which one value in 256 has
  // exponent 3.
  const Run run = run_of({Dtype::bf16, 1, 205, 5}, [](std::uint64_t i) {
    const std::uint64_t exponent = i % 256 == 77 ? 3 : 120 + i % 8;
    return static_cast<std::uint32_t>((i % 5 == 0 ? 0x8000U : 0U) | exponent << 7 | i % 128);
  });
  const Coded coded = encode(lossless_codec(), run.shape, run);
  const std::vector<std::byte>& plane = coded.planes[0];
  const auto byte = [&plane](std::size_t at) { return std::to_integer<unsigned>(plane[at]); };
  REQUIRE(plane.size() == 64 + 2 * (512 + 1024) + 2 * 2 + 8);
  CHECK(byte(8) == 1);  // form
  const auto entry = [&](std::size_t i) { return load_le32(plane.data() + 9 + 4 * i); };
  CHECK(entry(0) == 0x00040071);  // base 127 - 14, coded, four escapes
  CHECK(entry(1) == 0x00000071);  // one value
  CHECK(entry(2) == 0x00040071);
  CHECK(entry(3) == 0x00000071);
  CHECK(byte(64) == 0x77);               // values 0 and 512, exponent 120
  CHECK(byte(64 + 77) == 0xff);          // values 77 and 589: escapes
  CHECK(byte(64 + 512) == 0x80);         // sign and mantissa of value 0
  CHECK(byte(64 + 512 + 131) == 3);      // of value 131
  CHECK(byte(64 + 512 + 1024) == 0x07);  // value 1024 alone, exponent 120
  for (std::size_t i = plane.size() - 8; i < plane.size(); ++i) CHECK(byte(i) == 3);
  CHECK(digest(plane) == 2341272114998383026U);
}

TEST_CASE("lossless / golden: fp32 and raw") {
  const Run wide = run_of({Dtype::fp32, 1, 256, 5}, [](std::uint64_t i) {
    return static_cast<std::uint32_t>(0x3f800000U + i * 77773U);
  });
  const Coded coded = encode(lossless_codec(), wide.shape, wide);
  CHECK(std::to_integer<int>(coded.planes[0][8]) == 2);
  CHECK(digest(coded.planes[0]) == 9559963292940019247U);
  const Run fp16 = random_run({Dtype::fp16, 1, 8, 1}, 1);
  const Coded raw = encode(lossless_codec(), fp16.shape, fp16);
  CHECK(std::to_integer<int>(raw.planes[0][8]) == 0);
  CHECK(std::memcmp(raw.planes[0].data() + 9, fp16.bytes.data(), fp16.bytes.size()) == 0);
}
