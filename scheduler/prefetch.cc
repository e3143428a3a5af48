#include "scheduler/prefetch.h"

#include <algorithm>

#include "kvrail/base/assert.h"

namespace kvrail::scheduler {

PrefetchPlan::PrefetchPlan(std::uint32_t capacity) : capacity_(capacity), slots_(std::make_unique<Slot[]>(capacity)) {}

// when - 1.25 x restore, for any restore time.
TimeNs PrefetchPlan::start_ns(const PrefetchHint& hint) noexcept {
  const TimeNs restore = std::clamp<TimeNs>(hint.restore_ns, 0, kNever / 4);
  return hint.when_ns - restore - restore / 4;
}

ValueIndex::LogValue PrefetchPlan::value_of(const PrefetchHint& hint, TimeNs now_ns) noexcept {
  return ValueIndex::hinted_value({.bytes = hint.bytes, .restore_ns = hint.restore_ns, .hit_ns = 0},
                                  hint.probability_ppm,
                                  ValueIndex::residency_ns(hint.when_ns - now_ns, hint.spread_ns));
}

PrefetchPlan::Slot* PrefetchPlan::find(std::uint64_t agent, std::uint64_t context) noexcept {
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    Slot& slot = slots_[i];
    if (slot.step != Step::none && slot.hint.agent == agent && slot.hint.context == context) return &slot;
  }
  return nullptr;
}

PrefetchPlan::Slot* PrefetchPlan::place_for(const PrefetchHint& hint, TimeNs now_ns) noexcept {
  Slot* least = nullptr;
  Slot* overdue = nullptr;
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    Slot& slot = slots_[i];
    if (slot.step == Step::none) return &slot;
    if (slot.step == Step::held && slot.over_ns <= now_ns && overdue == nullptr) overdue = &slot;
    if (slot.step != Step::waiting) continue;
    if (least == nullptr || slot.hint.probability_ppm < least->hint.probability_ppm) least = &slot;
  }
  if (overdue != nullptr) least = overdue;
  if (least == nullptr || (least != overdue && least->hint.probability_ppm >= hint.probability_ppm)) return nullptr;
  static_cast<void>(close(*least, false));
  return least;
}

bool PrefetchPlan::expect(const PrefetchHint& hint, TimeNs now_ns) noexcept {
  Slot* slot = find(hint.agent, hint.context);
  if (slot == nullptr) {
    slot = place_for(hint, now_ns);
    if (slot == nullptr) return false;
    ++slot->generation;
    slot->step = Step::waiting;
    ++size_;
  }
  // What has started keeps its size: that is what is counted when it ends.
  const std::uint64_t bytes = slot->step == Step::waiting ? hint.bytes : slot->hint.bytes;
  slot->hint = hint;
  slot->hint.bytes = bytes;
  slot->hint.when_ns = std::clamp(hint.when_ns, now_ns, kNever / 2);
  slot->over_ns = slot->hint.when_ns + ValueIndex::grace_ns(slot->hint.when_ns - now_ns, hint.spread_ns);
  return true;
}

std::optional<PrefetchPlan::Item> PrefetchPlan::next(TimeNs now_ns, const Room& room) noexcept {
  Slot* nearest = nullptr;
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    Slot& slot = slots_[i];
    if (slot.step != Step::waiting || slot.hint.probability_ppm < kLeastProbabilityPpm) continue;
    if (start_ns(slot.hint) > now_ns || slot.over_ns <= now_ns) continue;
    if (nearest != nullptr && nearest->hint.when_ns <= slot.hint.when_ns) continue;
    if (slot.hint.bytes > room.free_bytes && value_of(slot.hint, now_ns) <= room.next_victim) continue;
    nearest = &slot;
  }
  if (nearest == nullptr) return std::nullopt;
  nearest->step = Step::running;
  counters_.started_bytes += nearest->hint.bytes;
  return Item{id_of(*nearest), nearest->hint, Step::running};
}

bool PrefetchPlan::may_displace(Id id, ValueIndex::LogValue victim, TimeNs now_ns) const noexcept {
  KVRAIL_ASSERT(id.slot < capacity_);
  const Slot& slot = slots_[id.slot];
  return slot.generation == id.generation && slot.step != Step::none && value_of(slot.hint, now_ns) > victim;
}

TimeNs PrefetchPlan::next_start_ns() const noexcept {
  TimeNs first = kNever;
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    const Slot& slot = slots_[i];
    if (slot.step == Step::waiting && slot.hint.probability_ppm >= kLeastProbabilityPpm)
      first = std::min(first, start_ns(slot.hint));
  }
  return first;
}

PrefetchPlan::Slot* PrefetchPlan::at(Id id) noexcept {
  if (id.slot >= capacity_) return nullptr;
  Slot& slot = slots_[id.slot];
  return slot.generation == id.generation && slot.step != Step::none ? &slot : nullptr;
}

const PrefetchHint* PrefetchPlan::hint_of(Id id) const noexcept {
  if (id.slot >= capacity_) return nullptr;
  const Slot& slot = slots_[id.slot];
  return slot.generation == id.generation && slot.step != Step::none ? &slot.hint : nullptr;
}

void PrefetchPlan::arrived(Id id) noexcept {
  if (Slot* const slot = at(id); slot != nullptr && slot->step == Step::running) slot->step = Step::held;
}

void PrefetchPlan::lost(Id id) noexcept {
  if (Slot* const slot = at(id)) static_cast<void>(close(*slot, false));
}

PrefetchPlan::Item PrefetchPlan::close(Slot& slot, bool was_used) noexcept {
  const Item item{id_of(slot), slot.hint, slot.step};
  if (slot.step != Step::waiting) {
    ++(was_used ? counters_.used : counters_.wasted);
    (was_used ? counters_.used_bytes : counters_.wasted_bytes) += slot.hint.bytes;
    if (was_used && slot.step == Step::running) ++counters_.late;
  }
  slot.step = Step::none;
  --size_;
  return item;
}

PrefetchPlan::Item PrefetchPlan::used(std::uint64_t agent, std::uint64_t context) noexcept {
  Slot* const slot = find(agent, context);
  return slot == nullptr ? Item{} : close(*slot, true);
}

PrefetchPlan::Item PrefetchPlan::cancel(std::uint64_t agent, std::uint64_t context) noexcept {
  Slot* const slot = find(agent, context);
  return slot == nullptr ? Item{} : close(*slot, false);
}

std::optional<PrefetchPlan::Item> PrefetchPlan::expire(TimeNs now_ns) noexcept {
  for (std::uint32_t i = 0; i < capacity_; ++i) {
    Slot& slot = slots_[i];
    const bool pending = slot.step == Step::waiting || slot.step == Step::running;
    if (pending && slot.over_ns <= now_ns) return close(slot, false);
  }
  return std::nullopt;
}

}  // namespace kvrail::scheduler
