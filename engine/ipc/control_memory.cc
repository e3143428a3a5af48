#include "engine/ipc/control_memory.h"

#include <new>

namespace kvrail::engine::ipc {

Result<ControlMemory> create_control_memory(std::uint32_t scratch_bytes) {
  ControlMemory memory;
  memory.layout = control_layout(kSubmitCapacity, kCompletionCapacity, scratch_bytes);
  mempool::ArenaOptions options;
  options.bytes = memory.layout.bytes;
  options.seal = true;
  options.name = "kvrail-control";
  Result<std::unique_ptr<mempool::Arena>> arena = mempool::Arena::create(options);
  if (!arena.ok()) return std::move(arena).error();
  memory.arena = std::move(*arena);
  std::byte* base = memory.arena->base();
  const ControlView view = view_control(base, memory.layout);
  RingMemory::create(view.submit);
  RingMemory::create(view.completion);
  ::new (base + memory.layout.shared_offset) SharedWords{};
  ::new (base + memory.layout.probe_offset) ProbeRecord{};
  return memory;
}

}  // namespace kvrail::engine::ipc
