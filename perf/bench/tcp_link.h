// Two ends of a loopback connection in one process, each on a thread of its own, and the same
// through plain blocking sockets: what the tcp benchmarks compare.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "transport/tcp/tcp_transport.h"

namespace kvrail::bench {

// A thread that does one job at a time. It lives across runs, as a Worker does: a ring belongs to
// the thread that first used it.
class Performer {
 public:
  explicit Performer(int core);  // -1: wherever the system puts it
  ~Performer();
  Performer(const Performer&) = delete;
  Performer& operator=(const Performer&) = delete;
  void start(std::function<void()> job);
  void wait();

 private:
  void work(int core);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;
  bool busy_ = false;
  bool quit_ = false;
  std::thread thread_;
};

// Memory that is really there, in huge pages where the system gives them.
class Pool {
 public:
  Pool(std::size_t bytes, std::uint64_t seed);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, bytes_}; }

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

struct BulkSetup {
  bool pinned = false;  // sender and receiver on two cores of their own
  transport::tcp::IoChoice io = transport::tcp::IoChoice::automatic;
  transport::tcp::Integrity integrity = transport::tcp::Integrity::full;
  transport::tcp::ZeroCopy zero_copy = transport::tcp::ZeroCopy::off;
  std::uint32_t chunk_bytes = 256 * 1024;
  std::uint64_t in_flight_bytes = 16 << 20;  // posted and not yet acknowledged, at most
};

// kvrail's lane: the sink pool is one lease, the source pool is walked in turn.
class TcpLink {
 public:
  TcpLink(const BulkSetup& setup, const Pool& source, const Pool& sink);
  ~TcpLink();
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  // Moves `total` bytes in transfers of `transfer` bytes; returns bytes per second, from the first
  // post to the last acknowledgement.
  [[nodiscard]] double run(std::uint64_t total, std::uint64_t transfer);
  [[nodiscard]] const char* io_name() const;

 private:
  struct End;
  BulkSetup setup_;
  std::unique_ptr<End> sender_;
  std::unique_ptr<End> receiver_;
};

// The baseline: send() and recv() of a transfer each, blocking, cubic, no delay, autotuned buffers.
class BlockingLink {
 public:
  BlockingLink(bool pinned, const Pool& source, const Pool& sink);
  ~BlockingLink();
  BlockingLink(const BlockingLink&) = delete;
  BlockingLink& operator=(const BlockingLink&) = delete;
  [[nodiscard]] double run(std::uint64_t total, std::uint64_t transfer);

 private:
  std::span<std::byte> source_;
  std::span<std::byte> sink_;
  int send_fd_ = -1;
  int receive_fd_ = -1;
  Performer sender_;
  Performer receiver_;
};

}  // namespace kvrail::bench
