// What kvrail-codec takes of a profile of kvrail-calibrate: the basis of lowrank that it names, and what
// it protects.
#pragma once

#include <cstdint>
#include <string>

#include "codec/basis.h"
#include "codec/profile.h"
#include "kvrail/base/result.h"

namespace kvrail::fidelity {

struct ProfileBasis {
  codec::Basis basis;
  std::uint16_t theta = 0;  // that the profile's figures are for
  codec::Protection protection;
};

/// Reads the profile at `path`, and the basis beside it. One line where a file is missing or damaged,
/// the profile names no basis, or the basis has another id than it says.
[[nodiscard]] Result<ProfileBasis> load_profile_basis(const std::string& path);

}  // namespace kvrail::fidelity
