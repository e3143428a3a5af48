// The transport itself: devices, lanes, leases, the listener.
//
// create.cc  making
// core.cc    the contract's calls, the duty cycle
// events.cc  connection events, completions, events of the devices
//
// Thread: owner (verbs_transport.h).
#pragma once

#include <rdma/rdma_cma.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/verbs/lane.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::transport::verbs {

class Core final : public VerbsTransport {
 public:
  Core(const VerbsOptions& options, Devices devices);
  ~Core() override;
  [[nodiscard]] Result<void> start();

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] Result<LaneId> open_lane(std::string_view address, std::uint64_t cookie) override;
  void close_lane(LaneId lane) noexcept override;
  [[nodiscard]] bool try_post_frame(LaneId lane,
                                    std::span<const std::byte> frame) noexcept override;
  [[nodiscard]] bool try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept override;
  void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept override;
  void withdraw(LeaseId lease) noexcept override;
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes, int fd) override;
  void unregister_memory(std::byte* base) noexcept override { memory_.remove(base); }
  [[nodiscard]] std::size_t poll(TimeNs now_ns, std::span<Event> events) noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return wait_fd_; }
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept override { return next_deadline_ns_; }
  [[nodiscard]] LaneStats stats(LaneId lane) const noexcept override;

  [[nodiscard]] std::string_view listen_address() const noexcept override {
    return listen_address_;
  }
  [[nodiscard]] std::string_view devices() const noexcept override { return device_names_; }
  [[nodiscard]] const VerbsCounters& counters() const noexcept override { return counters_; }
  bool break_lane(LaneId lane) noexcept override;

 private:
  static constexpr std::uint32_t kNoLane = UINT32_MAX;
  enum class Source : std::uint32_t { connections, notices, devices };  // of what wait_fd tells
  // create.cc
  [[nodiscard]] Result<void> make_wait();
  [[nodiscard]] Result<void> listen();
  // core.cc
  [[nodiscard]] Lane* find(LaneId id) const noexcept;
  [[nodiscard]] std::uint32_t take_lane() noexcept;
  [[nodiscard]] LaneId new_id(std::uint32_t index) noexcept;
  [[nodiscard]] bool register_sink(LeaseId lease, const Payload& sink) noexcept;
  void emit_withdrawn(EventSink& sink) noexcept;
  void service_lanes(EventSink& sink) noexcept;
  template <class F>
  void for_each_used(F&& f) noexcept {
    for (std::uint64_t left = used_; left != 0; left &= left - 1) {
      f(*lanes_[static_cast<std::size_t>(std::countr_zero(left))]);
    }
  }
  // events.cc
  void read_events() noexcept;
  void read_connection_events() noexcept;
  void on_request(rdma_cm_id* request, const ConnectionEvent& event) noexcept;
  bool poll_completions() noexcept;
  void drain_notices() noexcept;
  void read_device_events() noexcept;
  void on_device_event(Device& device, ibv_event_type type, std::uint8_t port) noexcept;
  void mend_overrun(Device& device) noexcept;
  template <class IsHit>
  void end_lanes(const Device& device, int why, IsHit&& is_hit) noexcept;

  VerbsOptions options_;
  Caps caps_;
  VerbsCounters counters_;
  Devices devices_;
  std::string device_names_;
  std::string listen_address_;
  MemoryMap memory_;
  OwnLeases leases_;
  SegmentPool segments_;
  BouncePool bounce_;
  LaneContext context_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::uint32_t> generations_;             // by lane
  std::uint32_t next_lane_ = 0;                        // where the search for a free slot begins
  std::uint64_t used_ = 0;                             // a bit for each lane that is not unused
  std::vector<std::vector<std::byte*>> lease_ranges_;  // by slot: registered for this lease alone
  rdma_cm_id* listener_ = nullptr;
  int wait_fd_ = -1;
  bool armed_ = false;
  bool unfinished_ = false;  // a lane has work that no completion will tell of
  TimeNs events_read_ns_ = 0;
  TimeNs next_deadline_ns_ = kNoDeadline;
};

}  // namespace kvrail::transport::verbs
