// The engine's end of one attached agent: reads its submit ring, writes its completion ring.
//
// Threads    constructed and destroyed by the thread that attaches (Conductor, or an embedded
//            agent's own); in between, from Sessions::adopt to the notice `gone`, everything is the
//            worker's.
// State      rings as in kvrail/base/shared_ring.h; `processed` (shared) counts the submit records
//            that are done with, payload included; `room_wanted` (shared) is 1 while the agent sleeps
//            for ring or scratch space.
// Invariant  a record and its payload are copied once, and only the copies are judged and used.
//            One completion slot is always kept for the answer to the record in hand, so an event
//            that finds the ring full waits in the core and an answer never does.
// Edges      R1 processed store(seq_cst) -> agent's load(acquire): the payload copy is done before the
//            agent reuses the scratch. R2/R3 no lost wake-up for room: the engine stores processed,
//            then loads room_wanted; the agent stores room_wanted, then loads processed; all seq_cst.
//            F1/F2 the same for reading_wanted: the engine stores it, fence, loads the completion ring's
//            head; the agent stores head, fence, loads it. Both fences are seq_cst.
// Relaxed    the probe's words: a seqlock, see read_probe().
// Wrap       processed is a 64-bit count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/core/agent_port.h"
#include "engine/core/node.h"
#include "engine/ipc/control_memory.h"
#include "engine/ipc/fd.h"
#include "engine/ipc/record_check.h"
#include "kvrail/base/shared_ring.h"
#include "kvrail/probe.h"

namespace kvrail::engine::ipc {

// Why an agent is no longer served; counted by the attach server.
enum class DropReason : std::uint8_t {
  none = 0,
  detached = 1,         // it asked
  hung_up = 2,          // its process or socket is gone
  ring_corrupt = 3,     // it wrote an index that no correct agent writes
  protocol_breach = 4,  // too many records that no correct library writes, or a bad message
  not_reading = 5,      // its socket buffer is full
  shutting_down = 6,
};
inline constexpr std::size_t kDropReasonCount = 7;
[[nodiscard]] const char* name(DropReason reason) noexcept;

// Wakes an agent that sleeps. Never waits, whatever the agent does to its end.
class Bell {
 public:
  [[nodiscard]] static Bell socket(int fd) noexcept { return Bell(fd, true); }
  [[nodiscard]] static Bell eventfd(int fd) noexcept { return Bell(fd, false); }
  void ring() const noexcept;

 private:
  Bell(int fd, bool is_socket) noexcept : fd_(fd), is_socket_(is_socket) {}
  int fd_;
  bool is_socket_;
};

struct SessionCounters {
  std::uint64_t records = 0;
  std::uint64_t refused = 0;   // typed answers that are not ok
  std::uint64_t breaches = 0;
  std::uint64_t events = 0;
  std::uint64_t full = 0;      // events that found the completion ring full
  std::uint64_t bells = 0;
};

class AgentSession {
 public:
  // `submit_bell` is the eventfd that the agent writes; the session owns it. The memory outlives the
  // session.
  AgentSession(std::uint64_t id, const AgentInfo& info, ControlMemory memory, Bell bell, UniqueFd submit_bell);
  AgentSession(const AgentSession&) = delete;
  AgentSession& operator=(const AgentSession&) = delete;

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const AgentInfo& info() const noexcept { return info_; }
  [[nodiscard]] const ControlMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] int submit_bell() const noexcept { return submit_bell_.get(); }

  // What prepare() gave; taken by the worker when it adopts.
  void lend(AttachMemory memory) noexcept { attach_memory_ = std::move(memory); }
  [[nodiscard]] AttachMemory take_attach_memory() noexcept { return std::move(attach_memory_); }

  // ---- worker ----
  void bind(AgentHandle agent) noexcept { agent_ = agent; }
  [[nodiscard]] AgentHandle agent() const noexcept { return agent_; }
  // Handles up to `budget` records; `payload` is the worker's private buffer, at least as large as
  // the scratch. Returns how many were handled. Afterwards drop_reason() may be set.
  std::size_t poll(AgentCommands& commands, std::span<std::byte> payload, TimeNs now_ns,
                   std::size_t budget) noexcept;
  [[nodiscard]] bool try_push(const AgentEvent& event) noexcept;
  [[nodiscard]] DropReason drop_reason() const noexcept { return drop_; }
  // True if the agent has written its probe since the last call and a whole picture could be read.
  [[nodiscard]] bool read_probe(Probe& out) noexcept;
  // False: there is something to do. Records that wait for completion slots are nothing to do: the
  // agent signals when it has read.
  [[nodiscard]] bool prepare_park() noexcept;
  void cancel_park() noexcept { submit_.cancel_park(); }
  [[nodiscard]] const SessionCounters& counters() const noexcept { return counters_; }

 private:
  static constexpr std::uint64_t kMaxBreaches = 8;

  void handle(AgentCommands& commands, const SubmitRecord& record, std::span<std::byte> payload,
              TimeNs now_ns) noexcept;
  [[nodiscard]] Status run(AgentCommands& commands, const SubmitRecord& record,
                           std::span<std::byte> payload, TimeNs now_ns) noexcept;
  [[nodiscard]] Status run_named(AgentCommands& commands, const SubmitRecord& record,
                                 std::span<std::byte> payload, TimeNs now_ns) noexcept;
  [[nodiscard]] Status run_send(AgentCommands& commands, const SubmitRecord& record, const Name& name,
                                std::span<std::byte> payload, TimeNs now_ns) noexcept;
  [[nodiscard]] Status run_describe(AgentCommands& commands, const SubmitRecord& record, const Name& name,
                                    std::span<std::byte> payload) noexcept;
  [[nodiscard]] bool has_room(std::uint32_t slots) noexcept;
  void push(const CompletionRecord& record) noexcept;
  void report_processed() noexcept;

  std::uint64_t id_;
  AgentInfo info_;
  AttachMemory attach_memory_;
  ControlMemory memory_;
  ControlView view_;
  Bell bell_;
  UniqueFd submit_bell_;
  RingConsumer<SubmitRecord> submit_;
  RingProducer<CompletionRecord> completion_;
  AgentHandle agent_;
  std::uint64_t processed_ = 0;
  std::uint64_t probe_sequence_ = 0;
  std::uint32_t known_room_ = 0;
  std::size_t payload_at_ = 0;  // in scratch, behind the last one
  bool starved_ = false;   // an event or an answer found no slot
  DropReason drop_ = DropReason::none;
  SessionCounters counters_;
};

}  // namespace kvrail::engine::ipc
