// Two tcp nodes on loopback, one World for each way of doing I/O.
#include <doctest/doctest.h>

#include <cstdio>
#include <deque>

#include "tests/conformance/harness.h"
#include "transport/tcp/tcp_transport.h"

namespace kvrail::test {
namespace {

namespace tcp = kvrail::transport::tcp;

class TcpWorld final : public World {
 public:
  explicit TcpWorld(tcp::IoChoice io) : io_(io) {
    for (const int which : {0, 1}) {
      start(which);
      addresses_[index(which)] = sides_[index(which)]->listen_address();
    }
  }

  transport::Transport* side(int which) override { return sides_[index(which)].get(); }
  std::string address(int which) override { return addresses_[index(which)]; }
  std::string dead_address() override { return "127.0.0.1:1"; }
  void kill(int which) override { sides_[index(which)].reset(); }
  void restart(int which) override {
    ++restarts_[index(which)];
    start(which);
  }
  std::byte* memory(int which, std::size_t bytes) override {
    std::byte* base = memory_.emplace_back(std::make_unique<std::byte[]>(bytes)).get();
    REQUIRE(sides_[index(which)]->register_memory(base, bytes, -1).ok());
    return base;
  }
  TimeNs now_ns() override { return clock_.now_ns(); }

 private:
  static std::size_t index(int which) { return static_cast<std::size_t>(which); }
  void start(int which) {
    tcp::TcpOptions options;
    options.node = node(which);
    options.incarnation = incarnation(which);
    options.io = io_;
    const std::string& before = addresses_[index(which)];
    options.listen_address = before.empty() ? "127.0.0.1:0" : before;
    auto made = tcp::TcpTransport::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    sides_[index(which)] = std::move(made).value();
  }

  tcp::IoChoice io_;
  SteadyClock clock_;
  std::array<std::string, 2> addresses_;
  std::deque<std::unique_ptr<std::byte[]>> memory_;
  std::array<std::unique_ptr<tcp::TcpTransport>, 2> sides_;
};

}  // namespace

std::unique_ptr<World> make_tcp_uring_world() {
  tcp::TcpOptions options;
  options.node = options.incarnation = 1;
  options.io = tcp::IoChoice::io_uring;
  if (auto probe = tcp::TcpTransport::create(options); !probe) {
    std::printf("tcp-io_uring skipped: %s\n", probe.error().message.c_str());
    return nullptr;
  }
  return std::make_unique<TcpWorld>(tcp::IoChoice::io_uring);
}

std::unique_ptr<World> make_tcp_epoll_world() {
  return std::make_unique<TcpWorld>(tcp::IoChoice::epoll);
}

}  // namespace kvrail::test
