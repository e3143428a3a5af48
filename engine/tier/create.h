// The tier that a configuration asks for.
// Thread: the Conductor; these may block.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/core/tier_port.h"
#include "engine/tier/options.h"

namespace kvrail::engine {

// Null where `config` has no offload.directory. What the tier goes on without (io_uring, direct I/O, files that it moved
// aside) is appended to `warnings`, a line each. The error is one line with the folder, what is wrong and what to do.
[[nodiscard]] Result<std::unique_ptr<TierPort>> create_tier(const Config& config, std::vector<std::string>* warnings = nullptr);

[[nodiscard]] tier::TierOptions tier_options(const Config& config);
// Whether the process may have as many files open as the tier's segments; raises its own limit as far as it may.
[[nodiscard]] Result<void> tier_files(const Config& config);

}  // namespace kvrail::engine
