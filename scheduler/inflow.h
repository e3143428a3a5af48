// What is still to come in through a node's interface, by peer, and how fast it comes in when several of them bring
// something at once. Each sender sees its own lane only; that the lane's other end is taken only its owner knows
// (docs/scheduling.md, "The receiver's interface").
#pragma once

#include <cstdint>
#include <vector>

#include "kvrail/base/time.h"
#include "scheduler/bandwidth.h"
#include "scheduler/medium_choice.h"

namespace kvrail::scheduler {

class Inflow {
 public:
  // What a sample of the rate spans: several chunks, and more than a worker's pause.
  static constexpr TimeNs kSpanNs = 10 * kMillisecondNs;
  // Of such samples, so that the largest of the last second in which peers shared the interface counts.
  static constexpr std::uint64_t kSamplesPerRound = 10;

  explicit Inflow(std::uint32_t max_peers) : left_bytes_(max_peers) {}

  // A transfer of this peer is going to bring so much.
  void open(std::uint32_t peer, std::uint64_t bytes) noexcept;
  // Of that so much is here.
  void arrived(std::uint32_t peer, std::uint64_t bytes, TimeNs now_ns) noexcept;
  // Of that so much will never come.
  void close(std::uint32_t peer, std::uint64_t bytes) noexcept;

  [[nodiscard]] std::uint64_t left_bytes(std::uint32_t peer) const noexcept { return left_bytes_[peer]; }
  // Of the interface, for one who comes by a lane of that rate: as much as was seen to come in at once, and before
  // anything was seen as much as the lane, which it is at least as wide as.
  [[nodiscard]] std::uint64_t bytes_per_s(std::uint64_t lane_bytes_per_s) const noexcept;
  // What all but this peer still bring, in time of the interface.
  [[nodiscard]] TimeNs others_ns(std::uint32_t peer, std::uint64_t lane_bytes_per_s) const noexcept;
  // The receiver's facts about its interface, for an offer of this peer.
  void fill(std::uint32_t peer, std::uint64_t lane_bytes_per_s, ReceiverFacts& facts) const noexcept;

 private:
  void take(std::uint32_t peer, std::uint64_t bytes) noexcept;
  void sample(std::uint64_t bytes, TimeNs now_ns) noexcept;

  std::vector<std::uint64_t> left_bytes_;  // by peer
  std::uint64_t total_bytes_ = 0;          // sum of these
  std::uint32_t bringing_ = 0;             // peers with something left
  WindowedMax rate_;                       // 0: not seen yet
  std::uint64_t samples_ = 0;
  bool spanning_ = false;                  // peers have shared the interface since span_start_ns_
  TimeNs span_start_ns_ = 0;
  std::uint64_t span_bytes_ = 0;           // that came later than then
};

}  // namespace kvrail::scheduler
