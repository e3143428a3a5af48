#include "tests/conformance/harness.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"

namespace kvrail::test {

using namespace kvrail::transport;

namespace {

constexpr TimeNs kPatienceNs = 20 * kSecondNs;

}  // namespace

void World::wait(TimeNs most_ns) {
  std::array<pollfd, 2> fds{};
  nfds_t count = 0;
  for (int which = 0; which < 2; ++which) {
    Transport* one = side(which);
    if (one == nullptr) continue;
    if (!one->arm()) return;
    const TimeNs deadline = one->next_deadline_ns();
    if (deadline != Transport::kNoDeadline) {
      most_ns = std::min(most_ns, std::max<TimeNs>(0, deadline - now_ns()));
    }
    fds[count++] = pollfd{one->wait_fd(), POLLIN, 0};
  }
  const timespec timeout{most_ns / kSecondNs, most_ns % kSecondNs};
  static_cast<void>(::ppoll(fds.data(), count, &timeout, nullptr));
}

std::vector<Factory> factories() {
  std::vector<Factory> all{
      {"sim", make_sim_world},
#ifdef KVRAIL_TEST_SHM
      {"shm", make_shm_world},
#endif
#ifdef KVRAIL_TEST_TCP
      {"tcp-io_uring", make_tcp_uring_world},
      {"tcp-epoll", make_tcp_epoll_world},
#endif
      {"verbs", make_verbs_world},
      {"verbs-send", make_verbs_send_world},
  };
  if (const char* only = std::getenv("KVRAIL_CONFORMANCE"); only != nullptr) {
    std::erase_if(all, [only](const Factory& one) { return std::strcmp(one.name, only) != 0; });
  }
  return all;
}

void for_each_transport(const std::function<void(Pair&)>& f) {
  const std::vector<Factory> all = factories();
  REQUIRE_FALSE(all.empty());
  for (const Factory& one : all) {
    INFO("transport " << one.name);
    std::unique_ptr<World> world = one.make();
    if (world == nullptr) {
      if (all.size() == 1) std::exit(77);  // a skip of the whole test, the reason is printed
      continue;
    }
    Pair pair(std::move(world));
    f(pair);
  }
}

SharedMemory::SharedMemory(std::size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096) {
  fd_ = ::memfd_create("kvrail-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(fd_ >= 0);
  REQUIRE(::ftruncate(fd_, static_cast<off_t>(bytes_)) == 0);
  REQUIRE(::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  REQUIRE(mapped != MAP_FAILED);
  base_ = static_cast<std::byte*>(mapped);
}
SharedMemory::~SharedMemory() {
  ::munmap(base_, bytes_);
  ::close(fd_);
}

std::size_t Pair::poll_side(int side, std::size_t max) {
  Transport* one = world->side(side);
  if (one == nullptr) return 0;
  std::array<Event, 64> events;
  std::size_t got = 0;
  {
    const NoAllocScope scope;
    got = one->poll(world->now_ns(), std::span(events).first(std::min(max, events.size())));
  }
  for (const Event& event : std::span(events).first(got)) {
    Seen seen{event, {event.bytes.begin(), event.bytes.end()}};
    seen.event.bytes = {};
    log[static_cast<std::size_t>(side)].push_back(std::move(seen));
  }
  return got;
}

std::size_t Pair::poll_once(std::size_t max) {
  return poll_side(0, max) + poll_side(1, max);
}

bool Pair::run_until(const std::function<bool()>& done) {
  const TimeNs give_up = world->now_ns() + kPatienceNs;
  for (;;) {
    const std::size_t events = poll_once();
    if (done()) return true;
    const TimeNs left = give_up - world->now_ns();
    if (left <= 0) return false;
    if (events == 0) world->wait(left);
  }
}

std::size_t Pair::count(int side, EventKind kind) const {
  const auto& seen = log[static_cast<std::size_t>(side)];
  return static_cast<std::size_t>(std::count_if(
      seen.begin(), seen.end(), [kind](const Seen& s) { return s.event.kind == kind; }));
}

const Seen* Pair::find(int side, EventKind kind, std::size_t nth) const {
  for (const Seen& seen : log[static_cast<std::size_t>(side)]) {
    if (seen.event.kind == kind && nth-- == 0) return &seen;
  }
  return nullptr;
}

Pair::Lanes Pair::connect(int from, std::uint64_t cookie) {
  const int to = 1 - from;
  const std::size_t ups_from = count(from, EventKind::lane_up);
  const std::size_t ups_to = count(to, EventKind::lane_up);
  const Result<LaneId> opened = at(from).open_lane(world->address(to), cookie);
  REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
  REQUIRE(run_until([&] {
    return count(from, EventKind::lane_up) > ups_from && count(to, EventKind::lane_up) > ups_to;
  }));
  Lanes lanes;
  lanes.id[static_cast<std::size_t>(from)] = find(from, EventKind::lane_up, ups_from)->event.lane;
  lanes.id[static_cast<std::size_t>(to)] = find(to, EventKind::lane_up, ups_to)->event.lane;
  REQUIRE(lanes.id[static_cast<std::size_t>(from)] == *opened);
  return lanes;
}

bool Pair::post_frame(int side, LaneId lane, std::span<const std::byte> bytes) {
  const NoAllocScope scope;
  return at(side).try_post_frame(lane, bytes);
}

bool Pair::post_chunk(int side, LaneId lane, const ChunkPost& post) {
  const NoAllocScope scope;
  return at(side).try_post_chunk(lane, post);
}

std::uint64_t Pair::post_all(int side, LaneId lane, LeaseId lease, const Payload& source,
                             std::uint32_t chunk_bytes, bool critical) {
  std::uint64_t chunks = 0;
  for (std::uint64_t offset = 0; offset < source.total_bytes; ++chunks) {
    ChunkPost post;
    post.lease = lease;
    post.transfer = 5;
    post.source = &source;
    post.offset = offset;
    post.bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(chunk_bytes, source.total_bytes - offset));
    post.bytes = test::clip_to_units(source, offset, post.bytes, 1024);
    post.critical = critical;
    post.cookie = chunks;
    REQUIRE(run_until([&] { return post_chunk(side, lane, post); }));
    offset += post.bytes;
  }
  return chunks;
}

void fill_pattern(std::span<std::byte> out, std::uint64_t seed) {
  Prng prng(seed);
  std::size_t at = 0;
  for (; at + 8 <= out.size(); at += 8) {
    const std::uint64_t word = prng.next_u64();
    std::memcpy(out.data() + at, &word, 8);
  }
  for (; at < out.size(); ++at) out[at] = static_cast<std::byte>(prng.next_u64());
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> out(bytes);
  fill_pattern(out, seed);
  return out;
}

}  // namespace kvrail::test
