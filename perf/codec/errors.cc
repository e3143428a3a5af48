#include "perf/codec/errors.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kvrail/base/assert.h"

namespace kvrail::fidelity {

double ErrorSum::ratio() const {
  if (error == 0) return 0;
  return power == 0 ? std::numeric_limits<double>::infinity() : error / power;
}

ErrorSum squared_error(Dtype dtype, std::span<const std::byte> exact, Dtype decoded_dtype,
                       std::span<const std::byte> decoded) {
  constexpr std::size_t kStep = 4096;  // values converted at a time
  const std::size_t width = dtype_bytes(dtype), decoded_width = dtype_bytes(decoded_dtype);
  const std::size_t count = exact.size() / width;
  KVRAIL_ASSERT(decoded.size() == count * decoded_width);
  std::vector<float> a(kStep), b(kStep);
  ErrorSum sum;
  for (std::size_t at = 0; at < count; at += kStep) {
    const std::size_t step = std::min(kStep, count - at);
    to_floats(dtype, exact.subspan(at * width, step * width), std::span(a).first(step));
    to_floats(decoded_dtype, decoded.subspan(at * decoded_width, step * decoded_width),
              std::span(b).first(step));
    for (std::size_t i = 0; i < step; ++i) {
      if (std::isfinite(a[i])) sum.power += double{a[i]} * a[i];
      if (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) continue;
      const double difference = double{b[i]} - a[i];
      sum.error += difference * difference;
    }
  }
  return sum;
}

}  // namespace kvrail::fidelity
