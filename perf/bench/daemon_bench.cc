// A small message through kvraild: two agents in two processes and the daemon between them, all with
// default waiting, against a relay that passes datagrams of a Unix socket on between two processes.
// Every message goes agent, daemon, agent; figures are of a round trip, so of two messages.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "perf/bench/agents.h"
#include "perf/bench/benchmarks.h"

namespace kvrail::bench {
namespace {

constexpr int kRounds = 2'000;
constexpr std::size_t kMostBytes = 4096;
constexpr std::uint64_t kArena = 4 << 20;

// Ours ----------------------------------------------------------------------------------------------

// A message is a context of one block of 4 KiB that is committed already, or one that is new each time.
enum class Content { committed, fresh };

// Says something in its turn, for ever.
class Speaker {
 public:
  Speaker(const std::string& socket, const std::string& name, const std::string& other)
      : agent_(attach(socket, agent_options(name, small_layout(), kArena))),
        other_(other),
        made_(commit_new(agent_, "note", 1, 7, true)) {}

  void say(Content content) {
    NewContext fresh;
    if (content == Content::fresh) fresh = commit_new(agent_, "fresh", 1, ++number_, true);
    const Context& context = content == Content::fresh ? fresh.context : made_.context;
    agent_.forget(must(agent_.send(context, {other_}), "cannot send"));
  }
  [[nodiscard]] Content hear() {
    const Delivery delivery = must(agent_.receive(kPatience * 10), "no delivery");
    return delivery.context() == "fresh" ? Content::fresh : Content::committed;
  }

 private:
  Agent agent_;
  std::string other_;
  NewContext made_;
  std::uint64_t number_ = 100;
};

class ThroughDaemon {
 public:
  ThroughDaemon()
      : daemon_(folder_, "node", ""),
        other_([this] {
          Speaker speaker(daemon_.socket(), "b", "a");
          for (;;) speaker.say(speaker.hear());
        }) {
    daemon_.await(0, 1);
    speaker_ = std::make_unique<Speaker>(daemon_.socket(), "a", "b");
  }
  double round_trip_us(Content content) {
    for (int i = 0; i < kRounds / 10; ++i) round(content);
    const std::int64_t start = now_ns();
    for (int i = 0; i < kRounds; ++i) round(content);
    return static_cast<double>(now_ns() - start) / 1e3 / kRounds;
  }

 private:
  void round(Content content) {
    speaker_->say(content);
    static_cast<void>(speaker_->hear());
  }
  Folder folder_;
  Daemon daemon_;
  Child other_;
  std::unique_ptr<Speaker> speaker_;
};

// The relay -----------------------------------------------------------------------------------------

struct Pair {
  Pair() {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) throw Failure("no socket pair");
  }
  ~Pair() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  std::array<int, 2> ends{};
};

void put(int fd, std::span<const char> bytes) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) throw Failure("the relay's socket broke");
}
std::size_t get(int fd, std::span<char> bytes) {
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
  if (got <= 0) throw Failure("the relay's socket broke");
  return static_cast<std::size_t>(got);
}
void pass_on(int from, int to) {
  std::array<char, kMostBytes> bytes;
  put(to, std::span(bytes).first(get(from, bytes)));
}

// `listens`: waits for whoever speaks next, as a relay must that serves more than one conversation.
// Otherwise it knows the turns and merely blocks in recv(): the least that two hops can cost.
class ThroughRelay {
 public:
  explicit ThroughRelay(bool listens)
      : relay_([this, listens] {
          std::array<pollfd, 2> fds{{{left_.ends[1], POLLIN, 0}, {right_.ends[0], POLLIN, 0}}};
          for (std::size_t turn = 0;; turn ^= 1U) {
            if (listens) {
              static_cast<void>(::poll(fds.data(), fds.size(), -1));
              turn = fds[0].revents != 0 ? 0 : 1;
            }
            pass_on(fds[turn].fd, fds[turn ^ 1U].fd);
          }
        }),
        other_([this] {
          for (;;) pass_on(right_.ends[1], right_.ends[1]);
        }) {}
  double round_trip_us(std::size_t size) {
    std::array<char, kMostBytes> memory{};
    const std::span<char> bytes = std::span(memory).first(size);
    const std::int64_t start = now_ns();
    for (int i = 0; i < kRounds; ++i) {
      put(left_.ends[0], bytes);
      static_cast<void>(get(left_.ends[0], bytes));
    }
    return static_cast<double>(now_ns() - start) / 1e3 / kRounds;
  }

 private:
  Pair left_, right_;
  Child relay_;
  Child other_;
};

}  // namespace

void run_daemon(Report& report) {
  constexpr std::size_t kSmall = 256;
  ThroughDaemon ours;
  ThroughRelay blocking(false);
  ThroughRelay listening(true);
  const auto committed = [&] { return ours.round_trip_us(Content::committed); };
  report.compare("daemon, round trip", "us", Better::lower, "Unix relay, poll, 256 B", 1.0, committed,
                 [&] { return listening.round_trip_us(kSmall); });
  report.compare("daemon, round trip", "us", Better::lower, "Unix relay that knows turns", std::nullopt, committed,
                 [&] { return blocking.round_trip_us(kSmall); });
  report.compare("daemon, round trip, new block each", "us", Better::lower, "Unix relay, poll, 4 KiB", std::nullopt,
                 [&] { return ours.round_trip_us(Content::fresh); },
                 [&] { return listening.round_trip_us(kMostBytes); });
  report.note("allocate, commit, send");
}

}  // namespace kvrail::bench
