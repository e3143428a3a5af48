// Runs a program of the system (ip, tc) and waits for it.
#pragma once

#include <string>
#include <vector>

#include "kvrail/base/result.h"

namespace kvrail::demo {

/// Standard output of the program, found by PATH and /usr/sbin, /sbin. A failure holds the command
/// and the first line that it wrote to standard error.
[[nodiscard]] Result<std::string> run_command(const std::vector<std::string>& words);

}  // namespace kvrail::demo
