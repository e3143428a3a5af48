#include "perf/bench/fifo_link.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "perf/bench/bench.h"
#include "perf/bench/processes.h"

namespace kvrail::bench {
namespace {

constexpr std::uint16_t kPort = 7300;
constexpr std::int64_t kWarmUpNs = 500'000'000;
constexpr std::size_t kMostNotes = 8192;

struct Header {
  std::uint64_t bytes;      // behind this header; 0: the end
  std::int64_t made_ns;     // of a message; 0: bulk
};

struct Log {
  std::atomic<bool> listening{false};
  std::size_t notes = 0;
  std::array<std::int64_t, kMostNotes> took_ns{};
  std::uint64_t bulk_bytes = 0;   // from `first_ns` to `last_ns`
  std::int64_t first_ns = 0, last_ns = 0;
};

void put(int fd, const void* bytes, std::size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t rc = ::send(fd, at, size, MSG_NOSIGNAL);
    if (rc <= 0) throw Failure("the FIFO connection broke");
    at += rc;
    size -= static_cast<std::size_t>(rc);
  }
}

void get(int fd, void* bytes, std::size_t size) {
  if (::recv(fd, bytes, size, MSG_WAITALL) != static_cast<ssize_t>(size)) throw Failure("the FIFO connection broke");
}

int socket_for(sockaddr_in& address) {
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  ::inet_pton(AF_INET, ShapedLink::address(1), &address.sin_addr);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  static_cast<void>(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
  static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
  return fd;
}

void receive(Log& log, std::size_t unit_bytes) {
  sockaddr_in address{};
  const int listener = socket_for(address);
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || ::listen(listener, 1) != 0) {
    throw Failure("cannot listen on the shaped link");
  }
  log.listening = true;
  const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  std::vector<char> memory(std::max(unit_bytes, kNoteBytes));
  const std::int64_t warm_ns = now_ns() + kWarmUpNs;
  for (;;) {
    Header header{};
    get(fd, &header, sizeof(header));
    if (header.bytes == 0) return;
    get(fd, memory.data(), header.bytes);
    const std::int64_t now = now_ns();
    if (now < warm_ns) continue;
    if (header.made_ns != 0) {
      if (log.notes < kMostNotes) log.took_ns[log.notes++] = now - header.made_ns;
      continue;
    }
    if (log.first_ns == 0) {
      log.first_ns = now;
    } else {
      log.bulk_bytes += header.bytes;
      log.last_ns = now;
    }
  }
}

void send_all(std::size_t unit_bytes, std::int64_t run_ns) {
  sockaddr_in address{};
  const int fd = socket_for(address);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw Failure("cannot connect over the shaped link");
  }
  const std::vector<char> memory(std::max(unit_bytes, kNoteBytes), 'x');
  const std::int64_t end = now_ns() + kWarmUpNs + run_ns;
  std::int64_t due = now_ns();
  for (std::uint64_t number = 0; now_ns() < end;) {
    // A message is made when it is due, also while a unit before it still goes out.
    for (; due <= now_ns(); due += note_pause_ns(number++)) {
      const Header note{kNoteBytes, due};
      put(fd, &note, sizeof(note));
      put(fd, memory.data(), kNoteBytes);
    }
    const Header unit{unit_bytes, 0};
    put(fd, &unit, sizeof(unit));
    put(fd, memory.data(), unit_bytes);
  }
  const Header last{0, 0};
  put(fd, &last, sizeof(last));
  char byte = 0;
  static_cast<void>(::recv(fd, &byte, 1, 0));  // until the receiver has it all
}

}  // namespace

std::int64_t note_pause_ns(std::uint64_t number) {
  const std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15ULL;
  return 1'500'000 + static_cast<std::int64_t>((mixed >> 32) % 5'000'000);
}

UnderLoad run_fifo(const ShapedLink& link, std::uint64_t unit_bytes, std::int64_t run_ns) {
  const Shared<Log> log;
  Child receiver([&] { receive(*log, unit_bytes); }, link.name(1));
  wait_for("the FIFO receiver", 5'000'000'000, [&] { return log->listening.load(); });
  Child sender([&] { send_all(unit_bytes, run_ns); }, link.name(0));
  if (!receiver.ended_well(run_ns + 30'000'000'000)) throw Failure("the FIFO run did not end");
  Samples took;
  for (std::size_t i = 0; i < log->notes; ++i) took.values.push_back(static_cast<double>(log->took_ns[i]) / 1e6);
  UnderLoad out;
  out.p50_ms = took.median();
  out.p95_ms = took.quantile(0.95);
  out.p99_ms = took.quantile(0.99);
  out.bulk_bytes_per_s = static_cast<double>(log->bulk_bytes) * 1e9 / static_cast<double>(log->last_ns - log->first_ns);
  return out;
}

}  // namespace kvrail::bench
