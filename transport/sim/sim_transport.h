// A simulated node's end of SimNetwork: implements the transport contract. Addresses: "sim:<id>".
#pragma once

#include <memory>
#include <vector>

#include "transport/fixed_ring.h"
#include "transport/sim/sim_network.h"
#include "transport/transport.h"

namespace kvrail::transport::sim {

struct ChunkInFlight;
struct Item;

class SimTransport final : public Transport {
 public:
  ~SimTransport() override;

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] Result<LaneId> open_lane(std::string_view address, std::uint64_t cookie) override;
  void close_lane(LaneId lane) noexcept override;
  [[nodiscard]] bool try_post_frame(LaneId lane,
                                    std::span<const std::byte> frame) noexcept override;
  [[nodiscard]] bool try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept override;
  void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept override;
  void withdraw(LeaseId lease) noexcept override;
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes, int fd) override;
  [[nodiscard]] std::size_t poll(TimeNs now_ns, std::span<Event> events) noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return wait_fd_; }
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] LaneStats stats(LaneId lane) const noexcept override;

  [[nodiscard]] NodeId node() const noexcept { return node_; }
  [[nodiscard]] bool dead() const noexcept { return dead_; }

 private:
  friend class SimNetwork;
  friend struct SimLane;

  enum class LeaseState : std::uint8_t { unused, exposed, withdrawn };
  struct LeaseSlot {
    LeaseState state = LeaseState::unused;
    LeaseId id;
    NodeId peer = 0;
    Payload sink;
  };
  struct Attached {
    SimLane* lane = nullptr;
    int side = 0;
  };
  using LaneTable = SlotTable<Attached, LaneTag>;

  SimTransport(SimNetwork& network, NodeId node, Incarnation incarnation,
               const NodeOptions& options);

  // Of the network.
  [[nodiscard]] LaneId attach(SimLane& lane, int side) noexcept;
  void wake() noexcept;
  [[nodiscard]] const LeaseSlot* lease_for(LeaseId lease, NodeId peer) const noexcept;

  void end_lane(SimLane& lane, int side, Status status) noexcept;
  [[nodiscard]] bool has_work() noexcept;
  std::size_t poll_lane(LaneId id, Attached at, std::span<Event> events) noexcept;
  std::size_t poll_arrived(LaneId id, Attached at, std::span<Event> events) noexcept;
  [[nodiscard]] bool deliver(Attached at, const Item& item, Event& event) noexcept;
  std::size_t poll_closed(LaneId id, Attached at, std::span<Event> events) noexcept;
  std::size_t poll_leases(std::span<Event> events) noexcept;
  [[nodiscard]] bool is_drained(const LeaseSlot& slot) noexcept;
  void release_lent() noexcept;
  TimeNs post_item(SimLane& lane, int side, std::size_t lane_class, Item item,
                   std::uint64_t bytes) noexcept;
  void cut_into_parts(SimLane& lane, int side, std::uint32_t index, TimeNs arrival_ns) noexcept;

  SimNetwork& network_;
  NodeId node_;
  Incarnation incarnation_;
  NodeOptions options_;
  Caps caps_;
  LaneTable lanes_;
  std::vector<LeaseSlot> leases_;
  std::uint32_t withdrawn_pending_ = 0;
  // Frames handed out by the last poll: their bytes are freed at the next.
  struct LentFrame {
    std::uint64_t lane = 0;
    int from = 0;
    std::uint32_t at = 0;
    std::uint32_t size = 0;
  };
  FixedRing<LentFrame> lent_;
  std::vector<std::uint64_t> ended_;  // lanes whose lane_down the last poll reported
  std::uint32_t next_lane_ = 0;       // poll starts at another lane each time
  int wait_fd_ = -1;
  bool armed_ = false;
  bool signalled_ = false;
  bool dead_ = false;
};

}  // namespace kvrail::transport::sim
