// What a device or its driver may do wrong, by a shim below the transport: registrations that fail,
// completions that are lost, doubled or late, queues that overrun, ports and devices that go.
#include <cstring>
#include <set>

#include "tests/support/verbs_shim.h"
#include "tests/unit/transport_verbs/two_sides.h"

namespace kvrail::test {
namespace {

using namespace kvrail::transport;

constexpr std::uint64_t kChunks = 64;

// No fault outlives its test.
struct Faults {
  Faults() { shim.reset(); }
  ~Faults() { shim.reset(); }
  VerbsShim& shim = VerbsShim::get();
};

// Each chunk has one end; on a lane that was lost all of them before its own.
void check_one_end_each(const TwoSides& sides, std::size_t chunks) {
  std::set<std::uint64_t> cookies;
  std::size_t ends = 0;
  bool down = false;
  for (const Event& event : sides.log[0]) {
    down = down || event.kind == EventKind::lane_down;
    if (event.kind != EventKind::chunk_done) continue;
    CHECK_FALSE(down);
    ++ends;
    cookies.insert(event.cookie);
  }
  CHECK(ends == chunks);
  CHECK(cookies.size() == chunks);
}

// A whole stream over a new lane, exact; its lease comes back.
void check_works(TwoSides& sides, Stream& stream) {
  for (auto& log : sides.log) log.clear();
  std::fill(stream.to.begin(), stream.to.end(), std::byte{0});
  const auto lanes = sides.connect();
  sides.at(1).expose(kLease, 11, stream.sink);
  std::uint64_t posted = 0;
  REQUIRE(sides.until([&] {
    while (posted < kChunks && sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, posted)))
      ++posted;
    return sides.count(0, EventKind::chunk_done) == kChunks;
  }));
  for (const Event& event : sides.log[0]) CHECK(event.status.ok());
  CHECK(std::memcmp(stream.from.data(), stream.to.data(), stream.to.size()) == 0);
  sides.at(1).withdraw(kLease);
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
  sides.at(0).close_lane(lanes[0]);
  REQUIRE(sides.until([&] {
    return sides.count(0, EventKind::lane_down) == 1 && sides.count(1, EventKind::lane_down) == 1;
  }));
}

// Posts `chunks` and polls until some have arrived, so that the rest is under way.
std::array<LaneId, 2> under_way(TwoSides& sides, Stream& stream, std::uint64_t chunks) {
  const auto lanes = sides.connect();
  sides.at(1).expose(kLease, 11, stream.sink);
  for (std::uint64_t i = 0; i < chunks; ++i)
    REQUIRE(sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, i)));
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::chunk_received) >= 2; }));
  return lanes;
}

void withdraw_after_loss(TwoSides& sides) {
  sides.at(1).withdraw(kLease);
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
}

}  // namespace

TEST_CASE("a registration that fails at its n-th region undoes those before it, and can be repeated") {
  Faults faults;
  faults.shim.max_region_bytes = 1u << 20;
  TwoSides sides;
  std::vector<std::byte> memory(4u << 20);
  const auto before = faults.shim.live;
  for (std::uint32_t n = 1; n <= 4; ++n) {
    CAPTURE(n);
    faults.shim.fail_registration_at = n;
    const auto refused = sides.at(0).register_memory(memory.data(), memory.size(), -1);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.status().code == Code::limit);
    CHECK(faults.shim.live == before);
  }
  REQUIRE(sides.at(0).register_memory(memory.data(), memory.size(), -1).ok());
  CHECK(faults.shim.live.regions == before.regions + 4);
  sides.at(0).unregister_memory(memory.data());
  CHECK(faults.shim.live == before);
}

TEST_CASE("a registration that fails while a lane is made costs that lane, and nothing is left of it") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  const auto before = faults.shim.live;
  for (const std::uint32_t n : {1u, 2u}) {  // the dialler's, the listener's
    CAPTURE(n);
    for (auto& log : sides.log) log.clear();
    faults.shim.fail_registration_at = n;
    REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 7).ok());
    REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
    CHECK(sides.last(0, EventKind::lane_down).status.code ==
          (n == 1 ? Code::limit : Code::unreachable));
    CHECK(sides.count(1, EventKind::lane_up) == 0);
    CHECK(faults.shim.live.pairs == before.pairs);
  }
  check_works(sides, stream);
}

TEST_CASE("a sink that can't be registered: its chunks are rejected, its lease comes back") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  const auto lanes = sides.connect();
  sides.at(1).unregister_memory(stream.to.data());
  const auto before = faults.shim.live;
  faults.shim.fail_registration_at = 1;
  sides.at(1).expose(kLease, 11, stream.sink);
  CHECK(faults.shim.live == before);
  REQUIRE(sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, 0)));
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 1; }));
  CHECK(sides.last(0, EventKind::chunk_done).status.code == Code::rejected);
  withdraw_after_loss(sides);
  CHECK(sides.count(0, EventKind::lane_down) == 0);
}

TEST_CASE("a device with completion queues of 16 entries is refused in one sentence, without a leak") {
  Faults faults;
  const std::string host = device_address();
  const auto before = faults.shim.live;
  faults.shim.max_completions = 16;
  verbs::VerbsOptions options;
  options.node = options.incarnation = 1;
  options.listen_address = host + ":0";
  const auto made = verbs::VerbsTransport::create(options);
  REQUIRE_FALSE(made.ok());
  CHECK(made.status().code == Code::limit);
  CHECK(made.error().message.find("completion queue is too small") != std::string::npos);
  CHECK(faults.shim.live == before);
}

TEST_CASE("a completion queue of 16 entries that claims more overruns: its lanes end, it is made anew") {
  Faults faults;
  TwoSides sides([&](int which, verbs::VerbsOptions&) {
    faults.shim.small_queue_entries = which == 1 ? 16 : 0;
  });
  faults.shim.small_queue_entries = 0;
  Stream stream(sides, kChunks * kChunk);
  const auto lanes = sides.connect();
  // More messages than entries, and nobody takes them.
  const std::vector<std::byte> frame(100);
  for (int i = 0; i < 40; ++i) {
    REQUIRE(sides.at(0).try_post_frame(lanes[0], frame));
    static_cast<void>(sides.poll(0));
  }
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) == 1; }, 2));
  CHECK(sides.last(1, EventKind::lane_down).status.scope == Scope::device);
  CHECK(sides.at(1).counters().device_failures == 1);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
  CHECK(faults.shim.live.queues == 2);
  check_works(sides, stream);
}

TEST_CASE("a flush that never comes: chunks end once, buffers and leases come back") {
  Faults faults;
  // Nothing else tells of the loss: silence does, or retries that nobody answers.
  TwoSides sides([](int, verbs::VerbsOptions& options) {
    options.silent_after_ns = 2 * kSecondNs;
    options.ack_timeout = 14;
  });
  Stream stream(sides, kChunks * kChunk);
  // Of memory that nobody registered, so that buffers of the pool are under way too.
  std::vector<std::byte> unknown(stream.from);
  PayloadBuilder pieces;
  pieces.add(unknown.data(), unknown.size());
  const Payload source = pieces.payload();
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    for (auto& log : sides.log) log.clear();
    const auto lanes = sides.connect();
    const int pairs = faults.shim.live.pairs;
    sides.at(1).expose(kLease, 11, stream.sink);
    for (std::uint64_t i = 0; i < 32; ++i)
      REQUIRE(sides.at(0).try_post_chunk(lanes[0], chunk(source, i)));
    REQUIRE(sides.until([&] { return sides.count(1, EventKind::chunk_received) >= 2; }));
    faults.shim.swallow_flushes = true;
    REQUIRE(sides.at(round % 2).break_lane(lanes[static_cast<std::size_t>(round % 2)]));
    REQUIRE(sides.until([&] {
      return sides.count(0, EventKind::lane_down) == 1 && sides.count(1, EventKind::lane_down) == 1;
    }));
    check_one_end_each(sides, 32);
    withdraw_after_loss(sides);
    CHECK(faults.shim.live.pairs == pairs - 4);
    faults.shim.swallow_flushes = false;
  }
  CHECK(faults.shim.swallowed > 0);
  check_works(sides, stream);
}

TEST_CASE("completions that are told of twice, or three times: no buffer is used twice, none is lost") {
  for (const std::uint32_t copies : {1u, 2u}) {
    CAPTURE(copies);
    Faults faults;
    TwoSides sides;
    Stream stream(sides, kChunks * kChunk);
    faults.shim.copies = copies;
    check_works(sides, stream);
    CHECK(sides.at(0).counters().stale_completions > 0);
    CHECK(sides.at(1).counters().stale_completions > 0);
    CHECK(sides.at(0).counters().failed_completions == 0);
    CHECK(sides.at(1).counters().frames.total() == 0);
  }
}

TEST_CASE("completions of a lane that is gone, told while the next one works: ignored, counted") {
  Faults faults;
  TwoSides sides([](int, verbs::VerbsOptions& options) { options.max_lanes = 1; });
  Stream stream(sides, kChunks * kChunk);
  faults.shim.keep_completions = true;
  check_works(sides, stream);
  faults.shim.keep_completions = false;
  const std::uint64_t before = sides.at(1).counters().stale_completions;
  for (auto& log : sides.log) log.clear();
  std::fill(stream.to.begin(), stream.to.end(), std::byte{0});
  const auto lanes = under_way(sides, stream, 32);  // in the same slot of the lane table
  faults.shim.replay();
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 32; }));
  check_one_end_each(sides, 32);
  CHECK(std::memcmp(stream.from.data(), stream.to.data(), std::size_t{32} * kChunk) == 0);
  CHECK(sides.at(1).counters().stale_completions > before);
  CHECK(sides.count(0, EventKind::lane_down) == 0);
  sides.at(0).close_lane(lanes[0]);
  withdraw_after_loss(sides);
}

TEST_CASE("completions of the same lane, told again much later: ignored, counted") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  faults.shim.keep_completions = true;
  const auto lanes = under_way(sides, stream, 16);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 16; }));
  faults.shim.keep_completions = false;
  faults.shim.replay();
  for (std::uint64_t i = 16; i < 32; ++i)
    REQUIRE(sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, i)));
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 32; }));
  check_one_end_each(sides, 32);
  CHECK(std::memcmp(stream.from.data(), stream.to.data(), std::size_t{32} * kChunk) == 0);
  CHECK(sides.at(0).counters().stale_completions > 0);
  CHECK(sides.at(1).counters().stale_completions > 0);
  withdraw_after_loss(sides);
  CHECK(sides.count(0, EventKind::lane_down) == 0);
}

TEST_CASE("a post that the device refuses ends the lane: chunks end once, the next lane works") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  const auto lanes = under_way(sides, stream, 32);
  faults.shim.fail_post = EIO;
  const std::vector<std::byte> frame(100);
  REQUIRE(sides.at(0).try_post_frame(lanes[0], frame));
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }, 1));
  faults.shim.fail_post = 0;
  check_one_end_each(sides, 32);
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) == 1; }));
  withdraw_after_loss(sides);
  check_works(sides, stream);
}

TEST_CASE("a port that goes down ends its lanes at once, another port's does not; then dialling works") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  static_cast<void>(under_way(sides, stream, 32));
  faults.shim.raise(IBV_EVENT_PORT_ERR, 2);
  REQUIRE(sides.until([&] { return sides.at(0).counters().ports_down == 1; }, 1));
  CHECK(sides.count(0, EventKind::lane_down) == 0);
  faults.shim.raise(IBV_EVENT_PORT_ERR, 1);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }, 1));
  CHECK(sides.last(0, EventKind::lane_down).status.scope == Scope::device);
  check_one_end_each(sides, 32);
  REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 8).ok());
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 2; }));
  CHECK(sides.last(0, EventKind::lane_down).status.detail == ENETDOWN);
  faults.shim.raise(IBV_EVENT_PORT_ACTIVE, 1);
  REQUIRE(sides.until([&] {
    return sides.count(1, EventKind::lane_down) == 1;  // the goodbye waited for the port
  }));
  withdraw_after_loss(sides);
  check_works(sides, stream);
}

TEST_CASE("a table of GIDs that changes ends only lanes whose own GID is gone") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  static_cast<void>(under_way(sides, stream, 16));
  faults.shim.raise(IBV_EVENT_GID_CHANGE);
  REQUIRE(sides.until([&] { return sides.at(0).counters().gid_changes == 1; }, 1));
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::chunk_done) == 16; }));
  CHECK(sides.count(0, EventKind::lane_down) == 0);
  faults.shim.no_gids = true;
  faults.shim.raise(IBV_EVENT_GID_CHANGE);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }, 1));
  check_one_end_each(sides, 16);
  faults.shim.no_gids = false;
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) == 1; }));
  withdraw_after_loss(sides);
  check_works(sides, stream);
}

TEST_CASE("a device that dies: its lanes end, dialling over it is refused and says so") {
  Faults faults;
  TwoSides sides;
  Stream stream(sides, kChunks * kChunk);
  static_cast<void>(under_way(sides, stream, 32));
  faults.shim.raise(IBV_EVENT_DEVICE_FATAL);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }, 1));
  check_one_end_each(sides, 32);
  CHECK(sides.at(0).counters().device_failures == 1);
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) == 1; }));
  withdraw_after_loss(sides);
  REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 8).ok());
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 2; }));
  CHECK(sides.last(0, EventKind::lane_down).status.code == Code::unreachable);
  CHECK(sides.last(0, EventKind::lane_down).status.scope == Scope::device);
}

}  // namespace kvrail::test
