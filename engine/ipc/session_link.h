// The pair of queues between a thread that attaches agents (the Conductor, or an embedded agent) and
// the worker that serves them. An AgentSession belongs to the attaching thread, is lent to the
// worker by `adopt`, and comes back with `gone` or `refused`; only then is it destroyed.
//
// Threads    one attaching thread pushes commands and pops notices; the worker does the reverse.
// State      two Boost queues of fixed capacity, and an eventfd per direction.
// Invariant  a command names a session by id, never by pointer, but for `adopt`: a drop may cross a
//            `gone`, and the pointer could then be somebody else's.
//            One notice answers each adopt, arena and import; one `gone` follows each `adopted`. The
//            attaching side has at most one request open per session, so kCapacity never overflows.
// Edges      inside Boost's queue. N1 commands_waiting store(release) after a push -> N2 the worker's
//            exchange(acquire) before it pops: most cycles look at this one word and at no queue.
//            Each push signals the eventfd afterwards, always: control traffic is rare, and a signal
//            that is always given cannot be missed.
// Relaxed    none.  Wrap: Boost's.
#pragma once

#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/ipc/agent_session.h"
#include "engine/ipc/fd.h"
#include "engine/ipc/session_host.h"
#include "kvrail/base/result.h"
#include "kvrail/base/spsc_queue.h"

namespace kvrail::engine::ipc {

struct SessionCommand {
  enum class Kind : std::uint8_t { adopt, drop, arena, import };
  Kind kind = Kind::adopt;
  DropReason reason = DropReason::none;  // drop
  bool fds = true;                       // adopt, arena: another process will map the arenas
  std::uint32_t arena_id = 0;            // arena
  std::uint64_t id = 0;
  AgentSession* session = nullptr;       // adopt
  ImportMemory import;                   // import: the worker's from here on
};

// An arena as the worker saw it. The descriptor is made by the worker, because the arena itself may
// be gone when the notice is read; whoever pops the notice closes it.
struct ArenaView {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  int fd = -1;
  bool lent = false;  // pages of an agent's own process
};

struct SessionNotice {
  enum class Kind : std::uint8_t { adopted, refused, gone, arena, imported };
  Kind kind = Kind::adopted;
  DropReason reason = DropReason::none;    // gone
  std::uint64_t id = 0;
  Status status;                           // refused, arena, imported
  bool tenant_known = false;               // refused
  AgentHandle agent;                       // adopted
  std::uint32_t arena_id = 0;              // adopted, arena
  std::uint32_t receive_id = 0;            // adopted
  ArenaView arena;                         // adopted: read-write; arena: read-only
  ArenaView receive;                       // adopted: read-only
  Extent extent;                           // imported
  std::array<char, kRefusalTextBytes> text{};  // refused: one line for a person
};

struct SessionLink {
  static constexpr std::size_t kCapacity = 1024;
  std::atomic<bool>* commands_waiting = nullptr;  // the worker's, of all its links
  SpscQueue<SessionCommand, kCapacity> commands;
  SpscQueue<SessionNotice, kCapacity> notices;
  UniqueFd command_bell;  // worker sleeps on it
  UniqueFd notice_bell;   // attaching thread sleeps on it
  std::uint64_t last_id = 0;  // attaching thread's; ids of all links differ

  [[nodiscard]] static Result<std::unique_ptr<SessionLink>> create(std::atomic<bool>& commands_waiting);
  SessionLink() = default;
  SessionLink(const SessionLink&) = delete;
  SessionLink& operator=(const SessionLink&) = delete;
  ~SessionLink();  // both threads have ended
  [[nodiscard]] std::uint64_t next_id() noexcept { return ++last_id; }
  // Programmer error if full, see Invariant.
  void send(const SessionCommand& command) noexcept;
  void report(const SessionNotice& notice) noexcept;
};

}  // namespace kvrail::engine::ipc
