// How much memory the system would still give this process: the machine's available memory and
// every memory cgroup above it. Taking more than that does not fail cleanly in the kernel, it kills
// a process, so arenas ask first. And what else of the system can be asked before it is needed: locked
// memory, huge pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvrail/base/result.h"

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

// Tries by doing, without taking a page: whether that much memory could be locked, in one line with the
// limit, the need and the remedy; whether the system has that many huge pages to give.
[[nodiscard]] Result<void> probe_lock(std::uint64_t bytes);
[[nodiscard]] bool probe_hugetlb(std::uint64_t bytes);

// "64 MiB", for messages.
[[nodiscard]] std::string size_text(std::uint64_t bytes);
// What to say when `bytes` could not be locked.
[[nodiscard]] Error lock_refused(const std::string& what, std::uint64_t bytes, int error_number);

}  // namespace kvrail::mempool
