#include "transport/handshake.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "kvrail/base/byte_order.h"
#include "tests/unit/transport/hex.h"

using namespace kvrail;
using namespace kvrail::transport;
using State = Handshake::State;

namespace {

Nonce nonce_of(std::uint8_t fill) {
  Nonce nonce;
  nonce.fill(std::byte{fill});
  return nonce;
}
Psk key_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span(text));
  return Psk(std::vector<std::byte>(raw.begin(), raw.end()));
}
HandshakeConfig node(NodeId id, const Psk* psk = nullptr) {
  HandshakeConfig config;
  config.node = id;
  config.incarnation = id * 100;
  config.psk = psk;
  return config;
}

using Frame = std::vector<std::byte>;
Frame take(Handshake& from) {
  Frame frame(Handshake::kMaxFrameBytes);
  frame.resize(from.next_frame(frame));
  return frame;
}
// Hands a frame over as a stream would, frame checks included.
void give(Handshake& to, const Frame& frame) {
  REQUIRE(frame.size() > wire::kFrameHeaderBytes);
  wire::FrameHeader header;
  REQUIRE(wire::decode_header(std::span(frame).first<wire::kFrameHeaderBytes>(), wire::FrameRules{},
                              header) == wire::FrameError::none);
  to.on_payload(std::span(frame).subspan(wire::kFrameHeaderBytes));
}
void run(Handshake& a, Handshake& b) {
  for (int i = 0; i < 10; ++i) {
    for (Frame f = take(a); !f.empty(); f = take(a)) give(b, f);
    for (Frame f = take(b); !f.empty(); f = take(b)) give(a, f);
  }
}

}  // namespace

TEST_CASE("both ends come to the same terms, with and without a key") {
  const Psk key = key_of("0123456789abcdef");
  for (const Psk* psk : {static_cast<const Psk*>(nullptr), &key}) {
    auto dialer = Handshake::dial(node(1, psk), nonce_of(1), LaneKind::bulk, 77);
    auto listener = Handshake::listen(node(2, psk), nonce_of(2));
    run(dialer, listener);
    REQUIRE(dialer.state() == State::established);
    REQUIRE(listener.state() == State::established);
    CHECK(dialer.peer() == 2);
    CHECK(dialer.peer_incarnation() == 200);
    CHECK(listener.peer() == 1);
    CHECK(listener.kind() == LaneKind::bulk);
    CHECK(listener.pairing() == 77);
    CHECK(dialer.version() == wire::kProtocolMax);
    CHECK(dialer.session() == listener.session());
    CHECK(dialer.session() != 0);
    CHECK(dialer.frames_sent() == 2);
    CHECK(listener.frames_sent() == 3);
    CHECK(dialer.rules().session == listener.rules().session);
    CHECK_FALSE(dialer.rules().handshaking);
  }
}

TEST_CASE("golden hello and proof: the bytes that docs/wire.md shows") {
  const Psk key = key_of("0123456789abcdef");
  auto dialer = Handshake::dial(node(1, &key), nonce_of(1), LaneKind::control, 77);
  auto listener = Handshake::listen(node(2, &key), nonce_of(2));
  const Frame hello = take(dialer);
  check_golden("handshake.hello", hello);
  give(listener, hello);
  static_cast<void>(take(listener));
  check_golden("handshake.proof", take(listener));
}

TEST_CASE("wrong key, one-sided key, own id: typed on both ends") {
  const Psk key = key_of("0123456789abcdef");
  const Psk other = key_of("0123456789abcdeF");
  struct Case {
    const Psk* dialer;
    const Psk* listener;
    NodeId listener_id;
    Code code;
  };
  for (const Case& c : {Case{&key, &other, 2, Code::authentication_failed},
                        Case{&key, nullptr, 2, Code::authentication_failed},
                        Case{nullptr, &key, 2, Code::authentication_failed},
                        Case{&key, &key, 1, Code::already_exists}}) {
    auto dialer = Handshake::dial(node(1, c.dialer), nonce_of(1), LaneKind::control, 1);
    auto listener = Handshake::listen(node(c.listener_id, c.listener), nonce_of(2));
    run(dialer, listener);
    CHECK(dialer.state() == State::failed);
    CHECK(listener.state() == State::failed);
    CHECK(dialer.status().code == c.code);
    CHECK(listener.status().code == c.code);
    CHECK(dialer.status().detail + listener.status().detail == 1);
  }
}

TEST_CASE("versions: the highest common one, or a typed refusal") {
  struct Case {
    std::uint8_t dialer_min, dialer_max, listener_min, listener_max, agreed;
  };
  for (const Case& c : {Case{1, 1, 1, 3, 1}, Case{1, 4, 2, 3, 3}, Case{2, 5, 1, 9, 5},
                        Case{1, 1, 2, 2, 0}, Case{200, 255, 1, 199, 0}}) {
    HandshakeConfig a = node(1);
    HandshakeConfig b = node(2);
    a.min_version = c.dialer_min;
    a.max_version = c.dialer_max;
    b.min_version = c.listener_min;
    b.max_version = c.listener_max;
    auto dialer = Handshake::dial(a, nonce_of(1), LaneKind::control, 1);
    auto listener = Handshake::listen(b, nonce_of(2));
    run(dialer, listener);
    if (c.agreed != 0) {
      CHECK(dialer.version() == c.agreed);
      CHECK(listener.version() == c.agreed);
    } else {
      CHECK(dialer.status().code == Code::version_mismatch);
      CHECK(listener.status().code == Code::version_mismatch);
    }
  }
}

TEST_CASE("every changed bit of every frame ends in failure, never in lanes that differ") {
  const Psk key = key_of("0123456789abcdef");
  // Which frame of the exchange, and which bit of its payload, is changed on the way.
  for (int target = 0; target < 4; ++target) {
    for (std::size_t bit = 0;; ++bit) {
      auto dialer = Handshake::dial(node(1, &key), nonce_of(1), LaneKind::control, 1);
      auto listener = Handshake::listen(node(2, &key), nonce_of(2));
      int count = 0;
      bool beyond = false;
      const auto pass = [&](Handshake& to, Frame frame) {
        if (count++ == target) {
          const std::size_t at = wire::kFrameHeaderBytes + bit / 8;
          if (at >= frame.size()) {
            beyond = true;
            return;
          }
          frame[at] ^= std::byte{1} << (bit % 8);
        }
        to.on_payload(std::span(frame).subspan(wire::kFrameHeaderBytes));
      };
      for (int i = 0; i < 5; ++i) {
        for (Frame f = take(dialer); !f.empty(); f = take(dialer)) pass(listener, f);
        for (Frame f = take(listener); !f.empty(); f = take(listener)) pass(dialer, f);
      }
      if (beyond) break;
      CHECK(dialer.state() == State::failed);
      // After a damaged READY the listener learns of it by the FAIL frame on the open lane.
      if (target < 3) CHECK(listener.state() == State::failed);
    }
  }
}

TEST_CASE("bad input 7: a replayed hello with its old proof is refused") {
  const Psk key = key_of("0123456789abcdef");
  auto dialer = Handshake::dial(node(1, &key), nonce_of(1), LaneKind::control, 1);
  auto first = Handshake::listen(node(2, &key), nonce_of(2));
  const Frame hello = take(dialer);
  give(first, hello);
  give(dialer, take(first));
  give(dialer, take(first));
  const Frame proof = take(dialer);
  give(first, proof);
  REQUIRE(first.state() == State::established);
  auto second = Handshake::listen(node(2, &key), nonce_of(3));
  give(second, hello);
  give(second, proof);
  CHECK(second.status().code == Code::authentication_failed);
}

TEST_CASE("reflection: a listener's proof is no dialer's proof") {
  const Psk key = key_of("0123456789abcdef");
  auto dialer = Handshake::dial(node(1, &key), nonce_of(1), LaneKind::control, 1);
  Frame own = take(dialer);
  give(dialer, own);  // its own hello comes back
  CHECK(dialer.status().code == Code::already_exists);
}

TEST_CASE("frames out of order, empty, oversized or after the end are refused") {
  const std::array<std::byte, 1> ready{std::byte{3}};
  auto listener = Handshake::listen(node(2), nonce_of(2));
  CHECK(listener.on_payload(ready) == State::failed);
  CHECK(listener.status().code == Code::protocol_error);
  CHECK(listener.has_frame());
  Frame fail = take(listener);
  REQUIRE(fail.size() == wire::kFrameHeaderBytes + 3);
  auto dialer = Handshake::dial(node(1), nonce_of(1), LaneKind::control, 1);
  give(dialer, fail);
  CHECK(dialer.status().code == Code::protocol_error);
  CHECK(dialer.status().detail == 1);

  auto empty = Handshake::listen(node(2), nonce_of(2));
  CHECK(empty.on_payload({}) == State::failed);
  std::vector<std::byte> hello(Handshake::kHelloBytes + 1);
  hello[0] = std::byte{1};
  auto large = Handshake::listen(node(2), nonce_of(2));
  CHECK(large.on_payload(hello) == State::failed);

  auto a = Handshake::dial(node(1), nonce_of(1), LaneKind::control, 1);
  auto b = Handshake::listen(node(2), nonce_of(2));
  run(a, b);
  CHECK(b.on_payload(ready) == State::failed);
}

TEST_CASE("a refusal of the transport reaches the peer with its code") {
  auto dialer = Handshake::dial(node(1), nonce_of(1), LaneKind::control, 1);
  auto listener = Handshake::listen(node(2), nonce_of(2));
  listener.refuse(Status{Code::shutting_down, Scope::lane});
  run(dialer, listener);
  CHECK(dialer.status().code == Code::shutting_down);
}

TEST_CASE("key files") {
  const std::string directory =
      (std::filesystem::temp_directory_path() / ("kvrail-psk-" + std::to_string(::getpid())))
          .string();
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/key";
  const auto write = [&](const std::string& text, ::mode_t mode) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
  };
  write("0123456789abcdef\n", 0600);
  auto loaded = load_psk(path);
  REQUIRE(loaded.ok());
  CHECK(loaded->psk.bytes().size() == 16);
  CHECK(loaded->warning.empty());
  write("0123456789abcdef", 0644);
  loaded = load_psk(path);
  REQUIRE(loaded.ok());
  CHECK(loaded->warning.find("chmod 600") != std::string::npos);
  write("0123456789abcde\r\n", 0600);
  CHECK(load_psk(path).status().code == Code::invalid_argument);
  CHECK(load_psk(path).error().message.find("15 bytes") != std::string::npos);
  write("", 0600);
  CHECK(load_psk(path).status().code == Code::invalid_argument);
  write(std::string(5000, 'k'), 0600);
  CHECK(load_psk(path).status().code == Code::invalid_argument);
  CHECK(load_psk(directory).status().code == Code::invalid_argument);
  CHECK(load_psk(directory + "/none").status().code == Code::not_found);
  const std::string pipe = directory + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(load_psk(pipe).status().code == Code::invalid_argument);
  std::filesystem::remove_all(directory);
}
