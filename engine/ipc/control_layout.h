// Where the parts of the control memory of one agent lie: rings, words, probe and scratch. Both sides
// find them by a ControlLayout, which is told over the socket and not kept in the memory itself,
// where the other side could change it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/ipc/protocol.h"

namespace kvrail::engine::ipc {

[[nodiscard]] ControlLayout control_layout(std::uint32_t submit_capacity, std::uint32_t completion_capacity,
                                           std::uint32_t scratch_bytes) noexcept;

// True if every part lies inside the memory and is aligned; what the agent checks before it maps.
[[nodiscard]] bool sound(const ControlLayout& layout) noexcept;

// Spans and references into mapped control memory.
struct ControlView {
  std::span<std::byte> submit;
  std::span<std::byte> completion;
  std::span<std::byte> scratch;
  SharedWords* shared = nullptr;
  ProbeRecord* probe = nullptr;
};
[[nodiscard]] ControlView view_control(std::byte* base, const ControlLayout& layout) noexcept;

}  // namespace kvrail::engine::ipc
