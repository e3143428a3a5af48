// Rings of messages, chunks and digests; work request ids.
#include <doctest/doctest.h>

#include <cstring>
#include <deque>
#include <vector>

#include "kvrail/base/prng.h"
#include "transport/verbs/chunk_ring.h"
#include "transport/verbs/digest_ring.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/send_ring.h"

namespace kvrail::transport::verbs {

TEST_CASE("messages keep their bytes until they are released, whatever the order of sizes") {
  constexpr std::size_t kMemory = 128 * 1024;
  std::vector<std::byte> memory(kMemory);
  SendRing ring(64);
  ring.set_memory(memory);
  Prng prng(3);
  struct Written {
    std::span<std::byte> bytes;
    std::byte mark;
  };
  std::deque<std::vector<Written>> messages;  // by message, those not released
  std::uint64_t posted = 0;
  std::uint64_t released = 0;
  std::size_t waiting = 0;
  std::size_t refused = 0;
  for (int step = 0; step < 50'000; ++step) {
    const std::uint64_t what = prng.uniform(10);
    if (what < 6) {
      const MessageKind kind = prng.uniform(3) == 0 ? MessageKind::lease : MessageKind::frames;
      const std::size_t size = 1 + prng.uniform(prng.uniform(4) == 0 ? kMaxBodyBytes : 300);
      const std::size_t before = ring.has_waiting() ? 1 : 0;
      const std::span<std::byte> room = ring.append(kind, size, 0);
      if (room.empty()) {
        ++refused;
        continue;
      }
      REQUIRE(room.size() == size);
      const auto mark = static_cast<std::byte>(prng.next_u64());
      std::memset(room.data(), std::to_integer<int>(mark), size);
      const bool joined =
          before != 0 && waiting > 0 && !messages.empty() && !messages.back().empty() &&
          messages.back().back().bytes.data() + messages.back().back().bytes.size() == room.data();
      if (!joined) {
        messages.emplace_back();
        ++waiting;
      }
      messages.back().push_back({room, mark});
    } else if (what < 8 && ring.has_waiting()) {
      REQUIRE(ring.bytes_of(ring.next()).size() <= kSlotBytes);
      ring.mark_posted(++posted);
      --waiting;
    } else if (released < posted) {
      for (const Written& written : messages.front()) {
        for (const std::byte byte : written.bytes) REQUIRE(byte == written.mark);
      }
      messages.pop_front();
      ring.release(++released);
    }
  }
  CHECK(refused > 100);
  CHECK(released > 5'000);
}

TEST_CASE("room that is spared for others stays free") {
  std::vector<std::byte> memory(100 * 1024);
  SendRing ring(64);
  ring.set_memory(memory);
  std::size_t taken = 0;
  while (!ring.append(MessageKind::frames, 1'000, 40 * 1024).empty()) taken += 1'000;
  CHECK(taken > 40 * 1024);
  CHECK(taken < 61 * 1024);
  CHECK_FALSE(ring.append(MessageKind::lease, kMaxBodyBytes, 0).empty());
}

TEST_CASE("a chunk is done when it is written and acknowledged, or refused before") {
  ChunkRing ring(4);
  std::uint32_t digests = 0;
  for (int i = 0; i < 3; ++i) ring.post().post.cookie = static_cast<std::uint64_t>(i);
  ring.number();
  ring.unwritten().last_work = 10;
  ring.mark_written();
  ring.unwritten().outcome = Code::rejected;  // never told to the peer
  ring.mark_written();
  ring.number();
  ring.unwritten().last_work = 20;
  ring.mark_written();
  CHECK(ring.unacked() == 2);
  CHECK_FALSE(ring.acknowledge(1, 1, Code::ok, 5, digests));  // not in order
  CHECK_FALSE(ring.acknowledge(0, 3, Code::ok, 5, digests));  // more than there are
  CHECK(ring.acknowledge(0, 2, Code::ok, 5, digests));
  CHECK_FALSE(ring.has_done());  // the device may still read them
  CHECK(ring.next_local(9) == nullptr);
  CHECK(ring.next_local(10)->post.cookie == 0);
  CHECK(ring.next_local(10)->post.cookie == 1);
  CHECK(ring.next_local(10) == nullptr);
  REQUIRE(ring.has_done());
  CHECK(ring.retire().outcome == Code::ok);
  REQUIRE(ring.has_done());
  CHECK(ring.retire().outcome == Code::rejected);
  CHECK_FALSE(ring.has_done());
  CHECK(ring.next_local(20)->post.cookie == 2);
  REQUIRE(ring.has_done());
  CHECK(ring.retire().post.cookie == 2);
  CHECK(ring.empty());
}

TEST_CASE("digests of a chunk lie together, and a peer that announces too many is found out") {
  DigestRing ring(8);
  ring.make_memory();
  Prng prng(1);
  std::deque<std::pair<DigestRing::Place, std::uint64_t>> held;
  std::uint32_t ahead = 0;
  for (int i = 0; i < 2'000; ++i) {
    const auto count = static_cast<std::uint32_t>(prng.uniform(9));
    if (ahead + count <= 8) {
      DigestRing::Place place;
      REQUIRE(ring.take(count, place));
      for (std::uint64_t& digest : ring.at(place)) digest = static_cast<std::uint64_t>(i);
      held.emplace_back(place, i);
      ahead += count;
    } else {
      for (const std::uint64_t digest : ring.at(held.front().first))
        REQUIRE(digest == held.front().second);
      ahead -= held.front().first.count;
      ring.give(held.front().first);
      held.pop_front();
    }
  }
  DigestRing::Place place;
  ring.clear();
  CHECK(ring.take(8, place));
  CHECK(ring.take(8, place));
  CHECK_FALSE(ring.take(1, place));
}

TEST_CASE("work request ids come back, and numbers of sends go on past 32 bits") {
  const WorkId id{63, 0x12345, 1, WorkId::Kind::receive, 0xFFFFFFFF};
  const WorkId back = WorkId::unpack(id.pack());
  CHECK(back.lane == 63);
  CHECK(back.generation == 0x2345);
  CHECK(back.stream == 1);
  CHECK(back.kind == WorkId::Kind::receive);
  CHECK(back.number == 0xFFFFFFFF);
  SendQueue queue;
  queue.completed = 0xFFFFFFF0;
  queue.posted = 0x100000010;
  CHECK(queue.complete(0x5));
  CHECK(queue.completed == 0x100000005);
}

TEST_CASE("a send that completes twice, late, or was never posted changes nothing") {
  SendQueue queue;
  queue.posted = 10;
  CHECK(queue.complete(4));
  for (const std::uint32_t number : {4u, 3u, 0u, 11u, 0xFFFFFFFFu}) {
    CAPTURE(number);
    CHECK_FALSE(queue.complete(number));
    CHECK(queue.completed == 4);
  }
  CHECK(queue.complete(10));
}

namespace {

bool signalled = false;
int note_signal(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  for (; request != nullptr; request = request->next)
    signalled = (request->send_flags & IBV_SEND_SIGNALED) != 0;
  return 0;
}

// Rings a doorbell of one request; whether it asked for a completion.
bool rings_signalled(Doorbell& doorbell, ibv_wr_opcode opcode, std::uint32_t bytes) {
  REQUIRE(doorbell.has_room());
  ibv_send_wr& request = doorbell.add();
  request.opcode = opcode;
  request.num_sge = 1;
  doorbell.parts(request)[0].length = bytes;
  REQUIRE(doorbell.ring());
  return signalled;
}

}  // namespace

TEST_CASE("few small sends go without a completion; many, large ones and all else ask for one") {
  ibv_context context{};
  context.ops.post_send = note_signal;
  ibv_qp pair{};
  pair.context = &context;
  SendQueue queue;
  queue.pair = &pair;
  queue.depth = 128;
  Doorbell doorbell;
  doorbell.aim(queue, WorkId{});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 16; ++i) CHECK_FALSE(rings_signalled(doorbell, IBV_WR_SEND, 100));
    CHECK(rings_signalled(doorbell, IBV_WR_SEND, 100));
  }
  CHECK_FALSE(rings_signalled(doorbell, IBV_WR_SEND, 20'000));
  CHECK(rings_signalled(doorbell, IBV_WR_SEND, 20'000));
  CHECK(rings_signalled(doorbell, IBV_WR_RDMA_WRITE, 8));
  CHECK(rings_signalled(doorbell, IBV_WR_LOCAL_INV, 0));
  doorbell.want_completion();
  CHECK(rings_signalled(doorbell, IBV_WR_SEND, 100));
  CHECK_FALSE(rings_signalled(doorbell, IBV_WR_SEND, 100));
}

}  // namespace kvrail::transport::verbs
