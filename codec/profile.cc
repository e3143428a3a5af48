#include "codec/profile.h"

#include <algorithm>

#include "codec/lowrank.h"

namespace kvrail::codec {
namespace {

Error refused(std::string text) {
  return Error{{Code::invalid_argument}, std::string("profile: ").append(text)};
}

// Also false for NaN.
bool within(double value, double most) {
  return value >= 0 && value <= most;
}

Result<void> validate(const ProfileDepth& depth) {
  for (std::size_t medium = 0; medium < kMediumCount; ++medium) {
    const MediumFigures& of = depth.media[medium];
    if (within(of.epsilon, 1.0) && within(of.kappa, 1e6) && within(of.extra_tokens, 1e6)) continue;
    return refused(std::string(medium_name(static_cast<Medium>(medium)))
                       .append(" up to ")
                       .append(std::to_string(depth.up_to_tokens))
                       .append(" tokens: epsilon must be 0 to 1, kappa and extra_tokens 0 to 1e6"));
  }
  return {};
}

}  // namespace

bool is_protected(const Protection& rule, std::uint32_t layer, std::uint32_t layers,
                  std::uint64_t block, std::uint64_t blocks) noexcept {
  return layer < rule.first_layers || layer + std::uint64_t{rule.last_layers} >= layers ||
         block < rule.first_blocks || block + rule.last_blocks >= blocks;
}

Result<void> validate(const Profile& profile) {
  if (profile.depths.empty() || profile.depths.size() > kMaxProfileDepths)
    return refused(std::string("has ")
                       .append(std::to_string(profile.depths.size()))
                       .append(" depths; allowed are 1 to 4"));
  std::uint64_t last = 0;
  for (const ProfileDepth& depth : profile.depths) {
    if (depth.up_to_tokens <= last)
      return refused("up_to_tokens must rise from depth to depth, from 1 on");
    last = depth.up_to_tokens;
    if (auto valid = validate(depth); !valid.ok()) return valid;
  }
  if (profile.theta > kMaxTheta) return refused("theta must be 0 to 2047");
  if (std::max(profile.protection.first_blocks, profile.protection.last_blocks) > kMaxProtectedBlocks)
    return refused("protection.first_blocks and last_blocks must be 0 to 64");
  return {};
}

}  // namespace kvrail::codec
