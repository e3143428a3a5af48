// kvraild as a user meets it: signals end it in order, strangers on its sockets change nothing.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kvrail/base/prng.h"
#include "tests/daemon/daemon.h"

namespace kvrail::test {
namespace {

TEST_CASE("kvraild / SIGTERM ends it with 0, and a storm of signals too") {
  Daemon calm;
  REQUIRE(calm.up());
  const auto agent = calm.attach("a");
  REQUIRE(agent.ok());
  calm.process().signal(SIGTERM);
  CHECK(calm.process().wait(kSoonMs) == 0);
  Daemon storm;
  REQUIRE(storm.up());
  for (int i = 0; i < 5; ++i) storm.process().signal(i % 2 == 0 ? SIGTERM : SIGINT);
  CHECK(storm.process().wait(kSoonMs) == 0);
}

// What a service manager hears: the socket of sd_notify(3), at a path or at a name that is no file.
class Manager {
 public:
  explicit Manager(const std::string& name) : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name.copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (name[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
  }
  ~Manager() { ::close(fd_); }
  [[nodiscard]] std::string hears() const {
    pollfd fd{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, kSoonMs) != 1) return "nothing";
    std::string text(256, '\0');
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(::recv(fd_, text.data(), text.size(), 0), 0)));
    return text;
  }

 private:
  int fd_;
};

TEST_CASE("kvraild / a service manager hears when agents can attach, and when it drains") {
  const TempDir dir;
  for (const std::string& name : {dir.path("notify"), "@kvrail-test-" + std::to_string(::getpid())}) {
    CAPTURE(name);
    const Manager manager(name);
    Daemon daemon("", [&] { ::setenv("NOTIFY_SOCKET", name.c_str(), 1); });
    CHECK(manager.hears() == "READY=1\nSTATUS=takes agents at " + daemon.socket());
    CHECK(daemon.attach("a").ok());
    daemon.process().signal(SIGTERM);
    CHECK(manager.hears() == "STOPPING=1\nSTATUS=draining");
    CHECK(daemon.process().wait(kSoonMs) == 0);
  }
}

TEST_CASE("kvraild / a service manager that is not there, or has no name that can be, changes nothing") {
  for (const std::string& name : {std::string("/nonexistent/notify"), std::string("relative"), std::string(),
                                  std::string("/").append(300, 'n')}) {
    CAPTURE(name);
    Daemon daemon("", [&] { ::setenv("NOTIFY_SOCKET", name.c_str(), 1); });
    REQUIRE(daemon.up());
    daemon.process().signal(SIGTERM);
    CHECK(daemon.process().wait(kSoonMs) == 0);
  }
}

TEST_CASE("kvraild / strangers on both sockets are dropped and agents do not notice") {
  const int port = free_port();
  Daemon daemon("[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n");
  REQUIRE(daemon.up());
  auto agent = daemon.attach("a");
  REQUIRE(agent.ok());
  Prng prng(5);
  for (int round = 0; round < 50; ++round) {
    const bool tcp = round % 2 == 0;
    const int fd = ::socket(tcp ? AF_INET : AF_UNIX, (tcp ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(static_cast<std::uint16_t>(port));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    std::strncpy(un.sun_path, daemon.socket().c_str(), sizeof(un.sun_path) - 1);
    const int rc = tcp ? ::connect(fd, reinterpret_cast<sockaddr*>(&in), sizeof(in))
                       : ::connect(fd, reinterpret_cast<sockaddr*>(&un), sizeof(un));
    REQUIRE(rc == 0);
    std::string noise(1 + prng.uniform(400), '\0');
    for (char& c : noise) c = static_cast<char>(prng.next_u64());
    CHECK(::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
    ::close(fd);
  }
  CHECK(agent->begin_task({}).ok());
  CHECK(daemon.attach("b").ok());
}

}  // namespace
}  // namespace kvrail::test
