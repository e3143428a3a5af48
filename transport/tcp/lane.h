// One lane: two sockets to one peer, and all that is queued on them.
//
// lane.cc          life: opening, ending, events of its own
// lane_send.cc     frames, acknowledgements and chunks become gather lists
// lane_receive.cc  the streams taken apart; chunk payloads go straight into leases
//
// Thread: owner.
// Invariant: no memory of a chunk or lease is given back while an operation that names it is in
// flight: chunks wait in ChunkRing, leases count this lane's streams as writers.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/event_sink.h"
#include "transport/tcp/lease_table.h"
#include "transport/tcp/send_queues.h"
#include "transport/tcp/socket_io.h"
#include "transport/tcp/tcp_transport.h"

namespace kvrail::transport::tcp {

/// What all lanes share; owned by the transport.
struct LaneContext {
  SocketIo& io;
  LeaseTable& leases;
  const TcpOptions& options;
  TcpCounters& counters;
  std::span<std::byte> scratch;  // where the bytes of refused chunks go; never read
  TimeNs now_ns = 0;             // of the present poll
  std::uint64_t epoch = 0;       // number of the present poll
  TimeNs next_deadline_ns = Transport::kNoDeadline;

  void note_deadline(TimeNs deadline_ns) noexcept {
    next_deadline_ns = deadline_ns < next_deadline_ns ? deadline_ns : next_deadline_ns;
  }
};

/// A socket that has been through the handshake, ready to be a stream of a lane.
struct GreetedSocket {
  IoSocket* socket = nullptr;
  wire::FrameRules rules;
  std::uint32_t frames_sent = 0;
  std::uint32_t frames_received = 0;
};

enum class LaneState : std::uint8_t {
  unused,
  opening,  // one socket or none yet
  up,
  ending,   // lost or closed; operations in flight and events are still to come
  ended,    // nothing left but to return the sockets
};

inline constexpr std::size_t kControl = 0;
inline constexpr std::size_t kBulk = 1;
inline constexpr std::uint32_t kMaxIov = 128;

class Lane {
 public:
  Lane(LaneContext& context, std::uint32_t index);

  void open(LaneId id, bool dialled, std::uint64_t cookie, std::uint64_t pairing) noexcept;
  void set_peer(NodeId peer, Incarnation incarnation) noexcept;
  /// The second one brings the lane up.
  void attach(std::size_t stream, const GreetedSocket& greeted) noexcept;
  /// Ends the lane; unfinished chunks will complete with `outcome`. Later calls change nothing.
  void end(Status status, Code outcome) noexcept;

  /// open() failed before anything was started: back to unused, without an event.
  void abandon_open() noexcept;
  /// ended: the slot may be used again.
  void retire() noexcept;

  [[nodiscard]] bool try_post_frame(std::span<const std::byte> frame) noexcept;
  [[nodiscard]] bool try_post_chunk(const ChunkPost& post) noexcept;
  void on_withdraw(LeaseId lease) noexcept;
  void on_finished(std::size_t stream, IoOp& op) noexcept;
  /// deadline_ns has passed.
  void on_deadline() noexcept;
  /// Everything that needs no waiting. True: there is more to do in the next poll, whatever I/O
  /// says.
  [[nodiscard]] bool service(EventSink& sink) noexcept;
  /// Acknowledgements that were held back to be merged with later ones.
  [[nodiscard]] bool owes_acks() const noexcept {
    return unacked_bytes_ != 0 && state_ == LaneState::up && !fading_;
  }
  void send_acks_now() noexcept;

  [[nodiscard]] LaneState state() const noexcept { return state_; }
  [[nodiscard]] LaneId id() const noexcept { return id_; }
  [[nodiscard]] NodeId peer() const noexcept { return peer_; }
  [[nodiscard]] Incarnation incarnation() const noexcept { return incarnation_; }
  [[nodiscard]] std::uint64_t pairing() const noexcept { return pairing_; }
  [[nodiscard]] bool dialled() const noexcept { return dialled_; }
  [[nodiscard]] bool has(std::size_t stream) const noexcept {
    return in_[stream].socket != nullptr;
  }
  [[nodiscard]] const LaneStats& stats() const noexcept { return stats_; }
  /// The sockets to free once the lane has ended.
  [[nodiscard]] IoSocket* take_socket(std::size_t stream) noexcept;

  TimeNs deadline_ns = kNever;  // opening, fading: when waiting ends
  bool bulk_reserved = false;   // opening: the second socket is on its way

 private:
  struct SendItem {
    bool is_chunk = false;
    std::uint64_t number = 0;  // chunk
    std::uint64_t bytes = 0;   // still to send
  };
  struct OutStream {
    explicit OutStream(std::uint32_t capacity) : items(capacity) {}
    FixedQueue<SendItem> items;  // decided order; headers are written
    std::uint64_t queued_bytes = 0;
    std::uint32_t sequence = 0;
    std::uint32_t op_bytes = 0;
    Pipe pipe;  // open on bulk streams with zero-copy sends
    std::array<iovec, kMaxIov> iov{};
  };
  struct InStream {
    IoSocket* socket = nullptr;
    wire::FrameRules rules;
    std::uint32_t sequence = 0;
    std::unique_ptr<std::byte[]> staging;
    std::size_t capacity = 0;
    std::size_t begin = 0;  // staging: [begin, end) was received and not yet understood
    std::size_t end = 0;
    std::uint64_t view_epoch = 0;  // the poll whose events point into staging
    bool ended = false;            // the peer said its last, or the socket broke
    bool blocked = false;          // the sink or the acknowledgement queue is full
    // The chunk whose payload is arriving.
    bool in_chunk = false;
    bool to_lease = false;  // false: to scratch, to be refused
    bool corrupt = false;
    wire::FrameHeader header;
    std::unique_ptr<std::uint64_t[]> digests;
    std::uint32_t digest_bytes = 0;  // arrived
    std::uint32_t landed = 0;        // payload bytes arrived
    std::uint32_t units_checked = 0;
    // What the receive in flight was asked for.
    std::uint32_t op_digest_bytes = 0;
    std::uint32_t op_payload_bytes = 0;
    std::uint32_t op_tail_bytes = 0;
    bool op_writes_lease = false;
    std::uint32_t op_lease_slot = 0;
    std::array<iovec, kMaxIov> iov{};

    [[nodiscard]] std::uint32_t digests_total() const noexcept {
      return std::uint32_t{header.digest_count} * 8;
    }
    [[nodiscard]] bool chunk_is_whole() const noexcept {
      return digest_bytes == digests_total() && landed == header.payload_bytes;
    }
  };

  // lane.cc
  void reset() noexcept;
  [[nodiscard]] bool emit_done(EventSink& sink) noexcept;
  [[nodiscard]] bool service_ending(EventSink& sink) noexcept;
  void add_done_event(EventSink& sink, const OutChunk& chunk, Code code, bool critical) noexcept;
  [[nodiscard]] bool is_busy() const noexcept;
  void fade(int failure) noexcept;
  void refuse(wire::FrameError error) noexcept;

  // lane_send.cc
  void start_send(std::size_t stream) noexcept;
  [[nodiscard]] bool may_splice(std::size_t stream) noexcept;
  void write_acks() noexcept;
  void top_up(std::size_t stream) noexcept;
  void start_chunk(std::size_t stream) noexcept;
  [[nodiscard]] std::uint32_t gather(std::size_t stream, std::uint32_t& bytes) noexcept;
  void on_sent(std::size_t stream, std::int32_t result) noexcept;

  // lane_receive.cc
  [[nodiscard]] bool start_receive(std::size_t stream) noexcept;
  void aim_chunk(InStream& in, std::uint32_t& count) noexcept;
  void aim_tail(std::size_t stream, std::uint32_t& count) noexcept;
  void on_received(std::size_t stream, std::int32_t result) noexcept;
  void parse(std::size_t stream, EventSink& sink) noexcept;
  [[nodiscard]] bool parse_frame(std::size_t stream, EventSink& sink) noexcept;
  [[nodiscard]] bool take_message(InStream& in, EventSink& sink) noexcept;
  void begin_chunk(InStream& in) noexcept;
  void absorb_staging(InStream& in) noexcept;
  void on_landed(InStream& in, std::uint32_t bytes) noexcept;
  [[nodiscard]] bool finish_chunk(std::size_t stream, EventSink& sink) noexcept;

  LaneContext& context_;
  std::uint32_t index_;
  LaneState state_ = LaneState::unused;
  LaneId id_;
  bool dialled_ = false;
  bool announced_ = false;  // lane_up was delivered
  std::uint64_t cookie_ = 0;
  std::uint64_t pairing_ = 0;
  NodeId peer_ = 0;
  Incarnation incarnation_ = 0;
  bool fading_ = false;  // a socket broke; frames that had arrived are still read
  Status end_status_;
  Code end_outcome_ = Code::lane_lost;

  FrameRing frames_;
  std::array<ChunkRing, 2> chunks_;  // [kControl]: critical ones
  std::array<AckQueue, 2> acks_;
  std::uint64_t unacked_bytes_ = 0;  // received since acknowledgements were last sent
  std::array<OutStream, 2> out_;
  std::array<InStream, 2> in_;
  LaneStats stats_;
};

}  // namespace kvrail::transport::tcp
