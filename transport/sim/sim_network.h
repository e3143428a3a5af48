// A network of simulated nodes in one thread: virtual time, one seed, every run the same again.
//
// The driver owns time. It polls its nodes, then calls advance_to(next_event_ns()) or any later
// time; in between the network moves bytes: parts of a chunk land in the receiver's memory in
// random order between post and arrival, read from the sender's memory at that moment, so code that
// frees or reuses memory too early is caught by its contents (and by ASan). Frames, chunks and
// acknowledgements keep the order that transport.h promises, under any jitter.
//
// Faults: rate, latency and jitter for each link, flipped bits, dropped frames (what a lost DONE
// is), lost lanes, partitions, crashes and restarts, nodes that stop polling.
//
// Thread: one. Memory for lanes is taken when a lane opens, all else at construction.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kvrail/base/prng.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"
#include "transport/transport.h"

namespace kvrail::transport::sim {

// One direction between two nodes.
struct LinkModel {
  std::uint64_t rate_bytes_per_s = 125'000'000;
  TimeNs latency_ns = 50 * kMicrosecondNs;
  TimeNs jitter_mean_ns = 0;             // exponential, on top of latency
  std::uint64_t queue_bytes = 8u << 20;  // posted, not yet arrived; more is refused: back-pressure
  double frame_drop = 0;                 // a posted frame vanishes
  double chunk_flip = 0;                 // one bit of a chunk changes on the way
};

struct NetworkOptions {
  std::uint64_t seed = 1;
  LinkModel link;                         // of every pair that set_link() did not name
  TimeNs start_ns = kSecondNs;            // not 0, so that "never" and "at the start" differ
  TimeNs retry_ns = 20 * kMillisecondNs;  // how often a partitioned link tries again
  TimeNs connect_timeout_ns = kSecondNs;  // open_lane into a partition or a silent node
};

struct NodeOptions {
  std::uint32_t max_lanes = 32;
  std::uint32_t max_leases = 256;
  std::uint32_t max_chunks_in_flight = 256;
  std::uint32_t max_frame_bytes = 64 * 1024;
  std::uint32_t frame_queue_bytes = 256 * 1024;  // for each lane and direction
};

class SimTransport;
struct SimLane;

// When the wire from one node to another is done with what was posted, for each class; shared by
// all lanes of the pair.
struct WireState {
  TimeNs free_at_ns[2]{0, 0};
};

class SimNetwork {
 public:
  explicit SimNetwork(const NetworkOptions& options = {});
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;
  ~SimNetwork();

  // A node appears; its address is "sim:<id>". At most one live transport for each id; the network
  // outlives them all. Destroying the transport is a crash of the node.
  [[nodiscard]] std::unique_ptr<SimTransport> add_node(NodeId node, Incarnation incarnation,
                                                       const NodeOptions& options = {});

  [[nodiscard]] VirtualClock& clock() noexcept { return clock_; }
  [[nodiscard]] TimeNs now_ns() const noexcept { return clock_.now_ns(); }
  // When the network next changes anything that a node could see, or kNever.
  [[nodiscard]] TimeNs next_event_ns() const noexcept;
  // Moves time forward, through all events up to and including `to_ns`.
  void advance_to(TimeNs to_ns) noexcept;

  void set_link(NodeId from, NodeId to, const LinkModel& model);  // one direction
  void set_links(NodeId a, NodeId b, const LinkModel& model);     // both
  void set_partitioned(NodeId a, NodeId b, bool partitioned);     // lanes stay up, nothing passes
  void lose_lanes(NodeId a, NodeId b) noexcept;                   // both ends see lane_lost
  // The node's transport is dead from now on. Its peers see lane_lost after the latency; when
  // silent (power cut), they see nothing, and must notice by themselves.
  void crash(NodeId node, bool silent = false) noexcept;
  // poll() of the node does nothing until then: a stopped or overloaded process.
  void set_stuck_until(NodeId node, TimeNs until_ns);
  // Decides over each posted frame; true loses it. Beside LinkModel::frame_drop. It may change the bytes, as a
  // hostile sender would choose them.
  using FrameFilter = std::function<bool(NodeId from, NodeId to, std::span<std::byte>)>;
  void set_frame_filter(FrameFilter filter) { filter_ = std::move(filter); }

  // Of everything that happened so far, in order: two runs of one seed must agree.
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_; }
  [[nodiscard]] std::uint64_t events_run() const noexcept { return events_run_; }

 private:
  friend class SimTransport;
  friend struct SimLane;

  enum class Kind : std::uint8_t { connect, connected, closed, pump, land };
  struct NetEvent {
    TimeNs at_ns = 0;
    std::uint64_t sequence = 0;  // order of making, so that equal times stay in order
    Kind kind = Kind::pump;
    std::uint8_t side = 0;  // sending side of the direction, or the side to be told
    std::uint8_t lane_class = 0;
    std::uint8_t part = 0;
    bool local = false;  // closed: seen without a word from the peer
    std::uint32_t chunk = 0;
    std::uint32_t chunk_use = 0;
    std::uint64_t lane = 0;
  };
  struct Later {
    bool operator()(const NetEvent& a, const NetEvent& b) const noexcept {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.sequence > b.sequence;
    }
  };

  void schedule(NetEvent event) noexcept;
  void run(const NetEvent& event) noexcept;
  void note(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) noexcept;
  [[nodiscard]] const LinkModel& link(NodeId from, NodeId to) const noexcept;
  [[nodiscard]] bool partitioned(NodeId a, NodeId b) const noexcept;
  [[nodiscard]] TimeNs stuck_until(NodeId node) const noexcept;
  [[nodiscard]] SimTransport* live(NodeId node) noexcept;
  [[nodiscard]] TimeNs flight_ns(NodeId from, NodeId to) noexcept;
  [[nodiscard]] SimLane* lane(std::uint64_t id) noexcept;
  [[nodiscard]] std::uint64_t open(SimTransport& dialer, NodeId target);
  void on_connect(SimLane& lane) noexcept;
  void on_connected(SimLane& lane) noexcept;
  void detach(SimTransport& node, bool silent) noexcept;
  void tell_closed(SimLane& lane, int side, TimeNs delay_ns, bool local = false) noexcept;
  void forget_if_done(SimLane& lane) noexcept;
  [[nodiscard]] WireState& wire(NodeId from, NodeId to) { return wires_[{from, to}]; }

  NetworkOptions options_;
  VirtualClock clock_;
  Prng prng_;
  std::vector<NetEvent> heap_;
  std::uint64_t next_sequence_ = 0;
  std::uint64_t next_lane_ = 1;
  std::uint64_t trace_ = 0;
  std::uint64_t events_run_ = 0;
  std::map<std::pair<NodeId, NodeId>, LinkModel> links_;
  std::map<std::pair<NodeId, NodeId>, WireState> wires_;
  std::map<std::pair<NodeId, NodeId>, bool> partitions_;
  std::map<NodeId, TimeNs> stuck_;
  std::map<NodeId, SimTransport*> nodes_;
  std::map<std::uint64_t, std::unique_ptr<SimLane>> lanes_;
  FrameFilter filter_;
};

}  // namespace kvrail::transport::sim
