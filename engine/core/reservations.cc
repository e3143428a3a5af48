// Reservations of local agents: asked of the arbiter for the lane to the receiver's node, served by the order of that
// lane, carried over to the next lane when it is lost.
#include <algorithm>

#include "engine/core/node_core.h"

namespace kvrail::engine {
namespace {

Status status_of(scheduler::RefusalReason reason) noexcept {
  switch (reason) {
    case scheduler::RefusalReason::none: return Status{};
    case scheduler::RefusalReason::bad_period: return Status{Code::invalid_argument};
    case scheduler::RefusalReason::table_full: return Status{Code::out_of_capacity, Scope::engine};
    default: return Status{Code::limit, Scope::lane};
  }
}

}  // namespace

Status Node::Core::reserve(AgentHandle handle, TicketId ticket, const Name& receiver, const ReservationAsk& ask) noexcept {
  const LocalAgent* owner = agent(handle);
  if (owner == nullptr) return Status{Code::not_found};
  if (ticket == 0) return Status{Code::invalid_argument};
  if (draining_) return Status{Code::shutting_down, Scope::engine};
  if (!reserve_events(handle, 2)) return Status{Code::out_of_capacity};  // the answer, and the notice of its end
  AgentEvent event;
  event.kind = AgentEventKind::reserved;
  event.ticket = ticket;
  const auto refused = [&](Status status) {
    event.status = status;
    release_reserved(handle, 1);
    push_event(handle, event);
    return Status{};
  };
  const AgentWhere* to = where(owner->info.tenant, receiver);
  if (to == nullptr) return refused(Status{Code::not_found});
  if (to->local.valid()) return refused(Status{Code::unsupported});  // what stays on the node moves no byte
  const std::uint32_t peer = remotes_.get(remotes_.handle_at(to->remote))->peer;
  const std::uint32_t lane = best_lane(peer);
  if (lane == kNoIndex) return refused(Status{Code::lane_lost, Scope::lane});
  const Handle<OpenReservation> made = reservations_.try_emplace();
  if (!made.valid()) return refused(Status{Code::out_of_capacity, Scope::engine});
  OpenReservation& it = *reservations_.get(made);
  it.agent = handle;
  it.tenant = owner->info.tenant;
  it.to = receiver;
  it.peer = peer;
  it.spec = {lane, ask.period_ns, ask.offset_ns, ask.bytes};
  const scheduler::Refusal refusal = admit(it, lane);
  event.figures = {refusal.needed, refusal.available, refusal.total};
  if (refusal.reason != scheduler::RefusalReason::none) {
    reservations_.erase(made);
    return refused(status_of(refusal.reason));
  }
  while (++last_reservation_ == 0 || find_reservation(handle, last_reservation_).valid()) {
  }
  it.id = event.reservation = last_reservation_;
  push_event(handle, event);
  return Status{};
}

Status Node::Core::unreserve(AgentHandle handle, ReservationId id) noexcept {
  if (agent(handle) == nullptr) return Status{Code::not_found};
  const Handle<OpenReservation> found = find_reservation(handle, id);
  if (!found.valid()) return Status{Code::not_found};
  leave_lane(*reservations_.get(found));
  reservations_.erase(found);
  release_reserved(handle, 1);
  status_dirty_ = true;
  return Status{};
}

Handle<OpenReservation> Node::Core::find_reservation(AgentHandle owner, ReservationId id) const noexcept {
  Handle<OpenReservation> found;
  if (id == 0) return found;
  reservations_.for_each([&](Handle<OpenReservation> handle, const OpenReservation& it) {
    if (it.id == id && it.agent == owner) found = handle;
  });
  return found;
}

// The figures of what was admitted are the refusal's: what it takes, what was free before, and the half.
scheduler::Refusal Node::Core::admit(OpenReservation& it, std::uint32_t lane) noexcept {
  it.spec.lane = lane;
  const std::uint64_t rate = scheduler_.estimate(lane).planning_bytes_per_s;
  const std::uint64_t taken = arbiter_.reserved_bytes_per_s(lane);
  const scheduler::ReservationAnswer answer = arbiter_.reserve(it.spec, rate);
  if (!answer.reservation.valid()) return answer.refusal;
  it.budget = scheduler_.open_budget(it.spec, now_);
  if (!it.budget.valid()) {
    arbiter_.cancel(answer.reservation);
    return {scheduler::RefusalReason::table_full, 1, 0, scheduler::Scheduler::kMostBudgets};
  }
  it.admitted = answer.reservation;
  it.lane = lane;
  status_dirty_ = true;
  const std::uint64_t free = rate / 2 > taken ? rate / 2 - taken : 0;
  return {scheduler::RefusalReason::none, arbiter_.reserved_bytes_per_s(lane) - taken, free, rate / 2};
}

void Node::Core::leave_lane(OpenReservation& it) noexcept {
  if (it.lane == kNoIndex) return;
  const scheduler::BudgetCounts counts = scheduler_.budget(it.budget);
  it.before.served_bytes += counts.served_bytes;
  it.before.exhausted += counts.exhausted;
  scheduler_.close_budget(it.budget);
  arbiter_.cancel(it.admitted);
  it.budget = {};
  it.admitted = {};
  it.lane = kNoIndex;
}

void Node::Core::end_reservation(Handle<OpenReservation> handle, Status why) noexcept {
  OpenReservation& it = *must(reservations_.get(handle));
  leave_lane(it);
  AgentEvent event;
  event.kind = AgentEventKind::reservation_ended;
  event.status = why;
  event.reservation = it.id;
  const AgentHandle owner = it.agent;
  reservations_.erase(handle);
  push_event(owner, event);
}

template <class Which>
void Node::Core::end_reservations(Status why, Which which) noexcept {
  reservations_.for_each([&](Handle<OpenReservation> handle, OpenReservation& it) {
    if (which(it)) end_reservation(handle, why);
  });
}

void Node::Core::end_reservations_to(const Name& tenant, const Name& to, std::uint32_t peer) noexcept {
  end_reservations(Status{Code::not_found}, [&](const OpenReservation& it) {
    return it.peer == peer && it.to == to && it.tenant == tenant;
  });
}

void Node::Core::end_reservations_at(std::uint32_t peer, Status why) noexcept {
  end_reservations(why, [peer](const OpenReservation& it) { return it.peer == peer; });
}

void Node::Core::drop_reservations_of(AgentHandle owner) noexcept {
  reservations_.for_each([&](Handle<OpenReservation> handle, OpenReservation& it) {
    if (it.agent != owner) return;
    leave_lane(it);
    reservations_.erase(handle);
  });
}

// The lane is gone, its transfers' flows are removed already.
void Node::Core::reservations_lose(std::uint32_t lane) noexcept {
  reservations_.for_each([&](Handle<OpenReservation>, OpenReservation& it) {
    if (it.lane == lane) leave_lane(it);
  });
}

// Those without a lane are admitted anew, or end, since a promise that the new lane can't keep is none.
void Node::Core::admit_again(std::uint32_t peer) noexcept {
  const std::uint32_t lane = best_lane(peer);
  if (lane == kNoIndex) return;
  reservations_.for_each([&](Handle<OpenReservation> handle, OpenReservation& it) {
    if (it.peer != peer || it.lane != kNoIndex) return;
    const scheduler::Refusal refusal = admit(it, lane);
    if (refusal.reason != scheduler::RefusalReason::none) end_reservation(handle, status_of(refusal.reason));
  });
}

// A lane that became slower than all that is reserved of it keeps the older promises. Between half of it and all of it
// they are kept still: only the others get less than their half.
void Node::Core::fit_reservations() noexcept {
  if (reservations_.empty()) return;
  lanes_.for_each([&](Handle<Lane> handle, Lane&) {
    while (arbiter_.reserved_bytes_per_s(handle.index) > scheduler_.estimate(handle.index).capacity_bytes_per_s) {
      Handle<OpenReservation> newest;
      std::uint16_t least_age = 0xffff;  // ids count up, and around
      reservations_.for_each([&](Handle<OpenReservation> at, const OpenReservation& it) {
        const auto age = static_cast<std::uint16_t>(last_reservation_ - it.id);
        if (it.lane == handle.index && age <= least_age) {
          newest = at;
          least_age = age;
        }
      });
      end_reservation(newest, Status{Code::limit, Scope::lane});
    }
  });
}

scheduler::BudgetHandle Node::Core::budget_of(const Outgoing& out) const noexcept {
  const OpenReservation* const it = reservations_.get(out.reservation);
  return it != nullptr && it->lane == out.lane && it->lane != kNoIndex ? it->budget : scheduler::BudgetHandle{};
}

void Node::Core::show_reservations(StatusData& data) noexcept {
  std::uint32_t n = 0;
  reservations_.for_each([&](Handle<OpenReservation>, const OpenReservation& it) {
    if (n == kStatusReservations) return;
    StatusReservation& row = data.reservations[n++];
    row = StatusReservation{};
    row.tenant = it.tenant;
    const LocalAgent* const owner = agent(it.agent);
    if (owner != nullptr) row.agent = owner->info.name;
    row.to = it.to;
    row.peer = peer_at(it.peer).id;
    row.id = it.id;
    row.up = it.lane != kNoIndex ? 1 : 0;
    row.period_ns = it.spec.period_ns;
    row.offset_ns = it.spec.offset_ns;
    row.bytes = it.spec.bytes;
    const scheduler::BudgetCounts counts = scheduler_.budget(it.budget);
    row.served_bytes = it.before.served_bytes + counts.served_bytes;
    row.exhausted = it.before.exhausted + counts.exhausted;
  });
  data.reservation_count = n;
}

}  // namespace kvrail::engine
