// What a calibration found out about a model: what each medium loses at which context depth, and
// which parts of a context deserve more planes. kvrail-calibrate writes it as TOML, engine/config
// reads it; docs/codecs.md describes the file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::codec {

inline constexpr std::size_t kMaxProfileDepths = 4;

/// ε is the mean of the NMSE of K and of V. κ makes λ = exp(-κ ε) the share of next tokens that
/// stay the same. Extra tokens are what an agent decodes again on average because of the loss, for
/// one delivery.
struct MediumFigures {
  bool known = false;
  double epsilon = 0;
  double kappa = 0;
  double extra_tokens = 0;
};
struct ProfileDepth {
  std::uint64_t up_to_tokens = 0;  // of context; the last depth holds for all that is deeper too
  std::array<MediumFigures, kMediumCount> media{};
};

/// (layer, block)s that get more planes than the medium alone would give them: a layer or a block
/// at one of the ends. Zeros: nothing is protected. An engine protects whole blocks: it looks at these only.
inline constexpr std::uint32_t kMaxProtectedBlocks = 64;  // at either end
struct Protection {
  std::uint32_t first_layers = 0, last_layers = 0;
  std::uint32_t first_blocks = 0, last_blocks = 0;
  friend bool operator==(const Protection&, const Protection&) noexcept = default;
};
[[nodiscard]] bool is_protected(const Protection& rule, std::uint32_t layer, std::uint32_t layers,
                                std::uint64_t block, std::uint64_t blocks) noexcept;

struct Profile {
  Hash128 model_id;        // zero: of no particular model
  std::string basis_file;  // of lowrank; empty: none was made
  Hash128 basis_id;
  std::uint16_t theta = 0;  // of lowrank, that its figures are for
  Protection protection;
  std::vector<ProfileDepth> depths;  // rising, 1 to kMaxProfileDepths
};
/// invalid_argument with one clear line: depths that do not rise, numbers out of their range.
[[nodiscard]] Result<void> validate(const Profile& profile);

}  // namespace kvrail::codec
