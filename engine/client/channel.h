// How an agent reaches its engine besides the rings: by the attach socket, or within one process.
// Thread: the agent's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ipc/control_layout.h"
#include "engine/ipc/protocol.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::client {

namespace ipc = engine::ipc;

struct ArenaMap {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  bool owned = false;   // unmapped by whoever holds the map
  bool lent = false;    // pages of another agent of this process
};

// What attaching gave.
struct Attachment {
  std::uint64_t agent = 0;
  std::uint64_t node = 0;
  std::uint64_t incarnation = 0;
  Name tenant;
  ipc::ControlLayout control;
  ArenaMap control_map;
  std::uint32_t arena_id = 0;
  std::uint32_t receive_id = 0;
  ArenaMap arena;
  ArenaMap receive;
};

struct ImportedRange {
  std::uint32_t arena = 0;
  std::uint32_t count = 0;
  std::uint64_t offset = 0;
  ArenaMap map;             // base is that of the first slot
};

class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  // Sleeps until the bell rings, the engine is gone, or the time is over. Ok also without news: the
  // caller looks and comes back. Code::timed_out; Code::peer_down or what the engine said at the end.
  virtual Status wait(TimeNs timeout_ns) = 0;
  // Whether wait() runs the engine on the caller's thread, so that nobody has to wake it.
  [[nodiscard]] virtual bool drives() const noexcept { return false; }
  // Whether the engine is there still, without waiting.
  virtual Status check() = 0;
  // The engine has parked: wakes it.
  virtual void ring() noexcept = 0;
  [[nodiscard]] virtual int fd() const noexcept = 0;

  [[nodiscard]] virtual Result<ArenaMap> arena(std::uint32_t id, TimeNs timeout_ns) = 0;
  [[nodiscard]] virtual Result<ImportedRange> import_fd(int fd, std::uint64_t offset, std::uint64_t bytes,
                                                        TimeNs timeout_ns) = 0;
  // Pages of the agent's own process; Code::unsupported where the engine is another process.
  [[nodiscard]] virtual Result<ImportedRange> import_pages(std::byte* base, std::uint64_t bytes,
                                                           TimeNs timeout_ns) = 0;
  // Code::timed_out: it may be called again.
  virtual Result<void> detach(TimeNs timeout_ns) = 0;
  // Leaves at once; nothing else is called afterwards but fd() and the destructor.
  virtual void close() noexcept = 0;
};

void unmap(ArenaMap& map) noexcept;

}  // namespace kvrail::client
