// What carries bytes one after the other: a lane's path, or a network interface that lanes share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvrail/base/time.h"
#include "perf/sim/traces.h"
#include "scheduler/exp_table.h"

namespace kvrail::simulation {

class Link {
 public:
  Link() = default;
  explicit Link(std::uint64_t bytes_per_s) : rate_(bytes_per_s) {}
  // Instead of a constant rate; the trace must outlive the link.
  explicit Link(const LinkTrace& trace) : trace_(&trace) {}

  [[nodiscard]] bool limits() const noexcept { return rate_ != 0 || trace_ != nullptr; }
  [[nodiscard]] TimeNs free_ns() const noexcept { return free_ns_; }
  [[nodiscard]] TimeNs busy_ns() const noexcept { return busy_ns_; }

  // Takes the bytes behind what it has; returns when their last one has passed.
  TimeNs send(TimeNs now_ns, std::uint64_t bytes) noexcept {
    const TimeNs start = std::max(now_ns, free_ns_);
    free_ns_ = trace_ == nullptr ? start + scheduler::sending_ns(bytes, rate_) : end_on_trace(start, bytes);
    busy_ns_ += free_ns_ - start;
    return free_ns_;
  }

 private:
  [[nodiscard]] TimeNs end_on_trace(TimeNs start, std::uint64_t bytes) noexcept {
    auto left = static_cast<double>(bytes);
    for (TimeNs now = start;;) {
      const TimeNs at = now % trace_->length_ns;
      if (at < trace_->starts_ns[step_]) step_ = 0;
      while (step_ + 1 < trace_->starts_ns.size() && trace_->starts_ns[step_ + 1] <= at) ++step_;
      const TimeNs until = step_ + 1 < trace_->starts_ns.size() ? trace_->starts_ns[step_ + 1] : trace_->length_ns;
      const double rate = trace_->rates[step_];
      const double room = rate * static_cast<double>(until - at) / 1e9;
      if (room >= left) return now + std::max<TimeNs>(static_cast<TimeNs>(left / rate * 1e9), 1);
      left -= room;
      now += until - at;
    }
  }

  std::uint64_t rate_ = 0;
  const LinkTrace* trace_ = nullptr;
  std::size_t step_ = 0;
  TimeNs free_ns_ = 0, busy_ns_ = 0;
};

}  // namespace kvrail::simulation
