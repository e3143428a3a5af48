// Chunks: exact bytes for every shape of payload, digests, leases, overtaking.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "kvrail/base/prng.h"
#include "tests/conformance/harness.h"

using namespace kvrail;
using namespace kvrail::transport;
using namespace kvrail::test;

namespace {

constexpr LeaseId kLease{3, 9};

// Equal pieces on both sides, spread over each side's memory with gaps of different size.
struct Shape {
  const char* name;
  std::vector<std::uint64_t> pieces;
  std::size_t source_gap;
  std::size_t sink_gap;
  std::size_t misalign;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  all.push_back({"one huge piece", {3u << 20}, 0, 0, 0});
  all.push_back({"unaligned", {100'001, 77, 65'537, 1, 200'003}, 3, 5, 1});
  all.push_back({"many small pieces", std::vector<std::uint64_t>(3'000, 257), 64, 7, 0});
  all.push_back({"one byte", {1}, 0, 0, 3});
  all.push_back({"exact units", std::vector<std::uint64_t>(8, kDigestUnitBytes), 4096, 0, 0});
  return all;
}

struct Transferred {
  PayloadBuilder source;
  PayloadBuilder sink;
  Payload source_view;
  Payload sink_view;
  std::byte* source_memory = nullptr;
  std::byte* sink_memory = nullptr;
  std::size_t sink_bytes = 0;
};

std::size_t room(const Shape& shape, std::size_t gap) {
  std::size_t sum = shape.misalign + 64;
  for (const std::uint64_t piece : shape.pieces) sum += piece + gap;
  return sum;
}

// Fills in place: payload views point into the object's own builders.
void lay_out(Pair& pair, const Shape& shape, int sender, Transferred& out, bool digests = true) {
  out.source_memory = pair.world->memory(sender, room(shape, shape.source_gap));
  out.sink_bytes = room(shape, shape.sink_gap);
  out.sink_memory = pair.world->memory(1 - sender, out.sink_bytes);
  std::byte* from = out.source_memory + shape.misalign;
  std::byte* to = out.sink_memory + shape.misalign;
  std::uint64_t seed = 1;
  for (const std::uint64_t piece : shape.pieces) {
    fill_pattern({from, static_cast<std::size_t>(piece)}, ++seed);
    out.source.add(from, piece);
    out.sink.add(to, piece);
    from += piece + shape.source_gap;
    to += piece + shape.sink_gap;
  }
  if (digests) out.source.with_digests();
  out.source_view = out.source.payload();
  out.sink_view = out.sink.payload();
}

// The pieces hold the source's bytes, and the gaps between them nothing.
bool landed_exactly(const Transferred& t, const Shape& shape) {
  std::vector<std::byte> expected(t.sink_bytes);
  std::size_t at = shape.misalign;
  for (const Piece& piece : t.source_view.pieces) {
    std::memcpy(expected.data() + at, piece.address, piece.bytes);
    at += piece.bytes + shape.sink_gap;
  }
  return std::memcmp(expected.data(), t.sink_memory, expected.size()) == 0;
}

}  // namespace

TEST_CASE("chunks land exactly, whatever the pieces and the chunk size") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    std::uint32_t generation = 1;
    for (const Shape& shape : shapes()) {
      for (const std::uint32_t chunk_bytes : {4'096u, 65'536u, 99'991u, 262'144u}) {
        for (const bool digests : {true, false}) {
          INFO(shape.name << ", chunks of " << chunk_bytes << ", digests " << digests);
          Transferred t;
          lay_out(pair, shape, 0, t, digests);
          const LeaseId lease{3, ++generation};
          pair.at(1).expose(lease, World::node(0), t.sink_view);
          pair.log[0].clear();
          pair.log[1].clear();
          const std::uint64_t chunks =
              pair.post_all(0, lanes.id[0], lease, t.source_view, chunk_bytes);
          REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == chunks; }));
          REQUIRE(pair.count(1, EventKind::chunk_received) == chunks);
          std::uint64_t offset = 0;
          for (std::size_t i = 0; i < chunks; ++i) {
            const Event& done = pair.find(0, EventKind::chunk_done, i)->event;
            REQUIRE(done.status.ok());
            REQUIRE(done.cookie == i);
            REQUIRE(done.completed_ns >= done.posted_ns);
            const Event& received = pair.find(1, EventKind::chunk_received, i)->event;
            REQUIRE(received.status.ok());
            REQUIRE(received.lease == lease);
            REQUIRE(received.transfer == 5);
            REQUIRE(received.offset == offset);
            offset += received.length;
          }
          CHECK(offset == t.source_view.total_bytes);
          CHECK(landed_exactly(t, shape));
          pair.at(1).withdraw(lease);
          REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lease_withdrawn) == 1; }));
          CHECK(pair.find(1, EventKind::lease_withdrawn)->event.lease == lease);
        }
      }
    }
    CHECK(pair.at(1).stats(lanes.id[1]).digest_failures == 0);
  });
}

TEST_CASE("both directions at once, on one lane") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape shape{"two ways", {300'000, 300'000}, 11, 13, 0};
    std::array<Transferred, 2> ways;
    for (const int sender : {0, 1}) {
      lay_out(pair, shape, sender, ways[static_cast<std::size_t>(sender)]);
      pair.at(1 - sender)
          .expose(kLease, World::node(sender), ways[static_cast<std::size_t>(sender)].sink_view);
    }
    const std::uint64_t chunks = pair.post_all(0, lanes.id[0], kLease, ways[0].source_view, 40'000);
    REQUIRE(chunks == pair.post_all(1, lanes.id[1], kLease, ways[1].source_view, 40'000));
    REQUIRE(pair.run_until([&] {
      return pair.count(0, EventKind::chunk_done) == chunks &&
             pair.count(1, EventKind::chunk_done) == chunks;
    }));
    CHECK(landed_exactly(ways[0], shape));
    CHECK(landed_exactly(ways[1], shape));
  });
}

TEST_CASE("a write after the digests were taken is caught on both sides") {
  for_each_transport([](Pair& pair) {
    if (!pair.at(1).caps().verifies_digests) return;
    const auto lanes = pair.connect();
    const Shape shape{"flipped", {200'000, 90'000}, 1, 1, 0};
    Transferred t;
    lay_out(pair, shape, 0, t);
    t.source_memory[150'000] ^= std::byte{16};  // in the third unit
    pair.at(1).expose(kLease, World::node(0), t.sink_view);
    const std::uint64_t chunks =
        pair.post_all(0, lanes.id[0], kLease, t.source_view, kDigestUnitBytes);
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == chunks; }));
    std::size_t corrupt = 0;
    for (std::size_t i = 0; i < chunks; ++i) {
      const Event& done = pair.find(0, EventKind::chunk_done, i)->event;
      const Event& received = pair.find(1, EventKind::chunk_received, i)->event;
      CHECK(done.status.code == received.status.code);
      if (done.status.ok()) continue;
      ++corrupt;
      CHECK(done.status.code == Code::corrupt);
      CHECK(done.offset <= 150'000);
      CHECK(received.offset <= 150'000);
    }
    CHECK(corrupt == 1);
    CHECK(pair.at(1).stats(lanes.id[1]).digest_failures == 1);
    // The lane is fine: the same bytes, put right, go through.
    t.source_memory[150'000] ^= std::byte{16};
    pair.log[0].clear();
    static_cast<void>(pair.post_all(0, lanes.id[0], kLease, t.source_view, kDigestUnitBytes));
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == chunks; }));
    for (const Seen& seen : pair.log[0]) CHECK(seen.event.status.ok());
    CHECK(landed_exactly(t, shape));
  });
}

TEST_CASE("leases: unknown, old generation, of another peer, withdrawn: rejected, not written") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape shape{"lease", {50'000}, 0, 0, 0};
    Transferred t;
    lay_out(pair, shape, 0, t);
    const auto send = [&](LeaseId lease) {
      pair.log[0].clear();
      const std::uint64_t chunks = pair.post_all(0, lanes.id[0], lease, t.source_view, 20'000);
      REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == chunks; }));
      std::set<Code> codes;
      for (const Seen& seen : pair.log[0]) codes.insert(seen.event.status.code);
      return codes;
    };
    const std::set<Code> rejected{Code::rejected};
    CHECK(send(kLease) == rejected);
    pair.at(1).expose(kLease, World::node(0), t.sink_view);
    CHECK(send({kLease.slot, kLease.generation - 1}) == rejected);
    CHECK(send({kLease.slot, kLease.generation + 1}) == rejected);
    CHECK(send({kLease.slot + 1, kLease.generation}) == rejected);
    CHECK(pair.count(1, EventKind::chunk_received) == 0);
    CHECK(std::all_of(t.sink_memory, t.sink_memory + t.sink_bytes,
                      [](std::byte b) { return b == std::byte{0}; }));
    pair.at(1).withdraw(kLease);
    REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lease_withdrawn) == 1; }));
    CHECK(send(kLease) == rejected);
    pair.at(1).expose({kLease.slot, 30}, World::node(0) + 5, t.sink_view);
    CHECK(send({kLease.slot, 30}) == rejected);
    CHECK(pair.count(1, EventKind::chunk_received) == 0);
    pair.at(1).expose({kLease.slot + 1, 31}, World::node(0), t.sink_view);
    CHECK(send({kLease.slot + 1, 31}) == std::set<Code>{Code::ok});
    CHECK(landed_exactly(t, shape));
  });
}

TEST_CASE("withdraw amid a stream: after lease_withdrawn the memory is nobody's any more") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape shape{"withdrawn", {4u << 20}, 0, 0, 0};
    for (std::uint32_t round = 0; round < 8; ++round) {
      Transferred t;
      lay_out(pair, shape, 0, t);
      const LeaseId lease{kLease.slot, 100 + round};
      pair.at(1).expose(lease, World::node(0), t.sink_view);
      pair.log[0].clear();
      pair.log[1].clear();
      std::uint64_t posted = 0;
      std::uint64_t offset = 0;
      bool asked = false;
      bool quiet = false;
      REQUIRE(pair.run_until([&] {
        ChunkPost post{lease, 5, &t.source_view, offset, 65'536, false, posted};
        if (offset < t.source_view.total_bytes && pair.post_chunk(0, lanes.id[0], post)) {
          ++posted;
          offset += post.bytes;
        }
        if (!asked && pair.count(1, EventKind::chunk_received) > round) {
          pair.at(1).withdraw(lease);
          asked = true;
        }
        if (!quiet && pair.count(1, EventKind::lease_withdrawn) == 1) {
          std::memset(t.sink_memory, 0xEE, t.sink_bytes);
          quiet = true;
        }
        return offset == t.source_view.total_bytes &&
               pair.count(0, EventKind::chunk_done) == posted && quiet;
      }));
      CHECK(std::all_of(t.sink_memory, t.sink_memory + t.sink_bytes,
                        [](std::byte b) { return b == std::byte{0xEE}; }));
      CHECK(pair.count(1, EventKind::lease_withdrawn) == 1);
      std::size_t accepted = 0;
      for (const Seen& seen : pair.log[0]) accepted += seen.event.status.ok() ? 1 : 0;
      CHECK(accepted == pair.count(1, EventKind::chunk_received));
      CHECK(accepted < posted);
    }
  });
}

TEST_CASE("critical chunks overtake bulk that waits") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape bulk_shape{"bulk", {8u << 20}, 0, 0, 0};
    const Shape small_shape{"critical", {4'096}, 0, 0, 0};
    Transferred bulk;
    Transferred critical;
    lay_out(pair, bulk_shape, 0, bulk);
    lay_out(pair, small_shape, 0, critical);
    pair.at(1).expose({1, 1}, World::node(0), bulk.sink_view);
    pair.at(1).expose({2, 1}, World::node(0), critical.sink_view);
    // As much bulk as the lane takes while nobody receives.
    std::uint64_t posted = 0;
    while (
        posted < 128 &&
        pair.post_chunk(0, lanes.id[0],
                        {{1, 1}, 5, &bulk.source_view, posted * 65'536, 65'536, false, posted})) {
      ++posted;
    }
    REQUIRE(posted >= 4);
    REQUIRE(pair.run_until([&] {
      return pair.post_chunk(0, lanes.id[0],
                             {{2, 1}, 6, &critical.source_view, 0, 4'096, true, 1'000});
    }));
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == posted + 1; }));
    std::size_t bulk_after = 0;
    bool seen_critical = false;
    for (const Seen& seen : pair.log[1]) {
      if (seen.event.kind != EventKind::chunk_received) continue;
      if (seen.event.transfer == 6) {
        seen_critical = true;
        CHECK(seen.event.critical);
      } else if (seen_critical) {
        ++bulk_after;
      }
    }
    CHECK(seen_critical);
    CHECK(bulk_after >= 1);
    CHECK(landed_exactly(critical, small_shape));
    for (std::size_t i = 0; i <= posted; ++i) {
      const Event& done = pair.find(0, EventKind::chunk_done, i)->event;
      CHECK(done.status.ok());
      CHECK(done.critical == (done.cookie == 1'000));
    }
  });
}

TEST_CASE("a chunk lane that fills says so and takes more later") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape shape{"full", {1u << 20}, 0, 0, 0};
    Transferred t;
    lay_out(pair, shape, 0, t);
    pair.at(1).expose(kLease, World::node(0), t.sink_view);
    std::uint64_t posted = 0;
    while (posted < 100'000 && pair.post_chunk(0, lanes.id[0],
                                               {kLease, 5, &t.source_view, (posted % 256) * 4'096,
                                                4'096, false, posted})) {
      ++posted;
    }
    REQUIRE(posted < 100'000);
    CHECK(posted <= pair.at(0).caps().max_chunks_in_flight);
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == posted; }));
    CHECK(pair.post_chunk(0, lanes.id[0], {kLease, 5, &t.source_view, 0, 4'096, false, posted}));
    REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == posted + 1; }));
    std::set<std::uint64_t> cookies;
    for (const Seen& seen : pair.log[0]) {
      if (seen.event.kind == EventKind::chunk_done) cookies.insert(seen.event.cookie);
    }
    CHECK(cookies.size() == posted + 1);
  });
}

TEST_CASE(
    "memory that is registered twice, unregistered or never registered is sent all the same") {
  for_each_transport([](Pair& pair) {
    const auto lanes = pair.connect();
    const Shape shape{"registered", {120'000, 30'000}, 8, 8, 0};
    std::vector<std::byte> heap(200'000);
    fill_pattern(heap, 5);
    for (std::uint32_t step = 0; step < 4; ++step) {
      Transferred t;
      lay_out(pair, shape, 0, t);
      if (step == 1) {
        CHECK(pair.at(0).register_memory(t.source_memory, room(shape, shape.source_gap), -1).ok());
      }
      if (step == 2) pair.at(0).unregister_memory(t.source_memory);
      PayloadBuilder from_heap;
      if (step == 3) {
        // Half of it from memory that no transport was told of.
        from_heap.add(heap.data(), 120'000);
        from_heap.add(t.source_view.pieces[1].address, 30'000).with_digests();
        t.source_view = from_heap.payload();
      }
      const LeaseId lease{kLease.slot, 50 + step};
      pair.at(1).expose(lease, World::node(0), t.sink_view);
      pair.log[0].clear();
      pair.log[1].clear();
      const auto chunks = pair.post_all(0, lanes.id[0], lease, t.source_view, 40'000, step == 1);
      REQUIRE(pair.run_until([&] { return pair.count(0, EventKind::chunk_done) == chunks; }));
      CHECK(pair.count(1, EventKind::chunk_received) == chunks);
      for (const Seen& seen : pair.log[0]) CHECK(seen.event.status.ok());
      CHECK(landed_exactly(t, shape));
      pair.at(1).withdraw(lease);
      REQUIRE(pair.run_until([&] { return pair.count(1, EventKind::lease_withdrawn) == 1; }));
    }
  });
}
