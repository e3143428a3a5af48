// When is what was just used used again? Learned from all uses, of what is kept and of what was evicted, so that an
// eviction cannot hide what it cost: Kaplan and Meier's estimate of survival (1958) per class and age, from a ring of
// sampled uses with one cursor for each bound between ages. A use counts as being at risk in an age when its cursor
// passes it unused, and as a hit in the age in which it came again; one that leaves the ring before is counted in neither.
//
// From it the **density** of a class at an age: the most uses per time that keeping it from then on earns,
//     max over t of P(used again within t) / E[time until that use, or t]
// as evictions by hit density rank (Beckmann, Chen and Cidon, "LHD", NSDI 2018), with the best time of giving up. Its P
// and its time are the P and the residency of V (docs/scheduling.md, "Value").
//
// Thread: owner. Integers only. Times must not fall.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kvrail/base/time.h"
#include "scheduler/keyed_table.h"

namespace kvrail::scheduler {

// What is known of a use when it happens: of an entry, a version or a block, and of the lineage (the conversation, the
// versions of a context) that it belongs to.
struct Use {
  bool continues = false;       // the lineage was used before, and this use goes on from there
  bool open_tail = false;       // a block that is not full yet: its successor will have another hash
  std::uint64_t added = 0;      // blocks that this use adds to its lineage
  TimeNs since_lineage_ns = 0;  // since the lineage's last use, where it continues
};

// The classes: what kind of use it is, and how often the entry was used.
inline constexpr std::uint32_t kUseKinds = 8;
inline constexpr std::uint32_t kUseCounts = 4;  // once, twice, three or four times, more often
inline constexpr std::uint32_t kUseClasses = kUseKinds * kUseCounts;
[[nodiscard]] std::uint32_t use_class(const Use& use, std::uint32_t count) noexcept;

class ReuseModel {
 public:
  // Bounds between ages in seconds; the last age ends at 2,048 s, after which nothing is expected any more.
  static constexpr std::array<std::uint32_t, 18> kAgeSeconds{0,   4,   8,   16,  24,  32,  48,   64,   96,
                                                             128, 192, 256, 384, 512, 768, 1024, 1536, 2048};
  static constexpr std::uint32_t kAges = kAgeSeconds.size() - 1;
  static constexpr std::uint32_t kSamples = 1U << 16;  // by default
  static constexpr std::uint64_t kPriorWeight = 128;  // sampled uses that the coarser class counts for
  [[nodiscard]] static constexpr TimeNs age_begin(std::uint32_t age) noexcept {
    return TimeNs{kAgeSeconds[age]} * 1'000'000'000;
  }
  [[nodiscard]] static std::uint32_t age_of(TimeNs elapsed_ns) noexcept;

  // `samples`: of how many uses at a time what becomes of them is seen; a power of two.
  explicit ReuseModel(std::uint32_t samples = kSamples);

  // The entry of this hash is used now. The class that was refreshed with it, kUseClasses for none.
  std::uint32_t observe(std::uint64_t hash, std::uint32_t use_class, TimeNs now_ns) noexcept;

  // log2 of the density in uses per ns, Q32; the least of all where nothing is expected.
  [[nodiscard]] std::int64_t log_density_q32(std::uint32_t use_class, std::uint32_t age) const noexcept {
    return density_[use_class][age];
  }
  // P(used again in this age | not before), Q32, as of the last refresh of the class.
  [[nodiscard]] std::uint64_t hazard_q32(std::uint32_t use_class, std::uint32_t age) const noexcept {
    return hazard_[use_class][age];
  }
  void refresh(std::uint32_t use_class) noexcept;

 private:
  using Counts = std::array<std::uint64_t, kAges>;
  struct Tally {
    Counts hits{}, risk{};
  };
  struct Sample {
    std::uint64_t hash = 0;
    TimeNs at_ns = 0;
    std::uint32_t use_class = 0;
    bool again = false;
  };
  static constexpr std::uint32_t kGroups = 3 * kUseCounts;
  static constexpr std::uint64_t kHalveAt = 1U << 16;  // uses at risk in the first age of a class
  static constexpr std::uint64_t kEarlyUses = 8192;    // until then a class is refreshed more often
  static constexpr std::uint64_t kEarlyEvery = 16, kEvery = 128;

  [[nodiscard]] static std::uint32_t group_of(std::uint32_t use_class) noexcept;
  [[nodiscard]] bool sampled(std::uint64_t mixed) const noexcept { return (mixed >> 40 & ((1U << shift_) - 1)) == 0; }
  [[nodiscard]] Sample& sample(std::uint64_t number) noexcept { return ring_[number & (samples_ - 1)]; }
  void pass_ages(TimeNs now_ns) noexcept;
  void count(bool hit, std::uint32_t use_class, std::uint32_t age) noexcept;
  void halve(std::uint32_t use_class) noexcept;
  void record(std::uint64_t hash, std::uint32_t use_class, TimeNs now_ns) noexcept;

  std::uint32_t samples_;
  std::array<Tally, kUseClasses> tally_{};
  std::array<Tally, kGroups> group_{};  // sums of their classes
  Tally all_;
  std::array<Counts, kUseClasses> hazard_{};
  std::array<std::array<std::int64_t, kAges>, kUseClasses> density_{};
  std::unique_ptr<Sample[]> ring_;
  KeyedTable<std::uint64_t> last_use_;  // by hash: its sample's number + 1
  std::array<std::uint64_t, kAges> cursor_{};  // of age k > 0: the next number that may come to be that old
  std::uint64_t next_ = 0;                     // number of the next sample
  std::uint64_t uses_ = 0;
  std::uint32_t refreshed_ = 0;
  std::uint64_t raised_at_ = 0;
  std::uint32_t shift_ = 0;  // one hash in 2^shift is sampled
};

}  // namespace kvrail::scheduler
