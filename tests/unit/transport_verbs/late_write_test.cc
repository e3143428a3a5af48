// Writes that come late: after a cancel, a timeout, a restart of the peer, a suspension. In both modes,
// with memory windows and without, none of them lands in memory that has another owner. A shim below
// the transport holds the WRITEs back and lets them go when the memory has been given away.
#include <algorithm>
#include <cstring>

#include "tests/support/mode.h"
#include "tests/support/verbs_shim.h"
#include "tests/unit/transport_verbs/two_sides.h"

namespace kvrail::test {
namespace {

using namespace kvrail::transport;

constexpr std::uint64_t kChunks = 8;
constexpr std::byte kOther{0xEE};

// Two sides whose writes stay in the shim.
struct LateWrites {
  explicit LateWrites(bool with_windows)
      : windows(with_windows),
        sides([with_windows](int which, verbs::VerbsOptions& options) {
          options.windows = with_windows;
          if (which == 1) options.withdraw_timeout_ns = 100 * kMillisecondNs;
        }),
        stream(sides, kChunks * kChunk) {
    lanes = sides.connect();
    sides.at(1).expose(kLease, 11, stream.sink);
    shim.hold_writes = true;
    for (std::uint64_t i = 0; i < kChunks; ++i) {
      ChunkPost post;
      post.lease = kLease;
      post.transfer = 5;
      post.source = &stream.source;
      post.offset = i * kChunk;
      post.bytes = kChunk;
      post.critical = i % 4 == 3;
      post.cookie = i;
      REQUIRE(sides.at(0).try_post_chunk(lanes[0], post));
    }
    REQUIRE(sides.until([&] { return shim.held() == kChunks; }));
    CHECK((sides.at(1).counters().leases_in_windows == 1) == with_windows);
  }
  ~LateWrites() { shim.reset(); }

  // The lease comes back while only the sides of `mask` run.
  void take_back(unsigned mask) {
    sides.at(1).withdraw(kLease);
    REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }, mask));
  }
  void give_away() { std::fill(stream.to.begin(), stream.to.end(), kOther); }
  // The writes go out at last; both sides find that the lane is lost.
  void let_go() {
    shim.hold_writes = false;
    shim.release_writes();
    REQUIRE(sides.until([&] {
      return sides.count(0, EventKind::lane_down) == 1 && sides.count(1, EventKind::lane_down) == 1;
    }));
    CHECK(sides.count(0, EventKind::chunk_done) == kChunks);  // each ended, once
  }
  void check_untouched(std::size_t from = 0) const {
    CHECK(std::all_of(stream.to.begin() + static_cast<std::ptrdiff_t>(from), stream.to.end(),
                      [](std::byte byte) { return byte == kOther; }));
  }
  // With windows the keys were revoked and the lane lives; without, its queue pairs had to go.
  void check_how() {
    CHECK(sides.at(1).counters().withdraws_revoked == (windows ? 1 : 0));
    CHECK(sides.at(1).counters().withdraws_enforced == (windows ? 0 : 1));
    CHECK(sides.count(1, EventKind::lane_down) == (windows ? 0 : 1));
  }

  bool windows;
  VerbsShim& shim = VerbsShim::get();
  TwoSides sides;
  Stream stream;
  std::array<LaneId, 2> lanes;
};

// Ends the program as skipped, with the reason, where the device has no windows.
bool has_windows() {
  static_cast<void>(device_address());
  VerbsShim& shim = VerbsShim::get();
  ibv_device_attr attributes{};
  REQUIRE_FALSE(shim.opened.empty());
  REQUIRE(::ibv_query_device(shim.opened.front().context, &attributes) == 0);
  const bool has = (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0;
  if (!has) MESSAGE("SKIP: this device has no memory windows of type 2");
  return has;
}

template <class F>
void in_both_modes(F&& test) {
  for (const bool windows : {false, true}) {
    CAPTURE(windows);
    if (!windows || has_windows()) test(windows);
  }
}

}  // namespace

TEST_CASE("late writes after a cancel land nowhere, with windows and without") {
  in_both_modes([](bool windows) {
    LateWrites late(windows);
    late.take_back(3);  // the sender hears of it, and can't stop what its device has
    late.check_how();
    late.give_away();
    late.let_go();
    late.check_untouched();
  });
}

TEST_CASE("late writes after a timeout land nowhere, with windows and without") {
  in_both_modes([](bool windows) {
    LateWrites late(windows);
    late.take_back(2);  // the sender's process is stopped
    late.check_how();
    late.give_away();
    late.let_go();
    late.check_untouched();
  });
}

TEST_CASE("late writes of a peer's old life land nowhere after its restart, with windows and without") {
  in_both_modes([](bool windows) {
    LateWrites late(windows);
    late.sides.kill(0);
    late.take_back(2);
    late.give_away();
    REQUIRE(late.sides.until([&] { return late.sides.count(1, EventKind::lane_down) == 1; }, 2));
    late.sides.restart(0);
    REQUIRE(late.sides.at(0)
                .register_memory(late.stream.from.data(), late.stream.from.size(), -1)
                .ok());
    static_cast<void>(late.sides.connect());
    late.shim.hold_writes = false;
    // Without windows an honest peer is safe: its old queue pairs are gone, and nothing else knows
    // the keys. With them, its next life can't use what the old one was told, should it try.
    ibv_qp* const next_life = *(late.shim.pairs.end() - 3);
    late.shim.release_writes(windows ? next_life : nullptr);
    REQUIRE(late.sides.until([&] {
      return late.shim.held() == 0 && (!windows || late.sides.count(1, EventKind::lane_down) == 2);
    }));
    late.check_untouched();
  });
}

TEST_CASE("late writes after a suspension land in no other's memory, with windows and without") {
  in_both_modes([](bool windows) {
    LateWrites late(windows);
    late.take_back(3);
    late.check_how();
    late.give_away();
    // The lease shrinks to its first half; the rest is another's.
    PayloadBuilder half;
    half.add(late.stream.to.data(), late.stream.to.size() / 2);
    const Payload sink = half.payload();
    late.sides.at(1).expose({kLease.slot, kLease.generation + 1}, 11, sink);
    late.let_go();
    late.check_untouched(late.stream.to.size() / 2);
    if (windows) late.check_untouched();  // keys of the old lease open nothing of the new one
  });
}

TEST_CASE("a peer that says it has released and writes on is stopped by its key, and loses the lane") {
  if (!has_windows()) return;
  for (const bool critical : {false, true}) {
    CAPTURE(critical);
    VerbsShim& shim = VerbsShim::get();
    shim.reset();
    TwoSides sides;
    Stream stream(sides, kChunk);
    const auto lanes = sides.connect();
    sides.at(1).expose(kLease, 11, stream.sink);
    shim.hold_writes = shim.pretend_writes = true;
    ChunkPost post;
    post.lease = kLease;
    post.source = &stream.source;
    post.bytes = kChunk;
    post.critical = critical;
    REQUIRE(sides.at(0).try_post_chunk(lanes[0], post));
    REQUIRE(sides.until([&] { return shim.held() == 1; }));
    sides.at(1).withdraw(kLease);
    REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
    CHECK(sides.at(1).counters().withdraws_revoked == 0);
    CHECK(sides.count(1, EventKind::lane_down) == 0);
    std::fill(stream.to.begin(), stream.to.end(), kOther);
    shim.hold_writes = shim.pretend_writes = false;
    shim.release_writes();
    REQUIRE(sides.until([&] {
      return sides.count(0, EventKind::lane_down) == 1 && sides.count(1, EventKind::lane_down) == 1;
    }));
    CHECK(std::all_of(stream.to.begin(), stream.to.end(), [](std::byte b) { return b == kOther; }));
    CHECK(sides.count(0, EventKind::chunk_done) == 1);
    shim.reset();
  }
}

TEST_CASE("windows go round: many leases leave no window behind, nor does a lane that ends with some") {
  if (!has_windows()) return;
  VerbsShim& shim = VerbsShim::get();
  shim.reset();
  const int before = shim.live.windows;
  {
    TwoSides sides;
    Stream stream(sides, 16 * kChunk);
    auto lanes = sides.connect();
    const int rounds = by_mode(20, 60, 600);
    for (int round = 0; round < rounds; ++round) {
      const LeaseId lease{static_cast<std::uint32_t>(round % 7), static_cast<std::uint32_t>(round)};
      const std::size_t done = sides.count(0, EventKind::chunk_done);
      const std::size_t back = sides.count(1, EventKind::lease_withdrawn);
      sides.at(1).expose(lease, 11, stream.sink);
      ChunkPost post;
      post.lease = lease;
      post.source = &stream.source;
      post.offset = static_cast<std::uint64_t>(round % 16) * kChunk;
      post.bytes = kChunk;
      post.critical = round % 2 == 1;
      REQUIRE(sides.at(0).try_post_chunk(lanes[0], post));
      REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) > done; }));
      CHECK(sides.last(0, EventKind::chunk_done).status.ok());
      if (round % 10 == 9) {  // with the lease's windows bound
        const std::size_t downs = sides.count(1, EventKind::lane_down);
        sides.at(0).close_lane(lanes[0]);
        REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) > downs; }));
      }
      sides.at(1).withdraw(lease);
      REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) > back; }));
      if (round % 10 == 9) lanes = sides.connect();
    }
    CHECK(sides.at(1).counters().leases_in_windows == static_cast<std::uint64_t>(rounds));
    CHECK(shim.live.windows - before <= 4);  // two queue pairs, one range, one lease at a time
    CHECK(std::memcmp(stream.from.data(), stream.to.data(), stream.to.size()) == 0);
  }
  CHECK(shim.live.windows == before);
}

TEST_CASE("where windows can't be had, or a lease has too many ranges, plain keys do") {
  VerbsShim& shim = VerbsShim::get();
  for (const int why : {0, 1, 2}) {
    CAPTURE(why);
    shim.reset();
    shim.no_windows = why == 0;
    shim.fail_windows = why == 1;
    TwoSides sides;
    Stream stream(sides, 17 * kChunk);
    std::vector<std::byte> apart(std::size_t{34} * kChunk);
    REQUIRE(sides.at(1).register_memory(apart.data(), apart.size(), -1).ok());
    PayloadBuilder pieces;
    for (std::size_t i = 0; i < 17; ++i) pieces.add(apart.data() + 2 * i * kChunk, kChunk);
    const Payload many = pieces.payload();
    const auto lanes = sides.connect();
    sides.at(1).expose(kLease, 11, why == 2 ? many : stream.sink);
    std::uint64_t posted = 0;
    REQUIRE(sides.until([&] {
      ChunkPost post;
      post.lease = kLease;
      post.source = &stream.source;
      post.offset = posted * kChunk;
      post.bytes = kChunk;
      if (posted < 17 && sides.at(0).try_post_chunk(lanes[0], post)) ++posted;
      return sides.count(0, EventKind::chunk_done) == 17;
    }));
    CHECK(sides.last(0, EventKind::chunk_done).status.ok());
    CHECK(sides.at(1).counters().leases_in_windows == 0);
    sides.at(1).withdraw(kLease);
    REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
    shim.reset();
  }
}

}  // namespace kvrail::test
