// What the two file readers share. Internal to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kvrail/base/result.h"
#include "perf/model/model.h"

namespace kvrail::model {

/// The whole file, or not_found, io_error, or too_large beyond 1 GiB.
[[nodiscard]] Result<std::vector<std::byte>> read_file(const std::filesystem::path& path);

[[nodiscard]] Error bad_file(const std::filesystem::path& path, const std::string& what);

/// Empty if the shape makes sense and is small enough to compute sizes with, else what is wrong
/// with it.
[[nodiscard]] std::string shape_fault(const ModelShape& shape);

/// `weights` is [out][in] as files have it; the result is [in][out].
[[nodiscard]] Matrix transposed(std::span<const float> weights, std::uint32_t in,
                                std::uint32_t out);

[[nodiscard]] Hash128 hash_of(std::span<const std::byte> bytes);

}  // namespace kvrail::model
