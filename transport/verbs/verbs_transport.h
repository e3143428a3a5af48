// The verbs transport: InfiniBand, RoCE v2 and iWARP by libibverbs and librdmacm.
//
// A lane is one connection of rdma_cm with two reliable queue pairs: control (frames, critical
// chunks, acknowledgements, leases) and bulk (RDMA WRITE with immediate, straight into leases). A
// device that lacks immediates has one queue pair, and each WRITE is followed by a SEND.
//
// Addresses are numeric: "10.0.0.1:7471", "[fd00::1]:7471", the address of an RDMA device's port.
//
// What a peer may write: it is told address and keys of each piece of a lease when the lease is
// exposed, and told when the lease is withdrawn. With memory windows of type 2 the keys are the
// lease's own, and the memory is given back when they are revoked: once the peer has confirmed that
// its last WRITE is done, or has not in time. Without, the keys are those of the registered memory,
// which is given back when the peer has confirmed or the lane's queue pairs have been destroyed. So a
// late write never lands in memory with another owner.
//
// Thread: create() and the destructor anywhere, everything else on the one thread that polls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "transport/handshake.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::verbs {

enum class WriteMode : std::uint8_t {
  automatic,        // WRITE with immediate where both ends have it
  write_then_send,  // one queue pair; a SEND tells what each WRITE has brought
};

struct VerbsOptions {
  NodeId node = 0;                   // never 0
  Incarnation incarnation = 0;       // never 0
  Psk psk;                           // empty: peers are not authenticated
  std::string listen_address;        // empty: this node only dials. Port 0: the kernel chooses
  std::vector<std::string> devices;  // names that may be used, as "mlx5_0"; empty: all
  bool integrity = true;             // digests travel with chunks, and the receiver checks them
  WriteMode mode = WriteMode::automatic;
  bool windows = true;  // leases have keys of their own, where the device has memory windows

  std::uint32_t max_lanes = 16;  // at most 64; fewer where a completion queue is smaller
  std::uint32_t max_leases = 1024;
  std::uint32_t max_chunks_in_flight = 256;  // per lane and class; a power of two, at most 256
  std::uint32_t max_chunk_bytes = wire::kMaxChunkBytes;
  std::uint32_t receive_slots = 64;  // of 33 KiB, per lane; 8 to 1024

  TimeNs handshake_timeout_ns = 5 * kSecondNs;
  // A queue pair says nothing to a side that only receives, so each lane says something itself.
  TimeNs keepalive_ns = kSecondNs;
  TimeNs silent_after_ns = 2'500 * kMillisecondNs;  // then the lane is lost
  TimeNs withdraw_timeout_ns = kSecondNs;           // then the queue pairs are destroyed

  // 7 would mean for ever on some devices; an ack is waited for 4.096 us x 2^ack_timeout.
  std::uint8_t retry_count = 6;
  std::uint8_t ack_timeout = 16;
};

struct VerbsCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused_lanes = 0;      // peers beyond max_lanes
  std::uint64_t handshakes_failed = 0;  // foreign programs, wrong keys, other versions
  std::uint64_t handshakes_timed_out = 0;
  std::uint64_t silent_lanes = 0;        // lost because nothing came for silent_after
  std::uint64_t withdraws_enforced = 0;  // lanes ended because a lease was not confirmed free
  std::uint64_t withdraws_revoked = 0;   // leases whose keys were revoked because of that instead
  std::uint64_t leases_in_windows = 0;   // told with keys of their own, by lane
  std::uint64_t bounced_chunks = 0;      // sources that were never registered, copied first
  std::uint64_t leases_registered = 0;   // sinks that were never registered, registered for once
  std::uint64_t regions_by_dmabuf = 0;       // device memory that was registered by its DMA-BUF,
  std::uint64_t regions_by_peer_memory = 0;  // or, that being refused, by its addresses
  std::uint64_t stale_completions = 0;   // of a queue pair that is gone, or told of twice
  std::uint64_t failed_completions = 0;  // by whatever status but flush
  std::uint64_t device_failures = 0;  // devices that died, completion queues that overran
  std::uint64_t ports_down = 0;       // links that went away
  std::uint64_t gid_changes = 0;
  // The longest that a device took to destroy a lane's queue pairs: microseconds, where soft-RoCE
  // waits until the packets that it has given to its card are sent.
  TimeNs longest_teardown_ns = 0;
  wire::FrameCounters frames;  // refused frames, by reason
};

class VerbsTransport : public Transport {
 public:
  /// Fails with one sentence: no RDMA device, a bad option, address_in_use, a limit of the system.
  [[nodiscard]] static Result<std::unique_ptr<VerbsTransport>> create(const VerbsOptions& options);

  /// Where peers can dial this node, with the port that the kernel chose; empty if not listening.
  [[nodiscard]] virtual std::string_view listen_address() const noexcept = 0;
  /// "rxe0", or "mlx5_0, mlx5_1": what is open.
  [[nodiscard]] virtual std::string_view devices() const noexcept = 0;
  [[nodiscard]] virtual const VerbsCounters& counters() const noexcept = 0;
  /// Puts the queue pairs of a lane into their error state, as a cable or a firmware might; for
  /// tests of recovery. False if there is no such lane.
  virtual bool break_lane(LaneId lane) noexcept = 0;
};

/// One sentence why verbs can't be used on this machine, or empty: whether a device is there.
[[nodiscard]] std::string why_unavailable();
/// The address of the best RDMA port (port_choice.h), as listen_address wants it, without a port
/// number: "10.0.0.1" or "[fd00::1]". Empty if no port has one.
[[nodiscard]] std::string own_address(const std::vector<std::string>& devices = {});

}  // namespace kvrail::transport::verbs
