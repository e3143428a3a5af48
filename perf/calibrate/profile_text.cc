#include <fmt/format.h>

#include "perf/calibrate/calibrate.h"

namespace kvrail::calibrate {
namespace {

std::string hex(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.high, hash.low);
}

std::string depth_text(const codec::ProfileDepth& depth) {
  std::string out = fmt::format("\n[[depth]]\nup_to_tokens = {}\n", depth.up_to_tokens);
  for (std::size_t medium = 0; medium < kMediumCount; ++medium) {
    const codec::MediumFigures& of = depth.media[medium];
    if (!of.known) continue;
    // With a point, so that TOML reads them as fractions.
    out += fmt::format(
        "[depth.media.{}]\nepsilon = {:#.5g}\nkappa = {:#.5g}\nextra_tokens = {:#.5g}\n",
        medium_name(static_cast<Medium>(medium)), of.epsilon, of.kappa, of.extra_tokens);
  }
  return out;
}

}  // namespace

std::string profile_text(const codec::Profile& profile, const std::vector<std::string>& lines) {
  std::string out = "# Written by kvrail-calibrate; docs/codecs.md describes the format.\n";
  for (const std::string& line : lines) out += "# " + line + "\n";
  out += fmt::format("version = 1\nmodel = \"{}\"\n", hex(profile.model_id));
  if (!profile.basis_file.empty()) {
    out += fmt::format("\n[lowrank]\nbasis = \"{}\"\nid = \"{}\"\ntheta = {}\n", profile.basis_file,
                       hex(profile.basis_id), profile.theta);
  }
  const codec::Protection& rule = profile.protection;
  out += fmt::format(
      "\n[protection]\nfirst_layers = {}\nlast_layers = {}\nfirst_blocks = {}\nlast_blocks = {}\n",
      rule.first_layers, rule.last_layers, rule.first_blocks, rule.last_blocks);
  for (const codec::ProfileDepth& depth : profile.depths) out += depth_text(depth);
  return out;
}

}  // namespace kvrail::calibrate
