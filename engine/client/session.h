// One attachment, the agent's end: its rings, scratch and mapped arenas. Blocks and deliveries keep
// it alive, so that what they show stays readable after the agent has left or the engine has died.
//
// Threads    the agent's one.
// State      the agent's ends of the two rings (kvrail/base/shared_ring.h); scratch regions in the
//            order of their records, freed when the engine's count `processed` has passed them.
// Invariant  a scratch region is never rewritten before the engine has copied it.
//            A release that is held back (one at most) goes before any other record but a send, behind
//            that, and at the latest when there is nothing to take: it never outlasts a look for news.
//            While it waits for ring or scratch room, it takes completions in: the engine handles no
//            record without room for an answer, so two full rings would else wait for each other.
// Edges      P1 processed load(acquire) <- R1 of engine/ipc/agent_session.h. R2/R3 there: room_wanted is
//            stored, then processed loaded, both seq_cst. F2 there: head stored by try_pop(), fence,
//            reading_wanted loaded.
// Relaxed    taking room_wanted back, which saves a needless bell only; the probe's words, a seqlock.
// Wrap       records and `processed` are 64-bit counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/client/channel.h"
#include "engine/client/slot_claims.h"
#include "kvrail/agent.h"
#include "kvrail/base/shared_ring.h"
#include "kvrail/base/spin_budget.h"
#include "kvrail/probe.h"

namespace kvrail::client {

using Bytes = std::span<const std::byte>;

[[nodiscard]] TimeNs now_ns() noexcept;
// now + timeout, as a deadline; never wraps.
[[nodiscard]] TimeNs deadline_after(TimeNs timeout_ns) noexcept;

// A deadline whose clock starts when somebody first has to wait for it. Most calls find what they need
// at once, and reading the clock would cost them as much as the rest of what they do.
class Deadline {
 public:
  explicit Deadline(Nanoseconds timeout) noexcept : timeout_ns_(std::max<TimeNs>(timeout.count(), 0)) {}
  [[nodiscard]] TimeNs ns(TimeNs now) const noexcept {
    if (at_ns_ == kUnset) at_ns_ = add_saturating(now, timeout_ns_);
    return at_ns_;
  }
  [[nodiscard]] TimeNs left_ns() const noexcept {
    const TimeNs now = now_ns();
    return std::max<TimeNs>(ns(now) - now, 0);
  }

 private:
  static constexpr TimeNs kUnset = -1;
  TimeNs timeout_ns_;
  mutable TimeNs at_ns_ = kUnset;
};

// Part of an arena, by the arena's own offsets.
struct MappedRange {
  std::uint32_t arena = 0;
  std::uint64_t begin = 0, end = 0;
  [[nodiscard]] bool holds(std::uint32_t id, std::uint64_t offset, std::uint64_t bytes) const noexcept {
    return id == arena && offset >= begin && offset < end && bytes <= end - offset;
  }
};

class Session {
 public:
  Session(std::unique_ptr<Channel> channel, const Attachment& attachment, const Layout& layout,
          const SpinBudget& calls, TimeNs spin_ns);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  [[nodiscard]] const Attachment& attachment() const noexcept { return attachment_; }
  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }
  [[nodiscard]] Channel& channel() noexcept { return *channel_; }

  // Ok, or why this session is over.
  [[nodiscard]] Status alive() const noexcept { return over_; }
  void end(Status why) noexcept;
  // The agent itself goes; what others hold of the session stays readable.
  void leave() noexcept;

  // Copies the payload parts, one behind the other, into scratch and publishes the record. Waits
  // for room until the deadline. The record's payload fields and time are set here.
  Status submit(ipc::SubmitRecord record, std::span<const Bytes> payload, const Deadline& deadline);
  // Submits the release of a delivery. With `may_wait` it goes with the next record, or when the agent
  // finds nothing to take: on its own it would cost the engine a look before the next message.
  void give_back(const ipc::SubmitRecord& release, bool may_wait) noexcept;
  // Whether these are pages of another agent's process, which it must not wait for.
  [[nodiscard]] bool is_lent(std::uint32_t arena) const noexcept;
  // The next completion, false when there is none now.
  [[nodiscard]] bool take(ipc::CompletionRecord& out) noexcept;
  // Until take() has something of the `kinds` (ipc::kWakeOutcome …), the deadline passes, or the session
  // is over. Ok also without news.
  Status wait(const Deadline& deadline, std::uint32_t kinds);
  // For event loops: true when the bell will ring at the next completion.
  [[nodiscard]] bool arm() noexcept;
  // Looks after the engine now and then when nothing else does.
  Status check(TimeNs now_ns);

  // Address of a range in an arena, mapped at first use; nullptr if it does not lie in there or the
  // arena may not be read.
  [[nodiscard]] std::byte* at(std::uint32_t arena, std::uint64_t offset, std::uint64_t bytes, const Deadline& deadline);
  // The same for an arena that is mapped for sure: a Delivery holds it.
  [[nodiscard]] const std::byte* held(std::uint32_t arena, std::uint64_t offset) const noexcept;
  // What of that arena is mapped in one piece around the offset.
  [[nodiscard]] MappedRange range_around(std::uint32_t arena, std::uint64_t offset) const noexcept;
  void hold(std::uint32_t arena) noexcept;
  void let_go(std::uint32_t arena) noexcept;
  void hold_all() noexcept { ++hold_all_; }
  void let_go_all() noexcept { --hold_all_; }
  void keep(const ImportedRange& range);

  [[nodiscard]] SlotClaims& claims() noexcept { return claims_; }

  void write_probe(const Probe& probe, std::uint64_t copied_bytes) noexcept;

 private:
  struct Arena {
    std::uint32_t id = 0;
    std::uint32_t holds = 0;
    ArenaMap map;
    std::uint64_t first_offset = 0;  // imports: offset of map.base in the arena's numbering
    bool permanent = false;
  };
  struct Region {
    std::uint64_t record = 0;  // freed when `processed` reaches it
    std::uint32_t begin = 0, end = 0;
  };
  static constexpr std::size_t kIdleArenas = 8;  // mapped without need, to be used again
  // Each look at `processed` costs a line that the engine has just written; so a few regions go at once.
  static constexpr std::size_t kRegionsToFree = 16;

  void free_scratch() noexcept;
  [[nodiscard]] bool find_scratch(std::uint32_t bytes, std::uint32_t& offset) const noexcept;
  Status wait_for_room(const Deadline& deadline);
  void store_completions() noexcept;
  void tell_given_back() noexcept;
  // True when there is something to take before the time for looking is over.
  [[nodiscard]] bool spin(TimeNs begin_ns, TimeNs spin_ns) noexcept;
  // Until the channel has news.
  Status await_channel(const Deadline& deadline);
  // The ring is empty: an engine that waits for that is told.
  void tell_read() noexcept;
  void unmap_idle() noexcept;

  std::unique_ptr<Channel> channel_;
  Attachment attachment_;
  Layout layout_;
  ipc::ControlView view_;
  RingProducer<ipc::SubmitRecord> submit_;
  RingConsumer<ipc::CompletionRecord> completion_;
  std::deque<Region> regions_;
  std::deque<ipc::CompletionRecord> stored_;  // taken in while waiting for room
  std::vector<Arena> arenas_;
  SlotClaims claims_;
  std::uint64_t submitted_ = 0;
  std::uint64_t seen_processed_ = 0;
  bool has_read_ = false;      // since tell_read()
  bool owes_release_ = false;  // release_, one at most
  ipc::SubmitRecord release_;
  std::uint32_t hold_all_ = 0;
  SpinBudget call_spin_;   // of waits for replies, which only the engine owes; the others wait for agents
  TimeNs spin_ns_;
  TimeNs checked_ns_ = 0;
  Status over_;
};

// Giving back is not to block a destructor for long; what does not get through in this time comes
// back with the session.
inline constexpr Nanoseconds kGiveBackTimeout{100 * kMillisecondNs};

// For waits that the engine ends: at least what the agent wants.
[[nodiscard]] SpinBudget call_spin(const AttachOptions& options) noexcept;


}  // namespace kvrail::client
