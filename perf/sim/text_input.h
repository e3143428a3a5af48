// Files that people have, plain or compressed by xz.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"

namespace kvrail::simulation {

// The whole file; of one whose name ends in .xz what it holds. At most 1 GiB of text.
[[nodiscard]] Result<std::string> read_text(const std::string& path);

// "FILE:LINE: what", as every message about an input begins.
[[nodiscard]] Error input_error(std::string_view file, std::size_t line, const std::string& what);

// Lines without their ends; the last one may lack it.
[[nodiscard]] std::vector<std::string_view> lines_of(std::string_view text);
[[nodiscard]] std::vector<std::string_view> fields_of(std::string_view line, char between);
// The whole field must be the number; nothing else is one.
[[nodiscard]] bool parse_number(std::string_view field, double& out);
[[nodiscard]] bool parse_number(std::string_view field, std::uint64_t& out);

}  // namespace kvrail::simulation
