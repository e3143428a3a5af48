// One run of kvrail-calibrate: the basis of lowrank, and what each medium that this build has loses
// at each context depth.
#pragma once

#include <string>
#include <vector>

#include "codec/profile.h"
#include "perf/calibrate/options.h"

namespace kvrail::calibrate {

struct Calibration {
  codec::Profile profile;
  std::vector<std::byte> basis;
  std::vector<std::string> lines;  // what was measured, for people
};
/// With a model: the basis comes from contexts of one seed, its weights from those of a second, the
/// figures from a third. With files: the figures are those of a basis from the first half of the
/// tokens on the second; the basis that is written comes from all.
[[nodiscard]] Result<Calibration> calibrate(const Options& options);

/// The profile as TOML (docs/codecs.md); `lines` become comments.
[[nodiscard]] std::string profile_text(const codec::Profile& profile,
                                       const std::vector<std::string>& lines);

}  // namespace kvrail::calibrate
