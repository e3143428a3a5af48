// Strangers on the shm socket and hostile peers on its rings: refused, counted, nothing harmed.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <vector>
#include "kvrail/base/prng.h"

#include "tests/support/payload_builder.h"
#include "tests/unit/transport/shm_fixture.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::shm;
using namespace kvrail::test;

TEST_CASE("hostile connection: garbage, silence, wrong descriptors, many descriptors") {
  const std::string name = fresh_name();
  ShmOptions options;
  options.node = 1;
  options.incarnation = 1;
  options.listen_path = name;
  options.handshake_ns = 50 * kMillisecondNs;
  auto opened = ShmTransport::open(options);
  REQUIRE(opened.ok());
  ShmTransport& victim = **opened;
  const auto hung_up = [](FakePeer& peer) {
    std::array<std::byte, 1024> buffer;
    Received received;
    SocketResult result = SocketResult::ok;
    while (result == SocketResult::ok) result = receive_packet(peer.socket(), buffer, received);
    return result == SocketResult::closed;
  };
  SUBCASE("garbage") {
    Prng prng(1);
    for (std::size_t size = 1; size < 200; size += 7) {
      FakePeer peer(name);
      std::vector<std::byte> bytes(size);
      for (auto& b : bytes) b = static_cast<std::byte>(prng.next_u64());
      peer.send(bytes);
      CHECK(poll_until(victim, [&] { return hung_up(peer); }));
    }
    CHECK(victim.refused().total() > 0);
  }
  SUBCASE("silence ends at the deadline") {
    std::vector<std::unique_ptr<FakePeer>> crowd;
    for (int i = 0; i < 60; ++i) crowd.push_back(std::make_unique<FakePeer>(name));
    for (auto& peer : crowd) CHECK(poll_until(victim, [&] { return hung_up(*peer); }));
    CHECK(victim.next_deadline_ns() == Transport::kNoDeadline);
  }
  SUBCASE("setup with what is no sealed memfd of the right size") {
    const UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(unsealed.get(), LaneMemory::kBytes) == 0);
    const UniqueFd small(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(small.get(), 4096) == 0);
    REQUIRE(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const UniqueFd reader(ends[0]);
    const UniqueFd writer(ends[1]);
    for (const int fd : {unsealed.get(), small.get(), null.get(), reader.get(), -1}) {
      FakePeer peer(name);
      peer.shake_hands(victim);
      peer.send(Packet{.type = PacketType::setup, .bytes = LaneMemory::kBytes}, fd);
      CHECK(poll_until(victim, [&] { return hung_up(peer); }));
    }
    TestMemory good(LaneMemory::kBytes);
    FakePeer peer(name);
    peer.shake_hands(victim);
    peer.send(Packet{.type = PacketType::setup, .bytes = UINT64_MAX}, good.fd.get());
    CHECK(poll_until(victim, [&] { return hung_up(peer); }));
  }
  SUBCASE("many descriptors in one packet") {
    FakePeer peer(name);
    peer.set_up(victim);
    std::array<int, 200> fds{};
    fds.fill(peer.socket());
    Packet packet{.type = PacketType::arena, .id = 1, .bytes = 4096};
    iovec part{&packet, sizeof(packet)};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(fds))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(fds));
    REQUIRE(::sendmsg(peer.socket(), &message, MSG_NOSIGNAL) > 0);
    CHECK(down_of(victim).code == Code::protocol_error);
  }
  SUBCASE("arenas: twice the same, unsealed, beyond the file, not at a page") {
    for (int which = 0; which < 5; ++which) {
      FakePeer peer(name);
      peer.set_up(victim);
      TestMemory memory(8192);
      Packet packet{.type = PacketType::arena, .id = 1, .bytes = 8192};
      if (which == 0) peer.send(packet, memory.fd.get());
      if (which == 1) packet.bytes = UINT64_MAX;
      if (which == 2) packet.offset = 8192;
      if (which == 3) packet = Packet{.type = PacketType::arena, .id = 1, .bytes = 96, .offset = 1};
      if (which == 4) packet.id = 0;
      peer.send(packet, memory.fd.get());
      CHECK(down_of(victim).code == Code::protocol_error);
    }
  }
  check_alive(victim, name);
}

TEST_CASE("hostile ring: indices, headers, segments, acknowledgements") {
  const std::string name = fresh_name();
  auto opened = open_node(1, name);
  ShmTransport& victim = *opened;
  std::vector<std::byte> lease_memory(4096);
  test::PayloadBuilder sink;
  sink.add(lease_memory.data(), lease_memory.size());
  victim.expose({1, 1}, 66, sink.payload());
  FakePeer peer(name);
  peer.set_up(victim);
  TestMemory arena(4096);
  const Packet announce{.type = PacketType::arena, .id = 3, .bytes = 4096};
  SUBCASE("tail far ahead") {
    peer.ring(kBulk).tail.store(1ULL << 40);
  }
  SUBCASE("tail behind") {
    peer.ring(kControl).tail.store(UINT64_MAX);
  }
  SUBCASE("a header of noise") {
    Cell cell;
    cell.bytes.fill(std::byte{0xA5});
    peer.put(kControl, std::array{cell});
  }
  SUBCASE("a message on the bulk ring") {
    wire::FrameHeader header = peer.chunk(64);
    header.type = wire::FrameType::message;
    peer.put(kBulk, std::array{FakePeer::cell_of(header), Cell{}});
  }
  SUBCASE("a message cut short") {
    wire::FrameHeader header = peer.chunk(640);
    header.type = wire::FrameType::message;
    peer.put(kControl, std::array{FakePeer::cell_of(header), Cell{}});
  }
  SUBCASE("a message with another digest") {
    wire::FrameHeader header = peer.chunk(64);
    header.type = wire::FrameType::message;
    header.payload_digest = 1;
    peer.put(kControl, std::array{FakePeer::cell_of(header), Cell{}});
  }
  SUBCASE("a chunk without its segments") {
    peer.put(kBulk, std::array{FakePeer::cell_of(peer.chunk(100))});
  }
  SUBCASE("segments that add up to more") {
    peer.put(kBulk, std::array{FakePeer::cell_of(peer.chunk(100)), FakePeer::segment(0, 101, 0)});
  }
  SUBCASE("segments of nothing for ever") {
    std::vector<Cell> cells(2000);
    cells[0] = FakePeer::cell_of(peer.chunk(100));
    peer.put(kBulk, cells);
  }
  SUBCASE("an arena nobody announced") {
    peer.put(kBulk, std::array{FakePeer::cell_of(peer.chunk(100)), FakePeer::segment(9, 100, 0)});
  }
  SUBCASE("beyond the staging area") {
    peer.put(kBulk, std::array{FakePeer::cell_of(peer.chunk(100)),
                               FakePeer::segment(0, 100, kStagingBytes - 99)});
  }
  SUBCASE("beyond the arena, and wrapping") {
    peer.send(announce, arena.fd.get());
    peer.put(kBulk,
             std::array{FakePeer::cell_of(peer.chunk(100)), FakePeer::segment(3, 100, 3997)});
  }
  SUBCASE("an offset that wraps") {
    peer.send(announce, arena.fd.get());
    peer.put(kBulk, std::array{FakePeer::cell_of(peer.chunk(100)),
                               FakePeer::segment(3, 100, UINT64_MAX - 50)});
  }
  SUBCASE("beyond the lease by one byte") {
    wire::FrameHeader header = peer.chunk(100);
    header.offset = 3997;
    peer.put(kBulk, std::array{FakePeer::cell_of(header), FakePeer::segment(0, 100, 0)});
  }
  SUBCASE("digests for units that it does not complete") {
    wire::FrameHeader header = peer.chunk(100);
    header.flags = wire::kFlagDigests;
    header.digest_count = 1;
    peer.put(kBulk, std::array{FakePeer::cell_of(header), Cell{}, FakePeer::segment(0, 100, 0)});
  }
  SUBCASE("an acknowledgement for a chunk never sent") {
    peer.put(kControl, std::array{FakePeer::cell_of(peer.ack(0, 1))});
  }
  SUBCASE("another session") {
    wire::FrameHeader header = peer.ack(0, 1);
    header.session += 2;
    peer.put(kControl, std::array{FakePeer::cell_of(header)});
  }
  SUBCASE("the same frame again") {
    const Cell cell = FakePeer::cell_of(peer.chunk(100));
    peer.put(kBulk,
             std::array{cell, FakePeer::segment(0, 100, 0), cell, FakePeer::segment(0, 100, 0)});
  }
  const Status status = down_of(victim);
  CHECK(status.code == Code::protocol_error);
  CHECK(status.detail != 0);
  CHECK(victim.refused().total() == 1);
  // One of the cases lands a good chunk first; none writes beyond its range or by a bad one.
  CHECK(std::all_of(lease_memory.begin() + 100, lease_memory.end(),
                    [](std::byte b) { return b == std::byte{0}; }));
  check_alive(victim, name);
}

TEST_CASE("a flood of acknowledged chunks cannot make the victim overrun its ring") {
  const std::string name = fresh_name();
  auto opened = open_node(1, name);
  ShmTransport& victim = *opened;
  FakePeer peer(name);
  peer.set_up(victim);
  // Alternating classes so that no two acknowledgements merge; the peer never takes one.
  bool down = false;
  std::array<std::uint32_t, 2> sequence{0, 0};
  REQUIRE(poll_until(victim, [&] {
    for (const std::size_t lane_class : {kControl, kBulk}) {
      wire::FrameHeader header = peer.chunk(1);
      header.sequence = sequence[lane_class]++;
      header.flags = lane_class == kControl ? wire::kFlagCritical : std::uint16_t{0};
      peer.put(lane_class, std::array{FakePeer::cell_of(header), FakePeer::segment(0, 1, 0)});
    }
    std::array<Event, 4> events;
    const std::size_t count = victim.poll(kClock.now_ns(), events);
    for (const Event& e : std::span(events).first(count)) {
      if (e.kind == EventKind::lane_down) {
        CHECK(e.status.code == Code::protocol_error);
        down = true;
      }
    }
    return down;
  }));
  CHECK(sequence[0] > 1000);
  check_alive(victim, name);
}
