// Lanes: opening, identities, closing, loss and reopening.
#include <doctest/doctest.h>

#include "tests/conformance/harness.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::test;

TEST_CASE("lane_up tells both sides who the other is") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect(0, 77);
    const Event& dialer = pair.find(0, EventKind::lane_up)->event;
    CHECK(dialer.peer == World::node(1));
    CHECK(dialer.incarnation == pair.world->incarnation(1));
    CHECK(dialer.cookie == 77);
    const Event& listener = pair.find(1, EventKind::lane_up)->event;
    CHECK(listener.peer == World::node(0));
    CHECK(listener.incarnation == pair.world->incarnation(0));
    CHECK(listener.cookie == 0);
    CHECK(lanes.id[0].valid());
    CHECK(lanes.id[1].valid());
  });
}

TEST_CASE("caps are filled in and sane") {
  for_each_transport([](Pair& pair) {
    const Caps& caps = pair.at(0).caps();
    CHECK_FALSE(caps.name.empty());
    CHECK(caps.max_frame_bytes >= 32 * 1024);
    CHECK(caps.max_chunk_bytes >= 256 * 1024);
    CHECK(caps.max_leases >= 64);
    CHECK(caps.max_chunks_in_flight >= 4);
  });
}

TEST_CASE("nobody there: one lane_down with the cookie; nonsense: refused at once") {
  for_each_transport([](Pair& pair) {
    const auto opened = pair.at(0).open_lane(pair.world->dead_address(), 5);
    REQUIRE(opened.ok());
    std::array<std::byte, 1> byte{};
    CHECK_FALSE(pair.post_frame(0, *opened, byte));
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::lane_down) == 1; }));
    const Event& down = pair.find(0, EventKind::lane_down)->event;
    CHECK(down.cookie == 5);
    CHECK(down.lane == *opened);
    CHECK(down.status.code == Code::unreachable);
    CHECK(pair.count(0, EventKind::lane_up) == 0);
    for (const char* nonsense : {"", ":", "?", "nowhere at all"}) {
      const auto refused = pair.at(0).open_lane(nonsense, 6);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.status().code == Code::invalid_argument);
      CHECK_FALSE(refused.error().message.empty());
    }
  });
}

TEST_CASE("close: own side cancelled, other side lane_lost, then the id is dead") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    pair.at(0).close_lane(lanes.id[0]);
    std::array<std::byte, 1> byte{};
    CHECK_FALSE(pair.post_frame(0, lanes.id[0], byte));
    REQUIRE(pair.run_until([&] {
      return pair.count(0, EventKind::lane_down) == 1 && pair.count(1, EventKind::lane_down) == 1;
    }));
    CHECK(pair.find(0, EventKind::lane_down)->event.status.code == Code::cancelled);
    CHECK(pair.find(1, EventKind::lane_down)->event.status.code == Code::lane_lost);
    for (const int side : {0, 1}) {
      const LaneId id = lanes.id[static_cast<std::size_t>(side)];
      CHECK(pair.find(side, EventKind::lane_down)->event.lane == id);
      CHECK_FALSE(pair.post_frame(side, id, byte));
      pair.at(side).close_lane(id);  // harmless
      CHECK(pair.at(side).stats(id).frames_sent == 0);
    }
    for (int i = 0; i < 10; ++i) pair.poll_once();
    CHECK(pair.count(0, EventKind::lane_down) == 1);
    CHECK(pair.count(1, EventKind::lane_down) == 1);
  });
}

TEST_CASE("a lane that is closed while it opens ends once") {
  for_each_transport([](Pair& pair) {
    const auto opened = pair.at(0).open_lane(pair.world->address(1), 9);
    REQUIRE(opened.ok());
    pair.at(0).close_lane(*opened);
    REQUIRE(pair.run_until([&] {
      return pair.count(0, EventKind::lane_down) == 1 &&
             pair.count(1, EventKind::lane_up) == pair.count(1, EventKind::lane_down);
    }));
    CHECK(pair.find(0, EventKind::lane_down)->event.cookie == 9);
    CHECK(pair.count(0, EventKind::lane_up) == 0);
    // The transport is as good as new.
    static_cast<void>(pair.connect());
  });
}

TEST_CASE("two lanes to one peer are independent") {
  for_each_transport([](Pair& pair) {
    const auto first = pair.connect(0, 1);
    const auto second = pair.connect(1, 2);  // dialled from the other side
    CHECK(first.id[0] != second.id[0]);
    CHECK(first.id[1] != second.id[1]);
    pair.at(0).close_lane(first.id[0]);
    REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lane_down) == 1; }));
    CHECK(pair.find(1, EventKind::lane_down)->event.lane == first.id[1]);
    const auto bytes = pattern(100, 1);
    REQUIRE(pair.post_frame(0, second.id[0], bytes));
    REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::frame) == 1; }));
    CHECK(pair.find(1, EventKind::frame)->event.lane == second.id[1]);
    CHECK(pair.find(1, EventKind::frame)->bytes == bytes);
  });
}

TEST_CASE("a peer that dies takes its lanes down; restarted, it is reached as a new incarnation") {
  for_each_transport([](Pair& pair) {
    for (int life = 0; life < 3; ++life) {
      static_cast<void>(pair.connect(0, 50));
      CHECK(pair.find(0, EventKind::lane_up, static_cast<std::size_t>(life))->event.incarnation ==
            pair.world->incarnation(1));
      pair.world->kill(1);
      REQUIRE(pair.run_until([&] {
        return pair.count(0, EventKind::lane_down) == static_cast<std::size_t>(life) + 1;
      }));
      CHECK(pair.find(0, EventKind::lane_down, static_cast<std::size_t>(life))->event.status.code ==
            Code::lane_lost);
      pair.world->restart(1);
    }
  });
}

TEST_CASE("lanes come and go many times without running out of anything") {
  for_each_transport([](Pair& pair) {
    const auto bytes = pattern(10, 3);
    for (std::size_t i = 0; i < 100; ++i) {
      const auto lanes = pair.connect(static_cast<int>(i % 2));
      const auto side = static_cast<int>((i / 2) % 2);
      REQUIRE(pair.post_frame(1 - side, lanes.id[static_cast<std::size_t>(1 - side)], bytes));
      REQUIRE(pair.run_until([&] { return pair.count(side, EventKind::frame) != 0; }));
      pair.at(side).close_lane(lanes.id[static_cast<std::size_t>(side)]);
      REQUIRE(pair.run_until([&] {
        return pair.count(0, EventKind::lane_down) == 1 && pair.count(1, EventKind::lane_down) == 1;
      }));
      pair.log[0].clear();
      pair.log[1].clear();
    }
  });
}

TEST_CASE("unused: made and destroyed, or destroyed while connecting") {
  for_each_transport([](Pair& pair) {
    pair.world->kill(0);
    pair.world->kill(1);
    pair.world->restart(0);
    pair.world->restart(1);
    const auto opened = pair.at(0).open_lane(pair.world->address(1), 1);
    REQUIRE(opened.ok());
    pair.world->kill(0);
    REQUIRE(pair.run_until(
        [&] { return pair.count(1, EventKind::lane_up) == pair.count(1, EventKind::lane_down); }));
  });
}
