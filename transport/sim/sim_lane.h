// One simulated lane: what is under way in each direction. Private to transport/sim.
#pragma once

#include <array>
#include <memory>

#include "transport/fixed_ring.h"
#include "transport/sim/sim_network.h"

namespace kvrail::transport::sim {

inline constexpr std::size_t kControl = 0;  // frames, acknowledgements, critical chunks
inline constexpr std::size_t kBulk = 1;
inline constexpr std::size_t kMaxParts = 4;

struct ChunkInFlight {
  ChunkPost post;
  TimeNs posted_ns = 0;
  std::uint32_t use = 0;  // counts the slot's uses, so that events of an older use are known
  bool in_use = false;
  bool begun = false;     // the receiver's lease was looked up; bytes may have landed
  bool consumed = false;  // the receiver has reported it
  bool rejected = false;
  bool landed = false;  // all of it, and checked
  bool intact = true;
  std::uint8_t part_count = 0;
  std::uint8_t parts_landed = 0;                    // bit mask
  std::array<std::uint32_t, kMaxParts + 1> cuts{};  // part i is [cuts[i], cuts[i + 1])
};

struct Item {
  enum class Kind : std::uint8_t { frame, chunk, ack };
  Kind kind = Kind::frame;
  TimeNs arrival_ns = 0;
  std::uint32_t chunk = 0;     // chunk: in this direction's table; ack: in the other's
  std::uint32_t frame_at = 0;  // in frame_bytes
  std::uint32_t frame_size = 0;
  Status status;      // ack
  bool lost = false;  // frame: takes its way and time, but is not delivered
};

// From one side of the lane to the other. Items [0, arrived) of a queue wait for the receiver's
// poll, the others are under way.
struct Direction {
  Direction(const NodeOptions& sender, const NodeOptions& receiver, WireState& shared);

  [[nodiscard]] std::uint32_t take_chunk() noexcept;  // UINT32_MAX: none free
  void free_chunk(std::uint32_t index) noexcept;
  // A contiguous place for a frame, or UINT32_MAX.
  [[nodiscard]] std::uint32_t take_frame_bytes(std::uint32_t size) noexcept;
  void free_frame_bytes(std::uint32_t at, std::uint32_t size) noexcept;

  std::array<FixedRing<Item>, 2> queues;
  std::array<std::size_t, 2> arrived{0, 0};
  WireState* wire = nullptr;
  std::array<TimeNs, 2> last_arrival_ns{0, 0};
  std::vector<ChunkInFlight> chunks;
  std::vector<std::uint32_t> free_chunks;
  std::unique_ptr<std::byte[]> frame_bytes;
  std::uint32_t frame_capacity;
  std::uint32_t frame_head = 0;  // oldest byte in use
  std::uint32_t frame_tail = 0;  // next free byte
  std::uint32_t frames_held = 0;
  std::uint64_t queued_bytes = 0;
};

struct SimLane {
  enum class State : std::uint8_t { opening, up, closed };
  struct End {
    SimTransport* owner = nullptr;  // null: the node is gone
    NodeId node = 0;
    Incarnation incarnation = 0;
    LaneId id;
    std::uint64_t cookie = 0;
    State state = State::opening;
    Status down;             // why, once closed
    bool announced = false;  // lane_up was reported
    bool done = false;       // lane_down was reported and what it lent was given back
    LaneStats stats;
  };

  std::uint64_t id = 0;
  std::array<End, 2> ends;                               // 0 dialled
  std::array<std::unique_ptr<Direction>, 2> directions;  // [side] = from ends[side]
  bool cut = false;                                      // nothing arrives any more

  // Both sides have reported its end, or are gone.
  [[nodiscard]] bool is_over() const noexcept;
  // Makes what has come to the end of its way visible to the receiver.
  void pump(SimNetwork& network, int from, std::size_t lane_class) noexcept;
  // Writes one part of a chunk into the receiver's memory.
  void land(SimNetwork& network, int from, ChunkInFlight& chunk, std::size_t part) noexcept;
  void arrive(SimNetwork& network, int from, ChunkInFlight& chunk) noexcept;
  // Looks the lease up and checks the range. False: the receiver closes the lane.
  [[nodiscard]] bool begin(int from, ChunkInFlight& chunk) noexcept;
  // What is under way never arrives; chunk slots stay until their owner has reported them.
  void cut_both() noexcept;
  [[nodiscard]] bool has_begun(int receiver, LeaseId lease) const noexcept;
};

}  // namespace kvrail::transport::sim
