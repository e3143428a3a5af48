// Lanes as wholes: closing, coming back, waking a parked node.
#include <atomic>
#include <thread>

#include "tests/unit/transport_tcp/node.h"

namespace kvrail::test {
namespace {

TEST_CASE("close_lane ends every chunk as cancelled, then the lane, on the other side as lost") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    Transfer transfer({4 << 20}, 3);
    pair.listener->expose({0, 1}, 1, transfer.sink_view);
    Sender sender(pair.dialler, pair.here, transfer, {0, 1}, 65536, false);
    sender.post_more();
    const std::size_t posted = sender.posted;
    pair.dialler.step();
    pair.dialler->close_lane(pair.here);
    CHECK_FALSE(pair.dialler.post_frame(pair.here, "too late"));
    pair.run([&] {
      return pair.dialler.count(EventKind::lane_down) == 1 &&
             pair.listener.count(EventKind::lane_down) == 1;
    });
    CHECK(pair.dialler.count(EventKind::chunk_done) == posted);
    CHECK(pair.dialler.seen.back().kind == EventKind::lane_down);
    CHECK(pair.dialler.seen.back().status.code == Code::cancelled);
    CHECK(pair.listener.last(EventKind::lane_down)->status.code == Code::lane_lost);
    for (const Event& e : pair.dialler.seen) {
      if (e.kind == EventKind::chunk_done) {
        CHECK((e.status.ok() || e.status.code == Code::cancelled));
      }
    }
    pair.listener->withdraw({0, 1});
    pair.run([&] { return pair.listener.count(EventKind::lease_withdrawn) == 1; });
    pair.dialler->close_lane(pair.here);  // stale: nothing happens
    // The slots serve again.
    pair.dialler.seen.clear();
    pair.listener.seen.clear();
    pair.connect();
    CHECK(pair.dialler.post_frame(pair.here, "hello again"));
    pair.run([&] { return !pair.listener.frames.empty(); });
  }
}

TEST_CASE("lanes can be used up and come back") {
  for (const tcp::IoChoice io : kBackends) {
    Node dialler(options_for(1, io, false));
    Node listener(options_for(2, io, true));
    for (int round = 0; round < 5; ++round) {
      std::vector<LaneId> lanes;
      for (int i = 0; i < 4; ++i) {
        auto lane = dialler->open_lane(listener->listen_address(), 1);
        REQUIRE(lane.ok());
        lanes.push_back(*lane);
      }
      CHECK(dialler->open_lane(listener->listen_address(), 1).status().code ==
            Code::out_of_capacity);
      dialler.seen.clear();
      listener.seen.clear();
      run_until({&dialler, &listener}, [&] {
        return dialler.count(EventKind::lane_up) == 4 && listener.count(EventKind::lane_up) == 4;
      });
      for (const LaneId lane : lanes) dialler->close_lane(lane);
      run_until({&dialler, &listener}, [&] {
        return dialler.count(EventKind::lane_down) == 4 &&
               listener.count(EventKind::lane_down) == 4;
      });
    }
  }
}

// Parks until the node reports something. False: asleep although something must come.
bool await_events(Node& node) {
  while (node.step() == 0) {
    if (!node->arm()) continue;
    pollfd waiting{node->wait_fd(), POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(kPatienceNs / kMillisecondNs)) == 0) return false;
  }
  return true;
}

TEST_CASE("a parked node wakes for everything that arrives") {
  for (const tcp::IoChoice io : kBackends) {
    constexpr std::size_t kTrips = 3000;
    Node listener(options_for(2, io, true));
    Node dialler(options_for(1, io, false));
    // Both park whenever nothing is there; one lost wake-up leaves both asleep.
    std::atomic<bool> echo_ok{true};
    std::thread echo([&] {
      std::size_t answered = 0;
      while (answered < kTrips && echo_ok) {
        echo_ok = await_events(listener);
        while (answered < listener.frames.size()) {
          echo_ok = echo_ok && listener.post_frame(listener.frames[answered].lane, "pong");
          ++answered;
        }
      }
      listener.step();
    });
    auto lane = dialler->open_lane(listener->listen_address(), 1);
    bool ok = lane.ok();
    while (ok && dialler.count(EventKind::lane_up) == 0) ok = await_events(dialler);
    for (std::size_t i = 0; i < kTrips && ok; ++i) {
      ok = dialler.post_frame(*lane, "ping");
      while (ok && dialler.frames.size() <= i) ok = await_events(dialler);
    }
    if (!ok) echo_ok = false;
    echo.join();
    CHECK(ok);
    CHECK(echo_ok);
    CHECK(dialler.frames.size() == kTrips);
  }
}

}  // namespace
}  // namespace kvrail::test
