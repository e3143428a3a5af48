// Floods of connections against a running daemon: who is attached does not notice, who comes meanwhile gets
// in, and afterwards nothing is left of them.
#include <arpa/inet.h>
#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kvrail/base/time.h"
#include "tests/daemon/daemon.h"
#include "tests/support/mode.h"

namespace kvrail::test {
namespace {

constexpr std::size_t kSlack = 3;   // descriptors that come and go with what the daemon does

std::size_t descriptors_of(pid_t pid) {
  std::size_t count = 0;
  DIR* folder = ::opendir(("/proc/" + std::to_string(pid) + "/fd").c_str());
  REQUIRE(folder != nullptr);
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

// Strangers that connect and say nothing. They stay until the other side has enough of them.
class Strangers {
 public:
  explicit Strangers(const sockaddr* address, socklen_t length, int type)
      : address_(address), length_(length), type_(type) {}
  ~Strangers() {
    for (const int fd : fds_) ::close(fd);
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  // False when the daemon's backlog is full at the moment.
  bool add() {
    const int fd = ::socket(address_->sa_family, type_ | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    REQUIRE(fd >= 0);
    const bool connected = ::connect(fd, address_, length_) == 0 || errno == EINPROGRESS;
    if (connected) {
      fds_.push_back(fd);
    } else {
      ::close(fd);
    }
    return connected;
  }
  [[nodiscard]] std::size_t size() const { return fds_.size(); }
  // How many of them the daemon has shown out by now.
  [[nodiscard]] std::size_t ended() const {
    std::size_t count = 0;
    for (const int fd : fds_) {
      char byte = 0;
      const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
      count += got == 0 || (got < 0 && errno != EAGAIN);
    }
    return count;
  }

 private:
  const sockaddr* address_;
  socklen_t length_;
  int type_;
  std::vector<int> fds_;
};

void allow_descriptors(rlim_t wanted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(wanted, limit.rlim_max));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// An agent that works all the time, as fast as it can.
class Worker {
 public:
  explicit Worker(Agent agent) : agent_(std::move(agent)), thread_([this] { run(); }) {}
  ~Worker() {
    stop_.store(true);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  [[nodiscard]] std::uint64_t rounds() const { return rounds_.load(); }
  [[nodiscard]] std::uint64_t faults() const { return faults_.load(); }

 private:
  void run() {
    while (!stop_.load()) {
      const auto task = agent_.begin_task({}, kSoon);
      const bool good = task.ok() && agent_.end_task(*task).ok();
      (good ? rounds_ : faults_).fetch_add(1);
      if (!good) return;
    }
  }
  Agent agent_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::atomic<std::uint64_t> faults_{0};
  std::thread thread_;
};

void flood(Daemon& daemon, Strangers& strangers, std::size_t count) {
  const std::size_t before = descriptors_of(daemon.process().pid());
  auto attached = daemon.attach("before");
  REQUIRE_MESSAGE(attached.ok(), (attached.ok() ? "" : attached.error().message));
  {
    const Worker worker(std::move(*attached));
    std::size_t newcomers = 0;
    while (strangers.size() < count) {
      if (!strangers.add()) static_cast<void>(::poll(nullptr, 0, 1));
      if (strangers.size() < (newcomers + 1) * count / 8) continue;
      const auto newcomer = daemon.attach("during-" + std::to_string(newcomers++));
      REQUIRE_MESSAGE(newcomer.ok(), (newcomer.ok() ? "" : newcomer.error().message));
    }
    // Bounded while they are all there: half open ones have a number of their own.
    CHECK(descriptors_of(daemon.process().pid()) < before + 256);
    const std::uint64_t rounds = worker.rounds();
    CHECK(until([&] { return worker.rounds() > rounds + 10; }));
    CHECK(worker.faults() == 0);
    CHECK(until([&] { return strangers.ended() == count; }));
  }
  CHECK(until([&] { return descriptors_of(daemon.process().pid()) <= before + kSlack; }));
  CHECK(daemon.attach("after").ok());
  // A flood of connections is no flood of lines.
  static_cast<void>(daemon.process().says("no such text", 50));
  CHECK(lines(daemon.process().output()) < 40);
  MESSAGE(count << " connections");
}

TEST_CASE("flood / thousands of silent connections at the attach socket") {
  allow_descriptors(8192);
  Daemon daemon;
  REQUIRE(daemon.up());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, daemon.socket().c_str(), sizeof(address.sun_path) - 1);
  Strangers strangers(reinterpret_cast<sockaddr*>(&address), sizeof(address), SOCK_SEQPACKET);
  flood(daemon, strangers, by_mode<std::size_t>(500, 1000, 5000));
}

TEST_CASE("flood / thousands of silent connections at the port of lanes") {
  allow_descriptors(8192);
  const int port = free_port();
  Daemon daemon("[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n");
  REQUIRE(daemon.up());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Strangers strangers(reinterpret_cast<sockaddr*>(&address), sizeof(address), SOCK_STREAM);
  flood(daemon, strangers, by_mode<std::size_t>(500, 1000, 5000));
}

}  // namespace
}  // namespace kvrail::test
