#include "tests/unit/transport_tcp/node.h"

namespace kvrail::test {
namespace {

Status status_of(const tcp::TcpOptions& options) {
  return tcp::TcpTransport::create(options).status();
}

TEST_CASE("options out of range are refused, each with a sentence") {
  const auto broken = [](auto change) {
    tcp::TcpOptions options = options_for(1, tcp::IoChoice::epoll, false);
    change(options);
    auto made = tcp::TcpTransport::create(options);
    REQUIRE_FALSE(made.ok());
    CHECK_FALSE(made.error().message.empty());
    return made.error().status.code;
  };
  CHECK(broken([](auto& o) { o.node = 0; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.incarnation = 0; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.max_lanes = 0; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.max_half_open = 5000; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.max_leases = 5000; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.max_chunks_in_flight = 100; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.max_chunk_bytes = 2 << 20; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.frame_queue_bytes = 1000; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.handshake_timeout_ns = 0; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) {
          o.zero_copy = tcp::ZeroCopy::vmsplice;
          o.integrity = tcp::Integrity::off;
        }) == Code::invalid_argument);
  CHECK(broken([](auto& o) {
          o.zero_copy = tcp::ZeroCopy::vmsplice;
          o.io = tcp::IoChoice::io_uring;
        }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.congestion_control = "no-such"; }) == Code::unsupported);
  CHECK(broken([](auto& o) { o.listen_address = "localhost:1"; }) == Code::invalid_argument);
  CHECK(broken([](auto& o) { o.listen_address = "192.0.2.1:1234"; }) == Code::unreachable);
}

TEST_CASE("a port in use is named as such") {
  Node first(options_for(1, tcp::IoChoice::epoll, true));
  tcp::TcpOptions options = options_for(2, tcp::IoChoice::epoll, true);
  options.listen_address = first->listen_address();
  auto second = tcp::TcpTransport::create(options);
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().status.code == Code::address_in_use);
  CHECK(second.error().message.find(options.listen_address) != std::string::npos);
}

TEST_CASE("a transport that did nothing goes away at once") {
  for (const tcp::IoChoice io : kBackends) {
    for (int i = 0; i < 20; ++i) {
      CHECK(status_of(options_for(1, io, true)).ok());
    }
  }
}

TEST_CASE("dialling refuses what cannot be dialled") {
  Node node(options_for(1, tcp::IoChoice::automatic, false));
  CHECK(node->open_lane("localhost:7400", 1).status().code == Code::invalid_argument);
  CHECK(node->open_lane("127.0.0.1:0", 1).status().code == Code::invalid_argument);
  CHECK(node->open_lane("0.0.0.0:7400", 1).status().code == Code::invalid_argument);
  CHECK(node->listen_address().empty());
  CHECK(node->caps().name == "tcp");
  CHECK(node->caps().verifies_digests);
}

}  // namespace
}  // namespace kvrail::test
