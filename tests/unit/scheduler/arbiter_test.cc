#include <doctest/doctest.h>

#include <map>
#include <string_view>
#include <vector>

#include "kvrail/base/no_alloc.h"
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
  CHECK(arbiter.expire(2 * kSecondNs, expired) == 1);
  arbiter.release(renewed);
  arbiter.close_pool(1);
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
  CHECK(arbiter.reserve({0, 10 * kMillisecondNs, 5 * kMillisecondNs, 100'000}, kRate).reservation.valid());
  answer = arbiter.reserve({0, kSecondNs, 0, 1}, kRate);
  CHECK(answer.refusal.reason == RefusalReason::over_half);  // exactly half is taken
  for (const ReservationSpec& bad : {ReservationSpec{0, 0, 0, 1}, {0, 5, 5, 1}, {0, 5, -1, 1}, {0, 5, 0, 0}}) {
    CHECK(arbiter.reserve(bad, kRate).refusal.reason == RefusalReason::bad_period);
  }
  arbiter.cancel(first.reservation);
  CHECK(arbiter.reserve({0, 3, 0, 1}, 2'000'000'000).reservation.valid());  // 333,333,333.3 rounded up
  CHECK(arbiter.reserved_bytes_per_s(0) == 10'000'000 + 333'333'334);
  arbiter.close_lane(0);
  arbiter.audit();
}

TEST_CASE("arbiter / everything is conserved through random lives") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    Arbiter arbiter({.max_lanes = 4, .max_pools = 3, .max_leases = 40, .max_reservations = 10});
    for (PoolIndex i = 0; i < 3; ++i) arbiter.open_pool(i, 10'000 * (i + 1));
    for (LaneIndex i = 0; i < 4; ++i) arbiter.open_lane(i, 8, 2);
    std::vector<LeaseHandle> live, quarantined;
    std::vector<ReservationHandle> reserved;
    std::array<std::array<std::uint32_t, 2>, 4> taken{};
    std::array<LeaseHandle, 5> expired;
    TimeNs now = 0;
    const auto take = [&prng](auto& from) {
      const std::size_t i = prng.uniform(from.size());
      const auto it = from[i];
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
      return it;
    };
    for (int step = 0; step < 5000; ++step) {
      now += static_cast<TimeNs>(prng.uniform(3 * kMillisecondNs));
      switch (prng.uniform(8)) {
        case 0:
        case 1: {
          const auto pool = static_cast<PoolIndex>(prng.uniform(3));
          const std::uint64_t bytes = prng.uniform(4000);
          const std::uint64_t free = arbiter.pool(pool).free;
          const LeaseAnswer answer = arbiter.grant(pool, bytes, now, static_cast<TimeNs>(prng.between(1, 500 * kMillisecondNs)));
          if (answer.lease) {
            CHECK(bytes <= free);
            live.push_back(answer.lease);
          } else {
            CHECK((bytes > free || live.size() + quarantined.size() == 40));
          }
          break;
        }
        case 2:
          if (!live.empty()) arbiter.release(take(live));
          break;
        case 3:
          if (!live.empty()) {
            const LeaseHandle lease = live[prng.uniform(live.size())];
            arbiter.shrink(lease, prng.uniform(arbiter.lease_bytes(lease) + 1));
          }
          break;
        case 4: {
          const std::size_t count = arbiter.expire(now, expired);
          for (std::size_t i = 0; i < count; ++i) {
            REQUIRE(std::erase(live, expired[i]) == 1);
            quarantined.push_back(expired[i]);
          }
          if (!quarantined.empty() && prng.chance(0.5)) arbiter.release(take(quarantined));
          break;
        }
        case 5:
        case 6: {
          const auto lane = static_cast<LaneIndex>(prng.uniform(4));
          const auto kind = static_cast<CreditKind>(prng.uniform(2));
          std::uint32_t& mine = taken[lane][static_cast<std::size_t>(kind)];
          if (prng.chance(0.5)) {
            mine += arbiter.try_take_credit(lane, kind) ? 1 : 0;
          } else if (mine > 0) {
            arbiter.give_credit(lane, kind);
            --mine;
          }
          CHECK(arbiter.credits(lane, kind).granted == mine);
          break;
        }
        case 7: {
          const ReservationSpec spec{static_cast<LaneIndex>(prng.uniform(4)), static_cast<TimeNs>(prng.between(1, kSecondNs)), 0,
                                     prng.between(1, 1'000'000)};
          if (const auto answer = arbiter.reserve(spec, 100'000'000); answer.reservation) reserved.push_back(answer.reservation);
          CHECK(arbiter.reserved_bytes_per_s(spec.lane) <= 50'000'000);
          if (!reserved.empty() && prng.chance(0.6)) arbiter.cancel(take(reserved));
          break;
        }
      }
      if (step % 50 == 0) arbiter.audit();
    }
    for (const LeaseHandle lease : live) arbiter.release(lease);
    for (const LeaseHandle lease : quarantined) arbiter.release(lease);
    for (PoolIndex i = 0; i < 3; ++i) {
      CHECK(arbiter.pool(i).free == 10'000 * (i + 1));
      arbiter.close_pool(i);
    }
    arbiter.audit();
  }
}
