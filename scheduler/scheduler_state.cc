#include "scheduler/scheduler_state.h"

#include "kvrail/base/bits.h"
#include "scheduler/urgency.h"

namespace kvrail::scheduler {
namespace {

// Background gets at least 1/20 of the bytes: 1 for each 19 of the others.
constexpr std::uint64_t kBackgroundShare = 19;

}  // namespace

Scheduler::State::State(const SchedulerOptions& given)
    : options(given), flows(given.max_flows), budgets(given.max_budgets), busy((given.max_lanes + 63) / 64, 0) {
  KVRAIL_ASSERT(given.max_lanes > 0 && given.slice_ns > 0);
  const ChunkBounds bounds{given.min_chunk_bytes, given.max_chunk_bytes, given.least_window_ns};
  lanes.reserve(given.max_lanes);
  for (std::uint32_t i = 0; i < given.max_lanes; ++i)
    lanes.push_back(std::make_unique<Lane>(bounds));
}

// ---- flows and their lists ----

// A flow is listed exactly while this holds. Chunks end at multiples of the least chunk, or at the
// flow's end: a smaller piece waits until more of the flow is ready.
bool Scheduler::State::postable(const Flow& flow) const noexcept {
  const bool whole = flow.ready == flow.total;
  return (whole ? flow.total : flow.ready & ~(options.min_chunk_bytes - std::uint64_t{1})) >
         flow.cursor;
}

// Up to the next multiple of the chunk size in the stream, so that chunks and the units that
// digests cover end together; while the flow is not ready that far, to the last whole unit.
std::uint32_t Scheduler::State::next_length(const Flow& flow, std::uint32_t chunk) const noexcept {
  const std::uint64_t boundary =
      (flow.cursor & ~(chunk - std::uint64_t{1})) + chunk;  // a power of two
  std::uint64_t end = std::min(boundary, flow.ready);
  if (end < boundary && end < flow.total) {
    const std::uint64_t unit = align_down(end, kDigestUnitBytes);
    end = unit > flow.cursor ? unit : align_down(end, options.min_chunk_bytes);
  }
  KVRAIL_ASSERT(end > flow.cursor && end - flow.cursor <= chunk);
  return static_cast<std::uint32_t>(end - flow.cursor);
}

void Scheduler::State::list(Flow& flow) noexcept {
  Lane& lane = lane_of(flow.lane);
  if (lane.idle()) set_busy(flow.lane, true);
  lane.level_set(flow.flow_class).insert(flow);
  if (!flow.budget.valid()) return;
  if (Budget* const budget = budgets.get(flow.budget)) {
    budget->append(flow);
    ++lane.reserved_flows;
  }
}

void Scheduler::State::list_if_postable(Flow& flow) noexcept {
  if (flow.listed || !postable(flow)) return;
  Lane& lane = lane_of(flow.lane);
  // The lane could have sent more and had nothing: what follows does not measure it.
  if (lane.idle() && lane.window.has_room()) lane.window.note_app_limited();
  list(flow);
}

void Scheduler::State::unlist(Flow& flow) noexcept {
  Lane& lane = lane_of(flow.lane);
  lane.level_set(flow.flow_class).remove(flow);
  if (flow.budget.valid()) {
    if (Budget* const budget = budgets.get(flow.budget)) {
      budget->remove(flow);
      --lane.reserved_flows;
    }
  }
  if (flow.flow_class == FlowClass::background && lane.level_set(FlowClass::background).empty()) {
    lane.background_owed = 0;
  }
  if (lane.idle()) set_busy(flow.lane, false);
}

void Scheduler::State::arm_crossing(Flow& flow, TimeNs now_ns) noexcept {
  if (flow.level + 1 >= kLevels) return;
  const TimeNs due = crossing_ns(flow.law, flow.level + 1);
  if (due == kNever) return;
  // Rounding may put the crossing just behind now; the next tick looks again.
  wheel.arm(flow, std::max(due, now_ns + TimerWheel::kTickNs));
}

void Scheduler::State::promote(Flow& flow, TimeNs now_ns) noexcept {
  const std::uint32_t level = std::max(flow.level, level_of_urgency(urgency_at(flow.law, now_ns)));
  if (level != flow.level) {
    LevelSet& set = lane_of(flow.lane).level_set(flow.flow_class);
    const bool listed = flow.listed;
    if (listed) set.remove(flow);
    flow.level = level;
    if (listed) set.insert(flow);
  }
  arm_crossing(flow, now_ns);
}

// ---- choosing and posting ----

std::uint32_t Scheduler::State::top_level_beside(const Lane& lane) const noexcept {
  std::uint32_t top = 0;
  for (std::size_t word = 0; word < busy.size(); ++word) {
    for (std::uint64_t bits = busy[word]; bits != 0; bits &= bits - 1) {
      const Lane& other = *lanes[word * 64 + find_first_set(bits)];
      // A lane that is much slower has its limit elsewhere: making way for it would leave the interface idle.
      if (&other == &lane || !other.shares || 2 * other.planned_rate < lane.planned_rate) continue;
      if (!other.classes[static_cast<std::size_t>(FlowClass::critical)].empty()) return kMostSuspendingLevel;
      const LevelSet& ordinary = other.classes[static_cast<std::size_t>(FlowClass::ordinary)];
      if (!ordinary.empty()) top = std::max(top, ordinary.top_level());
    }
  }
  return std::min(top, kMostSuspendingLevel);
}

// Its cursor stays where it is, and it goes on from there.
bool Scheduler::State::makes_way(const Lane& lane, Flow& flow, std::uint32_t& beside) noexcept {
  if (!lane.shares || (!flow.suspended && flow.suspensions >= options.most_suspensions)) return false;
  if (mul_div(flow.cursor, 1'000'000, flow.total) >= options.suspend_below_ppm) return false;
  if (beside == kUnknown) beside = top_level_beside(lane);
  const bool suspended = beside >= flow.level + kSuspendingLevels;
  if (suspended && !flow.suspended) {
    ++flow.suspensions;
    ++suspensions;
  }
  flow.suspended = suspended;
  return suspended;
}

Scheduler::State::Next Scheduler::State::next_flow(Lane& lane, TimeNs now_ns, std::uint32_t& beside) noexcept {
  const std::uint32_t chunk = lane.window.chunk_bytes();
  const std::uint64_t turn_cap = lane.turn_cap_bytes;
  if (lane.reserved_flows > 0) {
    if (Budget* const budget = earliest_due(lane.budgets, now_ns)) {
      // As for critical bytes: what is promised waits for its own room, and nothing passes meanwhile.
      if (!lane.window.may_post_critical(next_length(*budget->head, chunk))) return {};
      return {budget->head, budget};
    }
  }
  if (Flow* const flow = lane.level_set(FlowClass::critical).turn(chunk, turn_cap)) {
    // Nothing else may pass while critical bytes wait.
    return {lane.window.may_post_critical(next_length(*flow, chunk)) ? flow : nullptr, nullptr};
  }
  LevelSet& ordinary = lane.level_set(FlowClass::ordinary);
  LevelSet& background = lane.level_set(FlowClass::background);
  const bool owed = !background.empty() && lane.background_owed >= kBackgroundShare * chunk;
  LevelSet& set = owed || ordinary.empty() ? background : ordinary;
  Flow* const flow = set.turn(chunk, turn_cap);
  if (flow == nullptr || (!owed && makes_way(lane, *flow, beside))) return {};
  if (!lane.window.may_post_bulk(next_length(*flow, chunk))) return {};
  return {flow, nullptr};
}

void Scheduler::State::post(Lane& lane, const Next& next, TimeNs now_ns, PostAction& action) noexcept {
  Flow& flow = *next.flow;
  const std::uint32_t chunk = lane.window.chunk_bytes();
  const std::uint32_t bytes = next_length(flow, chunk);
  KVRAIL_ASSERT(bytes > 0 && flow.cursor + bytes <= flow.ready);
  const bool reserved = next.paid_by != nullptr;
  const bool critical = reserved || flow.flow_class == FlowClass::critical;
  action.flow = flow.self;
  action.cookie = flow.cookie;
  action.lane = flow.lane;
  action.offset = flow.cursor;
  action.bytes = bytes;
  action.critical = critical;
  action.reserved = reserved;
  lane.window.post(now_ns, bytes, critical);
  if (reserved) {
    next.paid_by->charge(bytes);
  } else {
    LevelSet::charge(flow, bytes);
  }
  flow.cursor += bytes;
  lane.queued(flow.flow_class) -= bytes;
  if (flow.flow_class == FlowClass::background && !reserved) {
    lane.background_owed -= std::min(lane.background_owed, kBackgroundShare * bytes);
  } else if (!lane.level_set(FlowClass::background).empty()) {
    const std::uint64_t most = 2 * kBackgroundShare * std::uint64_t{chunk};
    lane.background_owed = std::min(lane.background_owed + bytes, most);
  }
  if (!postable(flow)) unlist(flow);
  if (flow.cursor == flow.total) wheel.cancel(flow);
}

std::size_t Scheduler::State::fill_lane(LaneIndex index, TimeNs now_ns,
                                        std::span<PostAction> actions) noexcept {
  Lane& lane = lane_of(index);
  lane.window.tick(now_ns);
  std::uint32_t beside = kUnknown;
  std::size_t count = 0;
  while (count < actions.size()) {
    const Next next = next_flow(lane, now_ns, beside);
    if (next.flow == nullptr) break;
    post(lane, next, now_ns, actions[count++]);
  }
  return count;
}

// The first busy lane from `from` on, going round; max_lanes when there is none.
LaneIndex Scheduler::State::next_busy(LaneIndex from) const noexcept {
  const std::size_t words = busy.size();
  for (std::size_t i = 0; i <= words; ++i) {
    std::size_t word = from / 64 + i;
    if (word >= words) word -= words;  // asked in each duty cycle: no division
    std::uint64_t bits = busy[word];
    if (i == 0) bits &= ~std::uint64_t{0} << (from % 64);
    if (bits != 0) return static_cast<LaneIndex>(word * 64 + find_first_set(bits));
  }
  return options.max_lanes;
}

}  // namespace kvrail::scheduler
