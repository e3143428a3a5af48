// What the deciders were asked and what they answered, one event after the other, so that the same events can be decided
// again elsewhere (replay.h): by the simulator, of what a daemon recorded. Raw structs of this build; the head tells builds apart.
//
// Thread: owner. The memory is the caller's; when it is full recording has ended, and what is there stays whole.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "kvrail/base/time.h"
#include "scheduler/medium_choice.h"
#include "scheduler/scheduler.h"

namespace kvrail::scheduler {

enum class RecordKind : std::uint16_t {
  lane_up = 1,     // LaneUpEvent
  lane_down = 2,   // LaneIndex
  open_budget = 3, // ReservationSpec, TimeNs; BudgetHandle
  close_budget = 4,  // BudgetHandle
  add_flow = 5,    // FlowSpec, TimeNs; FlowHandle
  set_ready = 6,   // FlowHandle, u64, TimeNs
  remove_flow = 7, // FlowHandle
  step = 8,        // TimeNs, u64 room; actions
  unpost = 9,      // PostAction
  chunk_done = 10, // ChunkDoneEvent
  rate = 11,       // LaneIndex, u64 bytes, TimeNs; u64
  pick = 12,       // ReceiverFacts, u32 lane, u32 count, candidates; PickOutcome
  observe = 13,    // ObserveEvent
};

struct LaneUpEvent {
  LaneIndex lane = 0;
  std::uint32_t shares = 0;
  std::uint64_t rate_bytes_per_s = 0;
  TimeNs now_ns = 0;
};
struct ChunkDoneEvent {
  LaneIndex lane = 0;
  std::uint32_t bytes = 0;
  TimeNs posted_ns = 0, completed_ns = 0, now_ns = 0;
  std::uint64_t ok = 0;
};
struct ObserveEvent {
  std::uint32_t lane = 0;
  std::uint32_t medium = 0;
  std::uint64_t bytes = 0;
  TimeNs predicted_ns = 0, observed_ns = 0;
};
// Of a Pick, what other decisions and the transfer depend on, and the cost of each candidate.
struct PickOutcome {
  std::int32_t index = -1;
  std::uint32_t reason = 0;
  TimeNs predicted_ns = 0;
  std::uint64_t bytes = 0;
  std::array<TimeNs, kMaxWeighed> costs_ns{};
  friend bool operator==(const PickOutcome&, const PickOutcome&) = default;
};
[[nodiscard]] PickOutcome outcome_of(const Pick& pick) noexcept;

struct RecordHead {
  static constexpr std::uint64_t kMagic = 0x3144524f4356524bULL;  // "KRVCORD1"
  std::uint64_t magic = kMagic;
  std::uint64_t layout = 0;        // sizes of all that is recorded, of this build
  std::uint64_t used_bytes = 0;    // head and records; written behind each one
  std::uint64_t full = 0;          // more happened than there was room for
  std::uint64_t check = 0;         // of what follows
  SchedulerOptions scheduler;
  DepthLoss loss;
};
// Of these bytes: a file that was damaged must not be decided on.
[[nodiscard]] std::uint64_t record_check(std::span<const std::byte> bytes) noexcept;
[[nodiscard]] std::uint64_t record_check(const RecordHead& head) noexcept;
[[nodiscard]] std::uint64_t record_layout() noexcept;

class Recorder {
 public:
  // `memory` begins at a multiple of 8 and has room for a head at least.
  Recorder(std::span<std::byte> memory, const SchedulerOptions& scheduler, const DepthLoss& loss) noexcept;

  template <class... Parts>
  void note(RecordKind kind, const Parts&... parts) noexcept {
    const std::size_t bytes = kFrame + (std::size_t{0} + ... + bytes_of(parts));
    std::byte* at = begin(bytes);
    if (at == nullptr) return;
    ((at = put(at, parts)), ...);
    commit(kind, bytes);
  }
  // A step that had nothing to look at: of several in a row the last one stands for all.
  void note_idle_step(TimeNs now_ns, std::uint64_t room) noexcept {
    idle_ns_ = now_ns;
    idle_room_ = room;
    idle_ = true;
  }
  [[nodiscard]] const RecordHead& head() const noexcept { return *head_; }  // what it says others may have changed

  static constexpr std::size_t kFrame = 16;  // kind u16, 0 u16, bytes u32: of the whole record; its check u64

 private:
  template <class T>
  static constexpr std::size_t bytes_of(const std::span<T>& many) noexcept {
    return many.size_bytes();
  }
  template <class T>
  static constexpr std::size_t bytes_of(const T&) noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
    return sizeof(T);
  }
  template <class T>
  static std::byte* put(std::byte* at, const std::span<T>& many) noexcept {
    if (!many.empty()) std::memcpy(at, many.data(), many.size_bytes());
    return at + many.size_bytes();
  }
  template <class T>
  static std::byte* put(std::byte* at, const T& one) noexcept {
    std::memcpy(at, &one, sizeof(T));
    return at + sizeof(T);
  }
  [[nodiscard]] std::byte* begin(std::size_t bytes) noexcept;
  void commit(RecordKind kind, std::size_t bytes) noexcept;

  std::span<std::byte> memory_;
  RecordHead* head_;
  std::uint64_t used_bytes_ = sizeof(RecordHead);  // never taken from the memory: that may be a file, and others' to write
  bool full_ = false;
  TimeNs idle_ns_ = 0;
  std::uint64_t idle_room_ = 0;
  bool idle_ = false;
};

}  // namespace kvrail::scheduler
