// The few loops that take the time. Compiled once for the base instruction set and once for AVX2,
// chosen at run time. Every output element is summed in the order of the inputs, without fused
// multiply-add, so that both versions, and every way of cutting the rows into calls, give the same
// bits.
#pragma once

#include <cstddef>

namespace kvrail::model {

/// y[r][o] = sum over i of x[r][i] * w[i][o]. Strides are in floats; w_stride may exceed outputs.
struct MultiplyTask {
  const float* x = nullptr;
  std::size_t x_stride = 0;
  std::size_t rows = 0;
  const float* w = nullptr;
  std::size_t w_stride = 0;
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  float* y = nullptr;
  std::size_t y_stride = 0;
};

struct Kernels {
  void (*multiply)(const MultiplyTask& task);
  /// Scales by `scale`, then softmax, in place.
  void (*softmax)(float* values, std::size_t count, float scale);
  /// gate = gate / (1 + exp(-gate)) * up.
  void (*swiglu)(float* gate, const float* up, std::size_t count);
};

extern const Kernels kBaseKernels;
#ifdef KVRAIL_MODEL_AVX2
extern const Kernels kAvx2Kernels;
#endif

/// The fastest that this machine can run.
[[nodiscard]] const Kernels& kernels() noexcept;

}  // namespace kvrail::model
