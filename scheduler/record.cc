#include "scheduler/record.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "kvrail/base/assert.h"
#include "scheduler/keyed_table.h"

namespace kvrail::scheduler {

PickOutcome outcome_of(const Pick& pick) noexcept {
  PickOutcome outcome{pick.index, static_cast<std::uint32_t>(pick.reason), pick.predicted_ns, pick.bytes, {}};
  for (std::size_t i = 0; i < pick.line_count; ++i) outcome.costs_ns[i] = pick.lines[i].allowed ? pick.lines[i].cost_ns : -1;
  return outcome;
}

std::uint64_t record_layout() noexcept {
  std::uint64_t layout = 1;  // of this list; counted up where a struct's meaning changes, but not its size
  for (const std::size_t bytes : {sizeof(RecordHead), sizeof(LaneUpEvent), sizeof(ChunkDoneEvent), sizeof(ObserveEvent), sizeof(FlowSpec), sizeof(PostAction), sizeof(ReservationSpec),
                                  sizeof(ReceiverFacts), sizeof(CandidateCost), sizeof(PickOutcome)}) {
    layout = layout * 0x100000001B3ULL ^ bytes;
  }
  return layout;
}

std::uint64_t record_check(std::span<const std::byte> bytes) noexcept {
  std::uint64_t check = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    check = mix_key(check ^ word) + at;
  }
  return check;
}

std::uint64_t record_check(const RecordHead& head) noexcept {
  constexpr std::size_t kFrom = offsetof(RecordHead, scheduler);
  return record_check({reinterpret_cast<const std::byte*>(&head) + kFrom, sizeof(head) - kFrom});
}

Recorder::Recorder(std::span<std::byte> memory, const SchedulerOptions& scheduler, const DepthLoss& loss) noexcept
    : memory_(memory) {
  KVRAIL_ASSERT(memory.size() >= sizeof(RecordHead));
  head_ = new (memory.data()) RecordHead{};
  head_->layout = record_layout();
  head_->scheduler = scheduler;
  head_->loss = loss;
  head_->check = record_check(*head_);
  head_->used_bytes = sizeof(RecordHead);
}

std::byte* Recorder::begin(std::size_t bytes) noexcept {
  if (idle_) {
    idle_ = false;
    note(RecordKind::step, idle_ns_, idle_room_);
  }
  if (full_ || memory_.size() - used_bytes_ < bytes) {
    full_ = true;
    head_->full = 1;  // the first that doesn't fit is the end: later ones would hang on it
    return nullptr;
  }
  return memory_.data() + used_bytes_ + kFrame;
}

// The record is there once the head counts it: what a killed process left behind is whole.
void Recorder::commit(RecordKind kind, std::size_t bytes) noexcept {
  std::byte* at = memory_.data() + used_bytes_;
  const std::uint64_t frame = static_cast<std::uint64_t>(kind) | std::uint64_t{bytes} << 32;
  const std::uint64_t check = record_check({at + kFrame, bytes - kFrame}) ^ frame;
  std::memcpy(at, &frame, sizeof(frame));
  std::memcpy(at + sizeof(frame), &check, sizeof(check));
  std::atomic_signal_fence(std::memory_order_release);  // the count behind the bytes; a kill ends the process between two of its stores
  used_bytes_ += bytes;
  head_->used_bytes = used_bytes_;
}

}  // namespace kvrail::scheduler
