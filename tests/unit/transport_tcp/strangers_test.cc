// What is not a kvrail peer, or not one that we know: bounded, counted, dropped, and without any
// effect on lanes that exist.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/transport_tcp/node.h"
#include "transport/handshake.h"
#include "transport/socket_address.h"

namespace kvrail::test {
namespace {

class Stranger {
 public:
  explicit Stranger(std::string_view address) {
    const auto to = transport::parse_address(address);
    REQUIRE(to.ok());
    fd_ = ::socket(to->family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd_ >= 0);
    REQUIRE(::connect(fd_, to->get(), to->length) == 0);
  }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stranger(const Stranger&) = delete;
  ~Stranger() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool say(std::span<const std::byte> bytes) {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // True once the other side has closed; bytes that it said before are thrown away.
  bool is_closed() {
    std::array<char, 512> bytes;
    const ssize_t rc = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return rc == 0 || (rc < 0 && errno != EAGAIN);
  }

 private:
  int fd_ = -1;
};

std::vector<std::byte> hello_of(NodeId node) {
  transport::HandshakeConfig config;
  config.node = node;
  config.incarnation = 1;
  auto handshake = transport::Handshake::dial(config, transport::random_nonce(),
                                              transport::LaneKind::control, 99);
  std::vector<std::byte> bytes(transport::Handshake::kMaxFrameBytes);
  bytes.resize(handshake.next_frame(bytes));
  return bytes;
}

void check_alive(Pair& pair) {
  const std::size_t before = pair.listener.frames.size();
  REQUIRE(pair.dialler.post_frame(pair.here, "still there?"));
  pair.run([&] { return pair.listener.frames.size() == before + 1; });
  CHECK(pair.listener.count(EventKind::lane_down) == 0);
}

TEST_CASE("garbage is dropped with a counted reason") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    Stranger http(pair.listener->listen_address());
    const std::string request = "GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nUser-Agent: "
                                "something long enough for a header\r\n\r\n";
    REQUIRE(http.say(std::as_bytes(std::span(request))));
    pair.run([&] { return http.is_closed(); });
    CHECK(pair.listener->counters().handshakes_failed == 1);
    CHECK(pair.listener->counters()
              .handshake_frames.refused[std::size_t(transport::wire::FrameError::bad_magic)] == 1);
    check_alive(pair);
  }
}

TEST_CASE("a hello cut after every byte, and one delivered byte by byte") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    const std::vector<std::byte> hello = hello_of(7);
    for (std::size_t cut = 0; cut < hello.size(); ++cut) {
      Stranger stranger(pair.listener->listen_address());
      if (cut > 0) REQUIRE(stranger.say(std::span(hello).first(cut)));
      const std::uint64_t before = pair.listener->counters().handshakes_failed;
      { const Stranger gone(std::move(stranger)); }
      pair.run([&] { return pair.listener->counters().handshakes_failed == before + 1; });
    }
    Stranger slow(pair.listener->listen_address());
    for (const std::byte b : hello) {
      REQUIRE(slow.say(std::span(&b, 1)));
      pair.listener.step();
    }
    for (int i = 0; i < 100; ++i) pair.listener.step();
    CHECK_FALSE(slow.is_closed());  // a right beginning, however slow
    check_alive(pair);
  }
}

TEST_CASE("every flipped bit of a hello is refused") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    const std::vector<std::byte> hello = hello_of(7);
    std::uint64_t expected = 0;
    for (std::size_t bit = 0; bit < hello.size() * 8; ++bit) {
      std::vector<std::byte> bad = hello;
      bad[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
      Stranger stranger(pair.listener->listen_address());
      REQUIRE(stranger.say(bad));
      { const Stranger gone(std::move(stranger)); }
      ++expected;
      pair.run([&] { return pair.listener->counters().handshakes_failed == expected; });
    }
    check_alive(pair);
    CHECK(pair.listener.count(EventKind::lane_up) == 1);
  }
}

TEST_CASE("silent connections are bounded in number and in time") {
  for (const tcp::IoChoice io : kBackends) {
    tcp::TcpOptions listens = options_for(2, io, true);
    listens.max_half_open = 8;
    listens.handshake_timeout_ns = 200 * kMillisecondNs;
    Pair pair(options_for(1, io, false), listens);
    std::vector<Stranger> silent;
    for (int i = 0; i < 100; ++i) silent.emplace_back(pair.listener->listen_address());
    pair.run([&] { return pair.listener->counters().accepted == 102; });
    CHECK(pair.listener->counters().refused_half_open == 92);
    check_alive(pair);
    pair.run([&] { return pair.listener->counters().handshakes_timed_out == 8; });
    for (Stranger& stranger : silent) {
      pair.run([&] { return stranger.is_closed(); });
    }
    // And there is room for a friend again.
    Node friend_node(options_for(3, io, false));
    REQUIRE(friend_node->open_lane(pair.listener->listen_address(), 1).ok());
    run_until({&friend_node, &pair.listener},
              [&] { return friend_node.count(EventKind::lane_up) == 1; });
  }
}

TEST_CASE("a first socket whose second never comes is given up") {
  for (const tcp::IoChoice io : kBackends) {
    tcp::TcpOptions listens = options_for(2, io, true);
    listens.half_lane_timeout_ns = 100 * kMillisecondNs;
    Node listener(listens);
    // A control connection that shakes hands properly, and no bulk connection after it.
    transport::HandshakeConfig config;
    config.node = 9;
    config.incarnation = 1;
    auto handshake = transport::Handshake::dial(config, transport::random_nonce(),
                                                transport::LaneKind::control, 5);
    const auto to = transport::parse_address(listener->listen_address());
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(fd, to->get(), to->length) == 0);
    std::array<std::byte, 512> payload;
    transport::wire::FrameParser parser({}, payload, {});
    run_until({&listener}, [&] {
      std::array<std::byte, 256> out;
      while (const std::size_t size = handshake.next_frame(out)) {
        REQUIRE(::send(fd, out.data(), size, 0) == static_cast<ssize_t>(size));
      }
      const auto want = parser.want();
      const ssize_t got = ::recv(fd, want.data(), want.size(), MSG_DONTWAIT);
      if (got > 0 && parser.advance(static_cast<std::size_t>(got)) ==
                         transport::wire::FrameParser::Progress::frame_ready) {
        static_cast<void>(handshake.on_payload(parser.payload()));
        parser.next();
      }
      return handshake.state() == transport::Handshake::State::established;
    });
    run_until({&listener}, [&] { return listener->counters().unpaired == 1; });
    run_until({&listener}, [&] {
      char byte = 0;
      return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
    });
    CHECK(listener.seen.empty());  // nobody was ever told of this lane
    ::close(fd);
  }
}

TEST_CASE("keys: equal ones meet, others are refused on both sides") {
  const auto key = [](const char* text) {
    std::vector<std::byte> bytes(32);
    std::memcpy(bytes.data(), text, std::min<std::size_t>(32, std::strlen(text)));
    return transport::Psk(bytes);
  };
  for (const tcp::IoChoice io : kBackends) {
    for (const int other : {0, 1, 2}) {
      tcp::TcpOptions a = options_for(1, io, false);
      tcp::TcpOptions b = options_for(2, io, true);
      b.psk = key("the right one");
      if (other == 0) a.psk = key("the right one");
      if (other == 1) a.psk = key("the wrong one");
      if (other == 0) {
        Pair pair(a, b);
        check_alive(pair);
        continue;
      }
      Node dialler(a);
      Node listener(b);
      REQUIRE(dialler->open_lane(listener->listen_address(), 4).ok());
      run_until({&dialler, &listener}, [&] {
        return dialler.count(EventKind::lane_down) == 1 &&
               listener->counters().handshakes_failed == 1;
      });
      CHECK(dialler.seen.back().cookie == 4);
      CHECK(dialler.seen.back().status.code == Code::authentication_failed);
      CHECK(listener.count(EventKind::lane_up) == 0);
    }
  }
}

TEST_CASE("dialling oneself, or another node of the same id, is refused") {
  for (const tcp::IoChoice io : kBackends) {
    Node dialler(options_for(2, io, false));
    Node listener(options_for(2, io, true));
    REQUIRE(dialler->open_lane(listener->listen_address(), 4).ok());
    run_until({&dialler, &listener}, [&] { return dialler.count(EventKind::lane_down) == 1; });
    CHECK(dialler.seen.back().status.code == Code::already_exists);
  }
}

}  // namespace
}  // namespace kvrail::test
