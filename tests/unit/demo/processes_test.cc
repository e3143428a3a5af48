// Programs that the demo starts, the configuration it writes, and the network between its nodes.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>

#include "engine/config/config.h"
#include "perf/demo/child_process.h"
#include "perf/demo/command.h"
#include "perf/demo/netns.h"
#include "perf/demo/node_process.h"

namespace kvrail::demo {
namespace {

using engine::ipc::UniqueFd;

struct Folder {
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "demo-test-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string next_line(ChildProcess& child) {
  for (;;) {
    if (auto line = child.next_line()) return *line;
    pollfd wait{child.output(), POLLIN, 0};
    REQUIRE(::poll(&wait, 1, 10'000) == 1);
  }
}

TEST_CASE("a command gives its output, or a reason") {
  const auto echo = run_command({"echo", "two words", "three"});
  REQUIRE(echo.ok());
  CHECK(*echo == "two words three\n");
  const auto failed = run_command({"sh", "-c", "echo what went wrong >&2; exit 3"});
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().message.find("what went wrong") != std::string::npos);
  CHECK(run_command({"kvrail-no-such-program"}).status().code == Code::not_found);
}

TEST_CASE("a child is told lines, answers, and ends when asked") {
  const Folder folder;
  SpawnOptions spawn;
  spawn.program = "/bin/sh";
  spawn.arguments = {"-c", "trap 'exit 0' TERM; while read line; do echo got $line; done; exit 0"};
  spawn.log = folder.path + "/log";
  spawn.pipes = true;
  auto child = ChildProcess::start(spawn);
  REQUIRE(child.ok());
  REQUIRE(child->tell("one"));
  REQUIRE(child->tell("two"));
  CHECK(next_line(*child) == "got one");
  CHECK(next_line(*child) == "got two");
  CHECK(child->running());
  child->ask_to_end();
  CHECK(child->wait_for_end(10 * kSecondNs));
  CHECK_FALSE(child->running());
}

TEST_CASE("a child that does not end is killed") {
  const Folder folder;
  SpawnOptions spawn;
  spawn.program = "/bin/sh";
  spawn.arguments = {"-c", "trap '' TERM; echo up; while :; do read line; done"};
  spawn.log = folder.path + "/log";
  spawn.pipes = true;
  auto child = ChildProcess::start(spawn);
  REQUIRE(child.ok());
  CHECK(next_line(*child) == "up");
  CHECK_FALSE(child->wait_for_end(0));
  CHECK_FALSE(child->running());
}

TEST_CASE("what a child complains of is in its log") {
  const Folder folder;
  SpawnOptions spawn;
  spawn.program = "/bin/sh";
  spawn.arguments = {"-c", "echo no luck >&2; exit 4"};
  spawn.log = folder.path + "/log";
  auto child = ChildProcess::start(spawn);
  REQUIRE(child.ok());
  CHECK_FALSE(child->wait_for_end(10 * kSecondNs));
  CHECK(child->log_tail() == "no luck\n");
}

TEST_CASE("kvraild takes the configuration that the demo writes") {
  const Folder folder;
  NodeConfig node;
  node.id = 2;
  node.socket = folder.path + "/b.sock";
  node.listen = "10.201.77.2:7400";
  node.peer = "10.201.77.1:7400";
  node.psk_file = folder.path + "/key";
  node.profile = folder.path + "/model.profile.toml";
  node.pacing_bytes_per_s = 6'250'000;
  REQUIRE(run_command({"sh", "-c",
                       "echo 0123456789abcdef > " + node.psk_file + "; chmod 600 " + node.psk_file})
              .ok());
  const auto config = engine::parse_config(config_text(node), "test");
  REQUIRE_MESSAGE(config.ok(), config.error().message);
  CHECK(config->node_id == 2);
  CHECK(config->tcp_listen == node.listen);
  CHECK(config->pacing_bytes_per_s == 6'250'000);
  CHECK(config->profile == node.profile);
  REQUIRE(config->peers.size() == 1);
  CHECK(config->peers[0].address == node.peer);
  node.peer.clear();
  node.pacing_bytes_per_s = 0;
  CHECK(engine::parse_config(config_text(node), "test").ok());
}

TEST_CASE("namespaces of the demo are told from others") {
  CHECK(owner_of_namespace("kvrail-demo-123-a") == 123);
  CHECK(owner_of_namespace("kvrail-demo-123-b") == 123);
  for (const char* other : {"", "kvrail-demo-", "kvrail-demo-x-a", "kvrail-demo-12",
                            "kvrail-demo-12-c", "other-12-a"}) {
    CHECK(owner_of_namespace(other) == 0);
  }
}

TEST_CASE("a shape lets congestion control work at every rate") {
  for (const std::uint64_t rate :
       {64'000ULL, 625'000ULL, 6'250'000ULL, 250'000'000ULL, 1'250'000'000ULL}) {
    const TbfShape shape = tbf_shape(rate);
    CHECK(shape.burst_bytes >= 1'600);  // less than a packet would let nothing pass
    CHECK(shape.limit_bytes >= shape.burst_bytes + 65'536);
  }
}

// A socket that belongs to the namespace.
UniqueFd socket_in(const std::string& name) {
  const UniqueFd before(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
  const UniqueFd there(::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::setns(there.get(), CLONE_NEWNET) == 0);
  UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::setns(before.get(), CLONE_NEWNET) == 0);
  return made;
}

sockaddr_in address_of(int end) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(7400);
  REQUIRE(::inet_pton(AF_INET, LinkedNamespaces::address(end), &address.sin_addr) == 1);
  return address;
}

TEST_CASE(
    "the link between two namespaces keeps the rate it was given, and leaves nothing behind") {
  std::string name_a;
  {
    auto link = LinkedNamespaces::make();
    if (!link.ok()) {
      MESSAGE("not run: no network namespaces here: " << link.error().message);
      return;
    }
    name_a = link->name(0);
    REQUIRE(link->shape(125'000'000).ok());
    constexpr std::uint64_t kRate = 2'500'000;  // 20 Mbit/s
    REQUIRE(link->shape(kRate).ok());
    const UniqueFd listener = socket_in(link->name(1));
    const sockaddr_in there = address_of(1);
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    const UniqueFd sender = socket_in(link->name(0));
    REQUIRE(::connect(sender.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0);
    const UniqueFd receiver(
        ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    REQUIRE(receiver.valid());
    ::fcntl(sender.get(), F_SETFL, O_NONBLOCK);
    constexpr std::size_t kBytes = 1'000'000;
    std::array<char, 65536> buffer{};
    std::size_t sent = 0;
    std::size_t got = 0;
    const SteadyClock clock;
    const TimeNs begin_ns = clock.now_ns();
    while (got < kBytes) {
      REQUIRE(clock.now_ns() - begin_ns < 60 * kSecondNs);
      std::array<pollfd, 2> wait{
          {{sender.get(), static_cast<short>(sent < kBytes ? POLLOUT : 0), 0},
           {receiver.get(), POLLIN, 0}}};
      ::poll(wait.data(), wait.size(), 100);
      if (sent < kBytes)
        sent += static_cast<std::size_t>(std::max<ssize_t>(
            ::send(sender.get(), buffer.data(), std::min(buffer.size(), kBytes - sent), 0), 0));
      got += static_cast<std::size_t>(
          std::max<ssize_t>(::recv(receiver.get(), buffer.data(), buffer.size(), 0), 0));
    }
    // 400 ms at the full rate; less than that would mean that nothing was shaped.
    const double seconds = static_cast<double>(clock.now_ns() - begin_ns) / 1e9;
    MESSAGE("1 MB at 2.5 MB/s took " << seconds << " s");
    CHECK(seconds > 0.85 * static_cast<double>(kBytes) / static_cast<double>(kRate));
  }
  CHECK_FALSE(std::filesystem::exists("/run/netns/" + name_a));
}

TEST_CASE("the next run removes what a killed run has left") {
  int dead = 0;
  {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(0);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    dead = child;  // a process id that belongs to nobody now
  }
  const std::string stale = "kvrail-demo-" + std::to_string(dead) + "-a";
  if (!run_command({"ip", "netns", "add", stale}).ok()) {
    MESSAGE("not run: no network namespaces here");
    return;
  }
  auto link = LinkedNamespaces::make();
  REQUIRE(link.ok());
  CHECK_FALSE(std::filesystem::exists("/run/netns/" + stale));
}

}  // namespace
}  // namespace kvrail::demo
