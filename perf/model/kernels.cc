#include "perf/model/kernels.h"

namespace kvrail::model {

const Kernels& kernels() noexcept {
#ifdef KVRAIL_MODEL_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    return kAvx2Kernels;
  }
#endif
  return kBaseKernels;
}

}  // namespace kvrail::model
