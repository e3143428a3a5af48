// Worker mode `dedicated`: a Transport polled by a Worker of its own, while the scheduler worker uses
// it through a LaneProxy, which is a Transport itself. So the core is the same code in every mode.
//
// Threads    "owner": the thread that uses the LaneProxy (the scheduler worker).
//            "lane": the lane worker's thread; it alone touches the real transport.
// State      commands_ : owner -> lane. events_ : lane -> owner. Frame bytes travel beside them in two
//            ByteRings, in the order of the records that name them.
//            real ids and proxy ids of lanes differ; the owner's side alone translates.
// Invariant  every record popped releases its bytes after use, in order, so a ring holds exactly the
//            bytes of the records that are in flight. A record that the real transport cannot take
//            yet (full) stays at the head: order is kept, nothing is dropped. What is for a lane that has
//            gone down is not waited for: frames are dropped, chunks are answered with lane_lost.
//            The proxy holds a lane_down back until every chunk of the lane has been answered.
// Edges      queues: boost spsc push(release) -> pop(acquire) publish a record and its frame bytes.
//            R1 ByteRing::tail_ store(release) -> R2 load(acquire): bytes are free before reuse.
//            armed_ as in worker.h (W1/C2), with owner as the one that parks.
// Relaxed    statistics: each value is a counter of its own.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "engine/runtime/pollable.h"
#include "engine/runtime/worker.h"
#include "kvrail/base/spsc_queue.h"
#include "transport/transport.h"

namespace kvrail::engine {

// Contiguous byte strings through a fixed buffer, first in, first out, one thread on each side.
class ByteRing {
 public:
  explicit ByteRing(std::size_t capacity) : capacity_(capacity), bytes_(std::make_unique<std::byte[]>(capacity)) {}
  // Producer: room for `count` contiguous bytes, or nullptr. `end` is what to pass to release().
  [[nodiscard]] std::byte* reserve(std::size_t count, std::uint64_t& end) noexcept;
  void commit(std::uint64_t end) noexcept { head_ = end; }
  // Consumer: everything before `end` may be overwritten.
  void release(std::uint64_t end) noexcept { tail_.store(end, std::memory_order_release); }  // R1 -> R2

 private:
  std::size_t capacity_;
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t head_ = 0;
  std::atomic<std::uint64_t> tail_{0};
};

class LaneWorker;

class LaneProxy final : public transport::Transport {
 public:
  explicit LaneProxy(LaneWorker& worker);
  ~LaneProxy() override;
  [[nodiscard]] const transport::Caps& caps() const noexcept override;
  [[nodiscard]] Result<transport::LaneId> open_lane(std::string_view address, std::uint64_t cookie) override;
  void close_lane(transport::LaneId lane) noexcept override;
  [[nodiscard]] bool try_post_frame(transport::LaneId lane, std::span<const std::byte> frame) noexcept override;
  [[nodiscard]] bool try_post_chunk(transport::LaneId lane, const transport::ChunkPost& chunk) noexcept override;
  void expose(transport::LeaseId lease, NodeId peer, const transport::Payload& sink) noexcept override;
  void withdraw(transport::LeaseId lease) noexcept override;
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes, int fd) override;
  void unregister_memory(std::byte* base) noexcept override;
  [[nodiscard]] std::size_t poll(TimeNs now_ns, std::span<transport::Event> events) noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override;
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] transport::LaneStats stats(transport::LaneId lane) const noexcept override;

 private:
  struct Lane {
    transport::LaneId real;      // invalid until the lane worker has opened it
    bool close_when_opened = false;
    std::uint32_t chunks = 0;    // posted and not answered
    bool down = false;           // and told when `chunks` is 0:
    transport::Event last;
  };
  using LaneTable = SlotTable<Lane, transport::LaneTag>;
  [[nodiscard]] transport::LaneId proxy_of(transport::LaneId real) noexcept;
  // False: the event concerns nobody any more, or is told later.
  [[nodiscard]] bool translate(transport::Event& event) noexcept;
  void chunk_answered(transport::LaneId lane) noexcept;

  LaneWorker& worker_;
  LaneTable lanes_;
  std::array<transport::LaneId, 256> by_real_index_{};
  std::uint64_t release_to_ = 0;   // frame bytes of the last poll, free again at the next
  transport::LaneId ended_;        // its last chunk has just been answered, and it is down
};

// The lane thread's half: owns the Worker that polls `real`. Created and destroyed by the Conductor;
// start() before the proxy is used, stop() after the owner has stopped.
class LaneWorker final : private Pollable {
 public:
  LaneWorker(transport::Transport& real, const WorkerOptions& options, const Clock& clock);
  ~LaneWorker() override;
  [[nodiscard]] Result<void> start() { return worker_.start(); }
  void stop() { worker_.stop(); }
  [[nodiscard]] const Worker& worker() const noexcept { return worker_; }

 private:
  friend class LaneProxy;
  static constexpr std::size_t kQueue = 8192;
  static constexpr std::size_t kMaxLanes = 256;
  static constexpr std::size_t kRingBytes = 16U << 20;
  static constexpr std::size_t kEventsPerCycle = 256;

  enum class CommandKind : std::uint8_t { open, close, frame, chunk, expose, withdraw };
  struct Command {
    CommandKind kind = CommandKind::frame;
    transport::LaneId lane;          // real, but for open: the proxy's
    transport::LaneId proxy;         // chunk
    std::uint64_t cookie = 0;
    transport::ChunkPost chunk;
    transport::LeaseId lease;
    NodeId peer = 0;
    transport::Payload sink;
    const std::byte* bytes = nullptr;   // frame, or the address to open
    std::size_t length = 0;
    std::uint64_t release_to = 0;
  };
  struct Note {                      // an event, or the answer to open
    bool answers_open = false;
    bool answers_chunk = false;      // of a lane that is gone
    transport::LaneId proxy;         // either: which
    transport::Event event;
    std::uint64_t release_to = 0;    // frame bytes end here
  };

  std::size_t cycle(TimeNs now_ns) noexcept override;
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] std::span<const int> wait_fds() const noexcept override;
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept override { return real_.next_deadline_ns(); }

  [[nodiscard]] bool push(const Command& command) noexcept;   // owner
  [[nodiscard]] bool run(const Command& command) noexcept;    // lane; false: not yet
  void open(const Command& command) noexcept;
  [[nodiscard]] bool gone(transport::LaneId lane) const noexcept;
  [[nodiscard]] bool answer_lost(const Command& command) noexcept;
  std::size_t run_commands() noexcept;
  std::size_t forward_events(TimeNs now_ns) noexcept;
  [[nodiscard]] bool forward(const transport::Event& event) noexcept;
  void tell(const Note& note) noexcept;
  void publish_stats(TimeNs now_ns) noexcept;

  struct SharedStats {
    std::array<std::atomic<std::uint64_t>, 7> values{};
  };

  transport::Transport& real_;
  SpscQueue<Command, kQueue> commands_;
  SpscQueue<Note, kQueue> events_;
  ByteRing command_bytes_{kRingBytes};
  ByteRing event_bytes_{kRingBytes};
  std::array<transport::Event, kEventsPerCycle> buffer_{};
  std::size_t buffered_ = 0;         // events of the last poll not forwarded yet
  std::size_t forwarded_ = 0;
  std::array<SharedStats, kMaxLanes> stats_;
  std::array<transport::LaneId, kMaxLanes> known_{};   // real lanes by index, for statistics
  std::array<transport::LaneId, kMaxLanes> down_{};    // real lanes that went down last, by index
  TimeNs stats_due_ns_ = 0;
  int wait_fd_ = -1;                 // readable: the parked owner has events
  std::array<int, 1> lane_fds_{};
  std::atomic<int> owner_parked_{0};
  Worker worker_;
};

}  // namespace kvrail::engine
