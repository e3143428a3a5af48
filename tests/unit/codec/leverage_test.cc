// Leverage: rows that no other resembles count most, in any cut into runs and any position.
#include "codec/leverage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "codec/rows.h"
#include "tests/unit/codec/runs.h"

using namespace kvrail;
using namespace kvrail::codec;

namespace {

std::vector<float> importance(const codec_test::Run& run, std::uint32_t cut,
                              std::span<const double> frequencies = {}) {
  const RunShape& shape = run.shape;
  std::vector<double> memory(Leverage::memory_doubles(shape.kv_heads, shape.head_dim), 1e300);
  Leverage leverage(shape.kv_heads, shape.head_dim, frequencies, RopePairing::interleaved, memory);
  std::vector<float> out(shape.tokens);
  for (const bool scoring : {false, true}) {
    for (std::uint32_t first = 0; first < shape.tokens; first += cut) {
      RunShape part = shape;
      part.tokens = std::min(cut, shape.tokens - first);
      const auto k = run.view().k.subspan(first * shape.row_bytes(), part.side_bytes());
      if (!scoring) leverage.add(part, k, first);
      if (scoring) leverage.score(part, k, first, std::span(out).subspan(first, part.tokens));
    }
    if (!scoring) leverage.close();
  }
  return out;
}

void set_value(codec_test::Run& run, std::uint32_t token, std::uint32_t value, float x) {
  store_row(
      run.shape.dtype, &x, 1,
      run.bytes.data() + token * run.shape.row_bytes() + value * dtype_bytes(run.shape.dtype));
}

}  // namespace

TEST_CASE("leverage / sums to the space that keys fill, whatever the cut") {
  const RunShape shape{Dtype::bf16, 2, 16, 200};
  const codec_test::Run run = codec_test::random_run(shape, 3);
  const std::vector<float> whole = importance(run, 200);
  for (const float value : whole) CHECK((value > 0 && value < 2));
  const double sum = std::accumulate(whole.begin(), whole.end(), 0.0);
  CHECK(sum > 28);  // 32 without damping, which takes a little of the weaker channels
  CHECK(sum < 32);
  CHECK(importance(run, 64) == whole);
  CHECK(importance(run, 1) == whole);
}

TEST_CASE("leverage / a row of its own kind counts most, copies count little") {
  const RunShape shape{Dtype::fp32, 1, 8, 100};
  codec_test::Run run{shape, std::vector<std::byte>(shape.raw_bytes())};
  for (std::uint32_t token = 0; token < 100; ++token)
    set_value(run, token, token % 2, 1.0F + 0.01F * static_cast<float>(token % 5));
  set_value(run, 41, 1, 0.0F);
  set_value(run, 41, 6, 1.0F);
  const std::vector<float> out = importance(run, 100);
  CHECK(std::max_element(out.begin(), out.end()) - out.begin() == 41);
  CHECK(out[41] > 10 * out[40]);
}

TEST_CASE("leverage / RoPE is undone: a key that repeats at other positions is a copy again") {
  const RopeRule rule{100.0F, 1.0F, 8, RopePairing::interleaved};
  std::vector<double> frequencies(4);
  rope_frequencies(rule, frequencies);
  const RunShape shape{Dtype::fp32, 1, 8, 40};
  const codec_test::Run before = codec_test::random_run(shape, 8);
  codec_test::Run after = before;
  RopeAngles angles(frequencies, 0);
  for (std::uint32_t token = 0; token < shape.tokens; ++token) {
    if (token > 0) angles.advance();
    std::byte* row = after.bytes.data() + token * shape.row_bytes();
    std::vector<float> values(8);
    (void)load_row(Dtype::fp32, row, 8, values.data());
    redo_rope(angles, rule.pairing, 8, values);
    store_row(Dtype::fp32, values.data(), 8, row);
  }
  const std::vector<float> expected = importance(before, 40);
  const std::vector<float> undone = importance(after, 16, frequencies);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(undone[i] == doctest::Approx(expected[i]).epsilon(1e-4));
}

TEST_CASE("leverage / NaN and Inf harm their own row only; equal rows and none are no error") {
  const RunShape shape{Dtype::fp32, 1, 8, 50};
  codec_test::Run run = codec_test::random_run(shape, 5);
  codec_test::Run broken = run;
  set_value(broken, 7, 2, std::nanf(""));
  set_value(broken, 9, 0, -INFINITY);
  set_value(broken, 11, 0, 3e38F);
  const std::vector<float> out = importance(broken, 50);
  for (std::size_t i = 0; i < out.size(); ++i)
    CHECK(std::isnan(out[i]) == (i == 7 || i == 9 || i == 11));
  codec_test::Run zeros{shape, std::vector<std::byte>(shape.raw_bytes())};
  for (const float value : importance(zeros, 50)) CHECK(value == 0);
  const codec_test::Run none{{Dtype::bf16, 1, 8, 0}, {}};
  CHECK(importance(none, 1).empty());
}
