#include <doctest/doctest.h>

#include "transport/socket_address.h"

namespace kvrail::transport::tcp {
namespace {

TEST_CASE("numeric addresses are read and written back") {
  for (const char* text : {"127.0.0.1:7400", "10.1.2.3:1", "255.255.255.255:65535", "[::1]:7400",
                           "[fe80::1]:9", "[2001:db8::5]:443"}) {
    CAPTURE(text);
    const auto address = parse_address(text);
    REQUIRE(address.ok());
    CHECK(to_string(*address) == text);
  }
  CHECK(parse_address("127.0.0.1:7400")->port() == 7400);
  CHECK(parse_address("[::1]:7401")->port() == 7401);
}

TEST_CASE("loopback and wildcard are told apart") {
  CHECK(parse_address("127.9.9.9:1")->is_loopback());
  CHECK(parse_address("[::1]:1")->is_loopback());
  CHECK(parse_address("[::ffff:127.0.0.1]:1")->is_loopback());
  CHECK_FALSE(parse_address("128.0.0.1:1")->is_loopback());
  CHECK_FALSE(parse_address("[::2]:1")->is_loopback());
  CHECK(parse_address("0.0.0.0:1")->is_wildcard());
  CHECK(parse_address("[::]:1")->is_wildcard());
  CHECK_FALSE(parse_address("127.0.0.1:1")->is_wildcard());
}

TEST_CASE("what is not a numeric address gets one clear line") {
  struct Case {
    const char* text;
    const char* says;
  };
  for (const Case& bad : {
           Case{"", "port is missing"},
           Case{"127.0.0.1", "port is missing"},
           Case{"[::1]", "port is missing"},
           Case{"[::1]7400", "port is missing"},
           Case{"[::1", "bracket is not closed"},
           Case{"::1:7400", "needs brackets"},
           Case{"2001:db8::5", "needs brackets"},
           Case{"localhost:7400", "names are not looked up"},
           Case{"node-7.example:7400", "names are not looked up"},
           Case{":7400", "not an IPv4 address"},
           Case{"127.0.0.1:", "1 to 65535"},
           Case{"127.0.0.1:0", "1 to 65535"},
           Case{"127.0.0.1:65536", "1 to 65535"},
           Case{"127.0.0.1:-1", "1 to 65535"},
           Case{"127.0.0.1:+1", "1 to 65535"},
           Case{"127.0.0.1: 1", "1 to 65535"},
           Case{"127.0.0.1:7400x", "1 to 65535"},
           Case{"127.0.0.1:99999999999999999999", "1 to 65535"},
           Case{"127.0.0:7400", "not an IPv4 address"},
           Case{"127.0.0.256:7400", "not an IPv4 address"},
           Case{"[127.0.0.1]:7400", "not an IPv6 address"},
           Case{"[]:7400", "not an IPv6 address"},
           Case{"[::1%lo]:7400", "not an IPv6 address"},
       }) {
    CAPTURE(bad.text);
    const auto address = parse_address(bad.text);
    REQUIRE_FALSE(address.ok());
    CHECK(address.error().status.code == Code::invalid_argument);
    CHECK(address.error().message.find(bad.says) != std::string::npos);
    CHECK(address.error().message.find("127.0.0.1:7400") != std::string::npos);
    CHECK(address.error().message.find('\n') == std::string::npos);
  }
}

TEST_CASE("foreign text can't forge log lines or flood them") {
  const auto address = parse_address(std::string("a\nb\x1b[31m:1") + std::string(5000, 'x'));
  REQUIRE_FALSE(address.ok());
  CHECK(address.error().message.find('\n') == std::string::npos);
  CHECK(address.error().message.find('\x1b') == std::string::npos);
  CHECK(address.error().message.size() < 400);
}

TEST_CASE("only a listener may leave the port to the kernel") {
  CHECK(parse_address("127.0.0.1:0", PortZero::allowed).ok());
  CHECK_FALSE(parse_address("127.0.0.1:0", PortZero::refused).ok());
}

}  // namespace
}  // namespace kvrail::transport::tcp
