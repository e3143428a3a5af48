#include "scheduler/record.h"

#include <new>

#include "kvrail/base/assert.h"

namespace kvrail::scheduler {

PickOutcome outcome_of(const Pick& pick) noexcept {
  PickOutcome outcome{pick.index, static_cast<std::uint32_t>(pick.reason), pick.predicted_ns, pick.bytes, {}};
  for (std::size_t i = 0; i < pick.line_count; ++i) outcome.costs_ns[i] = pick.lines[i].allowed ? pick.lines[i].cost_ns : -1;
  return outcome;
}

std::uint64_t record_layout() noexcept {
  std::uint64_t layout = 1;  // of this list; counted up where a struct's meaning changes, but not its size
  for (const std::size_t bytes : {sizeof(RecordHead), sizeof(FlowSpec), sizeof(PostAction), sizeof(ReservationSpec),
                                  sizeof(ReceiverFacts), sizeof(CandidateCost), sizeof(PickOutcome)}) {
    layout = layout * 0x100000001B3ULL ^ bytes;
  }
  return layout;
}

Recorder::Recorder(std::span<std::byte> memory, const SchedulerOptions& scheduler, const DepthLoss& loss) noexcept
    : memory_(memory) {
  KVRAIL_ASSERT(memory.size() >= sizeof(RecordHead));
  head_ = new (memory.data()) RecordHead{};
  head_->layout = record_layout();
  head_->scheduler = scheduler;
  head_->loss = loss;
  head_->used_bytes = sizeof(RecordHead);
}

std::byte* Recorder::begin(RecordKind kind, std::size_t bytes) noexcept {
  if (idle_) {
    idle_ = false;
    note(RecordKind::step, idle_ns_, idle_room_);
  }
  if (head_->full != 0 || memory_.size() - head_->used_bytes < bytes) {
    head_->full = 1;  // the first that doesn't fit is the end: later ones would hang on it
    return nullptr;
  }
  std::byte* at = memory_.data() + head_->used_bytes;
  const std::uint64_t frame = static_cast<std::uint64_t>(kind) | std::uint64_t{bytes} << 32;
  std::memcpy(at, &frame, sizeof(frame));
  return at + kFrame;
}

}  // namespace kvrail::scheduler
