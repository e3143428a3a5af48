#include "scheduler/scheduler.h"

#include <algorithm>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"
#include "scheduler/flow_table.h"
#include "scheduler/in_flight.h"
#include "scheduler/levels.h"
#include "scheduler/timer_wheel.h"
#include "scheduler/urgency.h"

namespace kvrail::scheduler {
namespace {

// Chunks that one lane takes before the next lane gets its turn within a step.
constexpr std::uint32_t kLaneBurst = 8;
// Background gets at least 1/20 of the bytes: 1 for each 19 of the others.
constexpr std::uint64_t kBackgroundShare = 19;

struct Lane {
  explicit Lane(const ChunkBounds& bounds) : window(bounds) {}

  [[nodiscard]] LevelSet& level_set(FlowClass flow_class) noexcept {
    return classes[static_cast<std::size_t>(flow_class)];
  }
  [[nodiscard]] std::uint64_t& queued(FlowClass flow_class) noexcept {
    return queued_bytes[static_cast<std::size_t>(flow_class)];
  }
  [[nodiscard]] bool idle() const noexcept {
    return std::all_of(classes.begin(), classes.end(), [](const LevelSet& set) { return set.empty(); });
  }

  bool up = false;
  std::uint32_t flows = 0;
  InFlightWindow window;
  std::array<LevelSet, kClasses> classes;
  std::array<std::uint64_t, kClasses> queued_bytes{};
  std::uint64_t background_owed = 0;  // in 1/19 bytes
  std::uint64_t planned_rate = 0;
  std::uint64_t turn_cap_bytes = 0;   // a slice at the planned rate
};

}  // namespace

struct Scheduler::State {
  explicit State(const SchedulerOptions& given);

  [[nodiscard]] Lane& lane_of(LaneIndex index) noexcept {
    KVRAIL_ASSERT(index < lanes.size());
    return *lanes[index];
  }
  [[nodiscard]] Flow& flow_of(FlowHandle handle) noexcept {
    Flow* const flow = flows.get(handle);
    KVRAIL_ASSERT_MSG(flow != nullptr, "a stale flow handle");
    return *flow;
  }
  void set_busy(LaneIndex index, bool value) noexcept {
    const std::uint64_t bit = std::uint64_t{1} << (index % 64);
    std::uint64_t& word = busy[index / 64];
    word = value ? word | bit : word & ~bit;
  }

  [[nodiscard]] bool postable(const Flow& flow) const noexcept;
  void refresh_turn_cap(Lane& lane) const noexcept {
    if (lane.planned_rate == lane.window.bandwidth().planning()) return;
    lane.planned_rate = lane.window.bandwidth().planning();
    lane.turn_cap_bytes =
        mul_div(lane.planned_rate, static_cast<std::uint64_t>(options.slice_ns), 1'000'000'000);
  }
  void give_turn(LaneIndex lane) noexcept {
    turn_lane = lane;
    turn_left = kLaneBurst;
  }
  void list(Flow& flow) noexcept;
  void list_if_postable(Flow& flow) noexcept;
  void unlist(Flow& flow) noexcept;
  void arm_crossing(Flow& flow, TimeNs now_ns) noexcept;
  void promote(Flow& flow, TimeNs now_ns) noexcept;
  [[nodiscard]] std::uint32_t next_length(const Flow& flow, std::uint32_t chunk) const noexcept;
  [[nodiscard]] Flow* next_flow(Lane& lane) noexcept;
  [[nodiscard]] PostAction post(Lane& lane, Flow& flow, TimeNs now_ns) noexcept;
  [[nodiscard]] std::size_t fill_lane(LaneIndex index, TimeNs now_ns, std::span<PostAction> actions) noexcept;
  [[nodiscard]] LaneIndex next_busy(LaneIndex from) const noexcept;

  SchedulerOptions options;
  FlowTable flows;
  TimerWheel wheel;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::uint64_t> busy;  // lanes with something to post
  LaneIndex turn_lane = 0;          // whose turn it is
  std::uint32_t turn_left = kLaneBurst;
};

Scheduler::State::State(const SchedulerOptions& given)
    : options(given), flows(given.max_flows), busy((given.max_lanes + 63) / 64, 0) {
  KVRAIL_ASSERT(given.max_lanes > 0 && given.slice_ns > 0);
  const ChunkBounds bounds{given.min_chunk_bytes, given.max_chunk_bytes};
  lanes.reserve(given.max_lanes);
  for (std::uint32_t i = 0; i < given.max_lanes; ++i) lanes.push_back(std::make_unique<Lane>(bounds));
}

// ---- flows and their lists ----

// A flow is listed exactly while this holds. Chunks end at multiples of the least chunk, or at the
// flow's end: a smaller piece waits until more of the flow is ready.
bool Scheduler::State::postable(const Flow& flow) const noexcept {
  const bool whole = flow.ready == flow.total;
  return (whole ? flow.total : flow.ready & ~(options.min_chunk_bytes - std::uint64_t{1})) > flow.cursor;
}

// Up to the next multiple of the chunk size in the stream, so that chunks and the units that
// digests cover end together; while the flow is not ready that far, to the last whole unit.
std::uint32_t Scheduler::State::next_length(const Flow& flow, std::uint32_t chunk) const noexcept {
  const std::uint64_t boundary = (flow.cursor & ~(chunk - std::uint64_t{1})) + chunk;  // a power of two
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

Flow* Scheduler::State::next_flow(Lane& lane) noexcept {
  const std::uint32_t chunk = lane.window.chunk_bytes();
  const std::uint64_t turn_cap = lane.turn_cap_bytes;
  if (Flow* const flow = lane.level_set(FlowClass::critical).turn(chunk, turn_cap)) {
    // Nothing else may pass while critical bytes wait.
    return lane.window.may_post_critical(next_length(*flow, chunk)) ? flow : nullptr;
  }
  LevelSet& ordinary = lane.level_set(FlowClass::ordinary);
  LevelSet& background = lane.level_set(FlowClass::background);
  const bool owed = !background.empty() && lane.background_owed >= kBackgroundShare * chunk;
  LevelSet& set = owed || ordinary.empty() ? background : ordinary;
  Flow* const flow = set.turn(chunk, turn_cap);
  if (flow == nullptr || !lane.window.may_post_bulk(next_length(*flow, chunk))) return nullptr;
  return flow;
}

PostAction Scheduler::State::post(Lane& lane, Flow& flow, TimeNs now_ns) noexcept {
  const std::uint32_t chunk = lane.window.chunk_bytes();
  const std::uint32_t bytes = next_length(flow, chunk);
  KVRAIL_ASSERT(bytes > 0 && flow.cursor + bytes <= flow.ready);
  const bool critical = flow.flow_class == FlowClass::critical;
  const PostAction action{flow.self, flow.cookie, flow.lane, flow.cursor, bytes, critical};
  lane.window.post(now_ns, bytes, critical);
  LevelSet::charge(flow, bytes);
  flow.cursor += bytes;
  lane.queued(flow.flow_class) -= bytes;
  if (flow.flow_class == FlowClass::background) {
    lane.background_owed -= std::min(lane.background_owed, kBackgroundShare * bytes);
  } else if (!lane.level_set(FlowClass::background).empty()) {
    const std::uint64_t most = 2 * kBackgroundShare * std::uint64_t{chunk};
    lane.background_owed = std::min(lane.background_owed + bytes, most);
  }
  if (!postable(flow)) unlist(flow);
  if (flow.cursor == flow.total) wheel.cancel(flow);
  return action;
}

std::size_t Scheduler::State::fill_lane(LaneIndex index, TimeNs now_ns, std::span<PostAction> actions) noexcept {
  Lane& lane = lane_of(index);
  lane.window.tick(now_ns);
  std::size_t count = 0;
  while (count < actions.size()) {
    Flow* const flow = next_flow(lane);
    if (flow == nullptr) break;
    actions[count++] = post(lane, *flow, now_ns);
  }
  return count;
}

// The first busy lane from `from` on, going round; max_lanes when there is none.
LaneIndex Scheduler::State::next_busy(LaneIndex from) const noexcept {
  const std::size_t words = busy.size();
  for (std::size_t i = 0; i <= words; ++i) {
    const std::size_t word = (from / 64 + i) % words;
    std::uint64_t bits = busy[word];
    if (i == 0) bits &= ~std::uint64_t{0} << (from % 64);
    if (bits != 0) return static_cast<LaneIndex>(word * 64 + find_first_set(bits));
  }
  return options.max_lanes;
}

// ---- the interface ----

Scheduler::Scheduler(const SchedulerOptions& options) : state_(std::make_unique<State>(options)) {}
Scheduler::~Scheduler() = default;

void Scheduler::lane_up(LaneIndex lane, std::uint64_t rate_hint_bytes_per_s, TimeNs now_ns) noexcept {
  Lane& it = state_->lane_of(lane);
  KVRAIL_ASSERT(!it.up && it.flows == 0);
  it.up = true;
  it.background_owed = 0;
  it.window.start(rate_hint_bytes_per_s != 0 ? rate_hint_bytes_per_s : state_->options.initial_rate_bytes_per_s,
                  now_ns);
  state_->refresh_turn_cap(it);
}

void Scheduler::lane_down(LaneIndex lane) noexcept {
  Lane& it = state_->lane_of(lane);
  KVRAIL_ASSERT_MSG(it.up && it.flows == 0, "flows are removed before their lane goes down");
  it.up = false;
}

FlowHandle Scheduler::add_flow(const FlowSpec& spec, TimeNs now_ns) noexcept {
  Lane& lane = state_->lane_of(spec.lane);
  KVRAIL_ASSERT(lane.up && spec.start_offset <= spec.total_bytes && spec.ready_bytes <= spec.total_bytes);
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
  flow.flow_class = spec.critical     ? FlowClass::critical
                    : spec.background ? FlowClass::background
                                      : FlowClass::ordinary;
  const std::uint64_t left = spec.total_bytes - spec.start_offset;
  flow.law = make_law(spec.base_milli, spec.submitted_ns, spec.deadline_ns,
                      sending_ns(left, lane.window.bandwidth().planning()));
  flow.level = level_of_urgency(urgency_at(flow.law, now_ns));
  ++lane.flows;
  lane.queued(flow.flow_class) += left;
  if (left > 0) state_->arm_crossing(flow, now_ns);
  state_->list_if_postable(flow);
  return handle;
}

void Scheduler::set_ready(FlowHandle handle, std::uint64_t ready_bytes, TimeNs) noexcept {
  Flow& flow = state_->flow_of(handle);
  KVRAIL_ASSERT(ready_bytes <= flow.total);
  flow.ready = std::max(flow.ready, ready_bytes);
  state_->list_if_postable(flow);
}

void Scheduler::remove_flow(FlowHandle handle) noexcept {
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
  state.wheel.advance(now_ns, [&](TimerNode& node) { state.promote(static_cast<Flow&>(node), now_ns); });
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
  return count;
}

void Scheduler::unpost(const PostAction& action) noexcept {
  Lane& lane = state_->lane_of(action.lane);
  lane.window.unpost(action.bytes, action.critical);
  Flow* const flow = state_->flows.get(action.flow);
  if (flow == nullptr) return;
  KVRAIL_ASSERT_MSG(flow->cursor == action.offset + action.bytes, "chunks are given back last first");
  flow->cursor = action.offset;
  lane.queued(flow->flow_class) += action.bytes;
  // The bytes become due again, so the turn that they ended goes on.
  if (flow->listed) {
    flow->deficit += static_cast<std::int64_t>(action.bytes);
  } else {
    state_->list(*flow);
  }
  if (!flow->armed) state_->arm_crossing(*flow, flow->law.start_ns);
}

void Scheduler::chunk_done(LaneIndex lane, std::uint32_t bytes, TimeNs posted_ns, TimeNs completed_ns, bool ok,
                           TimeNs) noexcept {
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

TimeNs Scheduler::backlog_ns(LaneIndex lane, bool critical) const noexcept {
  Lane& it = state_->lane_of(lane);
  std::uint64_t ahead = it.window.in_flight() + it.queued(FlowClass::critical);
  if (!critical) ahead += it.queued(FlowClass::ordinary);
  return sending_ns(ahead, it.window.bandwidth().planning());
}

// Levels that flows reach while nothing can be posted need no wake-up: the order matters only when
// a chunk may go, and what makes that possible is an event, after which step() looks at the wheel.
TimeNs Scheduler::next_timer_ns() const noexcept { return kNever; }

std::uint32_t Scheduler::level_of(FlowHandle flow) const noexcept { return state_->flow_of(flow).level; }

std::uint64_t Scheduler::urgency_milli(FlowHandle flow, TimeNs now_ns) const noexcept {
  return urgency_at(state_->flow_of(flow).law, now_ns);
}

}  // namespace kvrail::scheduler
