#include "scheduler/budget.h"

#include <algorithm>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

// The beginning of the period that `now` lies in; before the first one a period that began below 0.
TimeNs period_begin(const ReservationSpec& spec, TimeNs now_ns) noexcept {
  const TimeNs since = now_ns - spec.offset_ns;
  const TimeNs periods = since >= 0 ? since / spec.period_ns : -1;
  return spec.offset_ns + periods * spec.period_ns;
}

}  // namespace

Budget::Budget(const ReservationSpec& given, TimeNs now_ns) noexcept
    : spec(given), left(static_cast<std::int64_t>(given.bytes)), begun_ns(period_begin(given, now_ns)) {
  deadline_ns = add_saturating(begun_ns, spec.period_ns);
}

void Budget::append(Flow& flow) noexcept {
  flow.budget_prev = tail;
  flow.budget_next = nullptr;
  (tail == nullptr ? head : tail->budget_next) = &flow;
  tail = &flow;
  ++listed;
}

void Budget::remove(Flow& flow) noexcept {
  KVRAIL_ASSERT(listed > 0);
  (flow.budget_prev == nullptr ? head : flow.budget_prev->budget_next) = flow.budget_next;
  (flow.budget_next == nullptr ? tail : flow.budget_next->budget_prev) = flow.budget_prev;
  flow.budget_prev = flow.budget_next = nullptr;
  --listed;
  if (head == nullptr) asleep = true;
}

void Budget::charge(std::uint64_t bytes) noexcept {
  KVRAIL_ASSERT(left > 0);
  left -= static_cast<std::int64_t>(bytes);
  counts.served_bytes += bytes;
  if (left <= 0) ++counts.exhausted;
}

void Budget::give_back(std::uint64_t bytes) noexcept {
  if (left <= 0 && left + static_cast<std::int64_t>(bytes) > 0) counts.exhausted -= std::min<std::uint64_t>(counts.exhausted, 1);
  // Given back in a later period than it was posted in, it is no more than that one's.
  left = std::min(left + static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(spec.bytes));
  counts.served_bytes -= std::min(counts.served_bytes, bytes);
}

void Budget::renew(TimeNs now_ns) noexcept {
  if (now_ns - begun_ns < spec.period_ns) return;
  const TimeNs begin = period_begin(spec, now_ns);
  const std::int64_t periods = (begin - begun_ns) / spec.period_ns;
  const auto full = static_cast<std::int64_t>(spec.bytes);
  const std::int64_t debt = std::max<std::int64_t>(-left, 0);
  left = std::min(full, full * std::min(periods, debt / full + 2) - debt);
  begun_ns = begin;
  deadline_ns = add_saturating(begin, spec.period_ns);
}

void Budget::wake(TimeNs now_ns) noexcept {
  asleep = false;
  if (left <= 0 || deadline_ns <= now_ns) return;
  const std::uint64_t fits = mul_div(spec.bytes, static_cast<std::uint64_t>(deadline_ns - now_ns),
                                     static_cast<std::uint64_t>(spec.period_ns));
  if (static_cast<std::uint64_t>(left) > fits) deadline_ns = add_saturating(now_ns, spec.period_ns);
}

Budget* earliest_due(Budget* first, TimeNs now_ns) noexcept {
  Budget* best = nullptr;
  for (Budget* it = first; it != nullptr; it = it->next) {
    if (it->head == nullptr) continue;
    it->renew(now_ns);
    if (it->asleep) it->wake(now_ns);
    if (it->left > 0 && (best == nullptr || it->deadline_ns < best->deadline_ns)) best = it;
  }
  return best;
}

}  // namespace kvrail::scheduler
