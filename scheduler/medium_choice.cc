// The receiver's half of the choice: its own terms, the residuals learned, hysteresis, the pick.
#include "scheduler/medium_choice.h"

#include <algorithm>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/cost.h"
#include "scheduler/keyed_table.h"
#include "scheduler/record.h"
#include "scheduler/split.h"

namespace kvrail::scheduler {
namespace {

// Residuals follow a new level within about eight transfers.
constexpr std::int64_t kResidualGain = 4;     // 1/4 of the difference
// One that is not observed fades with the decisions that pass its medium over, so that a bad moment
// does not rule a medium out for ever.
constexpr std::int64_t kResidualFade = 32;
constexpr std::uint64_t kSwitchTwice = 1150;  // thousandths of the best's cost
constexpr std::uint64_t kSwitchOnce = 1500;
constexpr unsigned kBacklogUnitShift = 17;  // octaves of backlog start at 131 us

unsigned octave(std::uint64_t value) noexcept {
  return value == 0 ? 0 : log2_floor(value) + 1;
}
// 4 x its octave and the next two bits.
std::uint64_t quarter_octaves(std::uint64_t value) noexcept {
  if (value < 4) return value;
  const unsigned log2 = log2_floor(value);
  return 4 * std::uint64_t{log2} + (value >> (log2 - 2) & 3);
}
unsigned backlog_octave(std::uint64_t ns) noexcept {
  return octave(ns >> kBacklogUnitShift);
}

struct LastChoice {
  Medium medium = Medium::automatic;
  std::uint8_t dearer_count = 0;  // decisions in a row in which it was > 15 % dearer than the best
};

std::uint64_t residual_key(std::uint32_t lane, Medium medium, std::uint64_t bytes) noexcept {
  return mix_key((std::uint64_t{lane} << 16) | (static_cast<std::uint64_t>(medium) << 8) |
                 octave(bytes));
}

}  // namespace

std::uint64_t choice_key(std::span<const CandidateCost> candidates,
                         const ReceiverFacts& facts) noexcept {
  std::uint64_t wait = 0, rate = 0;
  for (const CandidateCost& it : candidates) {
    wait = std::max(wait, it.wait_ns);
    rate = std::max(rate, it.rate_bytes_per_s);
  }
  const auto compute_wait =
      static_cast<std::uint64_t>(std::max<TimeNs>(facts.compute_backlog_ns, 0));
  const std::uint64_t missing = facts.missing_full_blocks + (facts.missing_tail ? 1 : 0);
  const std::uint64_t octaves = (quarter_octaves(rate) << 40) | (quarter_octaves(facts.total_tokens) << 24) |
                                (octave(missing) << 16) | (backlog_octave(wait) << 8) |
                                backlog_octave(compute_wait);
  return mix_key(facts.pair_key ^ mix_key(octaves));
}

struct MediumChooser::State {
  State(const DepthLoss& profile, std::uint32_t slots)
      : loss(profile), residuals(slots), choices(slots) {}
  DepthLoss loss;
  KeyedTable<std::int64_t> residuals;  // log2(observed / predicted), Q32
  KeyedTable<LastChoice> choices;
  Recorder* recorder = nullptr;
  [[nodiscard]] Pick pick(std::span<const CandidateCost> candidates, const ReceiverFacts& facts, std::uint32_t lane) noexcept;
};

void make_greedy(std::span<CandidateCost> candidates, ReceiverFacts& facts, std::uint64_t serial) noexcept {
  for (CandidateCost& it : candidates) it.price_ns = 0;
  facts.nic_price_ppm = facts.compute_price_ppm = 0;
  facts.nic_arrivals_milli_per_s = facts.compute_arrivals_milli_per_s = 0;
  facts.others_bringing = 0;
  facts.others_left_bytes = 0;
  facts.pair_key = mix_key(facts.pair_key ^ mix_key(serial));
}

MediumChooser::MediumChooser(const DepthLoss& loss, std::uint32_t table_slots)
    : state_(std::make_unique<State>(loss, table_slots)) {}
MediumChooser::~MediumChooser() = default;
void MediumChooser::record(Recorder* recorder) noexcept { state_->recorder = recorder; }

namespace {

// A medium that would miss the deadline is out while another one meets it.
void apply_deadline(Pick& pick, TimeNs remaining_ns) noexcept {
  if (remaining_ns <= 0) return;
  const auto lines = std::span(pick.lines).first(pick.line_count);
  const auto meets = [remaining_ns](const CostLine& line) {
    return line.allowed && line.total_ns <= remaining_ns;
  };
  if (std::none_of(lines.begin(), lines.end(), meets)) return;
  for (CostLine& line : lines) {
    if (!line.allowed || meets(line)) continue;
    line.allowed = false;
    line.why_not = "would miss the deadline";
  }
}

// A split takes of the network and of the compute: it must gain a tenth on the best of those that take of one.
void apply_split_gain(Pick& pick, bool wished) noexcept {
  constexpr std::uint64_t kGainMilli = 1100;
  const auto lines = std::span(pick.lines).first(pick.line_count);
  const auto is_split = [](const CostLine& line) { return line.allowed && line.medium == Medium::split; };
  if (wished && std::any_of(lines.begin(), lines.end(), is_split)) {
    for (CostLine& line : lines) {
      if (!line.allowed || is_split(line)) continue;
      line.allowed = false;
      line.why_not = "a split is wished for";
    }
    return;
  }
  TimeNs best = kNever;
  for (const CostLine& line : lines) {
    if (line.allowed && line.medium != Medium::split) best = std::min(best, line.cost_ns);
  }
  for (CostLine& line : lines) {
    if (!line.allowed || line.medium != Medium::split || best == kNever) continue;
    if (mul_div(static_cast<std::uint64_t>(line.cost_ns), kGainMilli, 1000) <= static_cast<std::uint64_t>(best)) continue;
    line.allowed = false;
    line.why_not = "gains less than a tenth";
  }
}

std::int32_t least_cost(const Pick& pick) noexcept {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < pick.line_count; ++i) {
    if (!pick.lines[i].allowed) continue;
    if (best < 0 || pick.lines[i].cost_ns < pick.lines[static_cast<std::size_t>(best)].cost_ns) {
      best = static_cast<std::int32_t>(i);
    }
  }
  return best;
}

// Keeps the last choice under this key unless another one is > 15 % better twice in a row or > 50 %
// once. Returns the index to use.
std::int32_t with_hysteresis(const Pick& pick, std::int32_t best, LastChoice& last) noexcept {
  std::int32_t kept = -1;
  for (std::size_t i = 0; i < pick.line_count; ++i) {
    if (pick.lines[i].allowed && pick.lines[i].medium == last.medium)
      kept = static_cast<std::int32_t>(i);
  }
  const auto cost = [&pick](std::int32_t index) {
    return static_cast<std::uint64_t>(pick.lines[static_cast<std::size_t>(index)].cost_ns);
  };
  if (kept >= 0 && kept != best) {
    const std::uint64_t kept_milli =
        mul_div(cost(kept), 1000, std::max<std::uint64_t>(cost(best), 1));
    const bool dearer = kept_milli > kSwitchTwice;
    last.dearer_count = dearer ? static_cast<std::uint8_t>(last.dearer_count + 1) : 0;
    if (kept_milli <= kSwitchOnce && last.dearer_count < 2) return kept;
  }
  last = LastChoice{pick.lines[static_cast<std::size_t>(best)].medium, 0};
  return best;
}

}  // namespace

Pick MediumChooser::pick(std::span<const CandidateCost> candidates, const ReceiverFacts& facts,
                         std::uint32_t lane) noexcept {
  const Pick pick = state_->pick(candidates, facts, lane);
  if (state_->recorder != nullptr) {
    state_->recorder->note(RecordKind::pick, facts, lane, static_cast<std::uint32_t>(candidates.size()), candidates,
                           outcome_of(pick));
  }
  return pick;
}

Pick MediumChooser::State::pick(std::span<const CandidateCost> candidates, const ReceiverFacts& facts,
                                std::uint32_t lane) noexcept {
  KVRAIL_ASSERT(candidates.size() <= kMaxWeighed);
  Pick pick;
  pick.line_count = candidates.size();
  const LossProfile& profile = loss.at(facts.total_tokens);
  std::array<std::int64_t*, kMaxWeighed> corrections{};
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    CostLine& line = pick.lines[i];
    fill_line(candidates[i], facts, profile, line);
    corrections[i] = residuals.find(residual_key(lane, line.medium, line.bytes));
    finish_cost(line, facts, corrections[i] == nullptr ? 0 : *corrections[i]);
  }
  apply_deadline(pick, facts.remaining_ns);
  apply_split_gain(pick, facts.split_wished);
  const std::int32_t best = least_cost(pick);
  if (best < 0) return pick;
  const auto allowed = std::count_if(
      pick.lines.begin(), pick.lines.begin() + static_cast<std::ptrdiff_t>(pick.line_count),
      [](const CostLine& line) { return line.allowed; });
  // What nobody chose, such as a wish, is no choice to stay with.
  pick.index = allowed == 1 ? best
                            : with_hysteresis(pick, best,
                                              choices.obtain(choice_key(candidates, facts)));
  pick.reason = allowed == 1         ? PickReason::only_one
                : pick.index == best ? PickReason::least_cost
                                     : PickReason::kept_by_hysteresis;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (corrections[i] != nullptr && static_cast<std::int32_t>(i) != pick.index)
      *corrections[i] -= *corrections[i] / kResidualFade;
  }
  const CostLine& chosen = pick.lines[static_cast<std::size_t>(pick.index)];
  pick.predicted_ns = chosen.total_ns;
  pick.bytes = chosen.bytes;
  return pick;
}

bool MediumChooser::split_of(std::span<const CandidateCost> candidates, const ReceiverFacts& facts,
                             CandidateCost& out) const noexcept {
  TimeNs least = kNever;
  for (const CandidateCost& it : candidates) {
    if (!may_be_tail(it.medium)) continue;
    CandidateCost split = it;
    split.medium = Medium::split;
    split.values = it.medium;
    CostLine line = cost_line(split, facts, state_->loss.at(facts.total_tokens));
    finish_cost(line, facts, 0);
    const TimeNs cost = line.allowed ? line.cost_ns : kNever - 1;  // one that is refused says why
    if (cost >= least) continue;
    least = cost;
    out = split;
  }
  return least != kNever;
}

bool MediumChooser::any_allowed(std::span<const CandidateCost> candidates,
                                const ReceiverFacts& facts) const noexcept {
  return std::any_of(candidates.begin(), candidates.end(), [&](const CandidateCost& it) {
    return cost_line(it, facts, state_->loss.at(facts.total_tokens)).allowed;
  });
}

// The prediction had the residual in it, so what is left over is added to it, and that is the EWMA
// of log(observed / uncorrected prediction).
void MediumChooser::observe(std::uint32_t lane, Medium medium, std::uint64_t bytes,
                            TimeNs predicted_ns, TimeNs observed_ns) noexcept {
  if (state_->recorder != nullptr) {
    state_->recorder->note(RecordKind::observe, ObserveEvent{lane, static_cast<std::uint32_t>(medium), bytes, predicted_ns, observed_ns});
  }
  if (predicted_ns <= 0 || observed_ns <= 0) return;
  const std::int64_t rest = log2_q32(static_cast<std::uint64_t>(observed_ns)) -
                            log2_q32(static_cast<std::uint64_t>(predicted_ns));
  std::int64_t& residual = state_->residuals.obtain(residual_key(lane, medium, bytes));
  residual = std::clamp(residual + rest / kResidualGain, -kOneQ32, kOneQ32);
}

// ---- prices ----

std::uint64_t PriceMeter::taken_since_last(TimeNs now_ns) const noexcept {
  return static_cast<std::uint64_t>(std::max<TimeNs>(std::min(now_ns, busy_until_ns_) - last_ns_, 0));
}

std::uint64_t PriceMeter::since_last(TimeNs now_ns) const noexcept {
  return static_cast<std::uint64_t>(std::max<TimeNs>(now_ns - last_ns_, 0));
}

void PriceMeter::arrival(TimeNs now_ns, TimeNs busy_ns) noexcept {
  // A lightly used resource is found taken seldom, so that 32 arrivals would not tell how often.
  constexpr std::uint64_t kKeep = 127, kOf = 128;
  constexpr TimeNs kMostBusyNs = 1000 * kSecondNs;
  met_q10_ = met_q10_ * kKeep / kOf + (now_ns < busy_until_ns_ ? 1024 : 0);
  taken_ns_ = taken_ns_ * kKeep / kOf + taken_since_last(now_ns);
  elapsed_ns_ = elapsed_ns_ * kKeep / kOf + since_last(now_ns);
  last_ns_ = now_ns;
  busy_until_ns_ = now_ns + std::clamp<TimeNs>(busy_ns, 0, kMostBusyNs);
}

std::uint64_t PriceMeter::interval_ns(TimeNs now_ns) const noexcept {
  if (met_q10_ == 0) return 0;
  constexpr std::uint64_t kLeastIntervalNs = 1000;
  // A stream that stopped loses its price without further arrivals.
  const std::uint64_t taken = std::max<std::uint64_t>(taken_ns_ + taken_since_last(now_ns), 1);
  std::uint64_t interval = mul_div(taken, 1024, met_q10_);
  if (demand_ == Demand::elastic) {
    const std::uint64_t elapsed = std::max(elapsed_ns_ + since_last(now_ns), taken);
    interval = mul_div(mul_div(interval, elapsed, taken), elapsed, taken);
  }
  return std::max(interval, kLeastIntervalNs);
}

std::uint64_t PriceMeter::price_ppm(TimeNs now_ns, TimeNs backlog_ns) const noexcept {
  const std::uint64_t interval = interval_ns(now_ns);
  if (interval == 0 || backlog_ns <= 0) return 0;
  return mul_div(static_cast<std::uint64_t>(backlog_ns), kPpm, interval);
}

std::uint64_t PriceMeter::arrivals_milli_per_s(TimeNs now_ns) const noexcept {
  const std::uint64_t interval = interval_ns(now_ns);
  return interval == 0 ? 0 : 1'000'000'000'000 / interval;
}

}  // namespace kvrail::scheduler
