// What happens to chunks when a lane or a peer goes, and to a peer that breaks the rules.
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "kvrail/base/prng.h"
#include "tests/conformance/harness.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::test;

namespace {

constexpr LeaseId kLease{3, 9};
constexpr std::size_t kBytes = 4u << 20;

struct Stream {
  PayloadBuilder source;
  PayloadBuilder sink;
  Payload source_view;
  Payload sink_view;
};

void lay_out(Pair& pair, Stream& out, std::size_t sink_bytes = kBytes) {
  std::byte* from = pair.world->memory(0, kBytes);
  fill_pattern({from, kBytes}, 4);
  out.source.add(from, kBytes).with_digests();
  out.sink.add(pair.world->memory(1, kBytes), sink_bytes);
  out.source_view = out.source.payload();
  out.sink_view = out.sink.payload();
}

// Posts until `wanted` chunks are taken, or the lane will not take more. Each chunk is a whole unit:
// the classes are not in order with each other, so a unit must not be split between them.
std::uint64_t post_some(Pair& pair, LaneId lane, const Stream& stream, std::uint64_t wanted) {
  std::uint64_t posted = 0;
  while (posted < wanted && pair.post_chunk(0, lane,
                                            {kLease, 5, &stream.source_view, posted * 65'536,
                                             65'536, posted % 5 == 4, posted})) {
    ++posted;
  }
  return posted;
}

// Each cookie once, all before the lane's end; returns the codes seen.
std::set<Code> check_exactly_once(const Pair& pair, std::uint64_t posted) {
  std::set<std::uint64_t> cookies;
  std::set<Code> codes;
  bool down = false;
  std::size_t done = 0;
  for (const Seen& seen : pair.log[0]) {
    if (seen.event.kind == EventKind::lane_down) down = true;
    if (seen.event.kind != EventKind::chunk_done) continue;
    CHECK_FALSE(down);
    ++done;
    cookies.insert(seen.event.cookie);
    codes.insert(seen.event.status.code);
  }
  CHECK(down);
  CHECK(done == posted);
  CHECK(cookies.size() == posted);
  return codes;
}

}  // namespace

TEST_CASE("closing a lane ends its chunks as cancelled, each once, before lane_down") {
  for_each_transport([](Pair& pair) {
    for (std::uint64_t polls = 0; polls < 12; ++polls) {
      const auto lanes = pair.connect();
      Stream stream;
      lay_out(pair, stream);
      pair.at(1).expose(kLease, World::node(0), stream.sink_view);
      const std::uint64_t posted = post_some(pair, lanes.id[0], stream, 20);
      REQUIRE(posted > 0);
      for (std::uint64_t i = 0; i < polls; ++i) {
        pair.poll_once();
        if (pair.world->is_virtual()) pair.world->wait(kMillisecondNs);
      }
      pair.at(0).close_lane(lanes.id[0]);
      REQUIRE(pair.run_until([&] {
        return pair.count(0, EventKind::lane_down) == 1 && pair.count(1, EventKind::lane_down) == 1;
      }));
      for (const Code code : check_exactly_once(pair, posted)) {
        CHECK((code == Code::ok || code == Code::cancelled));
      }
      pair.at(1).withdraw(kLease);
      REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lease_withdrawn) == 1; }));
      pair.log[0].clear();
      pair.log[1].clear();
    }
  });
}

TEST_CASE("the peer dies: chunks end as lane_lost, each once, before lane_down") {
  for_each_transport([](Pair& pair) {
    for (std::uint64_t polls = 0; polls < 12; ++polls) {
      const auto lanes = pair.connect();
      Stream stream;
      lay_out(pair, stream);
      pair.at(1).expose(kLease, World::node(0), stream.sink_view);
      const std::uint64_t posted = post_some(pair, lanes.id[0], stream, 20);
      REQUIRE(posted > 0);
      for (std::uint64_t i = 0; i < polls; ++i) {
        pair.poll_once();
        if (pair.world->is_virtual()) pair.world->wait(kMillisecondNs);
      }
      pair.world->kill(1);
      REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::lane_down) == 1; }));
      for (const Code code : check_exactly_once(pair, posted)) {
        CHECK((code == Code::ok || code == Code::lane_lost));
      }
      pair.world->restart(1);
      pair.log[0].clear();
      pair.log[1].clear();
    }
  });
}

TEST_CASE("the sender dies amid a stream: the receiver's lease comes free, nothing later lands") {
  for_each_transport([](Pair& pair) {
    for (std::uint64_t polls = 0; polls < 8; ++polls) {
      const auto lanes = pair.connect();
      Stream stream;
      lay_out(pair, stream);
      pair.at(1).expose(kLease, World::node(0), stream.sink_view);
      static_cast<void>(post_some(pair, lanes.id[0], stream, 40));
      for (std::uint64_t i = 0; i < polls; ++i) {
        pair.poll_once();
        if (pair.world->is_virtual()) pair.world->wait(200 * kMicrosecondNs);
      }
      pair.world->kill(0);
      pair.at(1).withdraw(kLease);
      REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lease_withdrawn) == 1; }));
      std::byte* memory = stream.sink_view.pieces[0].address;
      std::memset(memory, 0x55, kBytes);
      REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lane_down) == 1; }));
      for (int i = 0; i < 20; ++i) pair.poll_once();
      CHECK(std::all_of(memory, memory + kBytes, [](std::byte b) { return b == std::byte{0x55}; }));
      pair.world->restart(0);
      pair.log[0].clear();
      pair.log[1].clear();
    }
  });
}

TEST_CASE("a chunk beyond the lease's end closes the lane, is counted, and writes nothing") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    Stream stream;
    lay_out(pair, stream, 65'535);  // one byte less than the first chunk
    pair.at(1).expose(kLease, World::node(0), stream.sink_view);
    const LaneStats before = pair.at(1).stats(lanes.id[1]);
    CHECK(before.malformed == 0);
    REQUIRE(post_some(pair, lanes.id[0], stream, 1) == 1);
    REQUIRE(pair.run_until([&] {
      return pair.count(0, EventKind::lane_down) == 1 && pair.count(1, EventKind::lane_down) == 1;
    }));
    CHECK(pair.find(1, EventKind::lane_down)->event.status.code == Code::protocol_error);
    CHECK(check_exactly_once(pair, 1) == std::set<Code>{Code::lane_lost});
    const std::byte* memory = stream.sink_view.pieces[0].address;
    CHECK(std::all_of(memory, memory + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    // Nothing else is harmed.
    pair.at(1).withdraw(kLease);
    static_cast<void>(pair.connect());
  });
}

TEST_CASE("frames that arrived before the peer died are still delivered") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const auto frame = pattern(500, 2);
    for (int i = 0; i < 5; ++i) REQUIRE(pair.post_frame(0, lanes.id[0], frame));
    REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::frame) == 5; }));
    pair.world->kill(0);
    REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lane_down) == 1; }));
    CHECK(pair.count(1, EventKind::frame) == 5);
  });
}
