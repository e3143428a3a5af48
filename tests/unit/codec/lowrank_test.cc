// The codec lowrank on bases and runs that are made up: bounds, refusals, the same bits everywhere.
// codec_model_test has what it does to real KV.
#include "codec/lowrank.h"

#include <doctest/doctest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <string>

#include "codec/hash.h"
#include "codec/rows.h"
#include "kvrail/base/byte_order.h"
#include "tests/unit/codec/bases.h"

using namespace kvrail;
using namespace kvrail::codec;
using namespace kvrail::codec_test;

namespace {

const BasisShape kOne{{1, 2}, 2, 2, 64, 2, 100, 1, {10000.0F, 1.0F, 64}};
const BasisShape kSplit{{1, 2}, 3, 3, 40, 1, 40, 3, {10000.0F, 1.0F, 16, RopePairing::half_split}};
const BasisShape kTiny{{}, 1, 1, 1, 1, 1, 1, {}};

struct Setting {
  BasisContent content;
  Basis basis;
};
Setting setting(const BasisShape& shape, std::uint64_t seed = 11) {
  BasisContent content = random_basis(shape, seed);
  Result<Basis> basis = Basis::parse(basis_file(content));
  REQUIRE(basis.ok());
  return {std::move(content), std::move(basis).value()};
}

RunShape run_of(const BasisShape& shape, std::uint32_t tokens, Dtype dtype = Dtype::bf16) {
  return {dtype, shape.kv_heads, shape.head_dim, tokens};
}

double mean_nmse(const Run& a, const Run& b) {
  double mean = 0;
  std::vector<float> x(a.shape.side_values()), y(x);
  for (std::size_t side = 0; side < 2; ++side) {
    (void)load_row(a.shape.dtype, a.bytes.data() + side * a.shape.side_bytes(), x.size(), x.data());
    (void)load_row(b.shape.dtype, b.bytes.data() + side * b.shape.side_bytes(), y.size(), y.data());
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
      energy += double{x[i]} * x[i];
    }
    mean += 0.5 * error / energy;
  }
  return mean;
}

std::string hex(const Hash128& hash) {
  std::string text;
  for (const std::uint64_t word : {hash.high, hash.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  return text;
}

}  // namespace

TEST_CASE("lowrank writes all of its output and nothing else, and no more bytes than it said") {
  for (const BasisShape& shape : {kOne, kSplit, kTiny}) {
    const Setting of = setting(shape);
    for (const double rate : {0.0, 1.0, 2.0, 4.0, 12.0}) {
      const std::uint16_t theta = theta_for_rate(of.basis, rate);
      for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
        for (const std::uint32_t tokens : {1U, 3U, 4U, 5U, 64U}) {
          CAPTURE(shape.head_dim);
          CAPTURE(rate);
          CAPTURE(tokens);
          const RunShape run = run_of(shape, tokens, dtype);
          const LowRank codec(of.basis, shape.layers - 1, 61, theta);
          REQUIRE(codec.can_encode(run).ok());
          const Coded coded =
              encode(codec, run, run_along(of.content, run, shape.layers - 1, 61, 3));
          REQUIRE(coded.report.status.ok());
          CHECK(coded.planes[0].size() == codec.bound(run, 0));
          const Decoded out = decode(codec, run, coded);
          REQUIRE(out.report.status.ok());
          CHECK(out.written);
        }
      }
    }
  }
}

TEST_CASE("a lowrank run without tokens encodes to nothing") {
  const Setting of = setting(kOne);
  const LowRank codec(of.basis, 0, 0, 900);
  const RunShape run = run_of(kOne, 0);
  const Coded coded = encode(codec, run, Run{run, {}});
  CHECK(coded.report.status.ok());
  CHECK(coded.report.encoded_bytes == 0);
  CHECK(decode(codec, run, coded).report.status.ok());
}

TEST_CASE("more bits, less error; the rate is kept; ε is within 5 % of the error") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 64);
  const Run in = run_along(of.content, run, 0, 4000, 9);
  double last = 2;
  for (const double rate : {0.5, 1.0, 2.0, 3.0, 4.0, 6.0}) {
    const LowRank codec(of.basis, 0, 4000, theta_for_rate(of.basis, rate));
    const Coded coded = encode(codec, run, in);
    const double bits = 8.0 * static_cast<double>(coded.report.encoded_bytes) / (2.0 * 64 * 128);
    CHECK(bits <= rate);
    CHECK(bits > 0.94 * rate - 0.03);
    const double nmse = mean_nmse(in, decode(codec, run, coded).run);
    CHECK(nmse < last / 1.5);
    last = nmse;
    if (nmse > 1e-4) CHECK(coded.report.epsilon_ppm == doctest::Approx(1e6 * nmse).epsilon(0.05));
  }
  CHECK(last < 2e-4);
  CHECK(theta_for_rate(of.basis, 0) == kMaxTheta);
}

TEST_CASE("K is coded without its RoPE: at far positions as well as at the first") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 64);
  const std::uint16_t theta = theta_for_rate(of.basis, 3.0);
  for (const std::uint32_t position : {0U, 1000U, 16'000'000U}) {
    const Run in = run_along(of.content, run, 0, position, 9);
    const LowRank codec(of.basis, 0, position, theta);
    CHECK(mean_nmse(in, decode(codec, run, encode(codec, run, in)).run) < 0.02);
    const LowRank elsewhere(of.basis, 0, position + 5, theta);  // the wrong turn: it costs
    CHECK(mean_nmse(in, decode(elsewhere, run, encode(elsewhere, run, in)).run) > 0.05);
  }
}

TEST_CASE("only the basis that encoded a run decodes it") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 8);
  const LowRank codec(of.basis, 0, 8, 1000);
  const Coded coded = encode(codec, run, run_along(of.content, run, 0, 8, 2));
  REQUIRE(coded.report.status.ok());
  const auto header = lowrank_header(coded.planes[0]);
  REQUIRE(header.has_value());
  CHECK(header->basis == of.basis.id());
  CHECK(header->theta == 1000);
  CHECK(header->first_position == 8);
  const auto code = [&](const LowRank& other) {
    const Decoded out = decode(other, run, coded);
    CHECK(out.written);
    CHECK(out.run.bytes == std::vector<std::byte>(run.raw_bytes()));
    return out.report.status.code;
  };
  // Of the same sizes, but of other numbers; and of another RoPE alone.
  CHECK(code(LowRank(setting(kOne, 12).basis, 0, 8, 1000)) == Code::layout_mismatch);
  BasisShape turned = kOne;
  turned.rope.base = 500000.0F;
  CHECK(code(LowRank(setting(turned).basis, 0, 8, 1000)) == Code::layout_mismatch);
  turned = kOne;
  turned.rope.pairing = RopePairing::half_split;
  CHECK(code(LowRank(setting(turned).basis, 0, 8, 1000)) == Code::layout_mismatch);
  // The same basis, but another layer, place or rate than was agreed on.
  CHECK(code(LowRank(of.basis, 1, 8, 1000)) == Code::corrupt);
  CHECK(code(LowRank(of.basis, 0, 9, 1000)) == Code::corrupt);
  CHECK(code(LowRank(of.basis, 0, 8, 999)) == Code::corrupt);
}

TEST_CASE("a lowrank run that was cut or changed in one bit is refused") {
  const Setting of = setting(kSplit);
  const RunShape run = run_of(kSplit, 3);
  const LowRank codec(of.basis, 1, 0, theta_for_rate(of.basis, 3.0, 3));
  const Coded whole = encode(codec, run, run_along(of.content, run, 1, 0, 2));
  REQUIRE(whole.report.status.ok());
  for (std::size_t bytes = 0; bytes < whole.planes[0].size(); ++bytes) {
    Coded cut = whole;
    cut.planes[0].resize(bytes);
    cut.meta.bytes[0] = bytes;
    CHECK(decode(codec, run, cut).report.status.code == Code::corrupt);
  }
  for (std::size_t bit = 0; bit < 8 * whole.planes[0].size(); ++bit) {
    Coded flipped = whole;
    flipped.planes[0][bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    CHECK(!decode(codec, run, flipped).report.status.ok());
  }
  Coded other = whole;
  other.meta.medium = Medium::int8;
  CHECK(decode(codec, run, other).report.status.code == Code::corrupt);
}

TEST_CASE("what lowrank cannot code is told: NaN, Inf, huge values, other rows, fp8") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 5);
  const LowRank codec(of.basis, 0, 0, 1000);
  for (const int bits : {0x7fc0, 0x7f81, 0xffff, 0x7f80, 0xff80, 0x7f7f}) {
    for (const std::size_t value : {0U, 639U, 640U, 1279U}) {  // in K and in V, first and last
      Run in = run_along(of.content, run, 0, 0, 1);
      store_le16(in.bytes.data() + 2 * value, static_cast<std::uint16_t>(bits));
      CHECK(encode(codec, run, in).report.status.code == Code::unsupported);
    }
  }
  CHECK(codec.can_encode(run_of(kSplit, 5)).status().code == Code::unsupported);
  CHECK(codec.can_encode(run_of(kOne, 5, Dtype::fp8_e4m3)).status().code == Code::unsupported);
  const LowRank last(of.basis, 0, kMaxLowRankPosition, 1000);
  CHECK(encode(last, run, run_along(of.content, run, 0, 0, 1)).report.status.code ==
        Code::unsupported);
}

TEST_CASE("zeros, constants, subnormals and outliers decode to finite values") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 6, Dtype::fp32);
  const LowRank codec(of.basis, 0, 0, theta_for_rate(of.basis, 2.0));
  for (const float value : {0.0F, -0.0F, 1.0F, 1e-40F, -3e4F, 1e15F}) {
    Run in{run, std::vector<std::byte>(run.raw_bytes())};
    for (std::size_t i = 0; i < 2 * run.side_values(); ++i)
      store_le32(in.bytes.data() + 4 * i, std::bit_cast<std::uint32_t>(value));
    const Coded coded = encode(codec, run, in);
    REQUIRE(coded.report.status.ok());
    CHECK(coded.report.epsilon_ppm > 0);
    const Decoded out = decode(codec, run, coded);
    REQUIRE(out.report.status.ok());
    for (std::size_t i = 0; i < 2 * run.side_values(); ++i)
      CHECK(std::isfinite(std::bit_cast<float>(load_le32(out.run.bytes.data() + 4 * i))));
  }
}

TEST_CASE("every instruction set gives the same bytes, those of the golden vector") {
  const Setting of = setting(kOne);
  const RunShape run = run_of(kOne, 10);
  const Run in = run_along(of.content, run, 0, 60, 5);
  const LowRank codec(of.basis, 0, 60, theta_for_rate(of.basis, 2.0));
  std::size_t ran = 0;
  const std::int64_t here = hwy::SupportedTargets();
  for (std::int64_t rest = here; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().DeInit();
    const Coded coded = encode(codec, run, in);
    const Decoded out = decode(codec, run, coded);
    CAPTURE(std::string(hwy::TargetName(rest & -rest)));
    CHECK(hex(of.basis.id()) == "fef9e20d4583fdd18739fbf7d9356b60");
    CHECK(hex(encoding_id(coded.planes[0])) == "3a2e2d506df843526e0fde55d585018a");
    CHECK(hex(encoding_id(out.run.bytes)) == "008be7fbd534b5e8a231870a99ae51fe");
    CHECK(coded.report.epsilon_ppm == 2877);
    ++ran;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  CHECK(ran >= 2);
  for (const std::int64_t target : {HWY_SSSE3, HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_AVX3_DL})
    if ((here & target) == 0) MESSAGE("SKIP: this CPU has no ", hwy::TargetName(target));
}
