// What a fuzz target begins with: inputs made by our own encoders. `fuzz_NAME --write-corpus DIR` writes
// them as files; tests/fuzz/corpus holds them, and every input that ever found a fault.
#pragma once

#include <cstdint>
#include <vector>

namespace kvrail::test {

using FuzzInput = std::vector<std::uint8_t>;

// Defined by each target.
[[nodiscard]] std::vector<FuzzInput> fuzz_seeds();

}  // namespace kvrail::test
