#include "perf/bench/tcp_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvrail/base/assert.h"
#include "perf/bench/bench.h"
#include "transport/payload_ops.h"

namespace kvrail::bench {

using namespace kvrail::transport;

namespace {

constexpr LeaseId kLease{0, 1};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "kvrail-bench: %s\n", why.c_str());
  std::exit(1);
}

double rate_of(std::uint64_t bytes, std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(to_ns - from_ns);
}

}  // namespace

Performer::Performer(int core) : thread_([this, core] { work(core); }) {}

Performer::~Performer() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Performer::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    KVRAIL_ASSERT(!busy_);
    job_ = std::move(job);
    busy_ = true;
  }
  changed_.notify_all();
}

void Performer::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void Performer::work(int core) {
  if (core >= 0) pin_to_core(static_cast<unsigned>(core));
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || quit_; });
    if (quit_) return;
    lock.unlock();
    job_();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Pool::Pool(std::size_t bytes, std::uint64_t seed) : bytes_(bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) give_up("no memory for a pool of " + std::to_string(bytes) + " bytes");
  static_cast<void>(::madvise(mapped, bytes, MADV_HUGEPAGE));
  base_ = static_cast<std::byte*>(mapped);
  std::uint64_t x = seed;
  for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
    x = x * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(base_ + at, &x, 8);
  }
}

Pool::~Pool() { ::munmap(base_, bytes_); }

// One end of the lane: a transport, its thread and its view of the pool.
struct TcpLink::End {
  End(const BulkSetup& setup, NodeId node, std::span<std::byte> pool, int core)
      : performer(core) {
    tcp::TcpOptions options;
    options.node = node;
    options.incarnation = 1;
    options.io = setup.io;
    options.integrity = setup.integrity;
    if (node == 1) options.zero_copy = setup.zero_copy;  // it is the sender's business alone
    options.max_lanes = 2;
    options.max_chunks_in_flight = 1024;
    options.listen_address = node == 2 ? "127.0.0.1:0" : "";
    auto made = tcp::TcpTransport::create(options);
    if (!made) give_up(made.error().message);
    transport = std::move(made).value();
    piece = {pool.data(), pool.size()};
    payload.pieces = {&piece, 1};
    payload.starts = {&start, 1};
    payload.first_unit = {&first_unit, 1};
    payload.total_bytes = pool.size();
    payload.total_units = units_in(pool.size());
  }

  // One duty cycle; parks when there is nothing to do.
  std::span<const Event> step() {
    const std::size_t count = transport->poll(clock.now_ns(), events);
    if (count == 0 && transport->arm()) {
      pollfd fd{transport->wait_fd(), POLLIN, 0};
      static_cast<void>(::poll(&fd, 1, 100));
    }
    return std::span(events).first(count);
  }
  void await_lane() {
    while (!lane) {
      for (const Event& event : step()) {
        if (event.kind == EventKind::lane_up) lane = event.lane;
        if (event.kind == EventKind::lane_down) give_up("the loopback lane does not come up");
      }
    }
  }

  SteadyClock clock;
  std::unique_ptr<tcp::TcpTransport> transport;
  LaneId lane;
  Piece piece;
  std::uint64_t start = 0;
  std::uint32_t first_unit = 0;
  std::vector<std::uint64_t> digests;
  Payload payload;
  std::array<Event, 256> events;
  Performer performer;  // last: its thread ends before the rest goes
};

TcpLink::TcpLink(const BulkSetup& setup, const Pool& source, const Pool& sink) : setup_(setup) {
  sender_ = std::make_unique<End>(setup, 1, source.bytes(), setup.pinned ? 0 : -1);
  receiver_ = std::make_unique<End>(setup, 2, sink.bytes(), setup.pinned ? 1 : -1);
  if (setup.integrity == tcp::Integrity::full) {
    for (std::uint32_t unit = 0; unit < sender_->payload.total_units; ++unit) {
      const auto memory = unit_memory(sender_->payload, unit);
      sender_->digests.push_back(XXH3_64bits(memory.data(), memory.size()));
    }
    sender_->payload.digests = sender_->digests;
  }
  receiver_->performer.start([this] { receiver_->await_lane(); });
  sender_->performer.start([this] {
    if (!sender_->transport->open_lane(receiver_->transport->listen_address(), 1)) {
      give_up("cannot dial loopback");
    }
    sender_->await_lane();
  });
  sender_->performer.wait();
  receiver_->performer.wait();
  receiver_->transport->expose(kLease, 1, receiver_->payload);
}

TcpLink::~TcpLink() {
  // Each transport goes on the thread that polls it.
  for (End* end : {sender_.get(), receiver_.get()}) {
    end->performer.start([end] { end->transport.reset(); });
    end->performer.wait();
  }
}

const char* TcpLink::io_name() const { return sender_->transport->io_name().data(); }

double TcpLink::run(std::uint64_t total, std::uint64_t transfer) {
  std::int64_t done_ns = 0;
  std::atomic<bool> all_done{false};
  const std::int64_t start_ns = now_ns();
  receiver_->performer.start([this, total, &all_done] {
    std::uint64_t received = 0;
    // The last acknowledgement leaves with one of the polls after the last chunk.
    while (received < total || !all_done.load(std::memory_order_acquire)) {
      for (const Event& event : receiver_->step()) {
        if (event.kind == EventKind::lane_down || !event.status.ok()) give_up("a chunk was lost");
        received += event.kind == EventKind::chunk_received ? event.length : 0;
      }
    }
  });
  sender_->performer.start([this, total, transfer, &done_ns, &all_done] {
    End& end = *sender_;
    const std::uint64_t pool = end.payload.total_bytes;
    std::uint64_t posted = 0;
    std::uint64_t done = 0;
    while (done < total) {
      while (posted < total && posted - done < setup_.in_flight_bytes) {
        ChunkPost post;
        post.lease = kLease;
        post.transfer = 1;
        post.source = &end.payload;
        post.offset = posted % pool;
        post.bytes = static_cast<std::uint32_t>(
            std::min({std::uint64_t{setup_.chunk_bytes}, transfer - posted % transfer,
                      total - posted}));
        if (!end.transport->try_post_chunk(end.lane, post)) break;
        posted += post.bytes;
      }
      for (const Event& event : end.step()) {
        if (event.kind == EventKind::lane_down || !event.status.ok()) give_up("a chunk was lost");
        done += event.kind == EventKind::chunk_done ? event.length : 0;
      }
    }
    done_ns = now_ns();
    all_done.store(true, std::memory_order_release);
    // Wakes the receiver, which may be parked.
    static_cast<void>(end.transport->try_post_frame(end.lane, std::as_bytes(std::span("end"))));
    static_cast<void>(end.step());
  });
  sender_->performer.wait();
  receiver_->performer.wait();
  return rate_of(total, start_ns, done_ns);
}

BlockingLink::BlockingLink(bool pinned, const Pool& source, const Pool& sink)
    : source_(source.bytes()),
      sink_(sink.bytes()),
      sender_(pinned ? 0 : -1),
      receiver_(pinned ? 1 : -1) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  send_fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::bind(listener, raw, length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, raw, &length) != 0 || ::connect(send_fd_, raw, length) != 0) {
    give_up("no loopback connection for the baseline");
  }
  receive_fd_ = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  const int on = 1;
  for (const int fd : {send_fd_, receive_fd_}) {
    static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    static_cast<void>(::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
  }
}

BlockingLink::~BlockingLink() {
  ::close(send_fd_);
  ::close(receive_fd_);
}

double BlockingLink::run(std::uint64_t total, std::uint64_t transfer) {
  const auto walk = [total, transfer](std::size_t pool, const auto& move) {
    std::uint64_t moved = 0;
    while (moved < total) {
      const std::uint64_t most = std::min(transfer - moved % transfer, total - moved);
      const ssize_t rc = move(moved % pool, static_cast<std::size_t>(most));
      if (rc <= 0) give_up("the baseline's connection broke");
      moved += static_cast<std::uint64_t>(rc);
    }
  };
  std::int64_t done_ns = 0;
  const std::int64_t start_ns = now_ns();
  receiver_.start([&] {
    walk(sink_.size(), [&](std::uint64_t at, std::size_t bytes) {
      return ::recv(receive_fd_, sink_.data() + at, bytes, 0);
    });
    done_ns = now_ns();
  });
  sender_.start([&] {
    walk(source_.size(), [&](std::uint64_t at, std::size_t bytes) {
      return ::send(send_fd_, source_.data() + at, bytes, MSG_NOSIGNAL);
    });
  });
  sender_.wait();
  receiver_.wait();
  return rate_of(total, start_ns, done_ns);
}

}  // namespace kvrail::bench
