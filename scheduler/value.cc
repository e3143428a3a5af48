#include "scheduler/value.h"

#include <algorithm>
#include <limits>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

constexpr std::int64_t kLowestOctave = -72;     // of V: a use in a day of what saves least is above it
constexpr std::int64_t kLowestCostOctave = -8;  // of ns saved per byte

std::uint8_t cost_octave(const EntryCost& cost, std::uint32_t octaves) noexcept {
  if (cost.restore_ns <= cost.hit_ns) return 0;
  const auto saved = static_cast<std::uint64_t>(cost.restore_ns - cost.hit_ns);
  constexpr std::uint64_t kUnit = std::uint64_t{1} << -kLowestCostOctave;
  const std::uint64_t units = mul_div(saved, kUnit, std::max<std::uint64_t>(cost.bytes, 1));
  if (units == 0) return 0;
  return static_cast<std::uint8_t>(std::min<std::uint32_t>(log2_floor(units), octaves - 1));
}

constexpr std::int64_t cost_log_q32(std::uint32_t octave) noexcept {
  return (std::int64_t{octave} + kLowestCostOctave) * kOneQ32;
}

}  // namespace

ValueIndex::ValueIndex(const Config& config)
    : sketch_(config.known_keys),
      model_(config.samples),
      capacity_(config.entries),
      rank_count_(config.ranks),
      entries_(std::make_unique<Entry[]>(config.entries)),
      cells_(std::make_unique<Cell[]>(std::size_t{config.ranks} * kCells)),
      families_(std::make_unique<Family[]>(std::size_t{config.ranks} * kFamilies)),
      hints_(std::make_unique<Hint[]>(config.hints)),
      ranks_(std::make_unique<Rank[]>(config.ranks)) {
  for (std::uint32_t i = config.hints; i-- > 0;) {
    hints_[i].next_free = free_hint_;
    free_hint_ = i;
  }
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    ranks_[rank].bucket.fill(kNone);
    for (std::uint32_t i = 0; i < kHintCells; ++i)
      cells_[rank * kCells + kLearnedCells + i].value = (kLowestOctave + i) * kOneQ32 + kOneQ32 / 2;
  }
  for (std::uint32_t c = 0; c < kUseClasses; ++c) refresh_values(c);
}

// --- cells and buckets

ValueIndex::LogValue ValueIndex::learned_value(std::uint32_t use_class, std::uint32_t cost,
                                               std::uint32_t age) const noexcept {
  return model_.log_density_q32(use_class, age) + cost_log_q32(cost);
}

std::uint32_t ValueIndex::bucket_of(LogValue value) noexcept {
  const std::int64_t eighths = (value - kLowestOctave * kOneQ32) / (kOneQ32 / kBucketsPerOctave);
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(eighths, 0, kBuckets - 1));
}

void ValueIndex::list_cell(std::uint32_t cell) noexcept {
  Cell& own = cells_[cell];
  Rank& rank = ranks_[cell / kCells];
  KVRAIL_ASSERT(own.bucket == kNone);
  own.bucket = bucket_of(own.value);
  own.previous = kNone;
  own.next = rank.bucket[own.bucket];
  if (own.next != kNone) cells_[own.next].previous = cell;
  rank.bucket[own.bucket] = cell;
  rank.filled[own.bucket / 64] |= std::uint64_t{1} << (own.bucket % 64);
}

void ValueIndex::unlist_cell(std::uint32_t cell) noexcept {
  Cell& own = cells_[cell];
  Rank& rank = ranks_[cell / kCells];
  KVRAIL_ASSERT(own.bucket != kNone);
  if (own.previous != kNone) {
    cells_[own.previous].next = own.next;
  } else {
    rank.bucket[own.bucket] = own.next;
    if (own.next == kNone) rank.filled[own.bucket / 64] &= ~(std::uint64_t{1} << (own.bucket % 64));
  }
  if (own.next != kNone) cells_[own.next].previous = own.previous;
  own.bucket = kNone;
}

void ValueIndex::refresh_values(std::uint32_t use_class) noexcept {
  for (std::uint32_t family = 0; family < rank_count_ * kFamilies; ++family) {
    const std::uint32_t cost = family % kCosts;
    if (family % kFamilies / kCosts != use_class) continue;
    for (std::uint32_t age = 0; age < ReuseModel::kAges; ++age) {
      const std::uint32_t index = cell_of(family, age);
      Cell& cell = cells_[index];
      cell.value = learned_value(use_class, cost, age);
      if (cell.bucket == kNone || cell.bucket == bucket_of(cell.value)) continue;
      unlist_cell(index);
      list_cell(index);
    }
  }
}

void ValueIndex::link_newest(std::uint32_t cell, Handle handle) noexcept {
  Entry& entry = entries_[handle];
  Cell& own = cells_[cell];
  KVRAIL_ASSERT(entry.cell == kNone);
  entry.cell = cell;
  entry.newer = kNone;
  entry.older = own.newest;
  own.newest = handle;
  if (entry.older == kNone) {
    own.oldest = handle;
    list_cell(cell);
  } else {
    entries_[entry.older].newer = handle;
  }
}

void ValueIndex::link_oldest(std::uint32_t cell, Handle handle) noexcept {
  Entry& entry = entries_[handle];
  Cell& own = cells_[cell];
  if (own.oldest == kNone) return link_newest(cell, handle);
  KVRAIL_ASSERT(entry.cell == kNone);
  entry.cell = cell;
  entry.older = kNone;
  entry.newer = own.oldest;
  entries_[entry.newer].older = handle;
  own.oldest = handle;
}

void ValueIndex::unlink(Handle handle) noexcept {
  Entry& entry = entries_[handle];
  if (entry.cell == kNone) return;
  Cell& own = cells_[entry.cell];
  (entry.newer == kNone ? own.newest : entries_[entry.newer].older) = entry.older;
  (entry.older == kNone ? own.oldest : entries_[entry.older].newer) = entry.newer;
  if (own.oldest == kNone) unlist_cell(entry.cell);
  entry.cell = entry.newer = entry.older = kNone;
}

// --- ages

void ValueIndex::arm_family(std::uint32_t family, TimeNs due_ns) noexcept {
  Family& own = families_[family];
  // A due time that has become too early is harmless: then nothing is old enough yet.
  if (own.armed) {
    if (own.due_tick <= static_cast<std::uint64_t>(std::max<TimeNs>(due_ns, 0)) >> TimerWheel::kTickShift) return;
    ages_.cancel(own);
  }
  ages_.arm(own, due_ns);
}

void ValueIndex::grow_older(std::uint32_t family, TimeNs now_ns) noexcept {
  TimeNs due_ns = std::numeric_limits<TimeNs>::max();
  std::uint32_t moves = 0;
  // The old ages first, so that what comes behind is younger than all that is there.
  for (std::uint32_t age = ReuseModel::kAges - 1; age-- > 0;) {
    const Cell& cell = cells_[cell_of(family, age)];
    while (cell.oldest != kNone) {
      const Handle handle = cell.oldest;
      const TimeNs used_ns = entries_[handle].used_ns;
      const std::uint32_t now_age = ReuseModel::age_of(now_ns - used_ns);
      if (now_age + 1 < ReuseModel::kAges)
        due_ns = std::min(due_ns, used_ns + ReuseModel::age_begin(now_age + 1));
      if (now_age == age) break;
      if (++moves > kMovesAtOnce) return arm_family(family, now_ns);  // the rest in the next tick
      unlink(handle);
      link_newest(cell_of(family, now_age), handle);
    }
  }
  if (due_ns != std::numeric_limits<TimeNs>::max()) arm_family(family, due_ns);
}

void ValueIndex::advance(TimeNs now_ns) noexcept {
  ages_.advance(now_ns, [this, now_ns](TimerNode& node) {
    grow_older(static_cast<std::uint32_t>(&static_cast<Family&>(node) - families_.get()), now_ns);
  });
  hint_times_.advance(now_ns, [this, now_ns](TimerNode& node) { hint_due(static_cast<Hint&>(node), now_ns); });
}

// --- entries

std::uint32_t ValueIndex::learn(std::uint64_t hash, const Use& use, TimeNs now_ns) noexcept {
  const std::uint32_t of_use = use_class(use, sketch_.add(hash));
  const std::uint32_t refreshed = model_.observe(hash, of_use, now_ns);
  if (refreshed != kUseClasses) refresh_values(refreshed);
  return of_use;
}

void ValueIndex::place_used(Handle handle, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  entry.used_ns = now_ns;
  if (entry.pins > 0) return;
  const std::uint32_t family = family_of(entry);
  link_newest(cell_of(family, 0), handle);
  arm_family(family, now_ns + ReuseModel::age_begin(1));
}

void ValueIndex::place_again(Handle handle, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  if (entry.pins > 0) return;
  if (entry.hint != kNone) return place_by_hint(handle, now_ns);
  const std::uint32_t age = ReuseModel::age_of(now_ns - entry.used_ns);
  const std::uint32_t family = family_of(entry), cell = cell_of(family, age);
  // To keep the cell's order it counts as old as the oldest there; less than the width of an age is lost by that.
  if (const Handle oldest = cells_[cell].oldest; oldest != kNone)
    entry.used_ns = std::min(entry.used_ns, entries_[oldest].used_ns);
  link_oldest(cell, handle);
  if (age + 1 < ReuseModel::kAges)
    arm_family(family, entry.used_ns + ReuseModel::age_begin(age + 1));
}

void ValueIndex::insert(Handle handle, std::uint64_t hash, const EntryCost& cost, const Use& use,
                        TimeNs now_ns, std::uint32_t rank) noexcept {
  KVRAIL_ASSERT(handle < capacity_ && !entries_[handle].present && rank < rank_count_);
  advance(now_ns);
  entries_[handle] = Entry{.hash = hash, .cost = cost_octave(cost, kCosts), .rank = static_cast<std::uint8_t>(rank), .present = true};
  entries_[handle].use_class = static_cast<std::uint8_t>(learn(hash, use, now_ns));
  place_used(handle, now_ns);
  ++size_;
}

void ValueIndex::touch(Handle handle, const Use& use, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  advance(now_ns);
  drop_hint(entry);
  unlink(handle);
  entry.use_class = static_cast<std::uint8_t>(learn(entry.hash, use, now_ns));
  place_used(handle, now_ns);
}

void ValueIndex::note_use(std::uint64_t hash, const Use& use, TimeNs now_ns) noexcept {
  static_cast<void>(learn(hash, use, now_ns));
}

void ValueIndex::remove(Handle handle) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present && entry.pins == 0);
  drop_hint(entry);
  unlink(handle);
  entry.present = false;
  --size_;
}

void ValueIndex::set_cost(Handle handle, const EntryCost& cost, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  advance(now_ns);
  const std::uint8_t octave = cost_octave(cost, kCosts);
  if (octave == entry.cost) return;
  unlink(handle);
  entry.cost = octave;
  place_again(handle, now_ns);
}

void ValueIndex::set_rank(Handle handle, std::uint32_t rank, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present && rank < rank_count_);
  advance(now_ns);
  if (rank == entry.rank) return;
  unlink(handle);
  entry.rank = static_cast<std::uint8_t>(rank);
  place_again(handle, now_ns);
}

void ValueIndex::pin(Handle handle) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  ++entry.pins;
  unlink(handle);
}

void ValueIndex::unpin(Handle handle, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present && entry.pins > 0);
  advance(now_ns);
  if (--entry.pins > 0) return;
  if (entry.hint != kNone) return place_by_hint(handle, now_ns);
  place_used(handle, now_ns);
}

// --- hints

ValueIndex::LogValue ValueIndex::hinted_value(const EntryCost& cost, std::uint32_t probability_ppm,
                                              TimeNs residency_ns) noexcept {
  return hinted_log(cost_octave(cost, kCosts), probability_ppm, residency_ns);
}

ValueIndex::LogValue ValueIndex::hinted_log(std::uint32_t cost, std::uint32_t probability_ppm,
                                            TimeNs residency_ns) noexcept {
  if (probability_ppm == 0) return kLowestOctave * kOneQ32;
  const auto residency = static_cast<std::uint64_t>(std::max(residency_ns, kLeastResidencyNs));
  return log2_q32(std::min(probability_ppm, kMillion)) - log2_q32(kMillion) - log2_q32(residency) + cost_log_q32(cost);
}

bool ValueIndex::hint(Handle handle, std::uint32_t probability_ppm, TimeNs when_ns, TimeNs now_ns,
                      TimeNs spread_ns) noexcept {
  Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  advance(now_ns);
  if (entry.hint == kNone) {
    if (free_hint_ == kNone) return false;
    entry.hint = free_hint_;
    free_hint_ = hints_[entry.hint].next_free;
  }
  Hint& own = hints_[entry.hint];
  own.handle = handle;
  own.probability_ppm = probability_ppm;
  own.when_ns = std::max(when_ns, now_ns);
  own.spread_ns = spread_ns;
  own.over_ns = own.when_ns + grace_ns(own.when_ns - now_ns, spread_ns);
  unlink(handle);
  place_by_hint(handle, now_ns);
  return true;
}

void ValueIndex::place_by_hint(Handle handle, TimeNs now_ns) noexcept {
  Entry& entry = entries_[handle];
  Hint& own = hints_[entry.hint];
  const TimeNs left_ns = own.when_ns - now_ns;
  hint_times_.cancel(own);
  hint_times_.arm(own, left_ns / 2 >= kLeastResidencyNs ? own.when_ns - left_ns / 2 : own.over_ns);
  if (entry.pins > 0) return;
  const LogValue value = hinted_log(entry.cost, own.probability_ppm, residency_ns(left_ns, own.spread_ns));
  const std::int64_t octave = (value - kLowestOctave * kOneQ32) >> 32;
  const auto at = static_cast<std::uint32_t>(std::clamp<std::int64_t>(octave, 0, kHintCells - 1));
  link_newest(entry.rank * kCells + kLearnedCells + at, handle);
}

void ValueIndex::hint_due(Hint& hint, TimeNs now_ns) noexcept {
  const Handle handle = hint.handle;
  if (now_ns >= hint.over_ns) return end_hint(handle, now_ns);
  unlink(handle);
  place_by_hint(handle, now_ns);
}

void ValueIndex::drop_hint(Entry& entry) noexcept {
  if (entry.hint == kNone) return;
  hint_times_.cancel(hints_[entry.hint]);
  hints_[entry.hint].next_free = free_hint_;
  free_hint_ = entry.hint;
  entry.hint = kNone;
}

void ValueIndex::forget_hint(Handle handle, TimeNs now_ns) noexcept {
  const Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  advance(now_ns);
  if (entry.hint != kNone) end_hint(handle, now_ns);
}

void ValueIndex::end_hint(Handle handle, TimeNs now_ns) noexcept {
  drop_hint(entries_[handle]);
  unlink(handle);
  place_again(handle, now_ns);
}

// --- answers

std::optional<ValueIndex::Handle> ValueIndex::victim(TimeNs now_ns) noexcept {
  advance(now_ns);
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    if (const auto found = victim_of(ranks_[rank])) return found;
  }
  return std::nullopt;
}

std::optional<ValueIndex::Handle> ValueIndex::victim_of(const Rank& rank) const noexcept {
  for (std::uint32_t word = 0; word < rank.filled.size(); ++word) {
    if (rank.filled[word] == 0) continue;
    // Cells of one bucket are as good as equal: the oldest entry of the first few.
    std::uint32_t cell = rank.bucket[word * 64 + find_first_set(rank.filled[word])];
    Handle oldest = cells_[cell].oldest;
    for (std::uint32_t i = 1; i < kComparedCells && cells_[cell].next != kNone; ++i) {
      cell = cells_[cell].next;
      if (entries_[cells_[cell].oldest].used_ns < entries_[oldest].used_ns) oldest = cells_[cell].oldest;
    }
    return oldest;
  }
  return std::nullopt;
}

std::size_t ValueIndex::next_victims(std::uint32_t rank, std::span<Handle> out) const noexcept {
  const Rank& own = ranks_[rank];
  std::size_t count = 0;
  for (std::uint32_t word = 0; word < own.filled.size(); ++word) {
    for (std::uint64_t filled = own.filled[word]; filled != 0 && count < out.size(); filled &= filled - 1) {
      count += oldest_of(own.bucket[word * 64 + find_first_set(filled)], out.subspan(count));
    }
  }
  return count;
}

// Of a bucket, by insertion: there is room for few.
std::size_t ValueIndex::oldest_of(std::uint32_t cell, std::span<Handle> out) const noexcept {
  std::size_t count = 0;
  for (; cell != kNone; cell = cells_[cell].next) {
    for (Handle at = cells_[cell].oldest; at != kNone; at = entries_[at].newer) {
      const TimeNs used_ns = entries_[at].used_ns;
      if (count == out.size() && entries_[out[count - 1]].used_ns <= used_ns) break;
      std::size_t place = count == out.size() ? count - 1 : count++;
      for (; place > 0 && entries_[out[place - 1]].used_ns > used_ns; --place) out[place] = out[place - 1];
      out[place] = at;
    }
  }
  return count;
}

bool ValueIndex::would_admit(std::uint64_t hash, const EntryCost& cost, const Use& use,
                             Handle victim) const noexcept {
  const std::uint32_t of_use = use_class(use, sketch_.count(hash) + 1);
  return bucket_of(learned_value(of_use, cost_octave(cost, kCosts), 0)) >= bucket_of(value(victim));
}

ValueIndex::LogValue ValueIndex::value(Handle handle) const noexcept {
  const Entry& entry = entries_[handle];
  KVRAIL_ASSERT(handle < capacity_ && entry.present);
  return entry.cell == kNone ? std::numeric_limits<LogValue>::max() : cells_[entry.cell].value;
}

}  // namespace kvrail::scheduler
