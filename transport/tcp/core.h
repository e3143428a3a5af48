// The transport itself: sockets, lanes, leases and the connections that may become lanes.
//
// create.cc    making
// core.cc      the contract's calls, the duty cycle
// listener.cc  accepting, greeting, pairing two sockets into a lane
//
// Thread: owner (tcp_transport.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/greeter.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/lease_table.h"
#include "transport/tcp/socket_io.h"
#include "transport/tcp/socket_setup.h"
#include "transport/tcp/tcp_transport.h"

namespace kvrail::transport::tcp {

/// Two for each lane, one for each stranger, and the listener.
[[nodiscard]] constexpr std::uint32_t sockets_needed(const TcpOptions& options) noexcept {
  return 2 * options.max_lanes + options.max_half_open + 1;
}

class Core final : public TcpTransport {
 public:
  Core(const TcpOptions& options, std::unique_ptr<SocketIo> io, std::string warning);
  ~Core() override;
  [[nodiscard]] Status start_listening(const Listening& listening) noexcept;

  [[nodiscard]] const Caps& caps() const noexcept override { return caps_; }
  [[nodiscard]] Result<LaneId> open_lane(std::string_view address, std::uint64_t cookie) override;
  void close_lane(LaneId lane) noexcept override;
  [[nodiscard]] bool try_post_frame(LaneId lane,
                                    std::span<const std::byte> frame) noexcept override;
  [[nodiscard]] bool try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept override;
  void expose(LeaseId lease, NodeId peer, const Payload& sink) noexcept override;
  void withdraw(LeaseId lease) noexcept override;
  [[nodiscard]] Result<void> register_memory(std::byte* base, std::uint64_t bytes,
                                             int fd) override;
  [[nodiscard]] std::size_t poll(TimeNs now_ns, std::span<Event> events) noexcept override;
  [[nodiscard]] int wait_fd() const noexcept override { return io_->wait_fd(); }
  [[nodiscard]] bool arm() noexcept override;
  [[nodiscard]] TimeNs next_deadline_ns() const noexcept override {
    return context_.next_deadline_ns;
  }
  [[nodiscard]] LaneStats stats(LaneId lane) const noexcept override;

  [[nodiscard]] std::string_view listen_address() const noexcept override {
    return listen_address_;
  }
  [[nodiscard]] std::string_view warning() const noexcept override { return warning_; }
  [[nodiscard]] std::string_view io_name() const noexcept override { return io_->name(); }
  [[nodiscard]] const TcpCounters& counters() const noexcept override { return counters_; }

 private:
  // core.cc
  [[nodiscard]] Lane* find(LaneId id) const noexcept;
  [[nodiscard]] std::uint32_t take_lane_slot() noexcept;
  [[nodiscard]] LaneId new_id(std::uint32_t index) noexcept;
  void activate(std::uint32_t lane) noexcept;
  [[nodiscard]] bool any_active() const noexcept;
  void service_lanes(EventSink& sink) noexcept;
  void send_acks() noexcept;
  void retire_lane(std::uint32_t index) noexcept;
  [[nodiscard]] bool reap_all() noexcept;
  void dispatch(IoOp& op) noexcept;
  void emit_withdrawn(EventSink& sink) noexcept;
  void end_lane(std::uint32_t index, Status status, Code outcome) noexcept;
  [[nodiscard]] IoSocket* take_socket() noexcept;
  void give_socket(IoSocket* socket) noexcept;

  // listener.cc
  void start_accept() noexcept;
  void on_accepted(IoOp& op) noexcept;
  void greet(int fd, bool loopback) noexcept;
  [[nodiscard]] Status dial_stream(std::uint32_t lane, LaneKind kind) noexcept;
  void on_greeter(std::uint32_t index) noexcept;
  void decide(Greeter& greeter) noexcept;
  [[nodiscard]] std::uint32_t find_half_lane(const Handshake& handshake) const noexcept;
  void join(Greeter& greeter) noexcept;
  void drop(Greeter& greeter) noexcept;
  [[nodiscard]] std::uint32_t free_greeter() const noexcept;
  void run_deadlines() noexcept;
  [[nodiscard]] HandshakeConfig handshake_config() const noexcept;

  TcpOptions options_;
  Caps caps_;
  std::string warning_;
  std::string listen_address_;
  std::unique_ptr<std::byte[]> scratch_;
  std::unique_ptr<SocketIo> io_;
  TcpCounters counters_;
  LeaseTable leases_;
  LaneContext context_;

  std::uint32_t socket_count_;
  std::unique_ptr<IoSocket[]> sockets_;
  std::vector<IoSocket*> free_sockets_;  // capacity for all from the start
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<SocketAddress> dial_addresses_;  // by lane
  std::vector<std::uint32_t> generations_;     // by lane
  std::vector<std::uint64_t> active_;          // a bit for each lane that needs service
  std::uint32_t next_lane_ = 0;                // where the search for a free slot begins
  std::vector<Greeter> greeters_;
  std::uint32_t half_open_ = 0;  // greeters that listen

  IoSocket* listener_ = nullptr;
  bool listener_loopback_ = false;
  TimeNs accept_again_ns_ = kNever;  // after an error that needs time to pass
};

}  // namespace kvrail::transport::tcp
