// Frames: whole, in order, with back-pressure, and no lost wake-up.
#include <doctest/doctest.h>

#include <cstring>

#include "kvrail/base/prng.h"
#include "tests/conformance/harness.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::test;

namespace {

// A frame that tells its number and its size, so that order and wholeness show.
std::vector<std::byte> numbered(std::uint64_t number, std::size_t size) {
  auto bytes = pattern(std::max<std::size_t>(size, 8), number);
  std::memcpy(bytes.data(), &number, 8);
  return bytes;
}

}  // namespace

TEST_CASE("frames of all sizes arrive whole and in order, both ways at once") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    Prng prng(5);
    std::array<std::vector<std::vector<std::byte>>, 2> sent;
    const std::size_t largest = pair.at(0).caps().max_frame_bytes;
    for (std::uint64_t i = 0; i < 200; ++i) {
      for (const int side : {0, 1}) {
        const std::size_t size = i % 50 == 0  ? largest
                                 : i % 3 == 0 ? 1 + prng.uniform(largest)
                                              : 1 + prng.uniform(300);
        auto frame = size < 8 ? pattern(size, i) : numbered(i, size);
        REQUIRE(pair.run_until([&] {
          return pair.post_frame(side, lanes.id[static_cast<std::size_t>(side)], frame);
        }));
        sent[static_cast<std::size_t>(side)].push_back(std::move(frame));
      }
    }
    REQUIRE(pair.run_until([&] {
      return pair.count(0, EventKind::frame) == 200 && pair.count(1, EventKind::frame) == 200;
    }));
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < 200; ++i) {
        const Seen* seen = pair.find(side, EventKind::frame, i);
        REQUIRE(seen->bytes == sent[static_cast<std::size_t>(1 - side)][i]);
        REQUIRE(seen->event.lane == lanes.id[static_cast<std::size_t>(side)]);
      }
      const LaneStats stats = pair.at(side).stats(lanes.id[static_cast<std::size_t>(side)]);
      CHECK(stats.frames_sent == 200);
      CHECK(stats.frames_received == 200);
      CHECK(stats.malformed == 0);
    }
  });
}

TEST_CASE("full is false: nothing is lost or doubled, and room comes back") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const std::size_t size = pair.at(0).caps().max_frame_bytes / 4;
    std::uint64_t posted = 0;
    // The receiver does not poll; a bound far above any sensible queue keeps this finite.
    while (posted < 100'000 && pair.post_frame(0, lanes.id[0], numbered(posted, size))) {
      ++posted;
      if (posted % 16 == 0) pair.poll_side(0);
    }
    CHECK(posted > 0);
    REQUIRE_MESSAGE(posted < 100'000, "a lane that never fills has no bound on its memory");
    std::uint64_t later = posted;
    REQUIRE(pair.run_until([&] {
      if (later < posted + 20 && pair.post_frame(0, lanes.id[0], numbered(later, size))) ++later;
      return later == posted + 20 && pair.count(1, EventKind::frame) == later;
    }));
    for (std::uint64_t i = 0; i < later; ++i) {
      REQUIRE(pair.find(1, EventKind::frame, 0)->bytes.size() == std::max<std::size_t>(size, 8));
    }
    std::uint64_t expected = 0;
    for (const Seen& seen : pair.log[1]) {
      if (seen.event.kind != EventKind::frame) continue;
      std::uint64_t number = 0;
      std::memcpy(&number, seen.bytes.data(), 8);
      REQUIRE(number == expected++);
    }
  });
}

TEST_CASE("small event spans: everything still comes, once and in order") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    for (std::uint64_t i = 0; i < 40; ++i) {
      REQUIRE(pair.run_until([&] { return pair.post_frame(0, lanes.id[0], numbered(i, 50)); }));
    }
    const TimeNs give_up = pair.world->now_ns() + 20 * kSecondNs;
    while (pair.count(1, EventKind::frame) < 40 && pair.world->now_ns() < give_up) {
      if (pair.poll_once(1) == 0) pair.world->wait(kSecondNs);
    }
    REQUIRE(pair.count(1, EventKind::frame) == 40);
    for (std::uint64_t i = 0; i < 40; ++i) {
      std::uint64_t number = 0;
      std::memcpy(&number, pair.find(1, EventKind::frame, i)->bytes.data(), 8);
      REQUIRE(number == i);
    }
  });
}

TEST_CASE("no lost wake-up: an armed side is woken by a frame, or arm() says there is work") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const auto frame = pattern(64, 1);
    for (std::size_t i = 0; i < 300; ++i) {
      // Quiet both ends, until side 1 can be parked.
      REQUIRE(pair.run_until([&] { return pair.at(1).arm(); }));
      REQUIRE(pair.post_frame(0, lanes.id[0], frame));
      const TimeNs give_up = pair.world->now_ns() + 20 * kSecondNs;
      bool woken = false;
      while (!woken && pair.world->now_ns() < give_up) {
        pair.poll_side(0);  // the sender goes on; the receiver only sleeps
        pollfd fd{pair.at(1).wait_fd(), POLLIN, 0};
        woken = ::poll(&fd, 1, 1) == 1;
        if (!woken && pair.world->is_virtual()) pair.world->wait(kMillisecondNs);
      }
      REQUIRE(woken);
      REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::frame) == i + 1; }));
    }
    // And with work waiting, arm() refuses.
    REQUIRE(pair.post_frame(0, lanes.id[0], frame));
    const TimeNs give_up = pair.world->now_ns() + 20 * kSecondNs;
    bool refused = false;
    while (!refused && pair.world->now_ns() < give_up) {
      pair.poll_side(0);
      refused = !pair.at(1).arm();
      if (!refused && pair.world->is_virtual()) pair.world->wait(kMillisecondNs);
      if (!refused) {
        pollfd fd{pair.at(1).wait_fd(), POLLIN, 0};
        refused = ::poll(&fd, 1, 1) == 1;
      }
    }
    CHECK(refused);
  });
}
