// The two builds of the kernels against each other, bit by bit, and against plain arithmetic.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kvrail/base/prng.h"
#include "perf/model/kernels.h"

namespace kvrail::model {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  Prng random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.uniform01() * 8 - 4);
  }
  return values;
}

std::vector<float> multiplied(const Kernels& k, std::size_t rows, std::size_t inputs,
                              std::size_t outputs) {
  const std::vector<float> x = random_values(rows * inputs, 1);
  const std::vector<float> w = random_values(inputs * outputs, 2);
  std::vector<float> y(rows * outputs);
  k.multiply({x.data(), inputs, rows, w.data(), outputs, inputs, outputs, y.data(), outputs});
  return y;
}

TEST_CASE("kernels / multiply sums in input order, whatever the number of rows and outputs") {
  for (const std::size_t rows : {1U, 2U, 3U, 4U, 7U}) {
    for (const std::size_t outputs : {1U, 15U, 16U, 45U}) {
      const std::vector<float> x = random_values(rows * 33, 1);
      const std::vector<float> w = random_values(33 * outputs, 2);
      const std::vector<float> y = multiplied(kernels(), rows, 33, outputs);
      std::size_t different = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t o = 0; o < outputs; ++o) {
          float sum = 0;
          for (std::size_t i = 0; i < 33; ++i) {
            sum += x[r * 33 + i] * w[i * outputs + o];
          }
          different += sum != y[r * outputs + o] ? 1 : 0;
        }
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("kernels / softmax and swiglu agree with libm") {
  for (const std::size_t count : {1U, 7U, 8U, 21U, 700U}) {
    std::vector<float> values = random_values(count, 3);
    const std::vector<float> before = values;
    double sum = 0;
    for (const float value : before) {
      sum += std::exp(0.5 * value);
    }
    kernels().softmax(values.data(), count, 0.5F);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(values[i] == doctest::Approx(std::exp(0.5 * before[i]) / sum).epsilon(1e-5));
    }
    std::vector<float> gate = before;
    const std::vector<float> up = random_values(count, 4);
    kernels().swiglu(gate.data(), up.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(gate[i] ==
            doctest::Approx(before[i] / (1 + std::exp(-before[i])) * up[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("kernels / extreme arguments stay defined") {
  std::vector<float> values{-1e30F, 0.0F, 1e30F};
  kernels().softmax(values.data(), values.size(), 1.0F);
  CHECK(values[2] == doctest::Approx(1.0F));
  CHECK(values[0] < 1e-30F);
  std::vector<float> gate{-1e4F, 1e4F};
  const std::vector<float> up{1.0F, 1.0F};
  kernels().swiglu(gate.data(), up.data(), 2);
  CHECK(std::abs(gate[0]) < 1e-30F);
  CHECK(gate[1] == 1e4F);
}

TEST_CASE("kernels / the AVX2 build gives the bits of the base build") {
#ifdef KVRAIL_MODEL_AVX2
  if (&kernels() != &kAvx2Kernels) {
    MESSAGE("skipped: this processor has no AVX2");
    return;
  }
  CHECK(multiplied(kBaseKernels, 7, 129, 45) == multiplied(kAvx2Kernels, 7, 129, 45));
  for (const std::size_t count : {5U, 64U, 385U}) {
    std::vector<float> a = random_values(count, 5);
    std::vector<float> b = a;
    kBaseKernels.softmax(a.data(), count, 0.125F);
    kAvx2Kernels.softmax(b.data(), count, 0.125F);
    CHECK(a == b);
    kBaseKernels.swiglu(a.data(), b.data(), count);
    const std::vector<float> base = a;
    a = b;
    kAvx2Kernels.swiglu(a.data(), b.data(), count);
    CHECK(a == base);
  }
#else
  MESSAGE("skipped: built for a machine without AVX2");
#endif
}

}  // namespace
}  // namespace kvrail::model
