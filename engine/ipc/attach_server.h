// The Conductor's side of attachment: listens on the Unix socket, decides who gets in, hands
// descriptors over, and notices when a client is gone.
//
// Thread: the Conductor; nothing here waits. It talks to the worker by a SessionLink only.
//
// Life of a connection: hello (a deadline runs) → adopting (the worker maps memory) → serving ⇄ asking
// (the worker looks something up) → leaving (the worker takes everything back) → closed. A client that
// hangs up, dies or breaks the protocol goes to leaving from wherever it is, as one that detaches.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/ipc/agent_session.h"
#include "engine/ipc/attach_policy.h"
#include "engine/ipc/attach_request.h"
#include "engine/ipc/sessions.h"
#include "engine/ipc/socket_io.h"
#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "mempool/memory.h"
#include "transport/socket_file.h"

namespace kvrail::engine::ipc {

struct AttachServerOptions {
  std::string socket_path;
  unsigned socket_mode = 0660;
  AttachPolicy policy;
  AttachLimits limits;
  NodeId node_id = 0;
  Incarnation incarnation = 0;
  std::uint32_t max_agents = 256;
  std::uint32_t max_agents_per_uid = 256;
  std::uint32_t max_half_open = 64;        // connections that have not said what they want
  TimeNs hello_timeout_ns = 2 * kSecondNs;
  const mempool::Arena* status_page = nullptr;  // outlives the server; nullptr: there is none
};

struct AttachCounters {
  std::uint64_t accepted = 0;
  std::uint64_t attached = 0;
  std::uint64_t refused_policy = 0;     // not admitted, or not as that tenant
  std::uint64_t refused_limit = 0;      // too many agents, no memory, no descriptors
  std::uint64_t refused_request = 0;    // a field of ATTACH that cannot be
  std::uint64_t malformed = 0;          // messages that are none of ours
  std::uint64_t hello_timeouts = 0;
  std::uint64_t evicted = 0;            // half open, pushed out by a newer one
  std::uint64_t accept_errors = 0;
  std::uint64_t imports_refused = 0;
  std::array<std::uint64_t, kDropReasonCount> dropped{};  // by DropReason
};

class AttachServer {
 public:
  // Claims one link of `sessions`, which outlives the server.
  [[nodiscard]] static Result<std::unique_ptr<AttachServer>> create(const AttachServerOptions& options,
                                                                    Sessions& sessions, const Clock& clock);
  // All connections must have ended (empty()), or the worker must have ended already.
  ~AttachServer();

  // Handles what is there now; returns how much it did.
  std::size_t poll();
  // Readable when poll() has something to do; between two polls at the latest at next_deadline_ns().
  [[nodiscard]] int wait_fd() const noexcept { return epoll_.get(); }
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept;

  // Stops listening and tells every client goodbye; poll() until empty().
  void shut_down();
  [[nodiscard]] bool empty() const noexcept { return connections_.empty(); }
  [[nodiscard]] std::size_t agents() const noexcept;
  [[nodiscard]] const AttachCounters& counters() const noexcept { return counters_; }
  // Why the last one that the policy refused was turned away, as it was told; empty: none was.
  [[nodiscard]] const std::string& last_policy_refusal() const noexcept { return last_policy_refusal_; }

 private:
  struct Connection;
  using ConnectionMap = std::unordered_map<std::uint64_t, std::unique_ptr<Connection>>;

  AttachServer(const AttachServerOptions& options, Sessions& sessions, SessionLink& link, const Clock& clock);
  [[nodiscard]] Result<void> start();

  // attach_server.cc: sockets and deadlines
  std::size_t accept_all(TimeNs now_ns);
  void accept_one(UniqueFd socket, TimeNs now_ns);
  void on_event(std::uint64_t key);
  void read(Connection& connection);
  std::size_t expire(TimeNs now_ns);
  void evict_oldest();
  void listen(Connection& connection, bool messages);
  // Begins the end of a connection, or ends it at once where the worker holds nothing of it.
  void leave(Connection& connection, DropReason reason);
  void close(Connection& connection);
  void refuse(Connection& connection, const Error& error);
  void answer(Connection& connection, std::span<const std::byte> message, std::span<const int> fds);

  // attach_messages.cc: what the client said
  void on_message(Connection& connection, Received& message);
  void on_attach(Connection& connection, const Received& message);
  void on_get_arena(Connection& connection, const Received& message);
  void on_get_status(Connection& connection, const Received& message);
  void on_import(Connection& connection, Received& message);
  [[nodiscard]] Result<void> adopt(Connection& connection, const AttachMessage& message);

  // attach_notices.cc: what the worker said
  std::size_t take_notices();
  void on_notice(SessionNotice& notice);
  void on_adopted(Connection& connection, const SessionNotice& notice);
  void on_arena(Connection& connection, const SessionNotice& notice);
  void on_imported(Connection& connection, const SessionNotice& notice);
  void on_gone(Connection& connection, DropReason reason);

  AttachServerOptions options_;
  Sessions& sessions_;
  SessionLink& link_;
  const Clock& clock_;
  UniqueFd epoll_;
  UniqueFd listener_;
  transport::SocketFile socket_file_;
  ConnectionMap connections_;
  TimeNs accept_again_ns_ = 0;   // after the system ran out of descriptors; 0: now
  bool shutting_down_ = false;
  AttachCounters counters_;
  std::string last_policy_refusal_;
  Received received_;
};

}  // namespace kvrail::engine::ipc
