// What to bring back before it is asked for. Hints (who will need which context, when, with what probability) wait in a fixed
// table; one starts 1.25 times its restore estimate before its time, when it is more probable than not, the nearest
// first, and only where there is room or what goes for it is worth less. It can be given up at every step.
//
// Thread: owner. No clock, no allocation after construction; each call looks through the table once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kvrail/base/time.h"
#include "scheduler/value.h"

namespace kvrail::scheduler {

struct PrefetchHint {
  std::uint64_t agent = 0, context = 0;
  std::uint32_t probability_ppm = 0;
  TimeNs when_ns = 0;  // the earliest that is likely
  TimeNs restore_ns = 0;
  std::uint64_t bytes = 0;
  TimeNs spread_ns = 0;  // by which that may be later
};

class PrefetchPlan {
 public:
  static constexpr std::uint32_t kLeastProbabilityPpm = 500'000;
  static constexpr TimeNs kNever = INT64_MAX;

  struct Id {
    std::uint32_t slot = ~std::uint32_t{0}, generation = 0;
    friend bool operator==(const Id&, const Id&) = default;
  };
  enum class Step : std::uint8_t { none, waiting, running, held };
  struct Item {
    Id id;
    PrefetchHint hint;
    Step step = Step::none;  // in which it was
  };
  // What is there for it: free bytes, and V of what would go next; the least of all where nothing may go.
  struct Room {
    std::uint64_t free_bytes = 0;
    ValueIndex::LogValue next_victim = INT64_MAX;
  };
  struct Counters {
    std::uint64_t started_bytes = 0, used_bytes = 0, wasted_bytes = 0;
    std::uint64_t used = 0, late = 0, wasted = 0;  // late: asked for while it was still coming
  };

  explicit PrefetchPlan(std::uint32_t capacity);

  // Takes the place of an earlier hint for the same agent and context: one that waits is planned anew, what runs or is
  // held stays so. In a full table one that lies there past its time gives way, else the least probable one that waits. False:
  // this is that one.
  bool expect(const PrefetchHint& hint, TimeNs now_ns) noexcept;
  // What to start now; it is running from here. Call until there is none.
  [[nodiscard]] std::optional<Item> next(TimeNs now_ns, const Room& room) noexcept;
  // Whether this one, once it is running, is worth a further victim.
  [[nodiscard]] bool may_displace(Id id, ValueIndex::LogValue victim, TimeNs now_ns) const noexcept;
  // When next() should be asked again at the latest, if nothing else happens; a time that has passed: as soon as there is room.
  [[nodiscard]] TimeNs next_start_ns() const noexcept;

  // nullptr: it is over. Until the next call that is not const.
  [[nodiscard]] const PrefetchHint* hint_of(Id id) const noexcept;

  // Its last byte is there.
  void arrived(Id id) noexcept;
  // It won't come, or went before it was used.
  void lost(Id id) noexcept;
  // The agent asks for the context. What was planned for that is done; Step::none: nothing was.
  Item used(std::uint64_t agent, std::uint64_t context) noexcept;
  // The hint is withdrawn. What is running is to be stopped by the caller.
  Item cancel(std::uint64_t agent, std::uint64_t context) noexcept;
  // One that waits or runs and whose time has passed; call until there is none. What is running is to be stopped by the
  // caller. What is held stays: it may be used yet, and if it goes before that, lost() tells.
  [[nodiscard]] std::optional<Item> expire(TimeNs now_ns) noexcept;

  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

 private:
  struct Slot {
    PrefetchHint hint;
    TimeNs over_ns = 0;
    std::uint32_t generation = 0;
    Step step = Step::none;
  };
  [[nodiscard]] static TimeNs start_ns(const PrefetchHint& hint) noexcept;
  [[nodiscard]] static ValueIndex::LogValue value_of(const PrefetchHint& hint, TimeNs now_ns) noexcept;
  [[nodiscard]] Slot* find(std::uint64_t agent, std::uint64_t context) noexcept;
  [[nodiscard]] Slot* place_for(const PrefetchHint& hint, TimeNs now_ns) noexcept;
  [[nodiscard]] Id id_of(const Slot& slot) const noexcept {
    return {static_cast<std::uint32_t>(&slot - slots_.get()), slot.generation};
  }
  [[nodiscard]] Slot* at(Id id) noexcept;
  Item close(Slot& slot, bool was_used) noexcept;

  std::uint32_t capacity_, size_ = 0;
  std::unique_ptr<Slot[]> slots_;
  Counters counters_;
};

}  // namespace kvrail::scheduler
