// A profile of kvrail-calibrate with the basis of lowrank that it names: what of a calibration a node needs.
// Thread: the Conductor; it reads files.
#pragma once

#include <optional>
#include <string>

#include "codec/basis.h"
#include "codec/profile.h"
#include "kvrail/base/result.h"

namespace kvrail::engine {

struct Calibration {
  codec::Profile profile;
  std::optional<codec::Basis> basis;  // none: the profile names none
};

// Reads the profile at `path`, and the basis beside it. One line where a file is missing or damaged, or where the
// two are not of one calibration.
[[nodiscard]] Result<Calibration> load_calibration(const std::string& path);

}  // namespace kvrail::engine
