// Bases for the tests of lowrank, made by exact arithmetic so that golden vectors hold everywhere,
// and runs that vary along them.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/basis.h"
#include "tests/unit/codec/runs.h"

namespace kvrail::codec_test {

/// Random orthonormal directions; component c has the standard deviation 4 / (1 + c), gains as of
/// Gaussian values. RoPE on `rope.rotary_dims` values of each head.
[[nodiscard]] codec::BasisContent random_basis(const codec::BasisShape& shape, std::uint64_t seed);

/// Rows that vary along the basis, K turned by RoPE from `first_position` on.
[[nodiscard]] Run run_along(const codec::BasisContent& content, const codec::RunShape& shape,
                            std::uint32_t layer, std::uint32_t first_position, std::uint64_t seed);

/// Puts the right id on a file that a test has changed.
void seal(std::vector<std::byte>& file);

}  // namespace kvrail::codec_test
