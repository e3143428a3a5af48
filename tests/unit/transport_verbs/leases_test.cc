// Leases of both sides: what may be written, until when.
#include <doctest/doctest.h>

#include <vector>

#include "transport/verbs/own_leases.h"
#include "transport/verbs/peer_leases.h"

namespace kvrail::transport::verbs {
namespace {

using State = PeerLeases::State;
using Arrival = PeerLeases::Arrival;

// Segments of these sizes, the i-th at address (i + 1) * 1'000'000 with key i.
Arrival tell(PeerLeases& leases, LeaseId lease, const std::vector<std::uint32_t>& sizes,
             std::uint64_t total, bool first = true, bool last = true, std::uint32_t from = 0) {
  std::vector<std::byte> body(kLeaseHeadBytes + sizes.size() * kSegmentBytes);
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    encode(Segment{(from + i + 1) * 1'000'000ULL, sizes[i], {from + i, 1000 + from + i}},
           std::span<std::byte, kSegmentBytes>(body.data() + kLeaseHeadBytes + i * kSegmentBytes,
                                               kSegmentBytes));
  }
  LeaseHead head{lease,
                 total,
                 static_cast<std::uint32_t>(sizes.size()),
                 static_cast<std::uint32_t>(sizes.size()),
                 first,
                 last};
  encode(head, body);
  REQUIRE(decode(body, head));
  return leases.on_lease(head, body);
}

constexpr LeaseId kLease{5, 2};

}  // namespace

TEST_CASE("every byte of a lease is found in its segment") {
  SegmentPool pool(8);
  PeerLeases leases(pool, 16);
  std::vector<std::uint32_t> sizes;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < 100; ++i) {
    sizes.push_back(1 + i % 7);
    total += sizes.back();
  }
  REQUIRE(tell(leases, kLease, sizes, total) == Arrival::taken);
  REQUIRE(leases.state_of(kLease) == State::told);
  CHECK(pool.free_pages() == 4);  // 100 segments of 32 a page
  // Forwards, backwards and in leaps: the look-up starts where the last one ended.
  for (const int way : {0, 1, 2}) {
    for (std::uint64_t n = 0; n < total; ++n) {
      const std::uint64_t offset = way == 0 ? n : way == 1 ? total - 1 - n : n * 97 % total;
      std::uint64_t start = 0;
      std::uint32_t i = 0;
      while (start + sizes[i] <= offset) start += sizes[i++];
      const PeerLeases::Place place = leases.locate(kLease, offset, 0);
      REQUIRE(place.key == i);
      REQUIRE(leases.locate(kLease, offset, 1).key == 1000 + i);
      REQUIRE(place.address == (i + 1) * 1'000'000ULL + offset - start);
      REQUIRE(place.bytes == sizes[i] - (offset - start));
    }
  }
  leases.clear();
  CHECK(pool.free_pages() == 8);
}

TEST_CASE("a description in parts is known when its last part is here") {
  SegmentPool pool(8);
  PeerLeases leases(pool, 16);
  CHECK(tell(leases, kLease, {10, 20}, 60, true, false) == Arrival::taken);
  CHECK(leases.state_of(kLease) == State::arriving);
  CHECK(tell(leases, kLease, {30}, 60, false, true, 2) == Arrival::taken);
  CHECK(leases.state_of(kLease) == State::told);
  CHECK(leases.locate(kLease, 59, 1).address == 3'000'029);
  CHECK(leases.state_of({kLease.slot, 3}) == State::unknown);
  CHECK(leases.state_of({99, 2}) == State::unknown);
  // Told again, as after a question that crossed it.
  CHECK(tell(leases, kLease, {10, 20}, 60, true, false) == Arrival::taken);
  CHECK(tell(leases, kLease, {30}, 60, false, true, 2) == Arrival::taken);
  CHECK(leases.state_of(kLease) == State::told);
}

TEST_CASE("what no correct peer tells is malformed, and leaves nothing behind") {
  SegmentPool pool(2);
  PeerLeases leases(pool, 16);
  CHECK(tell(leases, kLease, {10, 20}, 29) == Arrival::malformed);  // more than the lease has
  CHECK(tell(leases, kLease, {10, 0}, 10) == Arrival::malformed);   // an empty segment
  CHECK(tell(leases, {16, 1}, {10}, 10) == Arrival::malformed);     // no such slot
  CHECK(pool.free_pages() == 2);
  CHECK(tell(leases, kLease, {10}, 11) == Arrival::malformed);  // it ends before its end
  leases.clear();
  CHECK(pool.free_pages() == 2);
}

TEST_CASE("a lease that finds no room is forgotten whole, and comes in when there is some") {
  SegmentPool pool(2);
  PeerLeases leases(pool, 16);
  CHECK(tell(leases, {1, 1}, std::vector<std::uint32_t>(40, 1), 40) == Arrival::taken);
  CHECK(tell(leases, {2, 1}, {1}, 1) == Arrival::no_room);
  CHECK(leases.state_of({2, 1}) == State::unknown);
  CHECK(leases.on_withdrawn({1, 1}));
  CHECK(pool.free_pages() == 2);
  CHECK(tell(leases, {2, 1}, {1}, 1) == Arrival::taken);
}

TEST_CASE("a withdrawn lease is released by the last of its writes, not before") {
  SegmentPool pool(2);
  PeerLeases leases(pool, 16);
  REQUIRE(tell(leases, kLease, {10}, 10) == Arrival::taken);
  leases.begin(kLease);
  leases.begin(kLease);
  CHECK_FALSE(leases.on_withdrawn(kLease));
  CHECK(leases.state_of(kLease) == State::withdrawn);
  CHECK_FALSE(leases.finish(kLease));
  CHECK(pool.free_pages() == 1);
  CHECK(leases.finish(kLease));
  CHECK(leases.state_of(kLease) == State::unknown);
  CHECK(pool.free_pages() == 2);
  CHECK(leases.on_withdrawn({7, 7}));  // one that we were never told of, or had no room for
}

TEST_CASE("own leases are given back when every lane that was told has let go") {
  OwnLeases leases(8);
  const Payload sink;
  leases.expose({3, 1}, 11, sink, true);
  CHECK(leases.find({3, 1}, 11) != nullptr);
  CHECK(leases.find({3, 1}, 12) == nullptr);
  CHECK(leases.find({3, 2}, 11) == nullptr);
  CHECK(leases.find({8, 1}, 11) == nullptr);
  leases.at(3).told = 0b101;
  CHECK(leases.withdraw({3, 1}) == 0b101);
  CHECK(leases.find({3, 1}, 11) == nullptr);
  CHECK_FALSE(leases.has_withdrawn());
  CHECK_FALSE(leases.confirm({3, 2}, 0b001));  // of another life
  CHECK_FALSE(leases.confirm({3, 1}, 0b010));  // of a lane that was never told
  CHECK(leases.confirm({3, 1}, 0b001));
  CHECK_FALSE(leases.confirm({3, 1}, 0b001));  // twice
  CHECK_FALSE(leases.has_withdrawn());
  leases.forget_lane(0b100);
  REQUIRE(leases.has_withdrawn());
  CHECK(*leases.next_withdrawn() == LeaseId{3, 1});
  CHECK_FALSE(leases.has_withdrawn());
  leases.expose({3, 2}, 11, sink, true);  // the slot is free again
  CHECK(leases.withdraw({3, 2}) == 0);    // nobody was told
  CHECK(leases.has_withdrawn());
}

}  // namespace kvrail::transport::verbs
