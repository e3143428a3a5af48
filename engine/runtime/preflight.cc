// What the machine must have for this configuration, asked before anything is built on it: the line at the
// start is worth more than a refusal of every agent later.
#include "engine/runtime/host.h"
#include "mempool/system_memory.h"

namespace kvrail::engine {

Result<void> Host::check_memory() {
  if (const auto room = mempool::memory_room(); room && config_.table_bytes > room->bytes) {
    return Error{{Code::out_of_memory, Scope::engine},
                 "memory.tables: " + mempool::size_text(config_.table_bytes) + " are wanted, but " + room->limited_by +
                     " has only " + mempool::size_text(room->bytes) + " left; lower it or raise that limit"};
  }
  // One tenant with one agent is the least that is of use.
  const std::uint64_t arenas = config_.receive_arena_bytes + config_.agent_arena_bytes;
  if (config_.lock_memory) {
    if (auto lock = mempool::probe_lock(arenas); !lock.ok()) {
      return Error{lock.status(), "memory.lock: " + lock.error().message};
    }
  }
  if (config_.hugepages && !mempool::probe_hugetlb(arenas)) {
    log_(LogLevel::warning, "memory.hugepages: the system has no " + mempool::size_text(arenas) +
                                " of free 2 MiB pages, arenas get other ones; raise vm.nr_hugepages");
  }
  return {};
}

}  // namespace kvrail::engine
