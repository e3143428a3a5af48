// One lane: a connection, its queue pairs, and all that is queued on them.
//
// lane.cc          life: opening, ending, events of its own, credits
// lane_connect.cc  rdma_cm: queue pairs are made, joined and destroyed
// lane_send.cc     frames, acknowledgements and statements about leases become SENDs
// lane_write.cc    chunks become WRITEs
// lane_leases.cc   what is told to the peer, and what it tells
// lane_windows.cc  keys of leases: bound, revoked
// lane_receive.cc  messages taken apart, chunks checked where they landed
//
// Thread: owner.
// Invariants: a SEND is posted only against a receive that the peer has told of, so no receiver is
// ever without one; a chunk's memory is given back, and a lease confirmed as released, only after
// the completions of its WRITEs or the end of the queue pairs.
#pragma once

#include <rdma/rdma_cma.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/ack_queue.h"
#include "transport/event_sink.h"
#include "transport/fixed_ring.h"
#include "transport/handshake.h"
#include "transport/socket_address.h"
#include "transport/verbs/bounce_pool.h"
#include "transport/verbs/chunk_ring.h"
#include "transport/verbs/device.h"
#include "transport/verbs/digest_ring.h"
#include "transport/verbs/envelope.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs/own_leases.h"
#include "transport/verbs/peer_leases.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/send_ring.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::verbs {

inline constexpr std::size_t kControl = 0;
inline constexpr std::size_t kBulk = 1;
inline constexpr std::uint32_t kSendDepth = 128;  // of each queue pair
// Of them set aside for binding and revoking windows, and so the most ranges of a lease in windows.
inline constexpr std::uint32_t kBindSlots = kSendDepth / 8;
static_assert(kBindSlots <= Doorbell::kMost);
inline constexpr std::uint32_t kBulkReceives = 256;
inline constexpr std::uint32_t kMostReceiveSlots = 1024;
// Chunks that a peer may have under way, and the digests of them, in each class. Part of the
// protocol: the receiver has room for so many.
inline constexpr std::uint32_t kMaxUnacked = 256;
inline constexpr std::uint32_t kMaxDigestsAhead = 16 * 1024;

/// Completions that one lane can have at most, all at once.
[[nodiscard]] constexpr std::uint32_t completions_of_lane(const VerbsOptions& options) noexcept {
  return 2 * kSendDepth + options.receive_slots + kBulkReceives;
}

/// What all lanes share; owned by the transport.
struct LaneContext {
  const VerbsOptions& options;
  VerbsCounters& counters;
  Devices& devices;
  MemoryMap& memory;
  OwnLeases& leases;
  SegmentPool& segments;
  BouncePool& bounce;
  rdma_event_channel* events = nullptr;
  std::array<Doorbell, 2> doorbells{};
  std::unique_ptr<std::byte[]> statement = std::make_unique<std::byte[]>(kMaxBodyBytes);
  TimeNs now_ns = 0;  // of the present poll
  // Without queue pairs, of ports that are down: a goodbye that can't be sent now may break what
  // sends them (soft-RoCE's does for good), so it waits until a port is back.
  std::vector<rdma_cm_id*> unsaid{};
  void say_goodbyes() noexcept;
};

/// What a connection event says, copied before it is acknowledged.
struct ConnectionEvent {
  rdma_cm_event_type type = RDMA_CM_EVENT_ADDR_RESOLVED;
  int status = 0;
  std::array<std::byte, kGreetingBytes> greeting{};
  std::size_t greeting_bytes = 0;
};

enum class LaneState : std::uint8_t { unused, connecting, greeting, up, ended };

class Lane {
 public:
  Lane(LaneContext& context, std::uint32_t index);
  ~Lane();

  /// Starts dialling; on failure the lane is unused again.
  [[nodiscard]] Status dial(LaneId id, std::uint64_t cookie, const SocketAddress& to) noexcept;
  /// Takes a connection request. On failure it is turned away and the lane is unused again.
  [[nodiscard]] Status accept(LaneId id, rdma_cm_id* request,
                              const ConnectionEvent& event) noexcept;
  /// Up at once, over queue pairs that somebody else has joined, until disown(): what a benchmark
  /// does with a device that only seems to be one. Returns the receive slots.
  [[nodiscard]] std::span<std::byte> adopt(LaneId id, NodeId peer, Device& device,
                                           std::array<ibv_qp*, 2> pairs, ibv_mr* key);
  void disown() noexcept;
  void on_connection_event(const ConnectionEvent& event) noexcept;
  void on_completion(WorkId id, const ibv_wc& completion) noexcept;

  [[nodiscard]] bool try_post_frame(std::span<const std::byte> frame) noexcept;
  [[nodiscard]] bool try_post_chunk(const ChunkPost& post) noexcept;
  void tell_lease(std::uint32_t slot) noexcept;
  void tell_withdrawn(LeaseId lease) noexcept;

  /// The views of the last poll have expired: their slots are receives again.
  void repost() noexcept;
  /// Everything that needs no waiting. True: there is more to do in the next poll, whatever the
  /// device says.
  [[nodiscard]] bool service(EventSink& sink) noexcept;
  /// Timers. Returns when to look again.
  [[nodiscard]] TimeNs on_time() noexcept;
  /// Destroys the queue pairs; unfinished chunks will complete with `outcome`. Later calls change
  /// nothing.
  void end(Status status, Code outcome) noexcept;
  void break_pairs() noexcept;

  [[nodiscard]] LaneState state() const noexcept { return state_; }
  [[nodiscard]] LaneId id() const noexcept { return id_; }
  [[nodiscard]] NodeId peer() const noexcept { return peer_; }
  [[nodiscard]] std::uint64_t bit() const noexcept { return std::uint64_t{1} << index_; }
  [[nodiscard]] const LaneStats& stats() const noexcept { return stats_; }
  /// Where its queue pairs are: null before there are any.
  [[nodiscard]] const Device* device() const noexcept {
    return connection_ == nullptr ? nullptr : device_;
  }
  [[nodiscard]] std::uint8_t port() const noexcept { return connection_->port_num; }
  [[nodiscard]] const ibv_gid& gid() const noexcept {
    return connection_->route.addr.addr.ibaddr.sgid;
  }
  [[nodiscard]] bool has_spent() const noexcept { return control_spent_ != 0 || bulk_spent_ != 0; }

 private:
  struct InMessage {
    std::uint32_t slot = 0;
    std::uint32_t bytes = 0;
    std::uint32_t at = 0;  // read so far
    MessageKind kind = MessageKind::credit;
  };
  struct InChunk {
    wire::FrameHeader header;
    DigestRing::Place digests;
    std::uint64_t number = 0;
    bool landed = false;
    bool rejected = false;
  };
  struct Query {
    LeaseId lease;
    enum class State : std::uint8_t { idle, asked, refused, later } state = State::idle;
    TimeNs again_ns = 0;  // later
  };
  // Own leases on their way to the peer and back.
  struct Telling {
    std::uint32_t slot = 0;
    std::array<std::uint64_t, 2> work{};  // its bindings, by queue pair; 0: none
  };
  struct Revoking {
    LeaseId lease;
    std::array<std::uint64_t, 2> work{};  // its invalidations
  };
  struct Bound {  // the windows of one lease, in the order of its ranges
    std::array<std::uint32_t, 2> first{kNoWindow, kNoWindow};
    std::array<std::uint32_t, 2> last{kNoWindow, kNoWindow};
    bool revoking = false;
  };
  struct Range {  // contiguous, of one region
    std::byte* address = nullptr;
    std::uint32_t bytes = 0;  // 0: there is none
    const Region* region = nullptr;
  };
  struct RangeCursor {
    std::size_t piece = 0;
    std::uint64_t within = 0;
  };

  // lane.cc
  void reset() noexcept;
  void emit_up(EventSink& sink) noexcept;
  [[nodiscard]] bool emit_done(EventSink& sink) noexcept;
  [[nodiscard]] bool service_ended(EventSink& sink) noexcept;
  void add_done_event(EventSink& sink, const OutChunk& chunk, Code code) noexcept;
  void refuse(wire::FrameError error) noexcept;
  [[nodiscard]] bool is_alive() const noexcept {
    return state_ == LaneState::greeting || state_ == LaneState::up;
  }
  [[nodiscard]] bool has_bulk_pair() const noexcept { return queues_[kBulk].pair != nullptr; }
  void greet() noexcept;
  [[nodiscard]] TimeNs enforce_withdraw() noexcept;

  // lane_connect.cc
  [[nodiscard]] Status make_pairs() noexcept;
  [[nodiscard]] Status make_pair(std::size_t stream) noexcept;
  [[nodiscard]] Status make_memory() noexcept;
  [[nodiscard]] Status join_pairs() noexcept;
  [[nodiscard]] Status connect() noexcept;
  [[nodiscard]] bool take_greeting(const ConnectionEvent& event) noexcept;
  void destroy_pairs() noexcept;
  void forget_memory() noexcept;
  void post_receives() noexcept;

  // lane_send.cc
  [[nodiscard]] bool append_frame(wire::FrameHeader& header, std::span<const std::byte> payload,
                                  std::size_t spare) noexcept;
  [[nodiscard]] bool append_statement(MessageKind kind, LeaseId lease) noexcept;
  void write_acks() noexcept;
  void write_statements() noexcept;
  void flush() noexcept;
  void say_credits() noexcept;
  [[nodiscard]] std::uint32_t credits() const noexcept {
    return peer_control_posted_ - control_sent_;
  }

  // lane_write.cc
  void write_chunks(std::size_t stream) noexcept;
  enum class Begin : std::uint8_t { ready, wait, rejected };
  [[nodiscard]] Begin may_begin(OutChunk& chunk, std::size_t stream) noexcept;
  [[nodiscard]] bool begin_chunk(OutChunk& chunk, std::size_t stream) noexcept;
  [[nodiscard]] bool announce(OutChunk& chunk, std::size_t stream) noexcept;
  [[nodiscard]] bool write_more(OutChunk& chunk, std::size_t stream) noexcept;
  [[nodiscard]] bool write_one(OutChunk& chunk, Doorbell& doorbell, bool with_immediate) noexcept;
  [[nodiscard]] std::uint32_t gather(const OutChunk& chunk, std::uint64_t room,
                                     std::span<ibv_sge> parts, std::uint32_t& count) noexcept;
  [[nodiscard]] bool bounce(OutChunk& chunk) noexcept;
  void finish_writes(std::size_t stream) noexcept;

  // lane_leases.cc
  [[nodiscard]] bool tell_next() noexcept;
  void on_statement(const InMessage& message, std::span<const std::byte> body) noexcept;
  void on_lease_told(const LeaseHead& head, std::span<const std::byte> body) noexcept;
  void on_query(LeaseId lease) noexcept;
  void on_released(LeaseId lease) noexcept;
  [[nodiscard]] std::uint32_t key_of(const Range& range, std::uint32_t& window) noexcept;

  // lane_windows.cc
  [[nodiscard]] Range next_range(std::span<const Piece> pieces, RangeCursor& at) noexcept;
  [[nodiscard]] std::uint32_t ranges_for_windows(const Payload& sink) noexcept;
  void bind(std::size_t stream, const Payload& sink, Bound& bound) noexcept;
  [[nodiscard]] bool bind_next() noexcept;
  void make_bound() noexcept;
  [[nodiscard]] bool is_bound(std::uint32_t slot) const noexcept;
  void begin_revoke(LeaseId lease) noexcept;
  [[nodiscard]] bool revoke_next() noexcept;
  void finish_revokes() noexcept;
  [[nodiscard]] bool revoke_overdue() noexcept;
  void drop_windows() noexcept;

  // lane_receive.cc
  [[nodiscard]] bool is_expected(WorkId id) noexcept;
  [[nodiscard]] bool read_inbox(EventSink& sink) noexcept;
  [[nodiscard]] bool read_envelope(InMessage& message) noexcept;
  [[nodiscard]] bool read_frame(InMessage& message, EventSink& sink) noexcept;
  [[nodiscard]] bool take_message(const wire::FrameHeader& header,
                                  std::span<const std::byte> payload, EventSink& sink) noexcept;
  void take_handshake(std::span<const std::byte> payload) noexcept;
  void take_announcement(const wire::FrameHeader& header,
                         std::span<const std::byte> digests) noexcept;
  [[nodiscard]] bool finish_chunks(std::size_t stream, EventSink& sink) noexcept;
  void finish_chunk(std::size_t stream, InChunk& chunk, EventSink& sink) noexcept;
  [[nodiscard]] std::uint32_t take_slot(std::uint32_t& next) noexcept;
  [[nodiscard]] std::span<std::byte> slot_memory(std::uint32_t slot) noexcept;

  LaneContext& context_;
  std::uint32_t index_;
  LaneState state_ = LaneState::unused;
  LaneId id_;
  bool dialled_ = false;
  bool announced_ = false;  // lane_up was delivered
  bool connected_ = false;
  bool fading_ = false;   // the connection is gone; what had arrived is still read
  bool leaving_ = false;  // the handshake failed; the peer is still told why
  std::uint64_t cookie_ = 0;
  NodeId peer_ = 0;
  Incarnation incarnation_ = 0;
  Status end_status_;
  Code end_outcome_ = Code::lane_lost;

  rdma_cm_id* connection_ = nullptr;
  Device* device_ = nullptr;
  std::array<SendQueue, 2> queues_{};
  Greeting own_greeting_;
  Greeting peer_greeting_;
  std::unique_ptr<std::byte[]>
      memory_;  // receive slots, send ring, credit messages; from first use
  ibv_mr* memory_key_ = nullptr;
  std::optional<Handshake> handshake_;
  wire::FrameRules rules_;
  std::uint32_t in_sequence_ = 0;
  std::uint32_t out_sequence_ = 0;

  SendRing ring_;
  FixedRing<InMessage> inbox_;
  FixedRing<std::uint32_t> immediates_;
  std::uint32_t control_spent_ = 0;   // slots to be receives again
  std::uint32_t bulk_spent_ = 0;      // receives of the bulk pair to be posted again
  std::uint32_t control_posted_ = 0;  // receives posted so far; wraps
  std::uint32_t bulk_posted_ = 0;
  std::uint32_t control_received_ = 0;  // completions of those
  std::uint32_t bulk_received_ = 0;
  std::uint32_t posted_slot_ = 0;  // of the next receive to post
  std::uint32_t received_slot_ = 0;
  std::uint32_t control_told_ = 0;  // of them the peer was told
  std::uint32_t bulk_told_ = 0;
  std::uint32_t peer_control_posted_ = 0;
  std::uint32_t peer_bulk_posted_ = 0;
  std::uint32_t control_sent_ = 0;  // receives of the peer used so far; wraps
  std::uint32_t bulk_sent_ = 0;
  std::uint32_t next_credit_ = 0;

  std::array<ChunkRing, 2> chunks_;  // [kControl]: critical ones
  std::array<AckQueue, 2> acks_;
  std::array<std::uint64_t, 2> bytes_ahead_{};    // written, not known to be done
  std::array<std::uint32_t, 2> digests_ahead_{};  // announced, not acknowledged
  std::array<FixedRing<InChunk>, 2> incoming_;
  std::array<DigestRing, 2> in_digests_;
  std::array<std::uint64_t, 2> in_number_{};

  PeerLeases peer_leases_;
  std::array<Query, 2> queries_{};
  FixedRing<std::uint32_t> to_bind_;
  FixedRing<Telling> to_tell_;
  RangeCursor tell_at_;                       // of the one in front
  std::unique_ptr<Bound[]> bound_;            // by own lease slot; from first use
  FixedRing<LeaseId> to_revoke_;
  FixedRing<Revoking> revoking_;
  TimeNs revoke_since_ns_ = 0;        // the first was to be revoked, or the last one was
  std::uint32_t late_releases_ = 0;   // of leases that were revoked, still to come from the peer
  FixedRing<LeaseId> to_withdraw_;
  FixedRing<LeaseId> to_release_;
  FixedRing<LeaseId> to_deny_;
  std::uint32_t withdraws_owed_ = 0;  // by the peer
  TimeNs withdraw_since_ns_ = 0;      // the last one was asked for, or confirmed

  TimeNs heard_ns_ = 0;
  TimeNs said_ns_ = 0;
  TimeNs deadline_ns_ = kNever;  // connecting, greeting, leaving: when waiting ends
  LaneStats stats_;
};

}  // namespace kvrail::transport::verbs
