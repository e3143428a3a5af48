#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/transport_tcp/node.h"
#include "transport/socket_address.h"

namespace kvrail::test {
namespace {

// Makes io_uring_setup fail with EPERM in this process, for good.
bool refuse_io_uring() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Runs `body` in a child; its return value is the child's exit status.
template <class F>
int in_child(F&& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_CASE("where io_uring is refused, epoll serves and says so once") {
  const int outcome = in_child([] {
    if (!refuse_io_uring()) return 2;
    tcp::TcpOptions options = options_for(1, tcp::IoChoice::io_uring, false);
    auto forced = tcp::TcpTransport::create(options);
    if (forced.ok() || forced.error().status.detail != EPERM) return 3;
    options.io = tcp::IoChoice::automatic;
    auto chosen = tcp::TcpTransport::create(options);
    if (!chosen.ok()) return 4;
    if ((*chosen)->io_name() != "epoll") return 5;
    if ((*chosen)->warning().find("io_uring") == std::string_view::npos) return 6;
    if ((*chosen)->warning().find('\n') != std::string_view::npos) return 7;
    // And it works.
    Pair pair(options, options_for(2, tcp::IoChoice::automatic, true));
    if (!pair.dialler.post_frame(pair.here, "hello")) return 8;
    pair.run([&] { return !pair.listener.frames.empty(); });
    return pair.listener.frames[0].bytes == "hello" ? 0 : 9;
  });
  CHECK(outcome == 0);
}

TEST_CASE("io_uring that is allowed brings no warning") {
  Node node(options_for(1, tcp::IoChoice::automatic, false));
  if (node->io_name() == "io_uring") {
    CHECK(node->warning().empty());
  } else {
    CHECK_FALSE(node->warning().empty());
  }
}

TEST_CASE("nobody listens there: the lane goes down with the reason") {
  for (const tcp::IoChoice io : kBackends) {
    std::string address;
    {
      Node gone(options_for(2, io, true));
      address = gone->listen_address();
    }
    Node node(options_for(1, io, false));
    auto lane = node->open_lane(address, 31);
    REQUIRE(lane.ok());
    run_until({&node}, [&] { return node.count(EventKind::lane_down) == 1; });
    CHECK(node.seen.back().cookie == 31);
    CHECK(node.seen.back().lane == *lane);
    CHECK(node.seen.back().status.code == Code::unreachable);
    CHECK(node.seen.back().status.detail == ECONNREFUSED);
  }
}

TEST_CASE("somebody listens there but never answers: the lane times out") {
  for (const tcp::IoChoice io : kBackends) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    transport::SocketAddress address = *transport::parse_address("127.0.0.1:0", transport::PortZero::allowed);
    REQUIRE(::bind(fd, address.get(), address.length) == 0);
    REQUIRE(::listen(fd, 8) == 0);
    REQUIRE(::getsockname(fd, address.get(), &address.length) == 0);
    tcp::TcpOptions options = options_for(1, io, false);
    options.handshake_timeout_ns = 50 * kMillisecondNs;
    Node node(options);
    REQUIRE(node->open_lane(transport::to_string(address), 31).ok());
    CHECK(node->next_deadline_ns() != transport::Transport::kNoDeadline);
    run_until({&node}, [&] { return node.count(EventKind::lane_down) == 1; });
    CHECK(node.seen.back().status.code == Code::timed_out);
    CHECK(node->next_deadline_ns() == transport::Transport::kNoDeadline);
    ::close(fd);
  }
}

TEST_CASE("closing a lane that is still being opened") {
  for (const tcp::IoChoice io : kBackends) {
    for (int steps = 0; steps < 12; ++steps) {
      Node dialler(options_for(1, io, false));
      Node listener(options_for(2, io, true));
      auto lane = dialler->open_lane(listener->listen_address(), 8);
      REQUIRE(lane.ok());
      for (int i = 0; i < steps; ++i) {
        dialler.step();
        listener.step();
      }
      dialler->close_lane(*lane);
      run_until({&dialler, &listener}, [&] { return dialler.count(EventKind::lane_down) == 1; });
      CHECK(dialler.seen.back().status.code == Code::cancelled);
      CHECK(dialler.seen.back().cookie == 8);
    }
  }
}

TEST_CASE("a transport may go away at any point of its life") {
  for (const tcp::IoChoice io : kBackends) {
    for (int steps = 0; steps < 16; ++steps) {
      Node dialler(options_for(1, io, false));
      Node listener(options_for(2, io, true));
      Transfer transfer({1 << 20}, 1);
      auto lane = dialler->open_lane(listener->listen_address(), 8);
      REQUIRE(lane.ok());
      listener->expose({0, 1}, 1, transfer.sink_view);
      for (int i = 0; i < steps; ++i) {
        dialler.step();
        listener.step();
        ChunkPost post;
        post.lease = {0, 1};
        post.source = &transfer.source_view;
        post.bytes = 1 << 20;
        static_cast<void>(dialler.post_chunk(*lane, post));
      }
      (steps % 2 == 0 ? dialler : listener).destroy();
    }
  }
}

TEST_CASE("what a peer said before it went is heard before its lane goes down") {
  for (const tcp::IoChoice io : kBackends) {
    for (const bool unread : {false, true}) {
      Pair pair(io);
      // Unread data at the peer makes its kernel reset the connection instead of ending it.
      if (unread) REQUIRE(pair.listener.post_frame(pair.there, "never read"));
      pair.listener.step();
      for (int i = 0; i < 50; ++i) REQUIRE(pair.dialler.post_frame(pair.here, std::to_string(i)));
      // Hands them to the kernel and collects nothing.
      CHECK(pair.dialler->poll(1, {}) == 0);
      pair.dialler.destroy();
      run_until({&pair.listener}, [&] { return pair.listener.count(EventKind::lane_down) == 1; });
      CHECK(pair.listener.frames.size() == 50);
      CHECK(pair.listener.seen.back().kind == EventKind::lane_down);
      CHECK(pair.listener.seen.back().status.code == Code::lane_lost);
    }
  }
}

// The peer: a process of its own that sends bulk without end until it is killed.
[[noreturn]] void send_for_ever(const std::string& address, tcp::IoChoice io, bool critical) {
  Node node(options_for(7, io, false));
  Transfer transfer({4 << 20}, 1);
  auto lane = node->open_lane(address, 1);
  std::uint64_t at = 0;
  for (;;) {
    node.step();
    node.seen.clear();
    ChunkPost post;
    post.lease = {2, 2};
    post.transfer = 9;
    post.source = &transfer.source_view;
    post.offset = at;
    post.bytes = 1 << 20;
    post.critical = critical;
    if (node.post_chunk(*lane, post)) at = (at + post.bytes) % (4 << 20);
  }
}

TEST_CASE("a peer killed in the middle of a chunk: one lane_down, and the lease comes back") {
  for (const tcp::IoChoice io : kBackends) {
    for (int trial = 0; trial < 5; ++trial) {
      Node node(options_for(1, io, true));
      Transfer transfer({4 << 20}, 1);
      node->expose({2, 2}, 7, transfer.sink_view);
      const std::string address(node->listen_address());
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) send_for_ever(address, io, trial % 2 == 0);
      const auto wanted = static_cast<std::size_t>(trial + 1);
      run_until({&node}, [&] { return node.count(EventKind::chunk_received) >= wanted; });
      // Something of ours is under way too when it dies.
      const LaneId lane = node.last(EventKind::lane_up)->lane;
      ChunkPost post;
      post.lease = {0, 0};
      post.source = &transfer.source_view;
      post.bytes = 1 << 20;
      post.cookie = 5;
      REQUIRE(node.post_chunk(lane, post));
      ::kill(child, SIGKILL);
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      run_until({&node}, [&] { return node.count(EventKind::lane_down) == 1; });
      CHECK(node.last(EventKind::lane_down)->status.code == Code::lane_lost);
      CHECK(node.count(EventKind::chunk_done) == 1);
      const Code outcome = node.last(EventKind::chunk_done)->status.code;
      CHECK((outcome == Code::lane_lost || outcome == Code::rejected));
      CHECK(node.seen.back().kind == EventKind::lane_down);
      node->withdraw({2, 2});
      run_until({&node}, [&] { return node.count(EventKind::lease_withdrawn) == 1; });
      CHECK_FALSE(node.post_frame(lane, "late"));
    }
  }
}

TEST_CASE("zero-copy sends to a peer that dies raise no signal") {
  Transfer transfer({8 << 20}, 1);
  for (int trial = 0; trial < 20; ++trial) {
    tcp::TcpOptions a = options_for(1, tcp::IoChoice::automatic, false);
    a.zero_copy = tcp::ZeroCopy::vmsplice;
    Pair pair(a, options_for(2, tcp::IoChoice::automatic, true));
    pair.listener->expose({0, 1}, 1, transfer.sink_view);
    std::uint64_t posted = 0;
    ChunkPost post;
    post.lease = {0, 1};
    post.source = &transfer.source_view;
    post.bytes = 256 << 10;
    while (posted < 32 && pair.dialler.post_chunk(pair.here, post)) {
      post.offset += post.bytes;
      ++posted;
    }
    for (int i = 0; i < trial; ++i) {
      pair.dialler.step();
      if (i % 2 == 0) pair.listener.step();
    }
    pair.listener.destroy();
    run_until({&pair.dialler}, [&] { return pair.dialler.count(EventKind::lane_down) == 1; });
    CHECK(pair.dialler.count(EventKind::chunk_done) == posted);
    CHECK(pair.dialler.seen.back().status.code == Code::lane_lost);
  }
}

}  // namespace
}  // namespace kvrail::test
