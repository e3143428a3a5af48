// Shared memory between engines: threads, keys, paths, deaths; the contract itself is
// tests/conformance.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <csignal>
#include <future>
#include <thread>

#include <algorithm>
#include <array>
#include <vector>
#include "kvrail/base/prng.h"

#include "tests/support/payload_builder.h"
#include "tests/unit/transport/shm_fixture.h"
#include "transport/socket_file.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::shm;
using namespace kvrail::test;

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
  const std::string file = path + "-file";
  const int fd = ::open(file.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  REQUIRE(fd >= 0);
  ::close(fd);
  CHECK(listen_on(file).status().code == Code::address_in_use);
  CHECK(::access(file.c_str(), F_OK) == 0);  // whatever it is, it is not ours to remove
  ::unlink(file.c_str());
}

TEST_CASE("of engines that start at once on one path, over a dead one's socket, one has it and can be reached") {
  const std::string path = "/tmp/kvrail-shm-race-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  std::future<Code> other;
  UniqueFd first(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  {
    // Stopped where it was taken for a dead one: bound, not yet listening.
    const FolderLock lock(path);
    REQUIRE(::bind(first.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    other = std::async(std::launch::async, [&] { return listen_on(path).status().code; });
    // Time for it to do wrong; whoever does right waits for the lock.
    static_cast<void>(other.wait_for(std::chrono::milliseconds(50)));
    REQUIRE(::listen(first.get(), 8) == 0);
  }
  CHECK(other.get() == Code::address_in_use);
  UniqueFd dialled;
  CHECK(connect_to(path, dialled).ok());
  first = UniqueFd();
  for (int round = 0; round < 100; ++round) {
    // The name of the round before is still there, and nobody listens.
    constexpr std::size_t kEngines = 3;
    std::barrier together(kEngines);
    std::array<std::future<Result<UniqueFd>>, kEngines> engines;
    for (auto& engine : engines) {
      engine = std::async(std::launch::async, [&] {
        together.arrive_and_wait();
        return listen_on(path);
      });
    }
    std::vector<Result<UniqueFd>> ends;
    for (auto& engine : engines) ends.push_back(engine.get());
    CHECK(std::count_if(ends.begin(), ends.end(), [](const auto& end) { return end.ok(); }) == 1);
    UniqueFd reached;
    CHECK(connect_to(path, reached).ok());
  }
  ::unlink(path.c_str());
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
