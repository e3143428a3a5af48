// A tier in this process's own memory for the simulation and for tests: the same calls give the same completions, and
// every fault that a real tier has can be asked for, or drawn from a seed.
//
// Thread: the worker (one). Memory is taken at construction only.
// A put reads its rows, and a get writes them, when it completes and not before: a caller that touches them in
// between is found out (a put's rows are digested at its start, a get's are spoiled).
#pragma once

#include <cstdint>
#include <memory>

#include "engine/core/flat_map.h"
#include "engine/core/tier_port.h"
#include "kvrail/base/prng.h"
#include "transport/fixed_ring.h"

namespace kvrail::engine {

struct MemoryTierOptions {
  std::uint64_t capacity_bytes = 4U << 20;
  std::uint64_t most_block_bytes = 64U << 10;  // of the rows that are valid; what is larger is refused: too_large
  std::uint32_t in_flight = 32;                // puts and gets together
  std::uint32_t delay_polls = 1;               // polls from a call to its completion, where there is no clock
  // With a clock, one operation after the other takes this long instead.
  const Clock* clock = nullptr;
  TimeNs fixed_ns = 100 * kMicrosecondNs;
  std::uint64_t bytes_per_s = 2'000'000'000;
  // Drawn for each operation, of a million.
  std::uint64_t seed = 1;
  std::uint32_t corrupt_ppm = 0;  // a get finds the record damaged
  std::uint32_t lose_ppm = 0;     // a get finds no record though find() did
  std::uint32_t refuse_ppm = 0;   // a put ends in no record
  std::uint32_t loss_ppm = 0;     // that every record is said to have lost more than its rows had
};

class MemoryTier final : public TierPort {
 public:
  explicit MemoryTier(const MemoryTierOptions& options);

  [[nodiscard]] bool put(const TierPut& put) noexcept override;
  [[nodiscard]] bool get(const TierGet& get) noexcept override;
  void forget(const Hash128& hash) noexcept override;
  [[nodiscard]] std::optional<TierEntry> find(const Hash128& hash) const noexcept override;
  [[nodiscard]] bool lossy() const noexcept override { return options_.loss_ppm > 0; }
  [[nodiscard]] TimeNs restore_ns(std::uint64_t stored_bytes) const noexcept override;
  [[nodiscard]] std::size_t poll(std::span<TierCompletion> out) noexcept override;
  [[nodiscard]] TierFigures figures() const noexcept override;

  // ---- faults, by hand ----
  void set_state(TierState state) noexcept { figures_.state = state; }
  void corrupt(const Hash128& hash) noexcept;             // its next get ends in `corrupt`
  void lose(const Hash128& hash) noexcept;                // given up now: told by `gone`
  void lose_unseen(const Hash128& hash) noexcept;         // found until its next get, which ends in `not_found`
  void refuse_next(std::uint32_t puts) noexcept { refuse_next_ = puts; }  // end in out_of_capacity
  void hold(bool held) noexcept { held_ = held; }         // nothing completes meanwhile
  [[nodiscard]] std::size_t under_way() const noexcept { return pending_.size(); }
  // When the next completion is due by the clock; kNever: none, or not by a clock.
  [[nodiscard]] TimeNs next_due_ns() const noexcept;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  enum class Damage : std::uint8_t { none, corrupt, lost };
  struct HashOf {
    std::uint64_t operator()(const Hash128& hash) const noexcept { return mix_bits(hash.low); }
  };
  // A record in slot i of memory_; used ones are chained from the oldest to the youngest.
  struct Record {
    Hash128 hash{};
    Hash128 shape{};
    TierEntry entry{};
    Damage damage = Damage::none;
    std::uint32_t older = kNone, younger = kNone;  // `younger` also chains the free ones
  };
  struct Pending {
    TierEvent event = TierEvent::put;
    bool forgotten = false;
    TierPut put{};
    TierGet get{};
    std::uint64_t digest = 0;
    std::uint64_t due_poll = 0;
    TimeNs asked_ns = 0, due_ns = 0;
  };

  [[nodiscard]] bool start(Pending pending, std::uint64_t bytes) noexcept;
  [[nodiscard]] bool is_due(const Pending& pending) const noexcept;
  [[nodiscard]] TierCompletion complete(const Pending& pending) noexcept;
  [[nodiscard]] Status end_put(const Pending& pending, TierCompletion& done) noexcept;
  [[nodiscard]] Status end_get(const TierGet& get, TierCompletion& done) noexcept;
  [[nodiscard]] std::uint64_t digest_of(const TierPut& put) const noexcept;
  [[nodiscard]] std::byte* bytes_of(std::uint32_t slot) noexcept { return memory_.get() + slot * options_.most_block_bytes; }
  [[nodiscard]] std::uint32_t take_slot() noexcept;
  void drop(std::uint32_t slot) noexcept;
  void give_up(std::uint32_t slot) noexcept;
  [[nodiscard]] bool drawn(std::uint32_t ppm) noexcept { return ppm > 0 && random_.uniform(1'000'000) < ppm; }
  [[nodiscard]] TimeNs now_ns() const noexcept { return options_.clock == nullptr ? 0 : options_.clock->now_ns(); }

  MemoryTierOptions options_;
  std::uint32_t slots_;
  Prng random_;
  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<Record[]> records_;
  FlatMap<Hash128, std::uint32_t, HashOf> index_;
  transport::FixedRing<Pending> pending_;
  transport::FixedRing<Hash128> gone_;
  std::uint32_t free_ = kNone, oldest_ = kNone, youngest_ = kNone;
  std::uint32_t refuse_next_ = 0;
  std::uint64_t polls_ = 0;
  TimeNs busy_until_ns_ = 0;
  bool held_ = false;
  TierFigures figures_;
};

}  // namespace kvrail::engine
