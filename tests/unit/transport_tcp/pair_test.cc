#include <algorithm>

#include "tests/unit/transport_tcp/node.h"

namespace kvrail::test {
namespace {

TEST_CASE("a lane comes up on both sides and says who is there") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    const Event& up = *pair.dialler.last(EventKind::lane_up);
    CHECK(up.lane == pair.here);
    CHECK(up.cookie == 77);
    CHECK(up.peer == 2);
    CHECK(up.incarnation == 2001);
    const Event& met = *pair.listener.last(EventKind::lane_up);
    CHECK(met.cookie == 0);
    CHECK(met.peer == 1);
    CHECK(met.incarnation == 1001);
    CHECK(pair.dialler->io_name() == (io == tcp::IoChoice::epoll ? "epoll" : "io_uring"));
  }
}

TEST_CASE("frames arrive whole and in order, whatever their sizes") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    std::vector<std::string> sent;
    std::size_t size = 1;
    for (int i = 0; i < 300; ++i) {
      std::string text(size, static_cast<char>('a' + i % 26));
      text[0] = static_cast<char>(i);
      sent.push_back(std::move(text));
      size = (size * 7 + 13) % transport::wire::kMaxMessageBytes + 1;
    }
    sent.push_back(std::string(transport::wire::kMaxMessageBytes, 'z'));
    std::size_t posted = 0;
    pair.run([&] {
      while (posted < sent.size() && pair.dialler.post_frame(pair.here, sent[posted])) ++posted;
      return pair.listener.frames.size() == sent.size();
    });
    for (std::size_t i = 0; i < sent.size(); ++i) {
      CHECK(pair.listener.frames[i].bytes == sent[i]);
      CHECK(pair.listener.frames[i].lane == pair.there);
    }
    REQUIRE(pair.listener.post_frame(pair.there, "and back"));
    pair.run([&] { return !pair.dialler.frames.empty(); });
    CHECK(pair.dialler.frames[0].bytes == "and back");
    CHECK(pair.dialler->stats(pair.here).frames_sent == sent.size());
    CHECK(pair.listener->stats(pair.there).frames_received == sent.size());
  }
}

TEST_CASE("frames wait when nobody collects them, and none is lost") {
  for (const tcp::IoChoice io : kBackends) {
    tcp::TcpOptions a = options_for(1, io, false);
    Pair pair(a, options_for(2, io, true));
    // One event per poll at most would be slow; two show every order of full and not full.
    Node slow(options_for(3, io, true), 2);
    auto lane = pair.dialler->open_lane(slow->listen_address(), 1);
    REQUIRE(lane.ok());
    run_until({&pair.dialler, &slow}, [&] { return slow.count(EventKind::lane_up) == 1 &&
                                                   pair.dialler.count(EventKind::lane_up) == 2; });
    std::size_t posted = 0;
    run_until({&pair.dialler}, [&] {
      // Until the queue stays full: everything between the two is full then.
      std::size_t before = posted;
      while (pair.dialler.post_frame(*lane, "frame " + std::to_string(posted) +
                                                std::string(1000, '.'))) {
        ++posted;
      }
      return posted > 500 && posted == before;
    });
    run_until({&pair.dialler, &slow}, [&] { return slow.frames.size() == posted; });
    for (std::size_t i = 0; i < posted; ++i) {
      CHECK(slow.frames[i].bytes.rfind("frame " + std::to_string(i) + ".", 0) == 0);
    }
  }
}

TEST_CASE("chunks land in the lease, in pieces of every size, and are acknowledged once") {
  const std::vector<std::vector<std::uint32_t>> layouts{
      {1},
      {65536},
      {65537, 1, 131072, 3},
      std::vector<std::uint32_t>(700, 4096),
      std::vector<std::uint32_t>(5000, 64),
      {3000000},
  };
  for (const tcp::IoChoice io : kBackends) {
    for (const bool critical : {false, true}) {
      for (const auto& layout : layouts) {
        CAPTURE(layout.size());
        CAPTURE(critical);
        Pair pair(io);
        Transfer transfer(layout, 11);
        const LeaseId lease{3, 9};
        pair.listener->expose(lease, 1, transfer.sink_view);
        Sender sender(pair.dialler, pair.here, transfer, lease, 300000, critical);
        pair.run([&] {
          sender.post_more();
          return sender.finished();
        });
        CHECK(transfer.arrived());
        CHECK(transfer.gaps_untouched());
        CHECK(pair.listener.count(EventKind::chunk_received) == sender.posted);
        std::uint64_t at = 0;
        for (const Event& event : pair.listener.seen) {
          if (event.kind != EventKind::chunk_received) continue;
          CHECK(event.status.ok());
          CHECK(event.lease == lease);
          CHECK(event.transfer == 5);
          CHECK(event.offset == at);
          CHECK(event.critical == critical);
          at += event.length;
        }
        CHECK(at == transfer.from.size());
        std::uint64_t cookie = 0;
        for (const Event& event : pair.dialler.seen) {
          if (event.kind != EventKind::chunk_done) continue;
          CHECK(event.status.ok());
          CHECK(event.cookie == cookie++);
          CHECK(event.completed_ns >= event.posted_ns);
        }
        pair.listener->withdraw(lease);
        pair.run([&] { return pair.listener.count(EventKind::lease_withdrawn) == 1; });
      }
    }
  }
}

TEST_CASE("both ends send at once, bulk, critical and frames") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    Transfer forth(std::vector<std::uint32_t>(100, 70000), 1);
    Transfer back(std::vector<std::uint32_t>(50, 140001), 2);
    pair.listener->expose({0, 1}, 1, forth.sink_view);
    pair.dialler->expose({0, 1}, 2, back.sink_view);
    Sender a(pair.dialler, pair.here, forth, {0, 1}, 200000, false);
    Sender b(pair.listener, pair.there, back, {0, 1}, 65536, true);
    std::size_t frames = 0;
    pair.run([&] {
      a.post_more();
      b.post_more();
      if (frames < 1000 && pair.dialler.post_frame(pair.here, std::to_string(frames))) ++frames;
      return a.finished() && b.finished() && pair.listener.frames.size() == 1000;
    });
    CHECK(forth.arrived());
    CHECK(back.arrived());
    for (std::size_t i = 0; i < 1000; ++i) CHECK(pair.listener.frames[i].bytes == std::to_string(i));
  }
}

TEST_CASE("a digest that does not fit is reported on both sides") {
  for (const tcp::IoChoice io : kBackends) {
    for (const bool critical : {false, true}) {
      Pair pair(io);
      Transfer transfer({65536, 65536, 65536}, 4);
      transfer.source.digests()[1] ^= 1;
      pair.listener->expose({1, 1}, 1, transfer.sink_view);
      Sender sender(pair.dialler, pair.here, transfer, {1, 1}, 65536, critical);
      pair.run([&] {
        sender.post_more();
        return sender.finished();
      });
      std::vector<Code> sent;
      std::vector<Code> received;
      for (const Event& e : pair.dialler.seen) {
        if (e.kind == EventKind::chunk_done) sent.push_back(e.status.code);
      }
      for (const Event& e : pair.listener.seen) {
        if (e.kind == EventKind::chunk_received) received.push_back(e.status.code);
      }
      const std::vector<Code> expected{Code::ok, Code::corrupt, Code::ok};
      CHECK(sent == expected);
      CHECK(received == expected);
      CHECK(pair.listener->stats(pair.there).digest_failures == 1);
    }
  }
}

TEST_CASE("integrity off: wrong digests don't matter, none are sent") {
  for (const tcp::IoChoice io : kBackends) {
    tcp::TcpOptions a = options_for(1, io, false);
    a.integrity = tcp::Integrity::off;
    Pair pair(a, options_for(2, io, true));
    CHECK_FALSE(pair.dialler->caps().verifies_digests);
    Transfer transfer({200000}, 4);
    transfer.source.digests()[1] ^= 1;
    pair.listener->expose({1, 1}, 1, transfer.sink_view);
    Sender sender(pair.dialler, pair.here, transfer, {1, 1}, 65536, false);
    pair.run([&] {
      sender.post_more();
      return sender.finished();
    });
    CHECK(transfer.arrived());
    CHECK(pair.dialler.last(EventKind::chunk_done)->status.ok());
  }
}

TEST_CASE("chunks without a right to land are refused and harm nothing") {
  for (const tcp::IoChoice io : kBackends) {
    Pair pair(io);
    Transfer transfer({100000}, 4);
    pair.listener->expose({1, 7}, 1, transfer.sink_view);     // right
    pair.listener->expose({2, 7}, 9, transfer.sink_view);     // of another peer
    std::vector<Code> outcomes;
    for (const LeaseId lease : {LeaseId{1, 6}, LeaseId{1, 8}, LeaseId{2, 7}, LeaseId{3, 7},
                                LeaseId{15, 0}}) {
      ChunkPost post;
      post.lease = lease;
      post.transfer = 1;
      post.source = &transfer.source_view;
      post.bytes = 100000;
      REQUIRE(pair.dialler.post_chunk(pair.here, post));
    }
    pair.run([&] { return pair.dialler.count(EventKind::chunk_done) == 5; });
    for (const Event& e : pair.dialler.seen) {
      if (e.kind == EventKind::chunk_done) CHECK(e.status.code == Code::rejected);
    }
    CHECK(pair.listener.count(EventKind::chunk_received) == 0);
    Sender sender(pair.dialler, pair.here, transfer, {1, 7}, 65536, false);
    pair.dialler.seen.clear();
    pair.run([&] {
      sender.post_more();
      return sender.finished();
    });
    CHECK(transfer.arrived());
  }
}

TEST_CASE("zero-copy sends: the same bytes, and the source is ours again when a chunk is done") {
  tcp::TcpOptions a = options_for(1, tcp::IoChoice::automatic, false);
  a.zero_copy = tcp::ZeroCopy::vmsplice;
  Pair pair(a, options_for(2, tcp::IoChoice::automatic, true));
  CHECK(pair.dialler->io_name() == "epoll");
  CHECK(pair.dialler->warning().empty());
  for (std::uint32_t round = 1; round <= 5; ++round) {
    for (const bool digests : {true, false}) {
      Transfer transfer({1, 300000, 65536, 4096, 4096, 1 << 20, 17, 3 << 20}, round);
      const std::vector<std::byte> before = transfer.from;
      if (!digests) transfer.source_view.digests = {};
      pair.listener->expose({1, round}, 1, transfer.sink_view);
      pair.dialler.seen.clear();
      Sender sender(pair.dialler, pair.here, transfer, {1, round}, 256 << 10, false);
      std::size_t overwritten = 0;
      pair.run([&] {
        sender.post_more();
        // Each chunk's memory changes as soon as it is done; what arrived must not.
        for (; overwritten < pair.dialler.seen.size(); ++overwritten) {
          const Event& done = pair.dialler.seen[overwritten];
          REQUIRE(done.kind == EventKind::chunk_done);
          REQUIRE(done.status.ok());
          std::memset(transfer.from.data() + done.offset, 0xAA, done.length);
        }
        return sender.finished();
      });
      transfer.from = before;
      CHECK(transfer.arrived());
      CHECK(transfer.gaps_untouched());
      pair.listener->withdraw({1, round});
      pair.listener.seen.clear();
      pair.run([&] { return pair.listener.count(EventKind::lease_withdrawn) == 1; });
    }
  }
}

TEST_CASE("a lease withdrawn in the middle of a chunk is not written afterwards") {
  for (const tcp::IoChoice io : kBackends) {
    for (std::uint64_t trial = 0; trial < 40; ++trial) {
      Pair pair(io);
      Transfer transfer({1 << 18, 1 << 20, 1 << 19}, trial);
      pair.listener->expose({5, 2}, 1, transfer.sink_view);
      Sender sender(pair.dialler, pair.here, transfer, {5, 2}, 1 << 18, trial % 2 == 1);
      sender.post_more();
      for (std::uint64_t i = 0; i < trial; ++i) {
        pair.dialler.step();
        pair.listener.step();
      }
      pair.listener->withdraw({5, 2});
      run_until({&pair.listener},
                [&] { return pair.listener.count(EventKind::lease_withdrawn) == 1; });
      CHECK(pair.listener.last(EventKind::lease_withdrawn)->lease == LeaseId{5, 2});
      // From here on the memory is ours: it must stay as we leave it.
      std::fill(transfer.to.begin(), transfer.to.end(), std::byte{0x55});
      const std::size_t received = pair.listener.count(EventKind::chunk_received);
      pair.run([&] {
        sender.post_more();
        return sender.finished();
      });
      CHECK(std::all_of(transfer.to.begin(), transfer.to.end(),
                        [](std::byte b) { return b == std::byte{0x55}; }));
      CHECK(pair.listener.count(EventKind::chunk_received) == received);
      std::size_t good = 0;
      for (const Event& e : pair.dialler.seen) {
        if (e.kind != EventKind::chunk_done) continue;
        CHECK((e.status.ok() || e.status.code == Code::rejected));
        good += e.status.ok() ? 1 : 0;
      }
      CHECK(good == received);
      pair.listener->expose({5, 3}, 1, transfer.sink_view);  // the slot is free again
    }
  }
}

}  // namespace
}  // namespace kvrail::test
