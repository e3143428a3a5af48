// This guest's side of a pair of guests: a verbs transport, and a line to the other guest's shell.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::test {

namespace verbs = transport::verbs;
using transport::ChunkPost;
using transport::Event;
using transport::EventKind;
using transport::LaneId;
using transport::LeaseId;
using transport::Payload;

inline constexpr std::uint32_t kChunk = 64 * 1024;
inline constexpr std::size_t kBytes = 4 << 20;
inline constexpr std::uint64_t kChunks = kBytes / kChunk;
inline constexpr std::uint16_t kAgentPort = 7470;

// Addresses of both guests. Ends the program as skipped where there are not two.
inline std::array<std::string, 2> guests() {
  const char* const all = std::getenv("KVRAIL_VM_IPS");
  std::istringstream words(all == nullptr ? "" : all);
  std::array<std::string, 2> found;
  if (!(words >> found[0] >> found[1])) {
    std::printf("SKIP: two machines with RDMA are needed; scripts/rdma-vm --two has them\n");
    std::exit(77);
  }
  return found;
}

struct Answer {
  int status = -1;  // -1: the other guest can't be reached
  std::string line;
};
// A connection to the other guest's agent, which may still be starting; -1: there is none in 30 s.
inline int connect_to_agent() {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kAgentPort);
  REQUIRE(::inet_pton(AF_INET, guests()[1].c_str(), &to.sin_addr) == 1);
  const SteadyClock clock;
  for (const TimeNs until = clock.now_ns() + 30 * kSecondNs; clock.now_ns() < until;) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return fd;
    ::close(fd);
    static_cast<void>(::poll(nullptr, 0, 100));
  }
  return -1;
}

// Runs a shell command in the other guest.
inline Answer in_other(const std::string& command) {
  const int fd = connect_to_agent();
  Answer answer;
  std::string text;
  const std::string line = command + "\n";
  if (fd >= 0 &&
      ::send(fd, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size())) {
    std::array<char, 256> part;
    for (ssize_t n = 0; (n = ::read(fd, part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<std::size_t>(n));
  }
  if (fd >= 0) ::close(fd);
  std::istringstream words(text);
  if (words >> answer.status) words >> answer.line;
  return answer;
}
inline void must_in_other(const std::string& command) {
  REQUIRE_MESSAGE(in_other(command).status == 0, command);
}
inline void must_here(const std::string& command) {
  REQUIRE_MESSAGE(std::system(command.c_str()) == 0, command);
}

// The process verbs_peer in the other guest.
class OtherPeer {
 public:
  OtherPeer() { start(); }
  ~OtherPeer() { kill("KILL"); }
  OtherPeer(const OtherPeer&) = delete;
  OtherPeer& operator=(const OtherPeer&) = delete;
  void start() {
    const Answer started = in_other(KVRAIL_VERBS_PEER " 0.0.0.0:7471");
    REQUIRE(started.status == 0);
    pid_ = started.line;
    REQUIRE_FALSE(pid_.empty());
  }
  void kill(const char* signal) const {
    static_cast<void>(in_other(std::string("kill -") + signal + " " + pid_));
  }
  // By the n-th of its cards.
  [[nodiscard]] static std::string address(int card = 0) {
    std::string host = guests()[1];
    host.replace(host.find(".77."), 4, card == 0 ? ".77." : ".78.");
    return host + ":7471";
  }

 private:
  std::string pid_;
};

class OneSide {
 public:
  OneSide() : from(kBytes), to(kBytes) {
    verbs::VerbsOptions options;
    options.node = 11;
    options.incarnation = 1000;
    auto made = verbs::VerbsTransport::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    transport = std::move(made).value();
    Prng prng(7);
    for (std::size_t i = 0; i < kBytes; i += 8) {
      const std::uint64_t word = prng.next_u64();
      std::memcpy(from.data() + i, &word, sizeof(word));
    }
    for (auto* const memory : {&from, &to})
      REQUIRE(transport->register_memory(memory->data(), kBytes, -1).ok());
    source_pieces.add(from.data(), kBytes).with_digests();
    sink_pieces.add(to.data(), kBytes);
    source = source_pieces.payload();
    sink = sink_pieces.payload();
  }

  [[nodiscard]] TimeNs now_ns() const { return clock.now_ns(); }
  std::size_t poll() {
    std::array<Event, 64> events;
    const TimeNs now = clock.now_ns();
    const std::size_t count = transport->poll(now, events);
    for (const Event& event : std::span(events).first(count)) {
      log.push_back(event);
      if (event.kind == EventKind::chunk_received) heard_ns = now;
      if (event.kind == EventKind::frame && event.bytes.size() == 9) {
        std::uint64_t value = 0;
        std::memcpy(&value, event.bytes.data() + 1, sizeof(value));
        (event.bytes[0] == std::byte{'L'} ? lease_generation : digest) = value;
      }
      log.back().bytes = {};
    }
    return count;
  }
  [[nodiscard]] bool until(const std::function<bool()>& done, TimeNs most_ns = 60 * kSecondNs) {
    const TimeNs give_up = now_ns() + most_ns;
    while (now_ns() < give_up) {
      const std::size_t events = poll();
      if (done()) return true;
      if (events == 0) static_cast<void>(::poll(nullptr, 0, 1));
    }
    return false;
  }
  [[nodiscard]] std::size_t count(EventKind kind) const {
    std::size_t n = 0;
    for (const Event& event : log) n += event.kind == kind ? 1 : 0;
    return n;
  }
  // Dials until a lane is up and the peer has told of its lease.
  void connect(int card = 0) {
    log.clear();
    lease_generation = digest = 0;
    posted = 0;
    bool dialling = false;
    std::size_t failed = 0;
    REQUIRE(until([&] {
      if (count(EventKind::lane_down) > failed) {
        failed = count(EventKind::lane_down);
        dialling = false;
      }
      if (!dialling) dialling = transport->open_lane(OtherPeer::address(card), 7).ok();
      return lease_generation != 0;
    }));
    for (const Event& event : log) {
      if (event.kind == EventKind::lane_up) lane = event.lane;
    }
    log.clear();
  }
  // A second lane, by another card.
  [[nodiscard]] LaneId connect_too(int card) {
    const auto opened = transport->open_lane(OtherPeer::address(card), 8);
    REQUIRE(opened.ok());
    REQUIRE(until([&] { return count(EventKind::lane_up) == 1; }));
    log.clear();
    return *opened;
  }
  void close() {
    const std::size_t before = count(EventKind::lane_down);
    transport->close_lane(lane);
    REQUIRE(until([&] { return count(EventKind::lane_down) > before; }));
  }
  // The n-th post of the stream, which goes round; false: not now.
  bool post_next() {
    if (!post_on(lane, posted)) return false;
    ++posted;
    return true;
  }
  bool post_on(LaneId which, std::uint64_t number) {
    ChunkPost post;
    post.lease = {0, static_cast<std::uint32_t>(lease_generation)};
    post.source = &source;
    post.offset = number * kChunk % kBytes;
    post.bytes = kChunk;
    post.critical = number % 5 == 4;
    post.cookie = number;
    return transport->try_post_chunk(which, post);
  }
  [[nodiscard]] std::size_t done_well() const {
    std::size_t n = 0;
    for (const Event& event : log)
      n += event.kind == EventKind::chunk_done && event.status.ok() ? 1 : 0;
    return n;
  }
  // The whole stream, and what the other side's memory holds then.
  void check_stream() {
    REQUIRE(until([&] {
      while (posted < kChunks && post_next()) {
      }
      return done_well() == kChunks;
    }));
    check_digest();
  }
  void check_digest() {
    const std::array<std::byte, 1> question{std::byte{'D'}};
    REQUIRE(until([&] { return transport->try_post_frame(lane, question); }));
    REQUIRE(until([&] { return digest != 0; }));
    CHECK(digest == XXH3_64bits(from.data(), kBytes));
  }
  // The peer writes into our lease from now on.
  void let_peer_write() {
    transport->expose({1, static_cast<std::uint32_t>(++own_generation)}, 22, sink);
    std::array<std::byte, 9> frame{std::byte{'W'}};
    std::memcpy(frame.data() + 1, &own_generation, sizeof(own_generation));
    REQUIRE(until([&] { return transport->try_post_frame(lane, frame); }));
  }
  // Every chunk that was posted has ended once, before the lane did.
  void check_ends() const {
    std::set<std::uint64_t> cookies;
    std::size_t ends = 0;
    bool down = false;
    for (const Event& event : log) {
      down = down || event.kind == EventKind::lane_down;
      if (event.kind != EventKind::chunk_done) continue;
      CHECK_FALSE(down);
      ++ends;
      cookies.insert(event.cookie);
    }
    CHECK(down);
    CHECK(ends == posted);
    CHECK(cookies.size() == posted);
  }

  SteadyClock clock;
  std::unique_ptr<verbs::VerbsTransport> transport;
  std::vector<std::byte> from;
  std::vector<std::byte> to;
  PayloadBuilder source_pieces;
  PayloadBuilder sink_pieces;
  Payload source;
  Payload sink;
  std::vector<Event> log;
  LaneId lane;
  std::uint64_t lease_generation = 0;  // of the peer's, 0: not told
  std::uint64_t own_generation = 0;
  std::uint64_t digest = 0;
  std::uint64_t posted = 0;
  TimeNs heard_ns = 0;  // the peer's last chunk was seen
};

}  // namespace kvrail::test
