// How small `table_bytes` may be.
#pragma once

#include <cstdint>

#include "engine/store/store.h"

namespace kvrail::engine {

// What the indexes of max_blocks and max_versions take, and the least that is of use beside them; a
// store with smaller tables is refused.
[[nodiscard]] std::uint64_t least_table_bytes(const StoreOptions& options) noexcept;

}  // namespace kvrail::engine
