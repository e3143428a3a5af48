// Shared memory between engines under threads and under hostile peers; the contract itself is
// tests/conformance.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kvrail/base/byte_order.h"
#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/shm/shm_lane.h"
#include "transport/shm/shm_transport.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::shm;

namespace {

constexpr TimeNs kPatienceNs = 20 * kSecondNs;
const SteadyClock kClock;

std::string fresh_name() {
  static std::atomic<int> count{0};
  return "@kvrail-shm-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

std::unique_ptr<ShmTransport> open_node(NodeId node, const std::string& listen,
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
bool drive(ShmTransport& transport, const std::function<bool(const Event&)>& done) {
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
bool poll_until(ShmTransport& transport, const std::function<bool()>& done) {
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

Status down_of(ShmTransport& victim) {
  Status status;
  REQUIRE(drive(victim, [&](const Event& event) {
    if (event.kind != EventKind::lane_down) return false;
    status = event.status;
    return true;
  }));
  return status;
}

// The victim still serves correct peers.
void check_alive(ShmTransport& victim, const std::string& name) {
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

}  // namespace

TEST_CASE("two engines in two threads: frames and chunks both ways, parking in between") {
  const std::string name = fresh_name();
  constexpr std::uint64_t kRounds = 400;
  constexpr std::size_t kBytes = 1 << 20;
  const auto engine = [&](bool dials) {
    TestMemory from(kBytes);
    TestMemory to(kBytes);
    Prng prng(dials ? 1 : 2);
    for (std::size_t i = 0; i < kBytes; i += 8) {
      store_le64(from.mapping.base() + i, prng.next_u64());
    }
    test::PayloadBuilder source;
    test::PayloadBuilder sink;
    source.add(from.mapping.base(), kBytes).with_digests();
    sink.add(to.mapping.base(), kBytes);
    const Payload source_view = source.payload();
    auto transport = open_node(dials ? 1 : 2, dials ? fresh_name() : name);
    CHECK(transport->register_memory(from.mapping.base(), kBytes, from.fd.get()).ok());
    transport->expose({7, 7}, dials ? 2 : 1, sink.payload());
    // The listener may not be there yet: dial until it is.
    LaneId lane;
    if (dials) CHECK(transport->open_lane("shm:" + name, 0).ok());
    std::uint64_t frames_in = 0;
    std::uint64_t frames_out = 0;
    std::uint64_t posted = 0;
    std::uint64_t done = 0;
    std::uint64_t received = 0;
    bool bad = false;
    bool finished = false;
    const bool in_time = drive(*transport, [&](const Event& event) {
      if (event.kind == EventKind::lane_down) {
        if (!lane.valid()) {
          CHECK(transport->open_lane("shm:" + name, 0).ok());
          return false;
        }
        return true;
      }
      if (event.kind == EventKind::lane_up) lane = event.lane;
      if (event.kind == EventKind::frame) {
        bad = bad || event.bytes.size() != 8 || load_le64(event.bytes.data()) != frames_in;
        ++frames_in;
      }
      if (event.kind == EventKind::chunk_done) {
        bad = bad || !event.status.ok();
        ++done;
      }
      if (event.kind == EventKind::chunk_received) {
        bad = bad || !event.status.ok();
        ++received;
      }
      // One chunk and one frame answer each of the peer's frames.
      while (lane.valid() && frames_out < kRounds && frames_out <= frames_in) {
        std::array<std::byte, 8> number;
        store_le64(number.data(), frames_out);
        const ChunkPost post{{7, 7},          1,     &source_view, (posted % 16) * 65'536, 65'536,
                             posted % 3 == 0, posted};
        if (!transport->try_post_chunk(lane, post)) break;
        ++posted;
        if (!transport->try_post_frame(lane, number)) {
          bad = true;
          break;
        }
        ++frames_out;
      }
      finished = frames_in == kRounds && done == kRounds && received == kRounds;
      return finished;
    });
    CHECK(in_time);
    CHECK(finished);
    CHECK_FALSE(bad);
    // Both sides go on until the other has all, then the lane ends.
    if (dials) {
      transport->close_lane(lane);
    }
    static_cast<void>(
        drive(*transport, [](const Event& e) { return e.kind == EventKind::lane_down; }));
    return to.mapping.base() != nullptr;
  };
  std::thread listener([&] { CHECK(engine(false)); });
  std::thread dialer([&] { CHECK(engine(true)); });
  listener.join();
  dialer.join();
}

TEST_CASE("keys: equal ones work, others are typed") {
  const std::string name = fresh_name();
  const auto key_of = [](std::string_view text) {
    const auto raw = std::as_bytes(std::span(text));
    return Psk(std::vector<std::byte>(raw.begin(), raw.end()));
  };
  const Psk right = key_of("0123456789abcdef");
  const Psk wrong = key_of("fedcba9876543210");
  auto server = open_node(1, name, &right);
  for (const Psk* psk : {&right, &wrong, static_cast<const Psk*>(nullptr)}) {
    auto client = open_node(2, "", psk);
    REQUIRE(client->open_lane("shm:" + name, 3).ok());
    Event last;
    REQUIRE(poll_until(*server, [&] {
      std::array<Event, 4> events;
      if (client->poll(kClock.now_ns(), events) == 0) return false;
      last = events[0];
      return true;
    }));
    if (psk == &right) {
      CHECK(last.kind == EventKind::lane_up);
    } else {
      CHECK(last.kind == EventKind::lane_down);
      CHECK(last.status.code == Code::authentication_failed);
      CHECK(last.cookie == 3);
    }
  }
}

TEST_CASE("socket paths: in use, left behind by a dead process, nonsense") {
  const std::string path = "/tmp/kvrail-shm-test-" + std::to_string(::getpid());
  {
    auto first = open_node(1, path);
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
    ShmOptions options;
    options.node = 2;
    options.incarnation = 2;
    options.listen_path = path;
    const auto second = ShmTransport::open(options);
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().code == Code::address_in_use);
    CHECK(second.error().message.find(path) != std::string::npos);
  }
  CHECK(::access(path.c_str(), F_OK) != 0);
  {
    auto left = listen_on(path);  // its name stays when the process dies
    REQUIRE(left.ok());
  }
  auto again = open_node(1, path);
  for (const char* nonsense : {"relative", "@", ""}) {
    CHECK_FALSE(listen_on(nonsense).ok());
  }
}

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

TEST_CASE("a sender that closes and reuses its memory: the receiver reports no such chunk") {
  const std::string name = fresh_name();
  auto sender = open_node(1, "");
  auto receiver = open_node(2, name);
  TestMemory from(1 << 20);
  std::vector<std::byte> to(1 << 20);
  test::PayloadBuilder source;
  test::PayloadBuilder sink;
  source.add(from.mapping.base(), 1 << 20);  // integrity off: only the closed word tells
  sink.add(to.data(), to.size());
  const Payload view = source.payload();
  REQUIRE(sender->register_memory(from.mapping.base(), 1 << 20, from.fd.get()).ok());
  receiver->expose({1, 1}, 1, sink.payload());
  const auto lane = sender->open_lane("shm:" + name, 0);
  REQUIRE(lane.ok());
  bool up = false;
  REQUIRE(poll_until(*receiver, [&] {
    std::array<Event, 4> events;
    const std::size_t count = sender->poll(kClock.now_ns(), events);
    for (const Event& e : std::span(events).first(count)) up = up || e.kind == EventKind::lane_up;
    return up;
  }));
  for (std::uint64_t i = 0; i < 4; ++i) {
    REQUIRE(sender->try_post_chunk(*lane, {{1, 1}, 1, &view, i * 65'536, 65'536, false, i}));
  }
  sender->close_lane(*lane);
  std::memset(from.mapping.base(), 0xFF, 1 << 20);
  std::size_t received = 0;
  REQUIRE(drive(*receiver, [&](const Event& event) {
    received += event.kind == EventKind::chunk_received ? 1 : 0;
    return event.kind == EventKind::lane_down;
  }));
  CHECK(received == 0);
}

TEST_CASE("memory is mapped by the peer where it can be, and only for reading") {
  TestMemory memory(3 * 4096);
  const UniqueFd copy = read_only_copy(memory.fd.get());
  REQUIRE(copy.valid());
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, copy.get(), 0);
  CHECK(at == MAP_FAILED);
  Mapping mapped;
  CHECK_FALSE(map_foreign(copy.get(), 0, 4096, true, mapped).ok());
  REQUIRE(map_foreign(copy.get(), 4096, 8192, false, mapped).ok());
  memory.mapping.base()[4096] = std::byte{7};
  CHECK(mapped.base()[0] == std::byte{7});
  const UniqueFd unsealed(::memfd_create("x", MFD_CLOEXEC));
  CHECK_FALSE(read_only_copy(unsealed.get()).valid());

  CHECK(file_offset_of(memory.mapping.base(), 3 * 4096, memory.fd.get()) == 0);
  CHECK(file_offset_of(memory.mapping.base() + 5000, 100, memory.fd.get()) == 5000);
  CHECK_FALSE(file_offset_of(memory.mapping.base() + 5000, 9000, memory.fd.get()).has_value());
  CHECK_FALSE(file_offset_of(memory.mapping.base(), 100, unsealed.get()).has_value());
  std::vector<std::byte> heap(100);
  CHECK_FALSE(file_offset_of(heap.data(), 100, memory.fd.get()).has_value());
}

TEST_CASE(
    "kill -9 of the peer process at any moment: what it sent stays whole, the lane ends once") {
  for (std::uint64_t after = 1; after < 200; after += 23) {
    const std::string name = fresh_name();
    auto survivor = open_node(2, name);
    TestMemory lease(1 << 20);
    test::PayloadBuilder sink;
    sink.add(lease.mapping.base(), 1 << 20);
    survivor->expose({1, 1}, 1, sink.payload());
    const ::pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Sends for ever: frames that count, and chunks of one byte value with right digests.
      TestMemory from(1 << 20);
      std::memset(from.mapping.base(), 0x3C, 1 << 20);
      test::PayloadBuilder source;
      source.add(from.mapping.base(), 1 << 20).with_digests();
      const Payload view = source.payload();
      ShmOptions options;
      options.node = 1;
      options.incarnation = 1;
      auto opened = ShmTransport::open(options);
      ShmTransport& transport = **opened;
      LaneId lane;
      std::uint64_t number = 0;
      std::uint64_t posted = 0;
      if (!transport.register_memory(from.mapping.base(), 1 << 20, from.fd.get()).ok()) ::_exit(1);
      if (!transport.open_lane("shm:" + name, 0).ok()) ::_exit(1);
      for (;;) {
        std::array<Event, 16> events;
        const std::size_t count = transport.poll(kClock.now_ns(), events);
        for (const Event& e : std::span(events).first(count)) {
          if (e.kind == EventKind::lane_up) lane = e.lane;
          if (e.kind == EventKind::lane_down) ::_exit(1);
        }
        std::array<std::byte, 100> frame{};
        store_le64(frame.data(), number);
        if (transport.try_post_frame(lane, frame)) ++number;
        const ChunkPost post{{1, 1}, 1, &view, (posted % 16) * 65'536, 65'536, false, posted};
        if (transport.try_post_chunk(lane, post)) ++posted;
      }
    }
    std::uint64_t frames = 0;
    std::uint64_t chunks = 0;
    std::size_t downs = 0;
    bool bad = false;
    bool killed = false;
    const bool ended = drive(*survivor, [&](const Event& event) {
      if (event.kind == EventKind::frame) {
        bad = bad || load_le64(event.bytes.data()) != frames;
        ++frames;
      }
      if (event.kind == EventKind::chunk_received) {
        bad = bad || !event.status.ok();
        ++chunks;
      }
      if (!killed && frames + chunks >= after) {
        killed = ::kill(child, SIGKILL) == 0;
      }
      if (event.kind == EventKind::lane_down) {
        ++downs;
        bad = bad || event.status.code != Code::lane_lost;
      }
      return downs != 0;
    });
    int status = 0;
    static_cast<void>(::kill(child, SIGKILL));
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(ended);
    CHECK_FALSE(bad);
    CHECK(WIFSIGNALED(status));
    check_alive(*survivor, name);
  }
}
