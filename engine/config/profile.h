// Reads the profiles that kvrail-calibrate writes (docs/codecs.md), and turns one into what the
// scheduler decides by.
#pragma once

#include <string>
#include <string_view>

#include "codec/profile.h"
#include "kvrail/base/result.h"
#include "scheduler/medium_choice.h"

namespace kvrail::engine {

/// One line that names file, line, key, what is allowed. `name` is what errors call the text.
[[nodiscard]] Result<codec::Profile> parse_profile(std::string_view text, std::string_view name);
[[nodiscard]] Result<codec::Profile> load_profile(const std::string& path);

/// Media that the profile does not know keep the built-in figures.
[[nodiscard]] scheduler::DepthLoss loss_of(const codec::Profile& profile) noexcept;

}  // namespace kvrail::engine
