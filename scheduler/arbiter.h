// The ledger of what is promised: Credits of lanes, Leases of receive memory, Reservations of
// bandwidth. Pure arithmetic; the engine acts on the answers.
//
// Order of taking: receiver's lease, then sender's staging, then a lane credit. Nobody waits for
// the former while holding the latter, so that promises cannot wait for each other in a circle;
// control credits are set aside and never carry data, so that an answer can always be sent.
//
// Thread: owner. No allocation after construction.
// Invariant, asserted after every operation: for each lane granted + free = total of each kind of
// credit; for each pool leased + quarantined + free = total bytes; for each lane the reserved rate
// is the sum of its reservations'.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvrail/base/handle.h"
#include "kvrail/base/time.h"
#include "scheduler/scheduler.h"

namespace kvrail::scheduler {

struct LeaseTag;
using LeaseHandle = Handle<LeaseTag>;
struct ReservationTag;
inline constexpr TimeNs kLongestPeriodNs = 3600 * kSecondNs;
using ReservationHandle = Handle<ReservationTag>;
using PoolIndex = std::uint32_t;  // small dense index that the engine gives a tenant's receive pool

enum class CreditKind : std::uint8_t { data = 0, control = 1 };
// Of a lane's data credits kCreditsHeld for each of its reservations, but at most half of all, go to reserved chunks only.
enum class CreditUse : std::uint8_t { ordinary, reserved };
inline constexpr std::uint32_t kCreditsHeld = 2;

enum class RefusalReason : std::uint8_t {
  none = 0,
  never_fits,  // needed > total: no waiting helps
  no_memory,   // needed > available now
  table_full,  // total entries are in use
  over_half,   // available is what may still be reserved of half the lane's rate
  bad_period,  // period, bytes or offset make no sense
};
// Why not, with the figures: needed, available and total are bytes, entries or bytes/s.
struct Refusal {
  RefusalReason reason = RefusalReason::none;
  std::uint64_t needed = 0;
  std::uint64_t available = 0;
  std::uint64_t total = 0;
};
[[nodiscard]] const char* name(RefusalReason reason) noexcept;

struct LeaseAnswer {
  LeaseHandle lease;  // invalid: refused
  Refusal refusal;
};
struct ReservationAnswer {
  ReservationHandle reservation;
  Refusal refusal;
};


struct CreditCounts {
  std::uint32_t total = 0, granted = 0, free = 0;
};
struct PoolCounts {
  std::uint64_t total = 0, leased = 0, quarantined = 0, free = 0;
  std::uint32_t leases = 0;  // quarantined ones too
};

struct ArbiterOptions {
  std::uint32_t max_lanes = 64;
  std::uint32_t max_pools = 64;
  std::uint32_t max_leases = 4096;
  std::uint32_t max_reservations = 256;
};

class Arbiter {
 public:
  explicit Arbiter(const ArbiterOptions& options);
  Arbiter(const Arbiter&) = delete;
  Arbiter& operator=(const Arbiter&) = delete;
  ~Arbiter();

  // ---- credits: the right to have one chunk (data) or frame (control) in flight on a lane ----
  void open_lane(LaneIndex lane, std::uint32_t data_credits,
                 std::uint32_t control_credits) noexcept;
  // Granted credits and the lane's reservations end with it.
  void close_lane(LaneIndex lane) noexcept;
  [[nodiscard]] bool try_take_credit(LaneIndex lane, CreditKind kind, CreditUse use = CreditUse::ordinary) noexcept;
  void give_credit(LaneIndex lane, CreditKind kind) noexcept;
  [[nodiscard]] CreditCounts credits(LaneIndex lane, CreditKind kind) const noexcept;

  // ---- leases: receive memory of a pool promised to one transfer for a time ----
  void open_pool(PoolIndex pool, std::uint64_t bytes) noexcept;
  void close_pool(PoolIndex pool) noexcept;  // its leases must have been released
  [[nodiscard]] LeaseAnswer grant(PoolIndex pool, std::uint64_t bytes, TimeNs now_ns,
                                  TimeNs duration_ns) noexcept;
  // Keeps only this much, e.g. the whole blocks received when a transfer is suspended.
  void shrink(LeaseHandle lease, std::uint64_t bytes) noexcept;
  void renew(LeaseHandle lease, TimeNs now_ns, TimeNs duration_ns) noexcept;
  void release(LeaseHandle lease) noexcept;
  // Puts leases whose time is over, by up to a millisecond, into quarantine and names them, at most
  // expired.size(); the others a millisecond later. Their memory stays taken until release(), when no
  // late write can come any more.
  [[nodiscard]] std::size_t expire(TimeNs now_ns, std::span<LeaseHandle> expired) noexcept;
  [[nodiscard]] TimeNs remaining_ns(LeaseHandle lease,
                                    TimeNs now_ns) const noexcept;  // 0: quarantined
  [[nodiscard]] std::uint64_t lease_bytes(LeaseHandle lease) const noexcept;
  [[nodiscard]] PoolCounts pool(PoolIndex pool) const noexcept;

  // ---- reservations: admission to half of a lane ----
  [[nodiscard]] ReservationAnswer reserve(const ReservationSpec& spec,
                                          std::uint64_t lane_rate_bytes_per_s) noexcept;
  void cancel(ReservationHandle reservation) noexcept;
  [[nodiscard]] std::uint64_t reserved_bytes_per_s(LaneIndex lane) const noexcept;
  [[nodiscard]] std::uint32_t held_credits(LaneIndex lane) const noexcept;

  // Adds everything up again from the entries; aborts where the ledger does not hold. For tests and
  // debug builds: it walks all tables.
  void audit() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvrail::scheduler
