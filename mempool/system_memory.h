// How much memory the system would still give this process: the machine's available memory and
// every memory cgroup above it. Taking more than that does not fail cleanly in the kernel, it kills
// a process, so arenas ask first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvrail::mempool {

struct MemoryRoom {
  std::uint64_t bytes = 0;
  std::string limited_by;  // "the machine (MemAvailable)" or "the memory cgroup /…"
};

// The tightest bound found; nothing where neither source can be read.
[[nodiscard]] std::optional<MemoryRoom> memory_room();

// The same from other roots, for tests: `proc` holds meminfo and self/cgroup, `cgroup` the
// hierarchy.
[[nodiscard]] std::optional<MemoryRoom> memory_room(const std::string& proc,
                                                    const std::string& cgroup);

}  // namespace kvrail::mempool
