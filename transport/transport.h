// The contract of every transport: how bytes move between two nodes. One conformance suite
// (tests/conformance) runs over all implementations.
//
// Thread: one owner, the Worker that polls it; nothing here is called from another thread.
// No call blocks, allocates, throws or formats after open(): "full" is `false`, never an error.
//
// A Lane is one ordered, reliable path to a Peer. It carries two kinds of things:
//   frames  small control messages, copied at post, delivered whole and in order;
//   chunks  byte ranges of a sender's Payload, landing in a lease that the receiver exposed.
// Chunks marked critical travel with the frames (the tcp transport keeps two sockets per lane, so
// they do not wait behind bulk); order holds among frames, among critical chunks and among bulk
// chunks, not between these. A lane dies as a whole; its unfinished chunks then complete with
// Code::lane_lost BEFORE its lane_down event, exactly once each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvrail/base/handle.h"
#include "kvrail/base/result.h"
#include "kvrail/base/status.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "transport/payload.h"

namespace kvrail::transport {

struct LaneTag;
using LaneId = Handle<LaneTag>;

// Receive memory promised to one transfer, as the receiver names it. The generation keeps a late
// chunk of an old lease from being taken for one of a new lease in the same slot.
struct LeaseId {
  std::uint32_t slot = 0;  // < Caps::max_leases
  std::uint32_t generation = 0;
  friend bool operator==(const LeaseId&, const LeaseId&) noexcept = default;
};

struct Caps {
  std::string_view name;               // "tcp", "shm", "sim"
  std::uint32_t max_frame_bytes = 0;   // a larger frame must be split by the caller
  std::uint32_t max_chunk_bytes = 0;
  std::uint32_t max_leases = 0;
  std::uint32_t max_chunks_in_flight = 0;  // per lane
  bool same_machine = false;
  bool verifies_digests = false;       // checks each unit in place, reports Code::corrupt
  bool registers_memory = false;       // register_memory() does something, and wants its opposite
};

// One byte range of a payload, to be written into the peer's lease at the same stream offset.
struct ChunkPost {
  LeaseId lease;
  TransferId transfer = 0;          // carried for checking and for traces
  const Payload* source = nullptr;  // alive until the chunk's completion event
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool critical = false;
  std::uint64_t cookie = 0;         // given back in the completion event
};

enum class EventKind : std::uint8_t {
  lane_up,          // peer, incarnation, lane, cookie (of open_lane, 0 when the peer dialled)
  lane_down,        // lane, status; also ends an open_lane that failed (cookie tells which)
  frame,            // lane, bytes: valid until the next poll()
  chunk_done,       // lane, cookie, status: the receiver has it (acknowledged), or it failed
  chunk_received,   // lane, lease, transfer, offset, length, status (ok or corrupt)
  lease_withdrawn,  // lease: nothing can be written into its memory any more
};

struct Event {
  EventKind kind = EventKind::frame;
  bool critical = false;
  LaneId lane;
  Status status;
  NodeId peer = 0;
  Incarnation incarnation = 0;
  std::uint64_t cookie = 0;
  LeaseId lease;
  TransferId transfer = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;
  TimeNs posted_ns = 0;     // chunk_done: when it was posted
  TimeNs completed_ns = 0;  // chunk_done: when the acknowledgement was seen
  std::span<const std::byte> bytes;
};

struct LaneStats {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t chunks_sent = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t malformed = 0;
  std::uint64_t digest_failures = 0;
};

class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual const Caps& caps() const noexcept = 0;

  // Starts opening a lane to `address` (form: each transport's own, documented there). The outcome
  // arrives as lane_up or lane_down with `cookie`. Control path: may allocate.
  [[nodiscard]] virtual Result<LaneId> open_lane(std::string_view address, std::uint64_t cookie) = 0;
  // Closes at once: unfinished chunks complete with `cancelled`, then lane_down follows.
  virtual void close_lane(LaneId lane) noexcept = 0;

  // True when the frame was taken (copied). False: full, try again after a later poll().
  [[nodiscard]] virtual bool try_post_frame(LaneId lane, std::span<const std::byte> frame) noexcept = 0;
  // True when the chunk was taken; exactly one chunk_done follows.
  [[nodiscard]] virtual bool try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept = 0;

  // Lets chunks of `peer` land in `sink`. The slot must be unused. The sink's arrays and memory
  // stay untouched by others until lease_withdrawn.
  virtual void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept = 0;
  // After this, chunks for the lease are drained and acknowledged as `rejected`; a lease_withdrawn
  // event follows once nothing can be written any more.
  virtual void withdraw(LeaseId lease) noexcept = 0;

  // Makes a long-lived range known before its memory is used in payloads (registration with a
  // NIC, an fd passed to a peer engine). `fd` is the memfd that is mapped there from its start, or
  // -1. Control path.
  [[nodiscard]] virtual Result<void> register_memory(std::byte* base, std::uint64_t bytes, int fd) = 0;

  // The range that starts at `base` goes away; no chunk in flight uses it. Control path.
  virtual void unregister_memory(std::byte* /*base*/) noexcept {}

  // Moves bytes and fills events, at most events.size(). Bounded work. Returns the event count.
  [[nodiscard]] virtual std::size_t poll(TimeNs now_ns, std::span<Event> events) noexcept = 0;

  // Parking (idle policy adaptive): wait_fd() becomes readable when poll() would find work.
  // arm() returns false if there is work already, so that no wake-up is lost.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  [[nodiscard]] virtual bool arm() noexcept = 0;
  // The next time poll() must run even without I/O (pacing, handshake deadlines), or kNoDeadline.
  static constexpr TimeNs kNoDeadline = INT64_MAX;
  [[nodiscard]] virtual TimeNs next_deadline_ns() const noexcept { return kNoDeadline; }

  [[nodiscard]] virtual LaneStats stats(LaneId lane) const noexcept = 0;
};

}  // namespace kvrail::transport
