// kvrail's verbs lane between two processes on this machine's RDMA device, and perftest between
// two: what the verbs benchmarks compare.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "perf/bench/processes.h"

namespace kvrail::bench {

// The receiver is a copy of this process, which answers frames and takes chunks until it is told to
// end. Thread: the bench's main thread.
class VerbsLink {
 public:
  explicit VerbsLink(const std::string& host);
  ~VerbsLink();
  VerbsLink(const VerbsLink&) = delete;
  VerbsLink& operator=(const VerbsLink&) = delete;
  // `count` chunks of `bytes` each, at most `ahead` of them unacknowledged; bytes per second.
  [[nodiscard]] double write(std::uint32_t bytes, std::uint64_t count, std::uint32_t ahead,
                             bool digests);
  // A frame of `bytes` there and back, `count` times; the median of half of that, in us.
  [[nodiscard]] double half_round_trip_us(std::uint32_t bytes, std::uint64_t count);

 private:
  struct Sender;
  std::unique_ptr<Sender> sender_;
};

[[nodiscard]] bool has_perftest();
// ib_write_bw or ib_read_bw: `count` of `bytes`, at most `ahead` posted (of reads as many as the device
// allows); bytes per second.
[[nodiscard]] double ib_write_bw(const std::string& host, std::uint32_t bytes, std::uint64_t count,
                                 std::uint32_t ahead);
[[nodiscard]] double ib_read_bw(const std::string& host, std::uint32_t bytes, std::uint64_t count);
// ib_send_lat: the median of half a round trip, in us.
[[nodiscard]] double ib_send_lat(const std::string& host, std::uint32_t bytes, std::uint64_t count);

}  // namespace kvrail::bench
