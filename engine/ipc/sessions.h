// All sessions of one worker: adopts what the attaching threads hand over, polls the submit rings,
// and is the core's AgentSink.
//
// Thread: the worker, but for create(), claim_link() and give_back_link(). In a worker's order the
// sessions come before the node, so that what an agent asks is done in the same duty cycle.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/agent_port.h"
#include "engine/ipc/agent_session.h"
#include "engine/ipc/session_host.h"
#include "engine/ipc/session_link.h"
#include "engine/runtime/pollable.h"
#include "kvrail/base/result.h"

namespace kvrail::engine::ipc {

struct SessionsOptions {
  std::uint32_t max_agents = 256;      // as StoreOptions::max_agents
  std::uint32_t max_links = 16;        // one for the attach server, one per embedding thread
  std::size_t records_per_session = 32;  // handled in one cycle
  std::size_t records_per_cycle = 1024;  // over all sessions
};

class Sessions final : public AgentSink, public Pollable {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Sessions>> create(const SessionsOptions& options, SessionHost& host);
  // The worker has ended. Sessions that still live are the attaching sides' to destroy.
  ~Sessions() override = default;

  // Any thread. A link for one attaching thread, nullptr when all are taken; give it back when no
  // session of it lives.
  [[nodiscard]] SessionLink* claim_link() noexcept;
  void give_back_link(SessionLink* link) noexcept;
  // Any thread: the memory of an agent to be, so that the worker need not wait for it.
  [[nodiscard]] Result<AttachMemory> prepare(const AgentInfo& info) { return host_.prepare(info); }
  [[nodiscard]] Result<ImportMemory> prepare_import(const Layout& layout, const ImportRequest& request) {
    return host_.prepare_import(layout, request);
  }
  // Any thread: an adopt of an agent of this tenant was refused, the tenant is not there.
  void forget(const Name& tenant) { host_.forget(tenant); }
  // Any thread: unmaps what no agent needs any more; the notice bells tell when there is something.
  void free_retired() noexcept { host_.free_retired(); }

  // Pollable: commands of all links (these may allocate), then records of the sessions, going on where
  // the last cycle stopped.
  std::size_t cycle(TimeNs now_ns) noexcept override;
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] std::span<const int> wait_fds() const noexcept override { return {&wait_fd_, 1}; }
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept override { return kNever; }

  [[nodiscard]] bool try_push(AgentHandle agent, const AgentEvent& event) noexcept override;

  [[nodiscard]] std::size_t size() const noexcept { return live_.size(); }
  // Sums over all sessions, those that are gone included.
  [[nodiscard]] SessionCounters counters() const noexcept;

 private:
  struct Entry {
    AgentSession* session = nullptr;
    SessionLink* link = nullptr;
  };

  // Dropped, but for pages of its process that somebody still reads.
  struct Leaving {
    SessionLink* link = nullptr;
    AgentHandle agent;
    SessionNotice notice;
  };

  Sessions(const SessionsOptions& options, SessionHost& host);
  std::size_t control() noexcept;
  void let_go() noexcept;
  void execute(SessionLink& link, const SessionCommand& command);
  std::size_t poll(TimeNs now_ns) noexcept;
  void adopt(SessionLink& link, const SessionCommand& command);
  [[nodiscard]] Result<void> admit(AgentSession& session, bool fds, SessionNotice& notice);
  void look_up(SessionLink& link, const SessionCommand& command);
  void import(SessionLink& link, const SessionCommand& command);
  void drop(std::size_t index, DropReason reason) noexcept;
  [[nodiscard]] std::size_t find(std::uint64_t id) const noexcept;
  void disarm() noexcept;

  SessionsOptions options_;
  SessionHost& host_;
  UniqueFd epoll_;
  int wait_fd_ = -1;                             // of epoll_: readable when a ring or a link has news
  std::vector<std::unique_ptr<SessionLink>> links_;
  std::atomic<bool> commands_waiting_{false};    // N1, N2 in session_link.h
  std::unique_ptr<std::atomic<bool>[]> claimed_;
  std::vector<Entry> live_;                      // capacity taken at creation
  std::vector<Leaving> leaving_;                 // the same; more agents than that can't be leaving
  std::uint64_t retirements_told_ = 0;
  std::vector<AgentSession*> by_agent_;          // AgentHandle::index -> session
  std::vector<std::byte> payload_;               // the one private copy of a record's payload
  std::size_t next_ = 0;
  bool armed_ = false;
  SessionCounters gone_;
};

}  // namespace kvrail::engine::ipc
