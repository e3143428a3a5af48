#include "scheduler/inflow.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {

void Inflow::open(std::uint32_t peer, std::uint64_t bytes) noexcept {
  std::uint64_t& left = left_bytes_[peer];
  if (left == 0 && bytes > 0) ++bringing_;
  left += bytes;
  total_bytes_ += bytes;
}

void Inflow::take(std::uint32_t peer, std::uint64_t bytes) noexcept {
  std::uint64_t& left = left_bytes_[peer];
  KVRAIL_ASSERT(bytes <= left);
  if (bytes > 0 && bytes == left) --bringing_;
  left -= bytes;
  total_bytes_ -= bytes;
}

void Inflow::close(std::uint32_t peer, std::uint64_t bytes) noexcept {
  take(peer, bytes);
}

void Inflow::arrived(std::uint32_t peer, std::uint64_t bytes, TimeNs now_ns) noexcept {
  // What one peer alone brings tells its lane's rate, which its sender knows better.
  if (bringing_ >= 2) {
    sample(bytes, now_ns);
  } else {
    spanning_ = false;
  }
  take(peer, bytes);
}

void Inflow::sample(std::uint64_t bytes, TimeNs now_ns) noexcept {
  if (!spanning_) {
    spanning_ = true;
    span_start_ns_ = now_ns;
    span_bytes_ = 0;
  }
  // What is found together with the first of a span came before it.
  const TimeNs span = now_ns - span_start_ns_;
  if (span <= 0) return;
  span_bytes_ += bytes;
  if (span < kSpanNs) return;
  rate_.update(mul_div(span_bytes_, kSecondNs, static_cast<std::uint64_t>(span)), samples_++ / kSamplesPerRound);
  span_start_ns_ = now_ns;
  span_bytes_ = 0;
}

std::uint64_t Inflow::bytes_per_s(std::uint64_t lane_bytes_per_s) const noexcept {
  return std::max(rate_.value(), lane_bytes_per_s);
}

TimeNs Inflow::others_ns(std::uint32_t peer, std::uint64_t lane_bytes_per_s) const noexcept {
  return sending_ns(total_bytes_ - left_bytes_[peer], bytes_per_s(lane_bytes_per_s));
}

void Inflow::fill(std::uint32_t peer, std::uint64_t lane_bytes_per_s, ReceiverFacts& facts) const noexcept {
  facts.others_left_bytes = total_bytes_ - left_bytes_[peer];
  facts.others_bringing = bringing_ - (left_bytes_[peer] > 0 ? 1 : 0);
  facts.inflow_bytes_per_s = bytes_per_s(lane_bytes_per_s);
}

}  // namespace kvrail::scheduler
