#define KVRAIL_KERNELS kAvx2Kernels
#include "perf/model/kernels_impl.h"
