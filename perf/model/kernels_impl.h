// The bodies of kernels.h, compiled by two files with different flags. It includes nothing with
// inline functions: the linker might keep the AVX2 copy of such a function for everyone.
#include "perf/model/kernels.h"

#ifndef KVRAIL_KERNELS
#error "name the table before including this file"
#endif

namespace kvrail::model {
namespace {

typedef float Lanes __attribute__((vector_size(32)));
typedef int IntLanes __attribute__((vector_size(32)));
constexpr std::size_t kLanes = 8;

inline Lanes load(const float* from) {
  Lanes value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}
inline void store(float* to, const Lanes& value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Rows x (8 x kWide) outputs, whose sums stay in registers. Few rows need many outputs side by
// side, because each sum waits for its last addition.
template <std::size_t kRows, std::size_t kWide>
inline void multiply_block(const MultiplyTask& t, std::size_t row, std::size_t out) {
  Lanes sum[kRows][kWide] = {};
  const float* w = t.w + out;
  const float* x = t.x + row * t.x_stride;
  for (std::size_t i = 0; i < t.inputs; ++i, w += t.w_stride) {
    for (std::size_t r = 0; r < kRows; ++r) {
      const float xi = x[r * t.x_stride + i];
      for (std::size_t j = 0; j < kWide; ++j) {
        sum[r][j] += xi * load(w + j * kLanes);
      }
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t j = 0; j < kWide; ++j) {
      store(t.y + (row + r) * t.y_stride + out + j * kLanes, sum[r][j]);
    }
  }
}

template <std::size_t kRows>
inline void multiply_rows(const MultiplyTask& t, std::size_t row) {
  constexpr std::size_t kWide = 8 / kRows;
  std::size_t out = 0;
  for (; out + kWide * kLanes <= t.outputs; out += kWide * kLanes) {
    multiply_block<kRows, kWide>(t, row, out);
  }
  for (; out + 2 * kLanes <= t.outputs; out += 2 * kLanes) {
    multiply_block<kRows, 2>(t, row, out);
  }
  for (; out < t.outputs; ++out) {
    for (std::size_t r = 0; r < kRows; ++r) {
      float sum = 0;
      for (std::size_t i = 0; i < t.inputs; ++i) {
        sum += t.x[(row + r) * t.x_stride + i] * t.w[i * t.w_stride + out];
      }
      t.y[(row + r) * t.y_stride + out] = sum;
    }
  }
}

void multiply(const MultiplyTask& task) {
  std::size_t row = 0;
  for (; row + 4 <= task.rows; row += 4) {
    multiply_rows<4>(task, row);
  }
  for (; row + 2 <= task.rows; row += 2) {
    multiply_rows<2>(task, row);
  }
  if (row < task.rows) {
    multiply_rows<1>(task, row);
  }
}

// exp by 2^n times a polynomial on [-ln2/2, ln2/2], within 2e-7 relative; the argument is clamped
// to the range where the result is a normal number. libm's is not vectorised and differs between
// versions.
inline Lanes exp_lanes(Lanes x) {
  const Lanes low = Lanes{} - 87.0F;
  const Lanes high = Lanes{} + 87.0F;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Lanes shift = Lanes{} + 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer.
  const Lanes shifted = x * 1.44269504F + shift;
  const Lanes n = shifted - shift;
  const Lanes r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  Lanes p = Lanes{} + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  const IntLanes power = (__builtin_convertvector(n, IntLanes) + 127) << 23;
  Lanes scale;
  __builtin_memcpy(&scale, &power, sizeof(scale));
  return p * scale;
}

// The last few values go through the same lanes, so that a value's result does not depend on its
// place.
inline Lanes load_some(const float* from, std::size_t count, float rest) {
  Lanes value = Lanes{} + rest;
  for (std::size_t i = 0; i < count; ++i) {
    value[i] = from[i];
  }
  return value;
}
inline void store_some(float* to, const Lanes& value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = value[i];
  }
}

void softmax(float* values, std::size_t count, float scale) {
  float greatest = values[0];
  for (std::size_t i = 1; i < count; ++i) {
    greatest = values[i] > greatest ? values[i] : greatest;
  }
  Lanes sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes e = exp_lanes((load(values + i) - greatest) * scale);
    sums += e;
    store(values + i, e);
  }
  if (i < count) {
    Lanes e = exp_lanes((load_some(values + i, count - i, greatest) - greatest) * scale);
    for (std::size_t j = count - i; j < kLanes; ++j) {
      e[j] = 0;
    }
    sums += e;
    store_some(values + i, e, count - i);
  }
  float sum = 0;
  for (std::size_t j = 0; j < kLanes; ++j) {
    sum += sums[j];
  }
  const float inverse = 1.0F / sum;
  for (std::size_t j = 0; j < count; ++j) {
    values[j] *= inverse;
  }
}

inline Lanes swiglu_lanes(const Lanes& gate, const Lanes& up) {
  return gate / (1.0F + exp_lanes(-gate)) * up;
}

void swiglu(float* gate, const float* up, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(gate + i, swiglu_lanes(load(gate + i), load(up + i)));
  }
  if (i < count) {
    store_some(gate + i,
               swiglu_lanes(load_some(gate + i, count - i, 0), load_some(up + i, count - i, 0)),
               count - i);
  }
}

}  // namespace

const Kernels KVRAIL_KERNELS = {multiply, softmax, swiglu};

}  // namespace kvrail::model
