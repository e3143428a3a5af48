#include "scheduler/reuse_model.h"

#include <algorithm>
#include <limits>

#include "kvrail/base/assert.h"
#include "scheduler/exp_table.h"

namespace kvrail::scheduler {
namespace {

constexpr std::uint64_t kManyAdded = 8;      // blocks that a next turn seldom adds: another text was put in
constexpr std::uint64_t kSmall = 16, kLarge = 128;  // blocks of a lineage that begins
constexpr TimeNs kQuick = 64 * kSecondNs;    // between two uses of a lineage
constexpr std::uint32_t kMostShift = 20;
constexpr std::uint64_t kOne = std::uint64_t{1} << 32;
constexpr std::uint64_t kColdHazard = kOne / 10;  // of every age, until something is known: the older, the less a use per time

std::uint32_t kind_of(const Use& use) noexcept {
  if (use.open_tail) return 0;
  if (!use.continues) return use.added < kSmall ? 1 : use.added < kLarge ? 2 : 3;
  return 4 + (use.added >= kManyAdded ? 1U : 0U) + (use.since_lineage_ns < kQuick ? 2U : 0U);
}

constexpr std::uint64_t times_q32(std::uint64_t a, std::uint64_t q32) noexcept {
  return static_cast<std::uint64_t>(Wide{a} * q32 >> 32);
}

}  // namespace

std::uint32_t use_class(const Use& use, std::uint32_t count) noexcept {
  const std::uint32_t often = count <= 1 ? 0 : count == 2 ? 1 : count <= 4 ? 2 : 3;
  return kind_of(use) * kUseCounts + often;
}

std::uint32_t ReuseModel::age_of(TimeNs elapsed_ns) noexcept {
  std::uint32_t age = 0;
  while (age + 1 < kAges && elapsed_ns >= age_begin(age + 1)) ++age;
  return age;
}

std::uint32_t ReuseModel::group_of(std::uint32_t use_class) noexcept {
  const std::uint32_t kind = use_class / kUseCounts;
  return (kind == 0 ? 0U : kind < 4 ? 1U : 2U) * kUseCounts + use_class % kUseCounts;
}

ReuseModel::ReuseModel(std::uint32_t samples)
    : samples_(samples), ring_(std::make_unique<Sample[]>(samples)), last_use_(samples) {
  KVRAIL_ASSERT(samples > 0 && (samples & (samples - 1)) == 0);
  for (std::uint32_t c = 0; c < kUseClasses; ++c) refresh(c);
}

void ReuseModel::count(bool hit, std::uint32_t use_class, std::uint32_t age) noexcept {
  for (Tally* const tally : {&tally_[use_class], &group_[group_of(use_class)], &all_})
    ++(hit ? tally->hits : tally->risk)[age];
}

void ReuseModel::halve(std::uint32_t use_class) noexcept {
  Tally& own = tally_[use_class];
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const std::uint64_t hits = own.hits[age] - own.hits[age] / 2, risk = own.risk[age] - own.risk[age] / 2;
    for (Tally* const tally : {&own, &group_[group_of(use_class)], &all_}) {
      tally->hits[age] -= hits;
      tally->risk[age] -= risk;
    }
  }
}

void ReuseModel::pass_ages(TimeNs now_ns) noexcept {
  for (std::uint32_t age = 1; age < kAges; ++age) {
    for (; cursor_[age] < next_; ++cursor_[age]) {
      const Sample& use = sample(cursor_[age]);
      if (now_ns - use.at_ns < age_begin(age)) break;
      if (!use.again && sampled(mix_key(use.hash))) count(false, use.use_class, age);
    }
  }
}

void ReuseModel::record(std::uint64_t hash, std::uint32_t use_class, TimeNs now_ns) noexcept {
  if (next_ >= samples_) {
    // What is overwritten has not come to the last age: from now on half of the hashes must do. Once a turn of the
    // ring, for what is in it was sampled before.
    const std::uint64_t lost = next_ - samples_;
    if (cursor_[kAges - 1] <= lost && shift_ < kMostShift && next_ >= raised_at_ + samples_) {
      ++shift_;
      raised_at_ = next_;
    }
    for (std::uint64_t& cursor : cursor_) cursor = std::max(cursor, lost + 1);
  }
  last_use_.obtain(hash) = next_ + 1;
  sample(next_++) = Sample{hash, now_ns, use_class, false};
  count(false, use_class, 0);
  if (tally_[use_class].risk[0] >= kHalveAt) halve(use_class);
}

std::uint32_t ReuseModel::observe(std::uint64_t hash, std::uint32_t use_class, TimeNs now_ns) noexcept {
  pass_ages(now_ns);
  if (sampled(mix_key(hash))) {
    const std::uint64_t* const known = last_use_.find(hash);
    if (known != nullptr && *known + samples_ > next_) {
      Sample& last = sample(*known - 1);
      if (last.hash == hash && !last.again) {
        last.again = true;
        count(true, last.use_class, age_of(now_ns - last.at_ns));
      }
    }
    record(hash, use_class, now_ns);
  }
  ++uses_;
  if (uses_ % (uses_ < kEarlyUses ? kEarlyEvery : kEvery) != 0) return kUseClasses;
  refreshed_ = (refreshed_ + 1) % kUseClasses;
  refresh(refreshed_);
  return refreshed_;
}

void ReuseModel::refresh(std::uint32_t use_class) noexcept {
  Counts& hazard = hazard_[use_class];
  const auto toward = [](const Tally& tally, std::uint32_t age, std::uint64_t prior) {
    const std::uint64_t hazard_q32 =
        ((tally.hits[age] << 32) + kPriorWeight * prior) / (tally.risk[age] + kPriorWeight);
    return std::min(hazard_q32, kOne);
  };
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const std::uint64_t of_all = ((all_.hits[age] << 32) + kColdHazard) / (all_.risk[age] + 1);
    const std::uint64_t of_group = toward(group_[group_of(use_class)], age, std::min(of_all, kOne));
    hazard[age] = toward(tally_[use_class], age, of_group);
  }
  for (std::uint32_t from = 0; from < kAges; ++from) {
    std::uint64_t alive = kOne, used = 0, best = 0;
    std::uint64_t time_ns = 0;
    for (std::uint32_t age = from; age < kAges; ++age) {
      const std::uint64_t now_used = times_q32(alive, hazard[age]);
      const auto width = static_cast<std::uint64_t>(age_begin(age + 1) - age_begin(age));
      used += now_used;
      time_ns += times_q32(width, alive - now_used / 2);
      alive -= now_used;
      if (time_ns > 0) best = std::max(best, mul_div(used, kOne, time_ns));
    }
    density_[use_class][from] = best == 0 ? std::numeric_limits<std::int64_t>::min() / 4
                                          : log2_q32(best) - 64 * kOneQ32;
  }
}

}  // namespace kvrail::scheduler
