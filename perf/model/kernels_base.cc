#define KVRAIL_KERNELS kBaseKernels
#include "perf/model/kernels_impl.h"
