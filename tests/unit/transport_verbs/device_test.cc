// What goes wrong on a real device: queue pairs that break, peers that stop, memory that can't be
// had, strangers. Run by scripts/test --verbs, in a guest where this machine has no device.
#include <linux/capability.h>
#include <rdma/rdma_cma.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "kvrail/base/prng.h"
#include "tests/support/mode.h"
#include "tests/unit/transport_verbs/two_sides.h"
#include "transport/socket_address.h"

namespace kvrail::test {
namespace {

using namespace kvrail::transport;


bool all_are(const std::vector<std::byte>& bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](std::byte byte) { return byte == value; });
}

}  // namespace

TEST_CASE(
    "a queue pair killed under load: no byte lost or doubled, and how long until the next chunk") {
  TwoSides sides;
  constexpr std::uint64_t kChunks = 512;
  Stream stream(sides, kChunks * kChunk);
  std::vector<TimeNs> outages;
  for (int round = 0; round < by_mode(2, 5, 50); ++round) {
    std::fill(stream.to.begin(), stream.to.end(), std::byte{0});
    for (auto& log : sides.log) log.clear();
    auto lanes = sides.connect();
    sides.at(1).expose(kLease, 11, stream.sink);
    std::set<std::uint64_t> missing;
    for (std::uint64_t i = 0; i < kChunks; ++i) missing.insert(i);
    std::uint64_t next = 0;
    std::size_t seen = 0;
    std::size_t received_before = 0;
    TimeNs broken_ns = 0;
    TimeNs again_ns = 0;
    const bool all = sides.until([&] {
      for (; seen < sides.log[0].size(); ++seen) {
        const Event& event = sides.log[0][seen];
        if (event.kind == EventKind::chunk_done && event.status.ok()) missing.erase(event.cookie);
        if (event.kind == EventKind::lane_down) {
          REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 8).ok());
          next = kChunks;  // nothing is posted until the new lane is up
        }
        if (event.kind == EventKind::lane_up && broken_ns != 0) {
          lanes[0] = event.lane;
          next = 0;
        }
      }
      for (; next < kChunks; ++next) {
        if (missing.contains(next) &&
            !sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, next)))
          break;
      }
      const std::size_t received = sides.count(1, EventKind::chunk_received);
      if (broken_ns == 0 && received >= 10) {
        received_before = received;
        REQUIRE(sides.at(round % 2).break_lane(lanes[static_cast<std::size_t>(round % 2)]));
        broken_ns = sides.now_ns();
      } else if (broken_ns != 0 && again_ns == 0 && received > received_before &&
                 sides.count(1, EventKind::lane_up) == 2) {
        again_ns = sides.now_ns();
      }
      return missing.empty();
    });
    REQUIRE(all);
    REQUIRE(broken_ns != 0);
    CHECK(std::memcmp(stream.from.data(), stream.to.data(), stream.to.size()) == 0);
    CHECK(sides.count(0, EventKind::lane_down) == 1);
    if (again_ns != 0) outages.push_back(again_ns - broken_ns);
    sides.at(1).withdraw(kLease);
    sides.at(0).close_lane(lanes[0]);
    REQUIRE(sides.until([&] {
      return sides.count(1, EventKind::lease_withdrawn) == 1 &&
             sides.count(1, EventKind::lane_down) == 2;
    }));
  }
  std::sort(outages.begin(), outages.end());
  if (!outages.empty()) {
    MESSAGE("killed queue pair to the next chunk: median "
            << outages[outages.size() / 2] / kMicrosecondNs << " us, longest "
            << outages.back() / kMicrosecondNs << " us");
  }
}

TEST_CASE(
    "a peer that stopped: its lease comes back only with the queue pairs gone, and no later write "
    "lands") {
  TwoSides sides([](int which, verbs::VerbsOptions& options) {
    options.windows = false;  // late_write_test.cc has both
    if (which == 1) options.withdraw_timeout_ns = 100 * kMillisecondNs;
  });
  Stream stream(sides, 16 * kChunk);
  const auto lanes = sides.connect();
  sides.at(1).expose(kLease, 11, stream.sink);
  for (std::uint64_t i = 0; i < 16; ++i)
    REQUIRE(sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, i)));
  // It has heard of the lease, and is stopped with its writes still to come.
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::chunk_received) >= 1; }));
  sides.at(1).withdraw(kLease);
  static_cast<void>(sides.poll(1));
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }, 2));
  CHECK(sides.count(1, EventKind::lane_down) == 1);
  CHECK(sides.at(1).counters().withdraws_enforced == 1);
  std::fill(stream.to.begin(), stream.to.end(), std::byte{0xEE});  // another owner's
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
  CHECK(sides.count(0, EventKind::chunk_done) == 16);  // each ended, once
  CHECK(all_are(stream.to, std::byte{0xEE}));
}

TEST_CASE(
    "restarts of either side at any point of a stream: a new life, a whole stream, no leases left") {
  TwoSides sides;
  constexpr std::uint64_t kChunks = 32;
  Stream stream(sides, kChunks * kChunk);
  Prng prng(11);
  for (int round = 0; round < by_mode(5, 20, 1000); ++round) {
    CAPTURE(round);
    const int dies = round % 2;
    for (const bool whole : {false, true}) {
      for (auto& log : sides.log) log.clear();
      std::fill(stream.to.begin(), stream.to.end(), std::byte{0});
      const auto lanes = sides.connect();
      sides.at(1).expose(kLease, 11, stream.sink);
      const std::uint64_t wanted = whole ? kChunks : prng.uniform(kChunks);
      std::uint64_t posted = 0;
      REQUIRE(sides.until([&] {
        while (posted < kChunks && sides.at(0).try_post_chunk(lanes[0], chunk(stream.source, posted)))
          ++posted;
        return sides.count(0, EventKind::chunk_done) >= wanted;
      }));
      if (whole) {
        CHECK(std::memcmp(stream.from.data(), stream.to.data(), stream.to.size()) == 0);
        sides.at(0).close_lane(lanes[0]);
      } else {
        sides.kill(dies);
      }
      REQUIRE(sides.until([&] {
        return (!whole && dies == 0) || sides.count(0, EventKind::lane_down) == 1;
      }));
      REQUIRE(sides.until([&] {
        return (!whole && dies == 1) || sides.count(1, EventKind::lane_down) == 1;
      }));
      if (whole || dies == 0) {
        sides.at(1).withdraw(kLease);
        REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
      }
      if (whole) continue;
      if (dies == 1) CHECK(sides.count(0, EventKind::chunk_done) == posted);  // each ended, once
      sides.restart(dies);
      std::vector<std::byte>& memory = dies == 0 ? stream.from : stream.to;
      REQUIRE(sides.at(dies).register_memory(memory.data(), memory.size(), -1).ok());
    }
  }
}

TEST_CASE("a peer that says nothing is noticed, also by a side that only receives") {
  TwoSides sides([](int which, verbs::VerbsOptions& options) {
    if (which == 1) options.silent_after_ns = 300 * kMillisecondNs;
  });
  static_cast<void>(sides.connect());
  const TimeNs stopped = sides.now_ns();
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lane_down) == 1; }, 2));
  CHECK(sides.now_ns() - stopped >= 200 * kMillisecondNs);
  CHECK(sides.at(1).counters().silent_lanes == 1);
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
}

TEST_CASE("idle lanes live on: each side says so itself") {
  TwoSides sides([](int, verbs::VerbsOptions& options) {
    options.keepalive_ns = 20 * kMillisecondNs;
    options.silent_after_ns = 500 * kMillisecondNs;
  });
  static_cast<void>(sides.connect());
  const TimeNs until = sides.now_ns() + 2 * kSecondNs;
  REQUIRE(sides.until([&] { return sides.now_ns() > until; }));
  CHECK(sides.count(0, EventKind::lane_down) == 0);
  CHECK(sides.count(1, EventKind::lane_down) == 0);
}

TEST_CASE(
    "whoever stood still for longer than the silence hears its peer first, and keeps the lane") {
  TwoSides sides([](int which, verbs::VerbsOptions& options) {
    options.keepalive_ns = 20 * kMillisecondNs;
    if (which == 1) options.silent_after_ns = 200 * kMillisecondNs;
  });
  static_cast<void>(sides.connect());
  const TimeNs until = sides.now_ns() + 600 * kMillisecondNs;
  REQUIRE(sides.until([&] { return sides.now_ns() > until; }, 1));
  static_cast<void>(sides.poll(1));
  CHECK(sides.count(1, EventKind::lane_down) == 0);
  CHECK(sides.at(1).counters().silent_lanes == 0);
}

TEST_CASE("eight receives and a slow receiver: the sender waits for credits, nothing is lost") {
  TwoSides sides([](int, verbs::VerbsOptions& options) { options.receive_slots = 8; });
  const auto lanes = sides.connect();
  std::vector<std::byte> frame(10'000);
  std::size_t posted = 0;
  REQUIRE(sides.until([&] {
    while (posted < 400 && sides.at(0).try_post_frame(lanes[0], frame)) ++posted;
    static_cast<void>(sides.poll(0));
    return sides.count(1, EventKind::frame) == 400;
  }));
  CHECK(sides.at(0).counters().failed_completions == 0);  // no "receiver not ready" among them
  CHECK(sides.at(1).counters().failed_completions == 0);
}

TEST_CASE(
    "a lease of very many segments is told in parts, one in memory that nobody registered is "
    "registered for once") {
  TwoSides sides;
  const auto lanes = sides.connect();
  std::vector<std::byte> from(1u << 20, std::byte{7});
  std::vector<std::byte> to(2u << 20);
  REQUIRE(sides.at(0).register_memory(from.data(), from.size(), -1).ok());
  PayloadBuilder source_pieces;
  PayloadBuilder sink_pieces;
  for (std::size_t i = 0; i < 8'192; ++i) {
    source_pieces.add(from.data() + i * 128, 128);
    sink_pieces.add(to.data() + i * 256, 128);
  }
  const Payload source = source_pieces.payload();
  const Payload sink = sink_pieces.payload();
  sides.at(1).expose(kLease, 11, sink);
  CHECK(sides.at(1).counters().leases_registered > 0);
  std::uint64_t posted = 0;
  REQUIRE(sides.until([&] {
    while (posted < 16 && sides.at(0).try_post_chunk(lanes[0], chunk(source, posted))) ++posted;
    return sides.count(0, EventKind::chunk_done) == 16;
  }));
  for (std::size_t i = 0; i < 8'192; ++i) {
    REQUIRE(to[i * 256] == std::byte{7});
    REQUIRE(to[i * 256 + 127] == std::byte{7});
    REQUIRE(to[i * 256 + 128] == std::byte{0});
  }
  sides.at(1).withdraw(kLease);
  REQUIRE(sides.until([&] { return sides.count(1, EventKind::lease_withdrawn) == 1; }));
}

TEST_CASE("another key, or none: refused on both sides, and counted") {
  for (const bool none : {false, true}) {
    TwoSides sides([none](int which, verbs::VerbsOptions& options) {
      if (which == 1 || !none)
        options.psk = Psk(std::vector<std::byte>(32, static_cast<std::byte>(which + 1)));
    });
    REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 7).ok());
    REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
    CHECK(sides.last(0, EventKind::lane_down).status.code == Code::authentication_failed);
    CHECK(sides.count(0, EventKind::lane_up) + sides.count(1, EventKind::lane_up) == 0);
    REQUIRE(sides.until([&] { return sides.at(1).counters().handshakes_failed == 1; }));
  }
}

TEST_CASE(
    "strangers that connect without a greeting are turned away, and more lanes than there are") {
  TwoSides sides([](int which, verbs::VerbsOptions& options) {
    if (which == 1) options.max_lanes = 1;
  });
  rdma_event_channel* const events = ::rdma_create_event_channel();
  REQUIRE(events != nullptr);
  rdma_cm_id* stranger = nullptr;
  REQUIRE(::rdma_create_id(events, &stranger, nullptr, RDMA_PS_TCP) == 0);
  auto to = parse_address(sides.at(1).listen_address());
  REQUIRE(to.ok());
  const auto next = [&](rdma_cm_event_type wanted) {
    rdma_cm_event* event = nullptr;
    REQUIRE(::rdma_get_cm_event(events, &event) == 0);
    CHECK(event->event == wanted);
    ::rdma_ack_cm_event(event);
  };
  REQUIRE(::rdma_resolve_addr(stranger, nullptr, to->get(), 1000) == 0);
  next(RDMA_CM_EVENT_ADDR_RESOLVED);
  REQUIRE(::rdma_resolve_route(stranger, 1000) == 0);
  next(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {1, 1, 1, 1, 0};
  REQUIRE(::rdma_create_qp(stranger, nullptr, &wanted) == 0);
  rdma_conn_param parameters{};
  REQUIRE(::rdma_connect(stranger, &parameters) == 0);
  REQUIRE(sides.until([&] { return sides.at(1).counters().handshakes_failed == 1; }, 2));
  next(RDMA_CM_EVENT_REJECTED);
  ::rdma_destroy_qp(stranger);
  ::rdma_destroy_id(stranger);
  ::rdma_destroy_event_channel(events);

  static_cast<void>(sides.connect());
  REQUIRE(sides.at(0).open_lane(sides.at(1).listen_address(), 9).ok());
  REQUIRE(sides.until([&] { return sides.count(0, EventKind::lane_down) == 1; }));
  CHECK(sides.last(0, EventKind::lane_down).status.code == Code::unreachable);
  CHECK(sides.at(1).counters().refused_lanes == 1);
}

TEST_CASE("too little lockable memory: the error names the limit and the remedy") {
  TwoSides sides;  // the device is there
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // As root without this the limit is not looked at.
    if (::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK) != 0) ::_exit(3);
    ::execl("/proc/self/exe", "device_test", "-tc=child of the memory limit", "-ns", nullptr);
    ::_exit(4);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("child of the memory limit" * doctest::skip()) {
  const rlimit small{64 * 1024, 64 * 1024};
  REQUIRE(::setrlimit(RLIMIT_MEMLOCK, &small) == 0);
  verbs::VerbsOptions options;
  options.node = options.incarnation = 1;
  auto made = verbs::VerbsTransport::create(options);
  if (!made.ok()) {
    CHECK(made.status().code == Code::limit);
    return;
  }
  std::vector<std::byte> memory(1u << 20);
  const auto registered = (*made)->register_memory(memory.data(), memory.size(), -1);
  REQUIRE_FALSE(registered.ok());
  CHECK(registered.status().code == Code::limit);
  CHECK(registered.error().message.find("ulimit -l") != std::string::npos);
  CHECK(registered.error().message.find("64 KiB") != std::string::npos);
}

}  // namespace kvrail::test
