// Runs a test on every instruction set that the codecs are compiled for and this CPU has; says
// which it skips. The test's binary needs codec_simd_args, so that both know the same sets.
#pragma once

#include <doctest/doctest.h>

#include <hwy/targets.h>
#include <cstdint>
#include <string>

namespace kvrail::codec_test {

template <class Test>
void for_each_target(Test test) {
  const std::int64_t present = hwy::SupportedTargets();
  for (std::int64_t left = HWY_TARGETS; left != 0; left &= left - 1) {
    const std::int64_t target = left & -left;
    if ((present & target) == 0) {
      MESSAGE("SKIP: this CPU has no ", hwy::TargetName(target));
      continue;
    }
    CAPTURE(std::string(hwy::TargetName(target)));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();  // the next call chooses anew
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace kvrail::codec_test
