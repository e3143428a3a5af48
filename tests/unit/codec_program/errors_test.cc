#include "perf/codec/errors.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/unit/codec_program/files.h"

namespace kvrail::fidelity {
namespace {

using fidelity_test::random_set;

KvSet scaled(const KvSet& set, float k_factor, float v_factor) {
  KvSet out = set;
  std::vector<float> values(set.side_values());
  to_floats(set.dtype, set.k, values);
  for (float& value : values) value *= k_factor;
  from_floats(set.dtype, values, out.k);
  to_floats(set.dtype, set.v, values);
  for (float& value : values) value *= v_factor;
  from_floats(set.dtype, values, out.v);
  return out;
}

TEST_CASE("nmse / a tenth off is 0.01, nothing left is 1, equal bits are 0") {
  const KvSet set = random_set(Dtype::fp32, 2, 30, 2, 8);
  const auto nmse = [&](const KvSet& other) {
    return squared_error(set.dtype, set.k, other.dtype, other.k).ratio();
  };
  CHECK(nmse(set) == 0.0);
  CHECK(nmse(scaled(set, 0.9F, 1.0F)) == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(nmse(set.empty_like(Dtype::bf16)) == doctest::Approx(1.0));
}

TEST_CASE("nmse / NaN that comes back as it was is no error, and zeros have a ratio too") {
  std::vector<float> values{1.0F, std::numeric_limits<float>::quiet_NaN(), 2.0F,
                            std::numeric_limits<float>::infinity()};
  const auto bytes = std::as_bytes(std::span(values));
  const ErrorSum same = squared_error(Dtype::fp32, bytes, Dtype::fp32, bytes);
  CHECK(same.error == 0.0);
  CHECK(same.power == 5.0);
  const std::vector<float> zeros(4), ones(4, 1.0F);
  const auto none = std::as_bytes(std::span(zeros)), some = std::as_bytes(std::span(ones));
  CHECK(squared_error(Dtype::fp32, none, Dtype::fp32, none).ratio() == 0.0);
  CHECK(std::isinf(squared_error(Dtype::fp32, none, Dtype::fp32, some).ratio()));
}

TEST_CASE("attention / V a tenth smaller is an error of 0.01, of V alone") {
  const KvSet set = random_set(Dtype::fp32, 2, 40, 2, 16);
  const Queries queries = proxy_queries(set);
  const AttentionErrors errors = attention_errors(set, scaled(set, 1.0F, 0.9F), {}, queries);
  CHECK(errors.both.ratio() == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(errors.v_only.ratio() == doctest::Approx(0.01).epsilon(1e-3));
  CHECK(errors.k_only.ratio() == 0.0);
}

TEST_CASE("attention / what is added to every K alike moves no weight") {
  const KvSet set = random_set(Dtype::fp32, 1, 40, 1, 16);
  KvSet shifted = set;
  std::vector<float> values(set.side_values());
  to_floats(set.dtype, set.k, values);
  for (float& value : values) value += 3.0F;
  from_floats(set.dtype, values, shifted.k);
  CHECK(attention_errors(set, shifted, {}, proxy_queries(set)).both.ratio() < 1e-8);
}

TEST_CASE(
    "attention / agrees with a plain computation, of all tokens and of those that were kept") {
  const KvSet set = random_set(Dtype::fp32, 1, 5, 1, 4);
  const KvSet other = scaled(set, 0.5F, 2.0F);
  Queries queries{2, 3, {{}}};  // two heads share the KV head
  for (int i = 0; i < 2 * 3 * 4; ++i)
    queries.of_layer[0].push_back(0.1F * static_cast<float>(i % 7));
  const std::vector<std::uint32_t> all{0, 1, 2, 3, 4}, some{0, 3};
  const auto output = [&](const KvSet& kv, const std::vector<std::uint32_t>& tokens,
                          const float* query, std::size_t d) {
    std::vector<float> k(20), v(20);
    to_floats(kv.dtype, kv.k, k);
    to_floats(kv.dtype, kv.v, v);
    double weights = 0, sum = 0;
    for (const std::size_t token : tokens) {
      double score = 0;
      for (std::size_t i = 0; i < 4; ++i) score += double{query[i]} * k[4 * token + i] / 2.0;
      weights += std::exp(score);
      sum += std::exp(score) * v[4 * token + d];
    }
    return sum / weights;
  };
  for (const bool left_out : {false, true}) {
    double error = 0, power = 0;
    for (std::size_t query = 0; query < 6; ++query) {
      const float* at = queries.of_layer[0].data() + 4 * query;
      for (std::size_t d = 0; d < 4; ++d) {
        const double exact = output(set, all, at, d);
        error += std::pow(output(other, left_out ? some : all, at, d) - exact, 2);
        power += exact * exact;
      }
    }
    const std::span<const std::uint32_t> kept =
        left_out ? std::span(some) : std::span(all).first(0);
    const AttentionErrors errors = attention_errors(set, other, kept, queries);
    CHECK(errors.both.ratio() == doctest::Approx(error / power).epsilon(1e-4));
  }
}

TEST_CASE("proxy queries / scores have the deviation that is promised, and a seed of their own") {
  const KvSet set = random_set(Dtype::bf16, 1, 200, 2, 32);
  const Queries queries = proxy_queries(set);
  CHECK(queries.of_layer == proxy_queries(set).of_layer);
  std::vector<float> k(set.side_values());
  to_floats(set.dtype, set.k, k);
  double sum = 0, squares = 0;
  for (std::uint32_t token = 0; token < set.tokens; ++token) {
    double score = 0;
    for (std::size_t d = 0; d < 32; ++d)
      score += double{queries.of_layer[0][d]} * k[token * 64 + d] / std::sqrt(32.0);
    sum += score;
    squares += score * score;
  }
  const double mean = sum / set.tokens;
  CHECK(std::sqrt(squares / set.tokens - mean * mean) ==
        doctest::Approx(kProxyDeviation).epsilon(1e-3));
}

}  // namespace
}  // namespace kvrail::fidelity
