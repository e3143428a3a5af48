// One lane between two engines of a machine, and the memory that they share for it. Private to
// transport/shm.
//
// Threads    one on each side, each the owner of its ShmTransport
// State      rings: see shared_ring.h, two in each direction, [control] with frames,
//            acknowledgements and critical chunks, [bulk] with the other chunks
//            closed[side] (shared): set once by that side, before it gives up its chunks
//            staging (shared): written by the sender, read by the receiver between post and ack
// Invariant  acknowledgements in a ring never exceed the other side's unacknowledged chunks, and
//            kReservedCells stay free for them, so an acknowledgement always finds a cell and
//            neither side ever waits for the other to make room for one
// Edges      X1 closed.store + release fence -> X2 acquire fence + closed.load: a sender that
//            closes may reuse the memory of its chunks at once. A receiver that copied any byte
//            written after X1 sees closed at X2 and drops the chunk
// Relaxed    the accesses to closed themselves; the fences order them
// Wrap       ring indices: see shared_ring.h; frame sequence numbers wrap at 2^32 on both sides
#pragma once

#include <array>
#include <atomic>
#include <optional>

#include "kvrail/base/shared_ring.h"
#include "transport/fixed_ring.h"
#include "transport/shm/shm_transport.h"

namespace kvrail::transport::shm {

inline constexpr std::size_t kControl = 0;
inline constexpr std::size_t kBulk = 1;

inline constexpr std::uint32_t kRingCells = 4096;
inline constexpr std::uint32_t kMaxInFlight = 128;  // chunks of a lane and direction
inline constexpr std::uint32_t kReservedCells = kMaxInFlight;
inline constexpr std::uint32_t kChunkBytes = 256 * 1024;
inline constexpr std::uint32_t kFrameBytes = wire::kMaxMessageBytes;
inline constexpr std::uint32_t kSegmentsPerCell = 4;
inline constexpr std::uint32_t kDigestsPerCell = 8;
inline constexpr std::uint32_t kMaxSegments = wire::kMaxChunkDigests + 8;
inline constexpr std::size_t kStagingBytes = 4 * std::size_t{kChunkBytes};  // for each class
inline constexpr std::uint32_t kMaxPeerArenas = 256;
static_assert(1 + wire::kMaxChunkDigests / kDigestsPerCell + kMaxSegments / kSegmentsPerCell + 1 <
                  kRingCells - kReservedCells,
              "the largest chunk descriptor fits an empty ring");
static_assert(1 + kFrameBytes / sizeof(Cell) < kRingCells - kReservedCells);

// The lane's memory, the same on both sides: two closed flags, four rings, four staging areas.
struct LaneMemory {
  static constexpr std::size_t kRingBytes = RingMemory::required_bytes(kRingCells, sizeof(Cell));
  static constexpr std::size_t kFlagsBytes = 2 * kCacheLineBytes;
  static constexpr std::size_t kBytes = kFlagsBytes + 4 * kRingBytes + 4 * kStagingBytes;

  explicit LaneMemory(std::span<std::byte> whole) noexcept : memory(whole) {}
  void create() const noexcept;
  [[nodiscard]] std::atomic<std::uint32_t>& closed(int side) const noexcept;
  [[nodiscard]] std::span<std::byte> ring(int from, std::size_t lane_class) const noexcept;
  [[nodiscard]] std::span<std::byte> staging(int from, std::size_t lane_class) const noexcept;

  std::span<std::byte> memory;
};
static_assert(LaneMemory::kRingBytes % kCacheLineBytes == 0);

struct SentChunk {
  ChunkPost post;
  TimeNs posted_ns = 0;
  std::uint64_t staging_end = 0;  // free-running; equal to the one before if nothing was staged
};

struct PendingAck {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
  Code code = Code::ok;
};

// One class of one lane, both directions.
struct LaneClass {
  std::optional<RingProducer<Cell>> out;
  std::optional<RingConsumer<Cell>> in;
  std::uint32_t out_sequence = 0;
  std::uint32_t in_sequence = 0;
  FixedRing<SentChunk> sent{kMaxInFlight};
  std::uint64_t sent_base = 0;     // number of the oldest chunk in `sent`
  std::uint64_t received = 0;      // chunks received so far: the number of the next
  std::uint64_t staging_head = 0;  // free-running byte counts
  std::uint64_t staging_tail = 0;
  PendingAck ack;
  bool has_header = false;  // `header` was taken from the ring, its body was not
  wire::FrameHeader header;
};

struct PeerArena {
  std::uint64_t id = 0;
  Mapping mapping;
};

struct Lane {
  enum class State : std::uint8_t { handshake, awaiting_setup, up, down };

  Lane(UniqueFd connected, bool dials, const Handshake& machine) noexcept;

  UniqueFd socket;
  bool dialer;
  State state = State::handshake;
  LaneId id;
  std::uint64_t cookie = 0;
  TimeNs deadline_ns = kNever;
  Handshake handshake;
  std::array<std::byte, wire::kMaxHandshakeBytes> handshake_payload{};
  wire::FrameParser parser;
  wire::FrameRules rules;
  bool announced = false;  // lane_up was reported
  bool peer_gone = false;  // socket closed: what is in the rings is all there will be
  Status down;
  LaneStats stats;

  Mapping mapping;
  std::array<LaneClass, 2> classes;
  std::vector<PeerArena> arenas;
  std::uint32_t announced_arenas = 0;  // own arenas with an id below this are known to the peer
  std::size_t last_arena = 0;          // where the last look-up hit

  [[nodiscard]] int side() const noexcept { return dialer ? 0 : 1; }
  [[nodiscard]] LaneMemory memory() const noexcept { return LaneMemory(mapping.span()); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    return static_cast<std::uint32_t>(classes[kControl].sent.size() + classes[kBulk].sent.size());
  }
  void make_rings() noexcept;
  // X1: from here on the peer drops what it copies.
  void close_memory() noexcept;
  // X2
  [[nodiscard]] bool peer_closed() const noexcept;
  // Tells the peer's sleeping reader through the socket; a full socket holds such news already.
  void wake_peer() noexcept;
};

}  // namespace kvrail::transport::shm
