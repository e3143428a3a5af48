// A reservation as the order of its lane serves it: so many bytes each period go before all else, of several
// reservations those whose period ends first (EDF, each a constant bandwidth server).
//
// A budget that is used up moves its deadline by a period: until that one begins its flows wait in the rings of their
// levels like any other. They stand in these all the time, so that this moves nobody. What is not used by the end of a
// period is gone; while nobody uses it the lane is the others'.
//
// Every operation is O(1) but for earliest_due, which looks at the lane's reservations, at most kMostBudgets.
// Invariant: the list holds just the listed flows of the budget, first come first.
#pragma once

#include <cstdint>

#include "kvrail/base/handle.h"
#include "scheduler/flow_table.h"

namespace kvrail::scheduler {

struct Budget {
  Budget(const ReservationSpec& given, TimeNs now_ns) noexcept;

  void append(Flow& flow) noexcept;
  void remove(Flow& flow) noexcept;
  // A chunk may overdraw it by less than its own size; the next period pays that back.
  void charge(std::uint64_t bytes) noexcept;
  void give_back(std::uint64_t bytes) noexcept;
  // Begins the period that now lies in.
  void renew(TimeNs now_ns) noexcept;
  // Bytes come where there were none: what is left may be more than the rest of the period is good for at the reserved
  // rate, and would then push aside the others' deadlines. It is due a period from now instead.
  void wake(TimeNs now_ns) noexcept;

  ReservationSpec spec;
  BudgetHandle self;
  std::int64_t left = 0;     // bytes of this period
  TimeNs begun_ns = 0;       // the period
  TimeNs deadline_ns = 0;
  Flow* head = nullptr;
  Flow* tail = nullptr;
  std::uint32_t listed = 0;
  bool asleep = true;        // had nothing to post when it was last looked at
  Budget* next = nullptr;    // of the lane
  BudgetCounts counts;
};

using BudgetTable = SlotTable<Budget, BudgetTag>;

// Of a lane's budgets that have bytes left and flows to spend them on, the one with the earliest deadline; the oldest
// of equal ones. nullptr: none.
[[nodiscard]] Budget* earliest_due(Budget* first, TimeNs now_ns) noexcept;

}  // namespace kvrail::scheduler
