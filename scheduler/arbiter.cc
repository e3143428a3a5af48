#include "scheduler/arbiter.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kvrail/base/assert.h"
#include "kvrail/base/bits.h"
#include "scheduler/exp_table.h"
#include "scheduler/timer_wheel.h"

namespace kvrail::scheduler {
namespace {

struct LaneLedger {
  bool open = false;
  std::array<CreditCounts, 2> credits;
  std::uint64_t reserved_bytes_per_s = 0;
  std::uint32_t reservations = 0;

  [[nodiscard]] std::uint32_t held() const noexcept {
    return std::min(kCreditsHeld * reservations, credits[static_cast<std::size_t>(CreditKind::data)].total / 2);
  }
};

struct PoolLedger {
  bool open = false;
  PoolCounts counts;
};

struct Lease : TimerNode {
  LeaseHandle self;
  PoolIndex pool = 0;
  std::uint64_t bytes = 0;
  TimeNs expires_ns = 0;
  bool quarantined = false;
};

struct Reservation {
  LaneIndex lane = 0;
  std::uint64_t bytes_per_s = 0;
};

void check(const CreditCounts& credits) noexcept {
  KVRAIL_ASSERT_MSG(credits.granted + credits.free == credits.total, "credits are conserved");
}
void check(const PoolCounts& pool) noexcept {
  KVRAIL_ASSERT_MSG(pool.leased + pool.quarantined + pool.free == pool.total,
                    "lease memory is conserved");
}

}  // namespace

const char* name(RefusalReason reason) noexcept {
  switch (reason) {
    case RefusalReason::none:
      return "none";
    case RefusalReason::never_fits:
      return "larger than the whole pool";
    case RefusalReason::no_memory:
      return "not enough free receive memory";
    case RefusalReason::table_full:
      return "too many at once";
    case RefusalReason::over_half:
      return "more than half of the lane would be reserved";
    case RefusalReason::bad_period:
      return "the period, bytes or offset make no sense";
  }
  return "invalid reason";
}

struct Arbiter::State {
  explicit State(const ArbiterOptions& options)
      : lanes(options.max_lanes),
        pools(options.max_pools),
        leases(options.max_leases),
        reservations(options.max_reservations) {}

  [[nodiscard]] LaneLedger& lane_of(LaneIndex lane) noexcept {
    KVRAIL_ASSERT(lane < lanes.size() && lanes[lane].open);
    return lanes[lane];
  }
  [[nodiscard]] PoolLedger& pool_of(PoolIndex pool) noexcept {
    KVRAIL_ASSERT(pool < pools.size() && pools[pool].open);
    return pools[pool];
  }
  [[nodiscard]] Lease& lease_of(LeaseHandle handle) noexcept {
    Lease* const lease = leases.get(handle);
    KVRAIL_ASSERT_MSG(lease != nullptr, "a stale lease handle");
    return *lease;
  }

  std::vector<LaneLedger> lanes;
  std::vector<PoolLedger> pools;
  SlotTable<Lease, LeaseTag> leases;
  SlotTable<Reservation, ReservationTag> reservations;
  TimerWheel wheel;
};

Arbiter::Arbiter(const ArbiterOptions& options) : state_(std::make_unique<State>(options)) {}
Arbiter::~Arbiter() = default;

// ---- credits ----

void Arbiter::open_lane(LaneIndex lane, std::uint32_t data_credits,
                        std::uint32_t control_credits) noexcept {
  KVRAIL_ASSERT(lane < state_->lanes.size() && !state_->lanes[lane].open);
  // Without one of its own a control frame could wait for ever behind data.
  KVRAIL_ASSERT(data_credits > 0 && control_credits > 0);
  state_->lanes[lane] = {
      true,
      {CreditCounts{data_credits, 0, data_credits}, {control_credits, 0, control_credits}},
      0,
      0};
}

void Arbiter::close_lane(LaneIndex lane) noexcept {
  LaneLedger& it = state_->lane_of(lane);
  state_->reservations.for_each([&](ReservationHandle handle, Reservation& reservation) {
    if (reservation.lane != lane) return;
    KVRAIL_ASSERT(it.reserved_bytes_per_s >= reservation.bytes_per_s);
    it.reserved_bytes_per_s -= reservation.bytes_per_s;
    --it.reservations;
    state_->reservations.erase(handle);
  });
  KVRAIL_ASSERT(it.reserved_bytes_per_s == 0 && it.reservations == 0);
  it = LaneLedger{};
}

bool Arbiter::try_take_credit(LaneIndex lane, CreditKind kind, CreditUse use) noexcept {
  LaneLedger& it = state_->lane_of(lane);
  CreditCounts& credits = it.credits[static_cast<std::size_t>(kind)];
  const bool any = use == CreditUse::reserved || kind == CreditKind::control;
  if (credits.free <= (any ? 0 : it.held())) return false;
  --credits.free;
  ++credits.granted;
  check(credits);
  return true;
}

void Arbiter::give_credit(LaneIndex lane, CreditKind kind) noexcept {
  CreditCounts& credits = state_->lane_of(lane).credits[static_cast<std::size_t>(kind)];
  KVRAIL_ASSERT_MSG(credits.granted > 0, "a credit that was never taken");
  --credits.granted;
  ++credits.free;
  check(credits);
}

CreditCounts Arbiter::credits(LaneIndex lane, CreditKind kind) const noexcept {
  return state_->lane_of(lane).credits[static_cast<std::size_t>(kind)];
}

// ---- leases ----

void Arbiter::open_pool(PoolIndex pool, std::uint64_t bytes) noexcept {
  KVRAIL_ASSERT(pool < state_->pools.size() && !state_->pools[pool].open);
  state_->pools[pool] = {true, PoolCounts{bytes, 0, 0, bytes, 0}};
}

void Arbiter::close_pool(PoolIndex pool) noexcept {
  PoolLedger& it = state_->pool_of(pool);
  KVRAIL_ASSERT_MSG(it.counts.leases == 0 && it.counts.free == it.counts.total,
                    "leases outlive their pool");
  it = PoolLedger{};
}

LeaseAnswer Arbiter::grant(PoolIndex pool, std::uint64_t bytes, TimeNs now_ns,
                           TimeNs duration_ns) noexcept {
  PoolCounts& counts = state_->pool_of(pool).counts;
  KVRAIL_ASSERT(duration_ns > 0);
  if (bytes > counts.total)
    return {{}, {RefusalReason::never_fits, bytes, counts.free, counts.total}};
  if (bytes > counts.free)
    return {{}, {RefusalReason::no_memory, bytes, counts.free, counts.total}};
  const LeaseHandle handle = state_->leases.try_emplace();
  if (!handle) return {{}, {RefusalReason::table_full, 1, 0, state_->leases.capacity()}};
  Lease& lease = *state_->leases.get(handle);
  lease.self = handle;
  lease.pool = pool;
  lease.bytes = bytes;
  lease.expires_ns = add_saturating(now_ns, duration_ns);
  state_->wheel.arm(lease, lease.expires_ns);
  counts.free -= bytes;
  counts.leased += bytes;
  ++counts.leases;
  check(counts);
  return {handle, {}};
}

void Arbiter::shrink(LeaseHandle handle, std::uint64_t bytes) noexcept {
  Lease& lease = state_->lease_of(handle);
  KVRAIL_ASSERT_MSG(bytes <= lease.bytes, "a lease only shrinks");
  // Late writes may still land anywhere in a quarantined one.
  KVRAIL_ASSERT(!lease.quarantined);
  PoolCounts& counts = state_->pool_of(lease.pool).counts;
  const std::uint64_t freed = lease.bytes - bytes;
  KVRAIL_ASSERT(counts.leased >= freed);
  lease.bytes = bytes;
  counts.leased -= freed;
  counts.free += freed;
  check(counts);
}

void Arbiter::renew(LeaseHandle handle, TimeNs now_ns, TimeNs duration_ns) noexcept {
  Lease& lease = state_->lease_of(handle);
  KVRAIL_ASSERT(duration_ns > 0 && !lease.quarantined);
  state_->wheel.cancel(lease);
  lease.expires_ns = add_saturating(now_ns, duration_ns);
  state_->wheel.arm(lease, lease.expires_ns);
}

void Arbiter::release(LeaseHandle handle) noexcept {
  Lease& lease = state_->lease_of(handle);
  PoolCounts& counts = state_->pool_of(lease.pool).counts;
  std::uint64_t& held = lease.quarantined ? counts.quarantined : counts.leased;
  KVRAIL_ASSERT(held >= lease.bytes && counts.leases > 0);
  held -= lease.bytes;
  counts.free += lease.bytes;
  --counts.leases;
  state_->wheel.cancel(lease);
  state_->leases.erase(handle);
  check(counts);
}

std::size_t Arbiter::expire(TimeNs now_ns, std::span<LeaseHandle> expired) noexcept {
  std::size_t count = 0;
  state_->wheel.advance(now_ns, [&](TimerNode& node) {
    Lease& lease = static_cast<Lease&>(node);
    if (count == expired.size()) {
      // No room to name it: it stays due and is met again.
      state_->wheel.arm(lease, lease.expires_ns);
      return;
    }
    PoolCounts& counts = state_->pool_of(lease.pool).counts;
    KVRAIL_ASSERT(!lease.quarantined && counts.leased >= lease.bytes);
    lease.quarantined = true;
    counts.leased -= lease.bytes;
    counts.quarantined += lease.bytes;
    check(counts);
    expired[count++] = lease.self;
  });
  return count;
}

TimeNs Arbiter::remaining_ns(LeaseHandle handle, TimeNs now_ns) const noexcept {
  const Lease& lease = state_->lease_of(handle);
  return lease.quarantined ? 0 : std::max<TimeNs>(lease.expires_ns - now_ns, 0);
}

std::uint64_t Arbiter::lease_bytes(LeaseHandle handle) const noexcept {
  return state_->lease_of(handle).bytes;
}

PoolCounts Arbiter::pool(PoolIndex pool) const noexcept {
  return state_->pool_of(pool).counts;
}

// ---- reservations ----

ReservationAnswer Arbiter::reserve(const ReservationSpec& spec,
                                   std::uint64_t lane_rate_bytes_per_s) noexcept {
  LaneLedger& lane = state_->lane_of(spec.lane);
  const std::uint64_t half = lane_rate_bytes_per_s / 2;
  if (spec.period_ns <= 0 || spec.period_ns > kLongestPeriodNs || spec.bytes == 0 || spec.offset_ns < 0 ||
      spec.offset_ns >= spec.period_ns) {
    return {{}, {RefusalReason::bad_period, spec.bytes, 0, half}};
  }
  // Rounded up: admitted reservations must fit, not nearly fit.
  const auto period = static_cast<std::uint64_t>(spec.period_ns);
  const std::uint64_t rate = std::max<std::uint64_t>(mul_div(spec.bytes, 1'000'000'000, period), 1);
  const bool exact = mul_div(rate, period, 1'000'000'000) >= spec.bytes;
  const std::uint64_t needed = exact || rate == kLargest ? rate : rate + 1;
  const std::uint64_t available =
      half > lane.reserved_bytes_per_s ? half - lane.reserved_bytes_per_s : 0;
  if (needed > available) return {{}, {RefusalReason::over_half, needed, available, half}};
  const ReservationHandle handle = state_->reservations.try_emplace();
  if (!handle) return {{}, {RefusalReason::table_full, 1, 0, state_->reservations.capacity()}};
  *state_->reservations.get(handle) = {spec.lane, needed};
  lane.reserved_bytes_per_s += needed;
  ++lane.reservations;
  return {handle, {}};
}

void Arbiter::cancel(ReservationHandle handle) noexcept {
  const Reservation* const reservation = state_->reservations.get(handle);
  KVRAIL_ASSERT_MSG(reservation != nullptr, "a stale reservation handle");
  LaneLedger& lane = state_->lane_of(reservation->lane);
  KVRAIL_ASSERT(lane.reserved_bytes_per_s >= reservation->bytes_per_s);
  lane.reserved_bytes_per_s -= reservation->bytes_per_s;
  --lane.reservations;
  state_->reservations.erase(handle);
}

std::uint64_t Arbiter::reserved_bytes_per_s(LaneIndex lane) const noexcept {
  return state_->lane_of(lane).reserved_bytes_per_s;
}

std::uint32_t Arbiter::held_credits(LaneIndex lane) const noexcept {
  return state_->lane_of(lane).held();
}

// ---- audit ----

void Arbiter::audit() const noexcept {
  for (std::uint32_t index = 0; index < state_->pools.size(); ++index) {
    const PoolLedger& pool = state_->pools[index];
    PoolCounts sum{pool.counts.total, 0, 0, pool.counts.total, 0};
    state_->leases.for_each([&](LeaseHandle, const Lease& lease) {
      if (lease.pool != index) return;
      (lease.quarantined ? sum.quarantined : sum.leased) += lease.bytes;
      sum.free -= lease.bytes;
      ++sum.leases;
    });
    KVRAIL_ASSERT(pool.open || sum.leases == 0);
    KVRAIL_ASSERT(sum.leased == pool.counts.leased && sum.quarantined == pool.counts.quarantined);
    KVRAIL_ASSERT(sum.free == pool.counts.free && sum.leases == pool.counts.leases);
    check(pool.counts);
  }
  for (std::uint32_t index = 0; index < state_->lanes.size(); ++index) {
    const LaneLedger& lane = state_->lanes[index];
    std::uint64_t reserved = 0;
    std::uint32_t count = 0;
    state_->reservations.for_each([&](ReservationHandle, const Reservation& reservation) {
      if (reservation.lane != index) return;
      reserved += reservation.bytes_per_s;
      ++count;
    });
    KVRAIL_ASSERT(reserved == lane.reserved_bytes_per_s && count == lane.reservations);
    for (const CreditCounts& credits : lane.credits) check(credits);
  }
}

}  // namespace kvrail::scheduler
