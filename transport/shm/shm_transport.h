// Engines on one machine: frames and chunk descriptors through rings in shared memory.
//
// A chunk is a descriptor of the sender's memory. The receiver maps the sender's registered memory
// read-only and copies into its own lease, checking each digest unit while it is hot; so no engine
// ever writes another's memory. Memory that was not registered with a sealed memfd goes through a
// staging area of the lane, one copy more.
//
// Addresses: "shm:@name" (abstract socket) or "shm:/path/of/socket".
//
// Trust: the peer is an engine of the same user, or one that proved the key. All that it writes,
// indices, descriptors and file descriptors, is checked before use; a breach closes the lane.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/bits.h"
#include "kvrail/base/handle.h"
#include "transport/handshake.h"
#include "transport/shm/packet_socket.h"
#include "transport/socket_file.h"
#include "transport/transport.h"
#include "transport/wire/frame.h"

namespace kvrail::transport::shm {

struct ShmOptions {
  NodeId node = 0;
  Incarnation incarnation = 0;
  std::string listen_path;   // "@name" or an absolute path; empty: dials only
  const Psk* psk = nullptr;  // outlives the transport
  bool other_users = false;  // accept processes of other users (sensible with a key only)
  std::uint32_t max_lanes = 64;
  std::uint32_t max_leases = 4096;
  TimeNs handshake_ns = 5 * kSecondNs;
};

struct Lane;
struct LaneClass;

// The unit of the rings: a frame header fills one.
struct alignas(kCacheLineBytes) Cell {
  std::array<std::byte, kCacheLineBytes> bytes;
};
static_assert(sizeof(Cell) == wire::kFrameHeaderBytes);

class ShmTransport final : public Transport {
 public:
  [[nodiscard]] static Result<std::unique_ptr<ShmTransport>> open(const ShmOptions& options);
  ~ShmTransport() override;

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] Result<LaneId> open_lane(std::string_view address, std::uint64_t cookie) override;
  void close_lane(LaneId lane) noexcept override;
  [[nodiscard]] bool try_post_frame(LaneId lane,
                                    std::span<const std::byte> frame) noexcept override;
  [[nodiscard]] bool try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept override;
  void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept override;
  void withdraw(LeaseId lease) noexcept override;
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes, int fd) override;
  void unregister_memory(std::byte* base) noexcept override;
  [[nodiscard]] std::size_t poll(TimeNs now_ns, std::span<Event> events) noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return epoll_.get(); }
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept override;
  [[nodiscard]] LaneStats stats(LaneId lane) const noexcept override;

  // Refused frames and packets of all lanes so far, by reason.
  [[nodiscard]] const wire::FrameCounters& refused() const noexcept { return refused_; }

 private:
  friend struct Lane;

  enum class LeaseState : std::uint8_t { unused, exposed, withdrawn };
  struct LeaseSlot {
    LeaseState state = LeaseState::unused;
    LeaseId id;
    NodeId peer = 0;
    Payload sink;
  };
  // Memory of ours that peers may map.
  struct OwnArena {
    std::uint32_t id = 0;
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    UniqueFd fd;
  };
  // One contiguous part of a chunk's source.
  struct Segment {
    std::uint32_t arena = 0;  // 0: the lane's staging area
    std::uint32_t bytes = 0;
    std::uint64_t offset = 0;
  };
  using LaneTable = SlotTable<std::unique_ptr<Lane>, LaneTag>;

  explicit ShmTransport(const ShmOptions& options);

  // shm_setup.cc: connections
  [[nodiscard]] LaneId add_lane(UniqueFd socket, bool dialer, std::uint64_t cookie) noexcept;
  void poll_sockets() noexcept;
  void accept_lanes() noexcept;
  void read_socket(Lane& lane) noexcept;
  void on_handshake_packet(Lane& lane, std::span<const std::byte> packet) noexcept;
  void flush_handshake(Lane& lane) noexcept;
  void on_packet(Lane& lane, std::span<const std::byte> bytes, UniqueFd fd) noexcept;
  void on_arena(Lane& lane, const Packet& packet, const UniqueFd& fd) noexcept;
  void begin_dialled(Lane& lane) noexcept;
  void announce_arenas(Lane& lane) noexcept;
  void expire_handshakes() noexcept;
  void fail(Lane& lane, Status status) noexcept;
  void refuse(Lane& lane, wire::FrameError error) noexcept;

  // shm_send.cc
  [[nodiscard]] bool has_room(Lane& lane, std::size_t lane_class, std::uint32_t cells) noexcept;
  [[nodiscard]] std::size_t build_segments(Lane& lane, std::size_t lane_class,
                                           const ChunkPost& post) noexcept;
  [[nodiscard]] const OwnArena* own_arena(const std::byte* at, std::uint64_t bytes) const noexcept;
  void publish(Lane& lane, std::size_t lane_class) noexcept;
  void add_ack(Lane& lane, std::size_t lane_class, Code code) noexcept;
  void flush_ack(Lane& lane, std::size_t lane_class) noexcept;

  // shm_receive.cc
  std::size_t poll_lane(LaneId id, Lane& lane, std::span<Event> events) noexcept;
  std::size_t poll_ring(LaneId id, Lane& lane, std::size_t lane_class,
                        std::span<Event> events) noexcept;
  [[nodiscard]] bool take_header(Lane& lane, std::size_t lane_class) noexcept;
  [[nodiscard]] static bool is_drained(Lane& lane) noexcept;
  [[nodiscard]] bool on_message(Lane& lane, std::size_t cells, Event& event) noexcept;
  [[nodiscard]] bool on_chunk(Lane& lane, std::size_t lane_class, Event& event) noexcept;
  std::size_t on_ack(LaneId id, Lane& lane, std::span<Event> events) noexcept;
  void report_done(LaneId id, Lane& lane, LaneClass& one, Status status, Event& event) noexcept;
  [[nodiscard]] bool read_segments(Lane& lane, std::size_t lane_class,
                                   std::uint32_t bytes) noexcept;
  [[nodiscard]] const std::byte* resolve(Lane& lane, std::size_t lane_class,
                                         const Segment& segment) noexcept;
  [[nodiscard]] bool copy_and_verify(Lane& lane, std::size_t lane_class,
                                     const wire::FrameHeader& header, const Payload& sink,
                                     std::span<const std::uint64_t> digests, bool& intact) noexcept;
  std::size_t poll_down(LaneId id, Lane& lane, std::span<Event> events) noexcept;
  std::size_t poll_leases(std::span<Event> events) noexcept;

  ShmOptions options_;
  Caps caps_;
  HandshakeConfig handshake_;
  UniqueFd epoll_;
  UniqueFd listener_;
  SocketFile socket_file_;
  LaneTable lanes_;
  std::vector<LeaseSlot> leases_;
  std::vector<OwnArena> arenas_;
  std::uint32_t next_arena_ = 1;
  std::uint32_t withdrawn_pending_ = 0;
  std::uint32_t handshaking_ = 0;
  std::uint32_t next_lane_ = 0;  // poll starts at another lane each time
  TimeNs now_ns_ = 0;
  TimeNs sockets_read_ns_ = 0;
  bool armed_ = false;
  wire::FrameCounters refused_;
  // Scratch of one call, taken once.
  std::vector<Segment> segments_;
  std::size_t segment_count_ = 0;
  std::vector<Cell> scratch_;
  std::vector<Cell> frames_;  // what frame events of the last poll point to
  std::size_t frames_used_ = 0;
};

}  // namespace kvrail::transport::shm
