// kvraild as a user meets it: bad input gives one clear line and the right exit code, signals end it
// in order, strangers on its sockets change nothing.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>

#include "kvrail/agent.h"
#include "kvrail/base/prng.h"
#include "tests/daemon/process.h"
#include "tests/support/sanitizers.h"

// From <linux/capability.h>, which clashes with other headers.
#ifndef CAP_IPC_LOCK
#define CAP_IPC_LOCK 14
#endif

namespace kvrail::test {
namespace {

constexpr int kSoonMs = 15'000;   // generous: it only bounds a hang

class Daemon {
 public:
  explicit Daemon(const std::string& extra = "", const std::function<void()>& in_child = {})
      : socket_(dir_.path("s")),
        config_(dir_.write("kvraild.toml", "[attach]\nsocket = \"" + socket_ + "\"\n[memory]\ntables = \"64 MiB\"\n" +
                                               "receive_arena = \"16 MiB\"\nagent_arena = \"8 MiB\"\n" + extra)),
        process_({kvraild_path(), "--config", config_}, in_child) {}
  [[nodiscard]] bool up() { return process_.says("takes agents at", kSoonMs); }
  [[nodiscard]] Process& process() { return process_; }
  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] Result<Agent> attach(const std::string& name) const {
    AttachOptions options;
    options.socket_path = socket_;
    options.name = name;
    options.tenant = "test";
    options.layout.layers = 1;
    options.layout.kv_heads = 1;
    options.layout.head_dim = 8;
    options.layout.block_tokens = 16;
    return Agent::attach(options);
  }

 private:
  TempDir dir_;
  std::string socket_;
  std::string config_;
  Process process_;
};

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  return text.substr(text.rfind('\n', end) + 1, end - text.rfind('\n', end));
}

long lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST_CASE("kvraild / --check-config says good with 0 and what is wrong with 2, on one line") {
  const TempDir dir;
  Process good({kvraild_path(), "--check-config", "--config", dir.write("a", "[node]\nid = 3\n")});
  CHECK(good.wait(kSoonMs) == 0);
  Process bad({kvraild_path(), "--check-config", "--config", dir.write("b", "[node]\nidd = 3\n")});
  CHECK(bad.wait(kSoonMs) == 2);
  CHECK(bad.output().find(":2: node.idd: unknown key; known here are id") != std::string::npos);
  CHECK(lines(bad.output()) == 1);
  Process absent({kvraild_path(), "--config", dir.path("none")});
  CHECK(absent.wait(kSoonMs) == 2);
  Process usage({kvraild_path(), "--no-such-flag"});
  CHECK(usage.wait(kSoonMs) == 2);
}

TEST_CASE("kvraild / what the system refuses ends it with 1 and a line that names the remedy") {
  const int port = free_port();
  const std::string listen = "[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n";
  Daemon first(listen);
  REQUIRE(first.up());
  SUBCASE("port in use") {
    Daemon second(listen);
    CHECK(second.process().wait(kSoonMs) == 1);
    CHECK(second.process().output().find(std::to_string(port)) != std::string::npos);
  }
  SUBCASE("attach socket in use") {
    const TempDir dir;
    Process second({kvraild_path(), "--config", dir.write("c", "[attach]\nsocket = \"" + first.socket() + "\"\n")});
    CHECK(second.wait(kSoonMs) == 1);
    CHECK(second.output().find(first.socket()) != std::string::npos);
  }
  SUBCASE("key file too short, or absent") {
    const TempDir dir;
    Daemon bad_key("[tcp]\npsk_file = \"" + dir.write("key", "short") + "\"\n");
    CHECK(bad_key.process().wait(kSoonMs) == 1);
    CHECK(last_line(bad_key.process().output()).find("16") != std::string::npos);
    Daemon no_key("[tcp]\npsk_file = \"" + dir.path("none") + "\"\n");
    CHECK(no_key.process().wait(kSoonMs) == 1);
  }
#if !KVRAIL_TEST_SANITIZED
  SUBCASE("memory lock limit") {
    Daemon locked("lock = true\n", [] {
      ::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);  // root would not feel the limit
      const rlimit limit{64 * 1024, 64 * 1024};
      ::setrlimit(RLIMIT_MEMLOCK, &limit);
    });
    // Arenas are made at the first attach: the engine runs, and the agent is told.
    REQUIRE(locked.up());
    const auto agent = locked.attach("a");
    REQUIRE_FALSE(agent.ok());
    INFO(agent.error().message);
    CHECK(agent.status().code == Code::limit);
    CHECK(agent.error().message.find("RLIMIT_MEMLOCK is 64 KiB; raise it") != std::string::npos);
  }
#endif
  CHECK(first.attach("still-there").ok());
}

TEST_CASE("kvraild / a peer that cannot be reached, or whose name is unknown, keeps nothing from running") {
  Daemon daemon("[[peer]]\naddress = \"127.0.0.1:" + std::to_string(free_port()) +
                "\"\n[[peer]]\naddress = \"no-such-host.invalid:7400\"\n");
  REQUIRE(daemon.up());
  CHECK(daemon.process().says("cannot look up \"no-such-host.invalid\"", kSoonMs));
  CHECK(daemon.attach("a").ok());
}

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
