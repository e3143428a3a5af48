#include "scheduler/scheduler.h"

#include <algorithm>

#include "scheduler/record.h"
#include "scheduler/scheduler_state.h"
#include "scheduler/urgency.h"

namespace kvrail::scheduler {

Scheduler::Scheduler(const SchedulerOptions& options) : state_(std::make_unique<State>(options)) {}
Scheduler::~Scheduler() = default;

void Scheduler::record(Recorder* recorder) noexcept {
  KVRAIL_ASSERT_MSG(recorder == nullptr || state_->flows.size() == 0, "a recording begins before the first flow");
  state_->recorder = recorder;
}

void Scheduler::lane_up(LaneIndex lane, std::uint64_t rate_hint_bytes_per_s,
                        TimeNs now_ns, bool shares) noexcept {
  Lane& it = state_->lane_of(lane);
  KVRAIL_ASSERT(!it.up && it.flows == 0);
  if (state_->recorder != nullptr) {
    state_->recorder->note(RecordKind::lane_up, LaneUpEvent{lane, shares ? 1U : 0U, rate_hint_bytes_per_s, now_ns});
  }
  it.up = true;
  it.background_owed = 0;
  it.shares = shares;
  it.window.start(
      rate_hint_bytes_per_s != 0 ? rate_hint_bytes_per_s : state_->options.initial_rate_bytes_per_s,
      now_ns);
  state_->refresh_turn_cap(it);
}

void Scheduler::lane_down(LaneIndex lane) noexcept {
  Lane& it = state_->lane_of(lane);
  KVRAIL_ASSERT_MSG(it.up && it.flows == 0, "flows are removed before their lane goes down");
  while (it.budgets != nullptr) close_budget(it.budgets->self);
  it.up = false;
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::lane_down, lane);
}

BudgetHandle Scheduler::open_budget(const ReservationSpec& spec, TimeNs now_ns) noexcept {
  Lane& lane = state_->lane_of(spec.lane);
  KVRAIL_ASSERT(lane.up && spec.period_ns > 0 && spec.bytes > 0);
  KVRAIL_ASSERT(spec.offset_ns >= 0 && spec.offset_ns < spec.period_ns);
  Budget** last = &lane.budgets;
  std::uint32_t count = 0;
  for (; *last != nullptr; last = &(*last)->next) ++count;
  if (count == kMostBudgets) return {};
  const BudgetHandle handle = state_->budgets.try_emplace(spec, now_ns);
  if (!handle) return handle;
  Budget& budget = *state_->budgets.get(handle);
  budget.self = handle;
  *last = &budget;
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::open_budget, spec, now_ns, handle);
  return handle;
}

void Scheduler::close_budget(BudgetHandle handle) noexcept {
  Budget* const budget = state_->budgets.get(handle);
  KVRAIL_ASSERT_MSG(budget != nullptr, "a stale budget handle");
  Lane& lane = state_->lane_of(budget->spec.lane);
  Budget** at = &lane.budgets;
  while (*at != budget) at = &(*at)->next;
  *at = budget->next;
  KVRAIL_ASSERT(lane.reserved_flows >= budget->listed);
  lane.reserved_flows -= budget->listed;
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::close_budget, handle);
  state_->budgets.erase(handle);  // what its flows know of it is stale from here on
}

BudgetCounts Scheduler::budget(BudgetHandle handle) const noexcept {
  const Budget* const budget = state_->budgets.get(handle);
  return budget == nullptr ? BudgetCounts{} : budget->counts;
}

FlowHandle Scheduler::add_flow(const FlowSpec& spec, TimeNs now_ns) noexcept {
  Lane& lane = state_->lane_of(spec.lane);
  KVRAIL_ASSERT(lane.up && spec.start_offset <= spec.total_bytes &&
                spec.ready_bytes <= spec.total_bytes);
  const Budget* const budget = spec.budget.valid() ? state_->budgets.get(spec.budget) : nullptr;
  KVRAIL_ASSERT_MSG(budget == nullptr || budget->spec.lane == spec.lane, "a budget is of one lane");
  const FlowHandle handle = state_->flows.try_emplace();
  if (!handle) return handle;
  Flow& flow = *state_->flows.get(handle);
  flow.self = handle;
  flow.cookie = spec.cookie;
  flow.total = spec.total_bytes;
  flow.ready = std::max(spec.ready_bytes, spec.start_offset);
  flow.cursor = spec.start_offset;
  flow.lane = spec.lane;
  flow.weight = std::max<std::uint32_t>(spec.weight, 1);
  flow.budget = spec.budget;
  flow.suspensions = spec.suspensions;
  flow.flow_class = spec.critical     ? FlowClass::critical
                    : spec.background ? FlowClass::background
                                      : FlowClass::ordinary;
  const std::uint64_t left = spec.total_bytes - spec.start_offset;
  const TimeNs sending = sending_ns(left, lane.window.bandwidth().planning());
  const std::uint32_t base_milli = base_for_size(spec.base_milli, sending, state_->options.slice_ns);
  flow.law = make_law(base_milli, spec.submitted_ns, spec.deadline_ns, sending);
  flow.level = level_of_urgency(urgency_at(flow.law, now_ns));
  ++lane.flows;
  lane.queued(flow.flow_class) += left;
  if (left > 0) state_->arm_crossing(flow, now_ns);
  state_->list_if_postable(flow);
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::add_flow, spec, now_ns, handle);
  return handle;
}

void Scheduler::set_ready(FlowHandle handle, std::uint64_t ready_bytes, TimeNs now_ns) noexcept {
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::set_ready, handle, ready_bytes, now_ns);
  Flow& flow = state_->flow_of(handle);
  KVRAIL_ASSERT(ready_bytes <= flow.total);
  flow.ready = std::max(flow.ready, ready_bytes);
  state_->list_if_postable(flow);
}

void Scheduler::remove_flow(FlowHandle handle) noexcept {
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::remove_flow, handle);
  Flow& flow = state_->flow_of(handle);
  Lane& lane = state_->lane_of(flow.lane);
  if (flow.listed) state_->unlist(flow);
  state_->wheel.cancel(flow);
  KVRAIL_ASSERT(lane.flows > 0 && lane.queued(flow.flow_class) >= flow.total - flow.cursor);
  lane.queued(flow.flow_class) -= flow.total - flow.cursor;
  --lane.flows;
  state_->flows.erase(handle);
}

// Lanes take turns of a few chunks; a turn that the end of `actions` cuts goes on in the next step.
// The step ends when a whole circle of lanes could post nothing.
std::size_t Scheduler::step(TimeNs now_ns, std::span<PostAction> actions) noexcept {
  State& state = *state_;
  state.wheel.advance(now_ns,
                      [&](TimerNode& node) { state.promote(static_cast<Flow&>(node), now_ns); });
  const bool idle = state.recorder != nullptr && state.flows.size() == 0;
  const LaneIndex none = state.options.max_lanes;
  LaneIndex fruitless_since = none;
  std::size_t count = 0;
  while (count < actions.size()) {
    const LaneIndex lane = state.next_busy(state.turn_lane);
    if (lane == none || lane == fruitless_since) break;
    if (lane != state.turn_lane) state.give_turn(lane);
    const std::size_t room = std::min<std::size_t>(state.turn_left, actions.size() - count);
    const std::size_t posted = state.fill_lane(lane, now_ns, actions.subspan(count, room));
    count += posted;
    state.turn_left -= static_cast<std::uint32_t>(posted);
    if (posted > 0) {
      fruitless_since = none;
    } else if (fruitless_since == none) {
      fruitless_since = lane;
    }
    if (posted < room || state.turn_left == 0) state.give_turn(lane + 1 < none ? lane + 1 : 0);
  }
  if (idle) {
    state.recorder->note_idle_step(now_ns, actions.size());
  } else if (state.recorder != nullptr) {
    const std::span<const PostAction> taken = actions.first(count);
    state.recorder->note(RecordKind::step, now_ns, std::uint64_t{actions.size()}, taken);
  }
  return count;
}

void Scheduler::unpost(const PostAction& action) noexcept {
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::unpost, action);
  Lane& lane = state_->lane_of(action.lane);
  lane.window.unpost(action.bytes, action.critical);
  Flow* const flow = state_->flows.get(action.flow);
  if (flow == nullptr) return;
  KVRAIL_ASSERT_MSG(flow->cursor == action.offset + action.bytes,
                    "chunks are given back last first");
  flow->cursor = action.offset;
  lane.queued(flow->flow_class) += action.bytes;
  if (action.reserved) {
    if (Budget* const budget = state_->budgets.get(flow->budget)) budget->give_back(action.bytes);
  }
  // The bytes become due again, so the turn that they ended goes on.
  if (!flow->listed) {
    state_->list(*flow);
  } else if (!action.reserved) {
    flow->deficit += static_cast<std::int64_t>(action.bytes);
  }
  if (!flow->armed) state_->arm_crossing(*flow, flow->law.start_ns);
}

void Scheduler::chunk_done(LaneIndex lane, std::uint32_t bytes, TimeNs posted_ns,
                           TimeNs completed_ns, bool ok, TimeNs now_ns) noexcept {
  if (state_->recorder != nullptr) {
    state_->recorder->note(RecordKind::chunk_done, ChunkDoneEvent{lane, bytes, posted_ns, completed_ns, now_ns, ok ? 1U : 0U});
  }
  Lane& it = state_->lane_of(lane);
  if (!it.up) return;  // its records went with it
  it.window.done(bytes, posted_ns, completed_ns, ok);
  state_->refresh_turn_cap(it);
}

LaneEstimate Scheduler::estimate(LaneIndex lane) const noexcept {
  const Lane& it = state_->lane_of(lane);
  LaneEstimate estimate;
  estimate.capacity_bytes_per_s = it.window.bandwidth().capacity();
  estimate.planning_bytes_per_s = it.window.bandwidth().planning();
  estimate.round_trip_ns = std::max<TimeNs>(it.window.bandwidth().round_trip(), 0);
  estimate.in_flight_bytes = it.window.in_flight();
  estimate.in_flight_limit_bytes = it.window.limit();
  for (const std::uint64_t queued : it.queued_bytes) estimate.queued_bytes += queued;
  estimate.chunk_bytes = it.window.chunk_bytes();
  return estimate;
}

std::uint64_t Scheduler::rate_for_choice(LaneIndex lane, std::uint64_t bytes, TimeNs now_ns) noexcept {
  const std::uint64_t rate = state_->lane_of(lane).window.rate_for_choice(bytes, now_ns);
  if (state_->recorder != nullptr) state_->recorder->note(RecordKind::rate, lane, bytes, now_ns, rate);
  return rate;
}

TimeNs Scheduler::backlog_ns(LaneIndex lane, bool critical) const noexcept {
  Lane& it = state_->lane_of(lane);
  std::uint64_t ahead = it.window.in_flight() + it.queued(FlowClass::critical);
  if (!critical) ahead += it.queued(FlowClass::ordinary);
  return sending_ns(ahead, it.window.bandwidth().planning());
}

// Levels that flows reach while nothing can be posted need no wake-up: the order matters only when
// a chunk may go, and what makes that possible is an event, after which step() looks at the wheel.
TimeNs Scheduler::next_timer_ns() const noexcept {
  return kNever;
}

std::uint32_t Scheduler::level_of(FlowHandle flow) const noexcept {
  return state_->flow_of(flow).level;
}

std::uint8_t Scheduler::suspensions_of(FlowHandle flow) const noexcept {
  return state_->flow_of(flow).suspensions;
}

std::uint64_t Scheduler::suspensions() const noexcept {
  return state_->suspensions;
}

std::uint64_t Scheduler::urgency_milli(FlowHandle flow, TimeNs now_ns) const noexcept {
  return urgency_at(state_->flow_of(flow).law, now_ns);
}

}  // namespace kvrail::scheduler
