// What the tests of the shm transport share: nodes, ways to drive them, and a peer that speaks the
// protocol by hand.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/byte_order.h"
#include "kvrail/base/time.h"
#include "transport/shm/shm_lane.h"
#include "transport/shm/shm_transport.h"

namespace kvrail::test {

using namespace kvrail::transport;
using namespace kvrail::transport::shm;

inline constexpr TimeNs kPatienceNs = 20 * kSecondNs;
inline const SteadyClock kClock;

inline std::string fresh_name() {
  static std::atomic<int> count{0};
  return "@kvrail-shm-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

inline std::unique_ptr<ShmTransport> open_node(NodeId node, const std::string& listen,
                                               const Psk* psk = nullptr) {
  ShmOptions options;
  options.node = node;
  options.incarnation = node * 10;
  options.listen_path = listen;
  options.psk = psk;
  auto opened = ShmTransport::open(options);
  REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
  return std::move(*opened);
}

// Polls until `done` says so; parks on wait_fd() when there is nothing. False after kPatienceNs.
inline bool drive(ShmTransport& transport, const std::function<bool(const Event&)>& done) {
  const TimeNs give_up = kClock.now_ns() + kPatienceNs;
  std::array<Event, 16> events;
  while (kClock.now_ns() < give_up) {
    const std::size_t count = transport.poll(kClock.now_ns(), events);
    for (const Event& event : std::span(events).first(count)) {
      if (done(event)) return true;
    }
    if (count != 0 || !transport.arm()) continue;
    pollfd fd{transport.wait_fd(), POLLIN, 0};
    ::poll(&fd, 1, 1000);
  }
  return false;
}
inline bool poll_until(ShmTransport& transport, const std::function<bool()>& done) {
  const TimeNs give_up = kClock.now_ns() + kPatienceNs;
  std::array<Event, 16> events;
  while (kClock.now_ns() < give_up) {
    if (done()) return true;
    static_cast<void>(transport.poll(kClock.now_ns(), events));
  }
  return false;
}

// A sealed memfd, mapped.
struct TestMemory {
  explicit TestMemory(std::size_t bytes) { REQUIRE(make_shared(bytes, fd, mapping).ok()); }
  UniqueFd fd;
  Mapping mapping;
};

// Speaks the protocol by hand, so that it can break it anywhere.
class FakePeer {
 public:
  explicit FakePeer(const std::string& path) { REQUIRE(connect_to(path, socket_).ok()); }

  [[nodiscard]] int socket() const { return socket_.get(); }
  void send(std::span<const std::byte> bytes, int fd = -1) {
    REQUIRE(send_packet(socket_.get(), bytes, fd) == SocketResult::ok);
  }
  void send(const Packet& packet, int fd = -1) { send(std::as_bytes(std::span(&packet, 1)), fd); }

  void shake_hands(ShmTransport& victim, NodeId node = 66) {
    HandshakeConfig config;
    config.node = node;
    config.incarnation = 1;
    Handshake handshake = Handshake::dial(config, random_nonce(), LaneKind::control, 5);
    REQUIRE(poll_until(victim, [&] {
      std::array<std::byte, 1024> buffer;
      for (std::size_t size = handshake.next_frame(buffer); size != 0;
           size = handshake.next_frame(buffer)) {
        send(std::span(buffer).first(size));
      }
      Received received;
      if (receive_packet(socket_.get(), buffer, received) == SocketResult::ok) {
        handshake.on_payload(std::span(buffer).first(received.bytes).subspan(64));
      }
      return handshake.state() == Handshake::State::established;
    }));
    rules_ = handshake.rules();
  }
  // The lane's memory, as a correct dialer makes it.
  void set_up(ShmTransport& victim) {
    shake_hands(victim);
    REQUIRE(make_shared(LaneMemory::kBytes, fd_, mapping_).ok());
    memory().create();
    send(Packet{.type = PacketType::setup, .bytes = LaneMemory::kBytes}, fd_.get());
    REQUIRE(drive(victim, [](const Event& e) { return e.kind == EventKind::lane_up; }));
  }
  [[nodiscard]] LaneMemory memory() const { return LaneMemory(mapping_.span()); }
  [[nodiscard]] RingMemory& ring(std::size_t lane_class) const {
    return *reinterpret_cast<RingMemory*>(memory().ring(0, lane_class).data());
  }
  // Cells into a ring without any check.
  void put(std::size_t lane_class, std::span<const Cell> cells) {
    RingMemory& one = ring(lane_class);
    std::byte* slots = memory().ring(0, lane_class).data() + sizeof(RingMemory);
    const std::uint64_t tail = one.tail.load();
    for (std::size_t i = 0; i < cells.size(); ++i) {
      std::memcpy(slots + (tail + i) % kRingCells * sizeof(Cell), &cells[i], sizeof(Cell));
    }
    one.tail.store(tail + cells.size());
  }
  [[nodiscard]] wire::FrameHeader chunk(std::uint32_t bytes) const {
    wire::FrameHeader header;
    header.type = wire::FrameType::chunk;
    header.session = rules_.session;
    header.payload_bytes = bytes;
    header.lease = {1, 1};
    header.transfer = 1;
    return header;
  }
  [[nodiscard]] wire::FrameHeader ack(std::uint64_t first, std::uint32_t count) const {
    wire::FrameHeader header;
    header.type = wire::FrameType::ack;
    header.session = rules_.session;
    header.ack_first = first;
    header.ack_count = count;
    return header;
  }
  static Cell cell_of(const wire::FrameHeader& header) {
    Cell cell{};
    wire::encode_header(header, cell.bytes);
    return cell;
  }
  static Cell segment(std::uint32_t arena, std::uint32_t bytes, std::uint64_t offset) {
    Cell cell{};
    store_le32(cell.bytes.data(), arena);
    store_le32(cell.bytes.data() + 4, bytes);
    store_le64(cell.bytes.data() + 8, offset);
    return cell;
  }

 private:
  UniqueFd socket_;
  UniqueFd fd_;
  Mapping mapping_;
  wire::FrameRules rules_;
};

inline Status down_of(ShmTransport& victim) {
  Status status;
  REQUIRE(drive(victim, [&](const Event& event) {
    if (event.kind != EventKind::lane_down) return false;
    status = event.status;
    return true;
  }));
  return status;
}

// The victim still serves correct peers.
inline void check_alive(ShmTransport& victim, const std::string& name) {
  auto friendly = open_node(9, "");
  const auto opened = friendly->open_lane("shm:" + name, 1);
  REQUIRE(opened.ok());
  bool up = false;
  REQUIRE(poll_until(victim, [&] {
    std::array<Event, 4> events;
    const std::size_t count = friendly->poll(kClock.now_ns(), events);
    for (const Event& e : std::span(events).first(count)) up = up || e.kind == EventKind::lane_up;
    return up;
  }));
}

}  // namespace kvrail::test
