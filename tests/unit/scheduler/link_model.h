// A lane in virtual time: chunks are sent one after the other at the link's rate and acknowledged a
// round trip later, seen at the next poll of the worker. A token bucket lets a burst pass at once
// after a pause; acknowledgements may be seen late, as when the worker had to wait for a core.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>

#include "kvrail/base/assert.h"
#include "kvrail/base/time.h"
#include "scheduler/exp_table.h"
#include "scheduler/scheduler.h"

namespace kvrail::scheduler::test {

class LinkModel {
 public:
  LinkModel(Scheduler& scheduler, LaneIndex lane, std::uint64_t rate, TimeNs round_trip_ns,
            TimeNs poll_ns = 1)
      : scheduler_(scheduler),
        lane_(lane),
        rate_(rate),
        round_trip_ns_(round_trip_ns),
        poll_ns_(poll_ns) {}

  void set_rate(std::uint64_t rate) { rate_ = rate; }
  void set_bucket(std::uint64_t burst_bytes) { burst_bytes_ = burst_bytes; }
  // What would be seen from now on is seen only after that time.
  void see_nothing_until(TimeNs until_ns) { blind_until_ns_ = until_ns; }
  void stall_until(TimeNs until_ns) { busy_until_ns_ = std::max(busy_until_ns_, until_ns); }
  [[nodiscard]] TimeNs now_ns() const { return now_ns_; }
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t cookie) const {
    const auto it = bytes_.find(cookie);
    return it == bytes_.end() ? 0 : it->second;
  }
  [[nodiscard]] TimeNs finished_ns(std::uint64_t cookie) const { return last_.at(cookie); }
  [[nodiscard]] std::uint64_t most_in_flight() const { return most_in_flight_; }
  void forget_most_in_flight() { most_in_flight_ = 0; }
  [[nodiscard]] std::size_t in_flight() const { return chunks_.size(); }

  // Posts what may go now, then moves to the next completion, or to until_ns if that is earlier.
  void advance(TimeNs until_ns) {
    step();
    TimeNs next = until_ns;
    if (!chunks_.empty()) next = std::min(next, seen_ns(chunks_.front()));
    now_ns_ = std::max(now_ns_, next);
    while (!chunks_.empty() && seen_ns(chunks_.front()) <= now_ns_) {
      Chunk chunk = chunks_.front();
      chunk.seen_ns = seen_ns(chunk);
      chunks_.pop_front();
      in_flight_ -= chunk.action.bytes;
      bytes_[chunk.action.cookie] += chunk.action.bytes;
      last_[chunk.action.cookie] = chunk.seen_ns;
      scheduler_.chunk_done(lane_, chunk.action.bytes, chunk.posted_ns, chunk.seen_ns, true,
                            now_ns_);
    }
  }
  void run_until(TimeNs until_ns) {
    while (now_ns_ < until_ns) advance(until_ns);
  }
  // Until nothing is queued or in flight.
  void drain() {
    for (int i = 0; i < 10'000'000; ++i) {
      step();
      if (chunks_.empty()) return;
      advance(kNever);
    }
    KVRAIL_UNREACHABLE();
  }
  // A transfer of its own, from start to end on an otherwise idle lane.
  void transfer(std::uint64_t bytes) {
    FlowSpec spec;
    spec.lane = lane_;
    spec.total_bytes = spec.ready_bytes = bytes;
    spec.submitted_ns = now_ns_;
    const FlowHandle flow = scheduler_.add_flow(spec, now_ns_);
    drain();
    scheduler_.remove_flow(flow);
  }

 private:
  struct Chunk {
    PostAction action;
    TimeNs posted_ns = 0;
    TimeNs seen_ns = 0;
  };
  [[nodiscard]] TimeNs seen_ns(const Chunk& chunk) const {
    return std::max(chunk.seen_ns, blind_until_ns_);
  }
  void step() {
    std::array<PostAction, 32> actions;
    while (true) {
      const std::size_t count = scheduler_.step(now_ns_, actions);
      for (std::size_t i = 0; i < count; ++i) {
        busy_until_ns_ = std::max(busy_until_ns_, now_ns_ - sending_ns(burst_bytes_, rate_)) +
                         sending_ns(actions[i].bytes, rate_);
        const TimeNs done = std::max(busy_until_ns_, now_ns_) + round_trip_ns_;
        chunks_.push_back({actions[i], now_ns_, (done + poll_ns_ - 1) / poll_ns_ * poll_ns_});
        in_flight_ += actions[i].bytes;
      }
      most_in_flight_ = std::max(most_in_flight_, in_flight_);
      if (count < actions.size()) return;
    }
  }

  Scheduler& scheduler_;
  LaneIndex lane_;
  std::uint64_t rate_;
  TimeNs round_trip_ns_;
  TimeNs poll_ns_;
  TimeNs now_ns_ = 0;
  TimeNs busy_until_ns_ = 0;
  TimeNs blind_until_ns_ = 0;
  std::uint64_t burst_bytes_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t most_in_flight_ = 0;
  std::deque<Chunk> chunks_;
  std::map<std::uint64_t, std::uint64_t> bytes_;
  std::map<std::uint64_t, TimeNs> last_;
};

}  // namespace kvrail::scheduler::test
