// Bad input, given to the real programs as a user would: one line that says what is wrong, what the limit
// is and what to do, the right exit code, and nothing that hangs.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/daemon/confine.h"
#include "tests/daemon/daemon.h"
#include "tests/support/sanitizers.h"

namespace kvrail::test {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// What a program said last and how it ended.
struct End {
  int code = -1;
  std::string output;
  [[nodiscard]] bool says(const std::vector<std::string>& parts) const {
    return lines(output) == 1 && holds_all(output, parts);
  }
};

End run(const std::vector<std::string>& command, const std::function<void()>& in_child = {}) {
  Process process(command, in_child);
  const int code = process.wait(kSoonMs);
  return {code, process.output()};
}

End check(const std::string& config) {
  const TempDir dir;
  return run({kvraild_path(), "--check-config", "--config", dir.write("kvraild.toml", config)});
}

End kvrailctl(const std::string& socket) { return run({KVRAIL_KVRAILCTL_PATH, "status", "--socket", socket}); }

// The engine ends by itself with 1 and says why in its last line.
void check_refusal(Daemon& daemon, const std::vector<std::string>& parts) {
  CHECK(daemon.process().wait(kSoonMs) == kFailed);
  INFO(daemon.process().output());
  CHECK(holds_all(last_line(daemon.process().output()), parts));
}

// A foreign program that listens where an engine is looked for.
class Foreign {
 public:
  Foreign(const std::string& path, int type) : fd_(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(fd_, 8) == 0);
  }
  ~Foreign() { ::close(fd_); }
  Foreign(const Foreign&) = delete;
  Foreign& operator=(const Foreign&) = delete;
  // Takes one connection and says something that is not ours; the caller closes it.
  int greet(const std::string& text) {
    const int client = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(client >= 0);
    CHECK(::send(client, text.data(), text.size(), MSG_NOSIGNAL) > 0);
    return client;
  }

 private:
  int fd_;
};

// What an attachment of another user's process says. Only for root.
std::string attach_as(uid_t uid, const AttachOptions& options) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::string said = "cannot become that user";
    if (::setgroups(0, nullptr) == 0 && ::setgid(uid) == 0 && ::setuid(uid) == 0) {
      const Result<Agent> agent = Agent::attach(options);
      said = agent.ok() ? std::string("attached as ").append(agent->tenant())
                        : std::string(name(agent.status().code)).append(": ").append(agent.error().message);
    }
    ::_exit(::write(ends[1], said.data(), said.size()) == static_cast<ssize_t>(said.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::array<char, 1024> text{};
  const ssize_t got = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  return std::string(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
}

}  // namespace

TEST_CASE("bad input / configuration: --check-config says good with 0 and what is wrong with 2, on one line") {
  CHECK(check("[node]\nid = 3\n").code == 0);
  CHECK(check("").code == 0);
  struct Case {
    const char* config;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {"[node]\nidd = 3\n", {":2: node.idd: unknown key; known here are id"}},
      {"[nodes]\nid = 3\n", {":1: nodes: unknown key or section; known are"}},
      {"[runtime]\nslice = \"10 parsecs\"\n", {":2: runtime.slice:", "needs one of the units ns, us, ms, s, min"}},
      {"[runtime]\nslice = 10\n", {":2: runtime.slice: must be a string with a unit", "5 ms to 20 ms"}},
      {"[memory]\nreceive_arena = \"1e30 B\"\n", {":2: memory.receive_arena:", "units B, KiB"}},
      {"[memory]\nreceive_arena = \"-1 MiB\"\n", {":2: memory.receive_arena:", "is not a number with a unit"}},
      {"[memory]\nreceive_arena = \"0 MiB\"\n", {":2: memory.receive_arena:", "must be greater than zero"}},
      {"[tcp]\nlisten = \"0.0.0.0:7400\"\n", {"tcp.listen:", "can be reached from other machines", "set tcp.psk_file"}},
      {"[tcp]\nlisten = \"127.0.0.1:65536\"\n", {"tcp.listen:", "port", "65535"}},
      {"[[peer]]\naddress = \"127.0.0.1:0\"\n", {"peer.address:", "port", "1 to 65535"}},
      {"[[peer]]\naddress = \"127.0.0.1:\"\n", {"peer.address:", "host:port or [v6]:port"}},
      {"[[peer]]\naddress = \"2605:340::1\"\n", {"peer.address:", "brackets"}},
      {"[[peer]]\naddress = \"2605:340\"\n", {"peer.address:", "host:port or [v6]:port"}},
      {"[[peer]]\naddress = \"0.0.0.0:7400\"\n", {"peer.address:", "nobody"}},
      {"[transfer]\nkeepalive = \"1 ns\"\n", {":2: transfer.keepalive:", "10 ms to 1 min"}},
      {"[transfer]\ndead_after = \"9223372036854775808 ns\"\n", {":2: transfer.dead_after:", "too large"}},
      {"[transfer]\nkeepalive = \"2 s\"\ndead_after = \"3 s\"\n", {"transfer.dead_after:", "at least twice"}},
      {"[offload]\ndirectory = \"tier\"\n", {":2: offload.directory:", "must be an absolute path"}},
      {"[offload]\ndirectory = \"/proc/self/stat\"\n", {":2: offload.directory:", "is not a directory"}},
      {"[offload]\ndirectory = \"/proc/none\"\n", {":2: offload.directory:", "does not exist; create it"}},
  };
  for (const Case& each : cases) {
    const End end = check(each.config);
    INFO(end.output);
    CAPTURE(each.config);
    CHECK(end.code == kUsage);
    CHECK(end.says(each.parts));
  }
}

TEST_CASE("bad input / --check-config holds the file against the machine, and tells all that is wrong") {
  const TempDir dir;
  const std::string key = dir.write("key", "short");
  const End end = check("[memory]\ntables = \"16 MiB\"\nmax_blocks = 67108864\n[runtime]\ncore = 4095\n[tcp]\n"
                        "congestion = \"warp\"\npsk_file = \"" + key + "\"\n");
  INFO(end.output);
  CHECK(end.code == kUsage);
  CHECK(lines(end.output) == 4);
  CHECK(holds_all(end.output, {":5: runtime.core: cannot pin to core 4095", ":2: memory.tables: 16 MiB are too small",
                               "(see line 3 too)", ":7: tcp.congestion: ", ":8: tcp.psk_file ", "holds 5 bytes"}));
  const std::string open_key = dir.write("open", std::string(32, 'k'));
  REQUIRE(::chmod(open_key.c_str(), 0644) == 0);
  const End warned = check("[tcp]\npsk_file = \"" + open_key + "\"\n");
  CHECK(warned.code == 0);
  CHECK(holds_all(warned.output, {"warning: ", "other users can open it", ": good"}));
}

TEST_CASE("bad input / a configuration that is no file, and a wrong command line, end with 2") {
  const TempDir dir;
  CHECK(run({kvraild_path(), "--config", dir.path("none")}).says({"none: No such file or directory"}));
  CHECK(run({kvraild_path(), "--config", dir.path("")}).says({"is not a regular file"}));
  CHECK(run({kvraild_path(), "--config", dir.path("none")}).code == kUsage);
  CHECK(run({kvraild_path(), "--no-such-flag"}).code == kUsage);
}

TEST_CASE("bad input / a port or a socket that is in use") {
  const int port = free_port();
  const std::string listen = "[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n";
  Daemon first(listen);
  REQUIRE(first.up());
  Daemon second(listen);
  check_refusal(second, {"127.0.0.1:", std::to_string(port), "in use", "another port"});
  const TempDir dir;
  const End same = run({kvraild_path(), "--config", dir.write("c", "[attach]\nsocket = \"" + first.socket() + "\"\n")});
  CHECK(same.code == kFailed);
  CHECK(holds_all(last_line(same.output), {first.socket(), "in use", "another path"}));
  CHECK(first.attach("still-there").ok());
}

TEST_CASE("bad input / key files: absent, short, a folder, readable by others") {
  const TempDir dir;
  Daemon bad_key("[tcp]\npsk_file = \"" + dir.write("key", "short") + "\"\n");
  check_refusal(bad_key, {"psk_file", "holds 5 bytes; a key has 16 to 4096", "openssl rand"});
  Daemon no_key("[tcp]\npsk_file = \"" + dir.path("none") + "\"\n");
  check_refusal(no_key, {"psk_file", "none", "No such file"});
  Daemon folder("[tcp]\npsk_file = \"" + dir.path("") + "\"\n");
  check_refusal(folder, {"psk_file", "is not a regular file"});
  const std::string open_key = dir.write("open", std::string(32, 'k'));
  REQUIRE(::chmod(open_key.c_str(), 0644) == 0);
  Daemon open("[tcp]\npsk_file = \"" + open_key + "\"\n");
  CHECK(open.up());
  CHECK(open.process().says("other users can open it; run chmod 600", kSoonMs));
}

TEST_CASE("bad input / a user without a rule is told why and what to do, and the log has it") {
  if (::geteuid() != 0) {
    MESSAGE("SKIP: only root can become another user");
    return;
  }
  Daemon daemon("[[attach.tenant]]\nuid = 4242\nname = \"red\"\n");
  REQUIRE(daemon.up());
  REQUIRE(::chmod(daemon.dir().path("").c_str(), 0755) == 0);
  REQUIRE(::chmod(daemon.socket().c_str(), 0666) == 0);
  AttachOptions options = daemon.options("a");
  options.tenant = "";
  CHECK(attach_as(4242, options) == "attached as red");
  // It is cut off before, while or after it asks: each time it hears why.
  for (int i = 0; i < 50; ++i) {
    const std::string said = attach_as(4243, options);
    INFO(said);
    REQUIRE(holds_all(said, {"permission_denied: user 4243 may not attach", "[[attach.tenant]]", "attach.any_uid"}));
  }
  options.tenant = "blue";
  CHECK(holds_all(attach_as(4242, options), {"permission_denied: user 4242 may not attach as tenant 'blue'"}));
  CHECK(daemon.process().says("attach refused: user 4243 may not attach", kSoonMs));
  CHECK(daemon.process().says("attach refused: user 4242 may not attach as tenant 'blue'", kSoonMs));
}

TEST_CASE("bad input / a peer with another key, or none, is named where it is dialled, and nothing else stops") {
  const int port = free_port();
  const TempDir dir;
  const auto keyed = [&](const char* name, char fill) {
    const std::string path = dir.write(name, std::string(32, fill));
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    return "psk_file = \"" + path + "\"\n";
  };
  const std::string address = "127.0.0.1:" + std::to_string(port);
  Daemon listener("[tcp]\nlisten = \"" + address + "\"\n" + keyed("a", 'a'));
  REQUIRE(listener.up());
  Daemon dialler("[tcp]\n" + keyed("b", 'b') + "[[peer]]\naddress = \"" + address + "\"\n");
  REQUIRE(dialler.up());
  CHECK(dialler.process().says("peer " + address + ": the handshake failed", kSoonMs));
  CHECK(dialler.process().says("same tcp.psk_file", kSoonMs));
  CHECK(listener.attach("a").ok());
  CHECK(dialler.attach("a").ok());
}

TEST_CASE("bad input / a peer that nobody is at, or whose name is unknown, is named once and tried again") {
  const int port = free_port();
  const std::string address = "127.0.0.1:" + std::to_string(port);
  Daemon daemon("[[peer]]\naddress = \"" + address + "\"\n[[peer]]\naddress = \"no-such-host.invalid:7400\"\n");
  REQUIRE(daemon.up());
  CHECK(daemon.process().says("cannot look up \"no-such-host.invalid\"", kSoonMs));
  CHECK(daemon.process().says("peer " + address + ": cannot be reached", kSoonMs));
  CHECK(daemon.attach("a").ok());
  const auto peers = [&] { return run({KVRAIL_KVRAILCTL_PATH, "peers", "--socket", daemon.socket()}).output; };
  CHECK(until([&] { return holds_all(peers(), {address, "tcp", "connecting", "cannot be reached: Connection refused",
                                               "no-such-host.invalid:7400", "cannot look up"}); }));
  Daemon other("[tcp]\nlisten = \"" + address + "\"\n");
  REQUIRE(other.up());
  CHECK(daemon.process().says("peer " + address + ": connected", kSoonMs));
  CHECK(until([&] { return holds_all(peers(), {"connected", "connecting", "cannot look up"}); }));
}

#if !KVRAIL_TEST_SANITIZED
TEST_CASE("bad input / memory that cannot be locked: the engine says how much, the limit, and what to raise") {
  Daemon daemon("lock = true\n", [] { limit_locked_memory(64 * 1024); });
  check_refusal(daemon, {"RLIMIT_MEMLOCK is 64 KiB", "needs 24 MiB", "ulimit -l", "LimitMEMLOCK"});
  // Enough for what the engine makes by itself, not for an agent that asks for more.
  Daemon tight("lock = true\n", [] { limit_locked_memory(4 << 20); },
               "receive_arena = \"1 MiB\"\nagent_arena = \"1 MiB\"\n");
  REQUIRE(tight.up());
  CHECK(tight.attach("a").ok());
  AttachOptions large = tight.options("b");
  large.arena_bytes = 16 << 20;
  const auto refused = Agent::attach(large);
  REQUIRE_FALSE(refused.ok());
  INFO(refused.error().message);
  CHECK(refused.status().code == Code::limit);
  CHECK(holds_all(refused.error().message, {"16 MiB", "RLIMIT_MEMLOCK is 4096 KiB", "raise it"}));
}
#endif

TEST_CASE("bad input / no huge pages: a warning says so and the engine goes on") {
  std::ifstream file("/proc/sys/vm/nr_hugepages");
  long pages = -1;
  file >> pages;
  if (pages != 0) {
    MESSAGE("SKIP: this machine has huge pages");
    return;
  }
  Daemon daemon("hugepages = true\n");
  REQUIRE(daemon.up());
  INFO(daemon.process().output());
  CHECK(daemon.process().says("memory.hugepages: ", kSoonMs));
  CHECK(daemon.process().says("vm.nr_hugepages", kSoonMs));
  CHECK(daemon.attach("a").ok());
}

TEST_CASE("bad input / memory that the machine does not have") {
  Daemon tables("[log]\n[node]\n", {});
  REQUIRE(tables.up());
  const TempDir dir;
  const End much = run({kvraild_path(), "--config",
                        dir.write("c", "[attach]\nsocket = \"" + dir.path("s") + "\"\n[memory]\ntables = \"1 TiB\"\n")});
  CHECK(much.code == kFailed);
  INFO(much.output);
  CHECK(holds_all(last_line(much.output), {"memory.tables", "MiB", "lower"}));
  AttachOptions large = tables.options("a");
  large.arena_bytes = std::uint64_t{1} << 40;
  const auto refused = Agent::attach(large);
  REQUIRE_FALSE(refused.ok());
  INFO(refused.error().message);
  CHECK(holds_all(refused.error().message, {"bytes", "limit"}));
  CHECK(tables.attach("a").ok());
}

TEST_CASE("bad input / a full /dev/shm is none of the engine's memory") {
  bool confined = false;
  {
    Process probe({"/bin/true"}, [] { ::_exit(fill_dev_shm() ? 0 : 7); });
    confined = probe.wait(kSoonMs) == 0;
  }
  if (!confined) {
    MESSAGE("SKIP: no right to mount a /dev/shm of one's own");
    return;
  }
  Daemon daemon("", [] { static_cast<void>(fill_dev_shm()); });
  REQUIRE(daemon.up());
  auto agent = daemon.attach("a");
  REQUIRE_MESSAGE(agent.ok(), (agent.ok() ? "" : agent.error().message));
  CHECK(agent->allocate(agent->layout(), 4).ok());
}

TEST_CASE("bad input / io_uring that is forbidden: one warning, and epoll serves") {
  const int port = free_port();
  Daemon daemon("[tcp]\nlisten = \"127.0.0.1:" + std::to_string(port) + "\"\n",
                [] { static_cast<void>(deny_io_uring()); });
  REQUIRE(daemon.up());
  INFO(daemon.process().output());
  CHECK(daemon.process().says("io_uring", kSoonMs));
  const std::string& output = daemon.process().output();
  CHECK(output.find("kernel.io_uring_disabled=0") != std::string::npos);
  CHECK(output.find("kernel.io_uring_disabled=0") == output.rfind("kernel.io_uring_disabled=0"));
  CHECK(daemon.attach("a").ok());
}

TEST_CASE("bad input / a layout of 2^40 tokens, and blocks for as many") {
  Daemon daemon;
  REQUIRE(daemon.up());
  AttachOptions options = daemon.options("a");
  options.layout.block_tokens = 0xffff'fff0U;
  const auto refused = Agent::attach(options);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().code == Code::invalid_argument);
  CHECK(refused.error().message == "layout: block_tokens is 4294967280, allowed is 16 to 512 in steps of 16");
  options = daemon.options("a");
  options.layout.layers = 1024;
  options.layout.kv_heads = 1024;
  options.layout.head_dim = 64;
  options.layout.block_tokens = 512;
  const auto huge = Agent::attach(options);
  REQUIRE_FALSE(huge.ok());
  INFO(huge.error().message);
  CHECK(holds_all(huge.error().message, {"one block would have more than 2 GiB", "use fewer tokens"}));
  options.layout.layers = 4;
  const auto large = Agent::attach(options);
  REQUIRE_FALSE(large.ok());
  INFO(large.error().message);
  CHECK(holds_all(large.error().message, {"one block of this layout has", "the agent's arena only", "raise"}));
  auto agent = daemon.attach("a");
  REQUIRE(agent.ok());
  // 2^40 tokens in blocks of 512 are 2^31 of them.
  const auto blocks = agent->allocate(agent->layout(), 1U << 31);
  REQUIRE_FALSE(blocks.ok());
  INFO(blocks.error().message);
  CHECK(holds_all(blocks.error().message, {"2147483648 blocks", "the agent's arena has", "arena_bytes"}));
  CHECK(agent->allocate(agent->layout(), 2).ok());
}

TEST_CASE("bad input / a foreign program at the socket: whoever looks for an engine is told") {
  const TempDir dir;
  const std::string path = dir.path("s");
  SUBCASE("a stream socket") {
    const Foreign foreign(path, SOCK_STREAM);
    const End end = kvrailctl(path);
    INFO(end.output);
    CHECK(end.code == kFailed);
    CHECK(end.says({path, "no engine listens"}));
    const End start = run({kvraild_path(), "--config", dir.write("c", "[attach]\nsocket = \"" + path + "\"\n")});
    INFO(start.output);
    CHECK(start.code == kFailed);
    CHECK(holds_all(last_line(start.output), {path, "in use"}));
  }
  SUBCASE("one that says something else") {
    Foreign foreign(path, SOCK_SEQPACKET);
    Process process({KVRAIL_KVRAILCTL_PATH, "status", "--socket", path});
    const int client = foreign.greet("HTTP/1.1 400 Bad Request\r\n\r\n");
    CHECK(process.wait(kSoonMs) == kFailed);
    ::close(client);
    INFO(process.output());
    CHECK(lines(process.output()) == 1);
    CHECK(process.output().find("a message that is none") != std::string::npos);
  }
  SUBCASE("one that says nothing") {
    const Foreign foreign(path, SOCK_SEQPACKET);
    const End end = kvrailctl(path);
    INFO(end.output);
    CHECK(end.code == kFailed);
    CHECK(end.says({"did not answer in time"}));
  }
  SUBCASE("a plain file") {
    dir.write("s", "text");
    const End end = kvrailctl(path);
    CHECK(end.code == kFailed);
    CHECK(end.says({path}));
    const End start = run({kvraild_path(), "--config", dir.write("c", "[attach]\nsocket = \"" + path + "\"\n")});
    CHECK(start.code == kFailed);
    CHECK(holds_all(last_line(start.output), {path}));
    CHECK(::access(path.c_str(), F_OK) == 0);
  }
}

TEST_CASE("bad input / an engine that is stopped: every call ends by its time-out") {
  Daemon daemon;
  REQUIRE(daemon.up());
  auto agent = daemon.attach("a");
  REQUIRE(agent.ok());
  daemon.process().stop();
  AttachOptions options = daemon.options("b");
  options.timeout = std::chrono::milliseconds(100);
  const auto refused = Agent::attach(options);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().code == Code::timed_out);
  CHECK(agent->begin_task({}, std::chrono::milliseconds(100)).status().code == Code::timed_out);
  CHECK(agent->allocate(agent->layout(), 1, Place::host(), std::chrono::milliseconds(100)).status().code ==
        Code::timed_out);
  CHECK(agent->receive(std::chrono::milliseconds(100)).status().code == Code::timed_out);
  const End end = kvrailctl(daemon.socket());
  CHECK(end.code == kFailed);
  CHECK(end.says({"did not answer in time"}));
  daemon.process().signal(SIGCONT);
  CHECK(agent->begin_task({}).ok());
}

}  // namespace kvrail::test
