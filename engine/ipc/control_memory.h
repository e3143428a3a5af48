// The memory that one agent and the engine share for talking: one sealed memfd (control_layout.h).
#pragma once

#include <cstdint>
#include <memory>

#include "engine/ipc/control_layout.h"
#include "kvrail/base/result.h"
#include "mempool/memory.h"

namespace kvrail::engine::ipc {

struct ControlMemory {
  std::unique_ptr<mempool::Arena> arena;
  ControlLayout layout;
};
// Creates the memory with empty rings in it.
[[nodiscard]] Result<ControlMemory> create_control_memory(std::uint32_t scratch_bytes);

}  // namespace kvrail::engine::ipc
