// Faults and determinism of the simulated network; the contract itself is tests/conformance.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::transport::sim;

namespace {

struct Node {
  std::unique_ptr<SimTransport> transport;
  std::vector<Event> seen;
  LaneId lane;

  void poll(SimNetwork& network) {
    if (transport == nullptr) return;
    std::array<Event, 16> events;
    const std::size_t count = transport->poll(network.now_ns(), events);
    for (const Event& event : std::span(events).first(count)) {
      if (event.kind == EventKind::lane_up) lane = event.lane;
      seen.push_back(event);
    }
  }
  std::size_t count(EventKind kind) const {
    return static_cast<std::size_t>(
        std::count_if(seen.begin(), seen.end(), [kind](const Event& e) { return e.kind == kind; }));
  }
};

// Nodes 1 and 2 with a lane between them.
struct Rig {
  explicit Rig(std::uint64_t seed, LinkModel link = {}) : network({.seed = seed, .link = link}) {
    a.transport = network.add_node(1, 100);
    b.transport = network.add_node(2, 200);
    REQUIRE(a.transport->open_lane("sim:2", 1).ok());
    run_for(kMillisecondNs);
    REQUIRE(a.lane.valid());
    REQUIRE(b.lane.valid());
  }
  void run_for(TimeNs duration) {
    const TimeNs end = network.now_ns() + duration;
    while (network.now_ns() < end) {
      a.poll(network);
      b.poll(network);
      network.advance_to(std::min(end, network.next_event_ns()));
    }
    a.poll(network);
    b.poll(network);
  }
  bool frame(std::size_t size = 100) {
    return a.transport->try_post_frame(a.lane, std::vector<std::byte>(size));
  }

  SimNetwork network;
  Node a;
  Node b;
};

std::uint64_t trace_of(std::uint64_t seed) {
  LinkModel link;
  link.jitter_mean_ns = 100 * kMicrosecondNs;
  link.frame_drop = 0.1;
  link.chunk_flip = 0.1;
  Rig rig(seed, link);
  std::vector<std::byte> from(1 << 20);
  std::vector<std::byte> to(1 << 20);
  test::PayloadBuilder source;
  test::PayloadBuilder sink;
  source.add(from.data(), from.size()).with_digests();
  sink.add(to.data(), to.size());
  const Payload source_view = source.payload();
  rig.b.transport->expose({1, 1}, 1, sink.payload());
  Prng prng(seed);
  for (std::uint64_t i = 0; i < 32; ++i) {
    static_cast<void>(rig.frame(1 + prng.uniform(5000)));
    CHECK(rig.a.transport->try_post_chunk(
        rig.a.lane, {{1, 1}, 1, &source_view, i * 32'768, 32'768, prng.chance(0.3), i}));
    rig.run_for(static_cast<TimeNs>(prng.uniform(1'000'000)));
  }
  rig.run_for(kSecondNs);
  CHECK(rig.a.count(EventKind::chunk_done) == 32);
  return rig.network.trace_hash();
}

}  // namespace

TEST_CASE("one seed is one run, another seed another") {
  for (std::uint64_t seed = 1; seed < 30; ++seed) {
    const std::uint64_t trace = trace_of(seed);
    CHECK(trace == trace_of(seed));
    CHECK(trace != trace_of(seed + 100));
  }
}

TEST_CASE("rate and latency are what the link says") {
  LinkModel link;
  link.rate_bytes_per_s = 1'000'000;
  link.latency_ns = 5 * kMillisecondNs;
  Rig rig(1);
  rig.network.set_links(1, 2, link);
  const TimeNs start = rig.network.now_ns();
  REQUIRE(rig.frame(10'000));  // 10 ms on the wire
  while (rig.b.count(EventKind::frame) == 0) {
    rig.network.advance_to(rig.network.next_event_ns());
    rig.b.poll(rig.network);
  }
  CHECK(rig.network.now_ns() - start == 15 * kMillisecondNs);
}

TEST_CASE("bulk waits for its turn, critical traffic does not") {
  LinkModel link;
  link.rate_bytes_per_s = 10'000'000;
  Rig rig(2, link);
  std::vector<std::byte> memory(1 << 20);
  test::PayloadBuilder both;
  both.add(memory.data(), memory.size());
  const Payload view = both.payload();
  rig.b.transport->expose({1, 1}, 1, view);
  for (std::uint64_t i = 0; i < 16; ++i) {
    REQUIRE(rig.a.transport->try_post_chunk(rig.a.lane,
                                            {{1, 1}, 1, &view, i * 65'536, 65'536, false, i}));
  }
  REQUIRE(rig.a.transport->try_post_chunk(rig.a.lane, {{1, 1}, 1, &view, 0, 4'096, true, 99}));
  rig.run_for(kSecondNs);
  REQUIRE(rig.a.count(EventKind::chunk_done) == 17);
  const auto first = std::find_if(rig.a.seen.begin(), rig.a.seen.end(),
                                  [](const Event& e) { return e.kind == EventKind::chunk_done; });
  CHECK(first->cookie == 99);
  CHECK(rig.a.seen.back().completed_ns - rig.a.seen.back().posted_ns >= 100 * kMillisecondNs);
}

TEST_CASE("dropped frames: by chance and by filter") {
  LinkModel link;
  link.frame_drop = 0.5;
  Rig rig(3, link);
  for (int i = 0; i < 200; ++i) {
    REQUIRE(rig.frame(10));
    rig.run_for(kMillisecondNs);
  }
  CHECK(rig.b.count(EventKind::frame) > 60);
  CHECK(rig.b.count(EventKind::frame) < 140);
  Rig other(4);
  int calls = 0;
  other.network.set_frame_filter([&](NodeId from, NodeId to, std::span<const std::byte> frame) {
    CHECK(from == 1);
    CHECK(to == 2);
    CHECK(frame.size() == 10);
    return ++calls == 2;
  });
  for (int i = 0; i < 3; ++i) REQUIRE(other.frame(10));
  other.run_for(kMillisecondNs);
  CHECK(other.b.count(EventKind::frame) == 2);
}

TEST_CASE("a partition holds everything back and loses nothing; order stays") {
  Rig rig(5);
  rig.network.set_partitioned(1, 2, true);
  for (std::size_t i = 1; i <= 20; ++i) REQUIRE(rig.frame(i));
  rig.run_for(kSecondNs);
  CHECK(rig.b.count(EventKind::frame) == 0);
  const auto opened = rig.a.transport->open_lane("sim:2", 8);
  REQUIRE(opened.ok());
  rig.run_for(2 * kSecondNs);
  REQUIRE(rig.a.count(EventKind::lane_down) == 1);
  CHECK(rig.a.seen.back().status.code == Code::unreachable);
  rig.network.set_partitioned(1, 2, false);
  rig.run_for(kSecondNs);
  REQUIRE(rig.b.count(EventKind::frame) == 20);
  std::size_t next = 1;
  for (const Event& event : rig.b.seen) {
    if (event.kind == EventKind::frame) CHECK(event.bytes.size() == next++);
  }
}

TEST_CASE("a closed lane is not heard of through a partition, a lost one is") {
  Rig rig(6);
  rig.network.set_partitioned(1, 2, true);
  rig.a.transport->close_lane(rig.a.lane);
  rig.run_for(kSecondNs);
  CHECK(rig.a.count(EventKind::lane_down) == 1);
  CHECK(rig.b.count(EventKind::lane_down) == 0);
  rig.network.set_partitioned(1, 2, false);
  rig.run_for(kSecondNs);
  CHECK(rig.b.count(EventKind::lane_down) == 1);

  Rig lost(7);
  lost.network.lose_lanes(1, 2);
  lost.run_for(kMillisecondNs);
  CHECK(lost.a.seen.back().status.code == Code::lane_lost);
  CHECK(lost.b.seen.back().status.code == Code::lane_lost);
}

TEST_CASE("crash: the peer learns of it, or not when it is silent; a new life is reachable") {
  Rig rig(8);
  rig.network.crash(2);
  CHECK(rig.b.transport->dead());
  rig.run_for(kMillisecondNs);
  CHECK(rig.a.count(EventKind::lane_down) == 1);
  rig.b.transport = rig.network.add_node(2, 201);
  REQUIRE(rig.a.transport->open_lane("sim:2", 2).ok());
  rig.run_for(kMillisecondNs);
  CHECK(rig.a.seen.back().incarnation == 201);

  rig.network.crash(2, true);
  CHECK(rig.frame());
  rig.run_for(10 * kSecondNs);
  CHECK(rig.a.count(EventKind::lane_down) == 1);  // only the first life's
  rig.a.transport->close_lane(rig.a.lane);
  rig.run_for(kMillisecondNs);
  CHECK(rig.a.count(EventKind::lane_down) == 2);
}

TEST_CASE("a stuck node reports nothing until it goes on") {
  Rig rig(9);
  rig.network.set_stuck_until(2, rig.network.now_ns() + kSecondNs);
  REQUIRE(rig.frame());
  rig.run_for(kSecondNs / 2);
  CHECK(rig.b.count(EventKind::frame) == 0);
  rig.run_for(kSecondNs);
  CHECK(rig.b.count(EventKind::frame) == 1);
}

TEST_CASE("flipped bits are caught wherever they fall") {
  LinkModel link;
  link.chunk_flip = 1;
  Rig rig(10, link);
  std::vector<std::byte> from(100'000);
  std::vector<std::byte> to(100'000);
  test::PayloadBuilder source;
  test::PayloadBuilder sink;
  source.add(from.data(), from.size()).with_digests();
  sink.add(to.data(), to.size());
  const Payload view = source.payload();
  rig.b.transport->expose({1, 1}, 1, sink.payload());
  for (std::uint64_t i = 0; i < 100; ++i) {
    REQUIRE(rig.a.transport->try_post_chunk(rig.a.lane, {{1, 1}, 1, &view, 0, 100'000, false, i}));
    rig.run_for(10 * kMillisecondNs);
    CHECK(rig.a.seen.back().status.code == Code::corrupt);
    CHECK(rig.b.seen.back().status.code == Code::corrupt);
  }
}
