// The tcp transport: any network, and the default between nodes. Two sockets make a lane: control
// (frames, critical chunks, acknowledgements) and bulk (all other chunks), so that a small urgent
// message never waits behind megabytes in one socket's buffers.
//
// Addresses are numeric: "127.0.0.1:7400", "[::1]:7400". A lane that one node dialled carries
// chunks both ways; if both nodes dial, there are two lanes, and which to use is the caller's
// business.
//
// Thread: create() and the destructor anywhere, everything else on the one thread that polls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "transport/handshake.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::tcp {

enum class IoChoice : std::uint8_t {
  automatic,  // io_uring, or epoll with a warning where the system refuses io_uring
  io_uring,
  epoll,
};

enum class Integrity : std::uint8_t {
  full,  // digests travel with chunks, and the receiver checks each unit while it is hot
  off,
};

enum class ZeroCopy : std::uint8_t {
  off,
  // Bulk chunks leave without being copied into the kernel. Only for sources that do not change
  // from post to completion, which the digests prove: chunks without digests are copied as ever.
  // Needs Integrity::full; uses the epoll back end.
  vmsplice,
};

struct TcpOptions {
  NodeId node = 0;              // never 0
  Incarnation incarnation = 0;  // never 0
  Psk psk;                      // empty: peers are not authenticated
  std::string listen_address;  // empty: this node only dials. Port 0: the kernel chooses

  IoChoice io = IoChoice::automatic;
  Integrity integrity = Integrity::full;
  ZeroCopy zero_copy = ZeroCopy::off;

  // Limits; the memory for all of them is taken by create().
  std::uint32_t max_lanes = 16;
  std::uint32_t max_half_open = 64;           // accepted, not yet through the handshake
  std::uint32_t max_leases = 1024;
  std::uint32_t max_chunks_in_flight = 256;   // per lane and class; a power of two
  std::uint32_t max_chunk_bytes = wire::kMaxChunkBytes;
  std::uint32_t frame_queue_bytes = 256 * 1024;  // per lane; a power of two
  int accept_backlog = 128;

  TimeNs handshake_timeout_ns = 2 * kSecondNs;
  TimeNs half_lane_timeout_ns = 2 * kSecondNs;  // the second socket must follow the first

  // Sockets. An empty name: cubic if the address is a loopback one (bbr, the default of some
  // systems, halves its throughput), else the system's default.
  std::string congestion_control;
  std::uint64_t bulk_rate_bytes_per_s = 0;  // paces the bulk socket; 0: unpaced
  std::uint32_t user_timeout_ms = 10'000;   // unacknowledged data ends the connection after this
  std::uint32_t send_buffer_bytes = 0;      // 0: the kernel's autotuning, which is rarely beaten
  std::uint32_t receive_buffer_bytes = 0;
};

struct TcpCounters {
  std::uint64_t accepted = 0;
  std::uint64_t refused_half_open = 0;   // more strangers at once than max_half_open
  std::uint64_t refused_lanes = 0;       // peers beyond max_lanes
  std::uint64_t handshakes_failed = 0;   // foreign programs, wrong keys, other versions
  std::uint64_t handshakes_timed_out = 0;
  std::uint64_t unpaired = 0;            // a first socket whose second never came, or the reverse
  std::uint64_t accept_errors = 0;
  wire::FrameCounters frames;            // refused frames of established lanes, by reason
  wire::FrameCounters handshake_frames;  // and of connections that never became one
};

class TcpTransport : public Transport {
 public:
  /// Fails with one sentence: a bad option, address_in_use, or what else the system said.
  [[nodiscard]] static Result<std::unique_ptr<TcpTransport>> create(const TcpOptions& options);

  /// Where peers can dial this node, with the port that the kernel chose; empty if not listening.
  [[nodiscard]] virtual std::string_view listen_address() const noexcept = 0;
  /// One line for the log, or empty: that io_uring was refused and why.
  [[nodiscard]] virtual std::string_view warning() const noexcept = 0;
  /// "io_uring" or "epoll".
  [[nodiscard]] virtual std::string_view io_name() const noexcept = 0;
  [[nodiscard]] virtual const TcpCounters& counters() const noexcept = 0;
};

}  // namespace kvrail::transport::tcp
