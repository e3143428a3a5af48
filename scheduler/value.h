// Which of the things in memory goes next: the one of the least value
//     V = P(reuse) * (T_restore - T_hit) / (bytes * residency),
// the restore time that a byte saves while it lies there. An entry is a version, a block, whatever the caller gives up
// or keeps as a whole; its handle is the caller's own small number.
//
// Entries of unknown future lie in cells by (class of their last use, cost per byte, age): all of a cell have one V, which
// a ReuseModel learns, and the oldest goes first. Entries with a hint lie in cells by V itself. Cells lie in buckets
// of V, an eighth of an octave wide, and the lowest bucket is found by its bit: a victim costs O(1). An entry changes its
// cell at a use and when it grows older, at most ReuseModel::kAges times between two uses.
//
// Entries may lie in several **ranks**: as long as there is one of a lower rank, it goes before all of higher ones.
//
// Thread: owner. No allocation after construction; integers only, so that a replay is bit-equal. Times must not fall.
// Invariants: an entry that is present and not pinned is in exactly one cell; a cell is in a bucket while it is not empty;
// a cell's entries are ordered by time of use, oldest last.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kvrail/base/time.h"
#include "scheduler/frequency_sketch.h"
#include "scheduler/reuse_model.h"
#include "scheduler/timer_wheel.h"

namespace kvrail::scheduler {

struct EntryCost {
  std::uint64_t bytes = 1;
  TimeNs restore_ns = 0;  // until it is usable again once it is gone, by the cheapest way
  TimeNs hit_ns = 0;      // the same while it is here
};

class ValueIndex {
 public:
  using Handle = std::uint32_t;
  // V as log2 of ns saved per byte and ns, in Q32.
  using LogValue = std::int64_t;
  struct Config {
    std::uint32_t entries = 0;    // handles are smaller than this
    std::uint32_t hints = 0;      // entries that may have one at a time
    // Hashes whose frequency is told apart, gone ones too; 2 B each. Too few make scans look like old friends.
    std::uint64_t known_keys = 1U << 20;
    std::uint32_t ranks = 1;
    std::uint32_t samples = ReuseModel::kSamples;  // a power of two
  };
  explicit ValueIndex(const Config& config);

  // The entry comes in, and this is its first use. `hash` names what it holds: a later entry of the same hash is the
  // same thing come back. What a path of blocks is made of is given from its tail to its head, so that of equals
  // the tail goes first.
  void insert(Handle handle, std::uint64_t hash, const EntryCost& cost, const Use& use, TimeNs now_ns,
              std::uint32_t rank = 0) noexcept;
  void touch(Handle handle, const Use& use, TimeNs now_ns) noexcept;
  void remove(Handle handle) noexcept;
  void set_cost(Handle handle, const EntryCost& cost, TimeNs now_ns) noexcept;
  void set_rank(Handle handle, std::uint32_t rank, TimeNs now_ns) noexcept;

  // It will be used at `when` with that probability: V from this alone, until its next use, or until it is over: a quarter of
  // the announced time past `when`, or 3 spreads, at least 1 s. `when` is the earliest that is likely. Another hint replaces it. False: too many hints.
  bool hint(Handle handle, std::uint32_t probability_ppm, TimeNs when_ns, TimeNs now_ns, TimeNs spread_ns = 0) noexcept;
  void forget_hint(Handle handle, TimeNs now_ns) noexcept;

  // While pinned, by any number of users, it is no victim. The end of the last pin counts as the time of its use.
  void pin(Handle handle) noexcept;
  void unpin(Handle handle, TimeNs now_ns) noexcept;

  // The entry of the least value that is not pinned; it stays until it is removed.
  [[nodiscard]] std::optional<Handle> victim(TimeNs now_ns) noexcept;
  // The entries of a rank that go first, in their order as of the last advance(), as many as there is room for: a few, for
  // each is put in its place among them. Returns how many.
  [[nodiscard]] std::size_t next_victims(std::uint32_t rank, std::span<Handle> out) const noexcept;
  // Whether something that isn't here yet is worth that the victim goes for it. A thing seen for the first time in a
  // scan is worth little, so it doesn't drive out what has been used before.
  // Every use of something that is not taken in is told by note_use(), else nothing is learned of it.
  [[nodiscard]] bool would_admit(std::uint64_t hash, const EntryCost& cost, const Use& use, Handle victim) const noexcept;
  void note_use(std::uint64_t hash, const Use& use, TimeNs now_ns) noexcept;
  // V of what is used with this probability after this time, as hint() would count it: of what a prefetch would bring.
  [[nodiscard]] static LogValue hinted_value(const EntryCost& cost, std::uint32_t probability_ppm,
                                             TimeNs residency_ns) noexcept;

  [[nodiscard]] LogValue value(Handle handle) const noexcept;  // of its cell; the largest of all while pinned
  [[nodiscard]] bool contains(Handle handle) const noexcept { return entries_[handle].present; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] const ReuseModel& model() const noexcept { return model_; }
  // Moves what has grown older. Others do it too; for a caller that is idle.
  void advance(TimeNs now_ns) noexcept;

  static constexpr std::uint32_t kCosts = 16;  // octaves of ns saved per byte, from 2^-8 on
  static constexpr std::uint32_t kBucketsPerOctave = 8;  // of V
  // How long it must be expected to lie there still.
  [[nodiscard]] static constexpr TimeNs residency_ns(TimeNs until_when_ns, TimeNs spread_ns) noexcept {
    return std::max<TimeNs>(until_when_ns, 0) + std::clamp<TimeNs>(spread_ns, 0, kMostSpreadNs);
  }
  // How long past `when` a hint holds.
  [[nodiscard]] static constexpr TimeNs grace_ns(TimeNs lead_ns, TimeNs spread_ns) noexcept {
    const TimeNs most = std::max(lead_ns / 4, std::clamp<TimeNs>(spread_ns, 0, kMostSpreadNs) * 3);
    return std::max(kLeastGraceNs, most);
  }
  static constexpr TimeNs kLeastGraceNs = kSecondNs, kMostSpreadNs = 86'400 * kSecondNs;
  static constexpr TimeNs kLeastResidencyNs = 100'000'000;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  static constexpr std::uint32_t kFamilies = kUseClasses * kCosts;
  static constexpr std::uint32_t kLearnedCells = kFamilies * ReuseModel::kAges;
  static constexpr std::uint32_t kHintCells = 64;  // octaves of V
  static constexpr std::uint32_t kCells = kLearnedCells + kHintCells;
  static constexpr std::uint32_t kMillion = 1'000'000;
  static constexpr std::uint32_t kComparedCells = 8;
  static constexpr std::uint32_t kMovesAtOnce = 1024;  // entries that grow older in one step of a family
  static constexpr std::uint32_t kBuckets = 512;

  struct Entry {
    std::uint64_t hash = 0;
    TimeNs used_ns = 0;
    std::uint32_t newer = kNone, older = kNone, cell = kNone;
    std::uint32_t hint = kNone;
    std::uint32_t pins = 0;
    std::uint8_t use_class = 0, cost = 0, rank = 0;
    bool present = false;
  };
  struct Cell {
    std::uint32_t newest = kNone, oldest = kNone;
    std::uint32_t next = kNone, previous = kNone;  // in its bucket
    std::uint32_t bucket = kNone;
    LogValue value = 0;
  };
  struct Rank {
    std::array<std::uint32_t, kBuckets> bucket;  // first cell of each
    std::array<std::uint64_t, kBuckets / 64> filled{};
  };
  struct Family : TimerNode {};  // the cells of one class and cost; due: when one of its entries is in the next age
  struct Hint : TimerNode {  // due: when its V doubles, or it is over
    std::uint32_t handle = kNone, next_free = kNone;
    std::uint32_t probability_ppm = 0;
    TimeNs when_ns = 0, spread_ns = 0, over_ns = 0;
  };

  // Families and cells of a rank follow those of the rank before.
  [[nodiscard]] static std::uint32_t family_of(const Entry& entry) noexcept {
    return entry.rank * kFamilies + entry.use_class * kCosts + entry.cost;
  }
  [[nodiscard]] static std::uint32_t cell_of(std::uint32_t family, std::uint32_t age) noexcept {
    return family / kFamilies * kCells + family % kFamilies * ReuseModel::kAges + age;
  }
  [[nodiscard]] LogValue learned_value(std::uint32_t use_class, std::uint32_t cost, std::uint32_t age) const noexcept;
  [[nodiscard]] static std::uint32_t bucket_of(LogValue value) noexcept;
  // The class of this use.
  std::uint32_t learn(std::uint64_t hash, const Use& use, TimeNs now_ns) noexcept;
  void refresh_values(std::uint32_t use_class) noexcept;
  [[nodiscard]] static LogValue hinted_log(std::uint32_t cost, std::uint32_t probability_ppm,
                                           TimeNs residency_ns) noexcept;
  void place_used(Handle handle, TimeNs now_ns) noexcept;  // it was used now
  void place_again(Handle handle, TimeNs now_ns) noexcept;
  void place_by_hint(Handle handle, TimeNs now_ns) noexcept;
  void end_hint(Handle handle, TimeNs now_ns) noexcept;
  void drop_hint(Entry& entry) noexcept;
  void link_newest(std::uint32_t cell, Handle handle) noexcept;
  void link_oldest(std::uint32_t cell, Handle handle) noexcept;
  void unlink(Handle handle) noexcept;
  void list_cell(std::uint32_t cell) noexcept;
  void unlist_cell(std::uint32_t cell) noexcept;
  void arm_family(std::uint32_t family, TimeNs due_ns) noexcept;
  void grow_older(std::uint32_t family, TimeNs now_ns) noexcept;
  [[nodiscard]] std::size_t oldest_of(std::uint32_t cell, std::span<Handle> out) const noexcept;
  [[nodiscard]] std::optional<Handle> victim_of(const Rank& rank) const noexcept;
  void hint_due(Hint& hint, TimeNs now_ns) noexcept;

  FrequencySketch sketch_;
  ReuseModel model_;
  std::uint32_t capacity_, rank_count_;
  std::uint32_t size_ = 0;
  std::uint32_t free_hint_ = kNone;
  std::unique_ptr<Entry[]> entries_;
  std::unique_ptr<Cell[]> cells_;
  std::unique_ptr<Family[]> families_;
  std::unique_ptr<Hint[]> hints_;
  std::unique_ptr<Rank[]> ranks_;
  TimerWheel ages_, hint_times_;
};

}  // namespace kvrail::scheduler
