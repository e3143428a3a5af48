#include <doctest/doctest.h>

#include <array>
#include <string_view>
#include <vector>

#include "kvrail/base/prng.h"
#include "scheduler/arbiter.h"

using namespace kvrail;
using namespace kvrail::scheduler;

TEST_CASE("arbiter / data never takes a control credit, and back") {
  Arbiter arbiter({});
  arbiter.open_lane(2, 3, 1);
  for (int i = 0; i < 3; ++i) CHECK(arbiter.try_take_credit(2, CreditKind::data));
  CHECK(!arbiter.try_take_credit(2, CreditKind::data));
  CHECK(arbiter.try_take_credit(2, CreditKind::control));
  CHECK(!arbiter.try_take_credit(2, CreditKind::control));
  arbiter.give_credit(2, CreditKind::data);
  CHECK(!arbiter.try_take_credit(2, CreditKind::control));
  CHECK(arbiter.credits(2, CreditKind::data).free == 1);
  CHECK(arbiter.credits(2, CreditKind::data).granted == 2);
  CHECK(arbiter.try_take_credit(2, CreditKind::data));
  arbiter.close_lane(2);
  arbiter.open_lane(2, 5, 1);
  CHECK(arbiter.credits(2, CreditKind::data).free == 5);
}

TEST_CASE("arbiter / refusals carry their figures") {
  Arbiter arbiter({.max_leases = 2});
  arbiter.open_pool(0, 1000);
  LeaseAnswer answer = arbiter.grant(0, 1001, 0, kSecondNs);
  CHECK(!answer.lease.valid());
  CHECK(answer.refusal.reason == RefusalReason::never_fits);
  CHECK(answer.refusal.needed == 1001);
  CHECK(answer.refusal.total == 1000);
  const LeaseAnswer first = arbiter.grant(0, 700, 0, kSecondNs);
  REQUIRE(first.lease.valid());
  CHECK(first.refusal.reason == RefusalReason::none);
  answer = arbiter.grant(0, 301, 0, kSecondNs);
  CHECK(answer.refusal.reason == RefusalReason::no_memory);
  CHECK(answer.refusal.available == 300);
  CHECK(std::string_view(name(answer.refusal.reason)) == "not enough free receive memory");
  REQUIRE(arbiter.grant(0, 0, 0, kSecondNs).lease.valid());
  answer = arbiter.grant(0, 1, 0, kSecondNs);
  CHECK(answer.refusal.reason == RefusalReason::table_full);
  CHECK(answer.refusal.total == 2);
  arbiter.audit();
}

TEST_CASE("arbiter / a suspended lease shrinks, an expired one stays taken until released") {
  Arbiter arbiter({});
  arbiter.open_pool(1, 1000);
  const LeaseHandle suspended = arbiter.grant(1, 600, 0, 100 * kMillisecondNs).lease;
  const LeaseHandle renewed = arbiter.grant(1, 200, 0, 100 * kMillisecondNs).lease;
  arbiter.shrink(suspended, 256);
  CHECK(arbiter.pool(1).free == 544);
  CHECK(arbiter.lease_bytes(suspended) == 256);
  arbiter.renew(renewed, 50 * kMillisecondNs, kSecondNs);
  CHECK(arbiter.remaining_ns(suspended, 40 * kMillisecondNs) == 60 * kMillisecondNs);
  std::vector<LeaseHandle> expired(4);
  CHECK(arbiter.expire(99 * kMillisecondNs, expired) == 0);
  REQUIRE(arbiter.expire(101 * kMillisecondNs, expired) == 1);
  CHECK(expired[0] == suspended);
  CHECK(arbiter.remaining_ns(suspended, 0) == 0);
  CHECK(arbiter.pool(1).quarantined == 256);
  CHECK(arbiter.pool(1).free == 544);
  CHECK(!arbiter.grant(1, 545, 0, 1).lease.valid());
  arbiter.release(suspended);
  CHECK(arbiter.pool(1).free == 800);
  CHECK(arbiter.expire(2 * kSecondNs, {}) == 0);  // no room to name it
  CHECK(arbiter.expire(2 * kSecondNs + 2 * kMillisecondNs, expired) == 1);
  arbiter.release(renewed);
  arbiter.close_pool(1);
  arbiter.audit();
}

TEST_CASE("arbiter / a reservation holds credits back, at most half of the lane's") {
  Arbiter arbiter(ArbiterOptions{});
  arbiter.open_lane(0, 6, 1);
  const ReservationSpec spec{0, 10 * kMillisecondNs, 0, 100'000};
  const ReservationHandle first = arbiter.reserve(spec, 100'000'000).reservation;
  CHECK(arbiter.held_credits(0) == 2);
  for (int i = 0; i < 4; ++i) CHECK(arbiter.try_take_credit(0, CreditKind::data));
  CHECK(!arbiter.try_take_credit(0, CreditKind::data));
  CHECK(arbiter.try_take_credit(0, CreditKind::control));
  CHECK(arbiter.try_take_credit(0, CreditKind::data, CreditUse::reserved));
  const ReservationHandle second = arbiter.reserve(spec, 100'000'000).reservation;
  CHECK(arbiter.held_credits(0) == 3);  // half of 6, not 4
  arbiter.cancel(second);
  arbiter.cancel(first);
  CHECK(arbiter.try_take_credit(0, CreditKind::data));
  CHECK(!arbiter.try_take_credit(0, CreditKind::data, CreditUse::reserved));
  CHECK(arbiter.credits(0, CreditKind::data).free == 0);
  arbiter.audit();
}

TEST_CASE("arbiter / half of a lane may be reserved") {
  Arbiter arbiter({});
  arbiter.open_lane(0, 4, 1);
  constexpr std::uint64_t kRate = 100'000'000;
  const ReservationSpec forty{0, 10 * kMillisecondNs, 0, 400'000};  // 40 MB/s
  const ReservationAnswer first = arbiter.reserve(forty, kRate);
  REQUIRE(first.reservation.valid());
  CHECK(arbiter.reserved_bytes_per_s(0) == 40'000'000);
  ReservationAnswer answer = arbiter.reserve(forty, kRate);
  CHECK(answer.refusal.reason == RefusalReason::over_half);
  CHECK(answer.refusal.needed == 40'000'000);
  CHECK(answer.refusal.available == 10'000'000);
  CHECK(arbiter.reserve({0, 10 * kMillisecondNs, 5 * kMillisecondNs, 100'000}, kRate)
            .reservation.valid());
  answer = arbiter.reserve({0, kSecondNs, 0, 1}, kRate);
  CHECK(answer.refusal.reason == RefusalReason::over_half);  // exactly half is taken
  for (const ReservationSpec& bad :
       {ReservationSpec{0, 0, 0, 1}, {0, 5, 5, 1}, {0, 5, -1, 1}, {0, 5, 0, 0}}) {
    CHECK(arbiter.reserve(bad, kRate).refusal.reason == RefusalReason::bad_period);
  }
  arbiter.cancel(first.reservation);
  CHECK(arbiter.reserve({0, 3, 0, 1}, 2'000'000'000)
            .reservation.valid());  // 333,333,333.3 rounded up
  CHECK(arbiter.reserved_bytes_per_s(0) == 10'000'000 + 333'333'334);
  arbiter.close_lane(0);
  arbiter.audit();
}

namespace {

class RandomLedger {
 public:
  explicit RandomLedger(std::uint64_t seed) : prng_(seed) {
    for (PoolIndex i = 0; i < kPools; ++i) arbiter_.open_pool(i, pool_bytes(i));
    for (LaneIndex i = 0; i < kLanes; ++i) arbiter_.open_lane(i, 8, 2);
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      now_ += static_cast<TimeNs>(prng_.uniform(3 * kMillisecondNs));
      switch (prng_.uniform(6)) {
        case 0:
          grant();
          break;
        case 1:
          release_or_shrink();
          break;
        case 2:
          expire();
          break;
        case 3:
        case 4:
          credit();
          break;
        case 5:
          reserve();
          break;
      }
      if (step % 50 == 0) arbiter_.audit();
    }
    for (const LeaseHandle lease : live_) arbiter_.release(lease);
    for (const LeaseHandle lease : quarantined_) arbiter_.release(lease);
    for (PoolIndex i = 0; i < kPools; ++i) {
      CHECK(arbiter_.pool(i).free == pool_bytes(i));
      arbiter_.close_pool(i);
    }
    arbiter_.audit();
  }

 private:
  static constexpr std::uint32_t kLanes = 4, kPools = 3, kLeases = 40;
  static constexpr std::uint64_t pool_bytes(PoolIndex pool) {
    return 10'000 * (std::uint64_t{pool} + 1);
  }

  template <class T>
  T take(std::vector<T>& from) {
    const auto it = from.begin() + static_cast<std::ptrdiff_t>(prng_.uniform(from.size()));
    const T taken = *it;
    from.erase(it);
    return taken;
  }
  void grant() {
    const auto pool = static_cast<PoolIndex>(prng_.uniform(kPools));
    const std::uint64_t bytes = prng_.uniform(4000);
    const std::uint64_t free = arbiter_.pool(pool).free;
    const auto duration = static_cast<TimeNs>(prng_.between(1, 500 * kMillisecondNs));
    const LeaseAnswer answer = arbiter_.grant(pool, bytes, now_, duration);
    if (answer.lease) {
      CHECK(bytes <= free);
      live_.push_back(answer.lease);
    } else {
      CHECK((bytes > free || live_.size() + quarantined_.size() == kLeases));
    }
  }
  void release_or_shrink() {
    if (live_.empty()) return;
    if (prng_.chance(0.5)) {
      arbiter_.release(take(live_));
      return;
    }
    const LeaseHandle lease = live_[prng_.uniform(live_.size())];
    arbiter_.shrink(lease, prng_.uniform(arbiter_.lease_bytes(lease) + 1));
  }
  void expire() {
    std::array<LeaseHandle, 5> expired;
    const std::size_t count = arbiter_.expire(now_, expired);
    for (std::size_t i = 0; i < count; ++i) {
      REQUIRE(std::erase(live_, expired[i]) == 1);
      quarantined_.push_back(expired[i]);
    }
    if (!quarantined_.empty() && prng_.chance(0.5)) arbiter_.release(take(quarantined_));
  }
  void credit() {
    const auto lane = static_cast<LaneIndex>(prng_.uniform(kLanes));
    const auto kind = static_cast<CreditKind>(prng_.uniform(2));
    std::uint32_t& mine = taken_[lane][static_cast<std::size_t>(kind)];
    if (prng_.chance(0.5)) {
      mine += arbiter_.try_take_credit(lane, kind) ? 1 : 0;
    } else if (mine > 0) {
      arbiter_.give_credit(lane, kind);
      --mine;
    }
    CHECK(arbiter_.credits(lane, kind).granted == mine);
  }
  void reserve() {
    ReservationSpec spec;
    spec.lane = static_cast<LaneIndex>(prng_.uniform(kLanes));
    spec.period_ns = static_cast<TimeNs>(prng_.between(1, kSecondNs));
    spec.bytes = prng_.between(1, 1'000'000);
    const ReservationAnswer answer = arbiter_.reserve(spec, 100'000'000);
    if (answer.reservation) reserved_.push_back(answer.reservation);
    CHECK(arbiter_.reserved_bytes_per_s(spec.lane) <= 50'000'000);
    if (!reserved_.empty() && prng_.chance(0.6)) arbiter_.cancel(take(reserved_));
  }

  Prng prng_;
  Arbiter arbiter_{
      {.max_lanes = kLanes, .max_pools = kPools, .max_leases = kLeases, .max_reservations = 10}};
  TimeNs now_ = 0;
  std::vector<LeaseHandle> live_, quarantined_;
  std::vector<ReservationHandle> reserved_;
  std::array<std::array<std::uint32_t, 2>, kLanes> taken_{};
};

}  // namespace

TEST_CASE("arbiter / everything is conserved through random lives") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    RandomLedger(seed).run(5000);
  }
}
