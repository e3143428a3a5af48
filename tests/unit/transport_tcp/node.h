// Two tcp transports in one process, and what the tests do with them.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/no_alloc.h"
#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/tcp/tcp_transport.h"

namespace kvrail::test {

using transport::ChunkPost;
using transport::Event;
using transport::EventKind;
using transport::LaneId;
using transport::LeaseId;
using transport::Payload;
namespace tcp = transport::tcp;

// Against hangs only: nothing that works comes near it, whatever else the machine does.
inline constexpr TimeNs kPatienceNs = 60 * kSecondNs;

inline tcp::TcpOptions options_for(NodeId node, tcp::IoChoice io, bool listens) {
  tcp::TcpOptions options;
  options.node = node;
  options.incarnation = node * 1000 + 1;
  options.io = io;
  options.max_lanes = 4;
  options.max_leases = 16;
  options.max_chunks_in_flight = 64;
  options.listen_address = listens ? "127.0.0.1:0" : "";
  return options;
}

struct Frame {
  LaneId lane;
  std::string bytes;
};

// A transport, and everything it reported.
class Node {
 public:
  explicit Node(const tcp::TcpOptions& options, std::size_t events_per_poll = 64)
      : events_(events_per_poll) {
    auto made = tcp::TcpTransport::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    transport_ = std::move(made).value();
    seen.reserve(65536);
    frames.reserve(65536);
  }

  // One duty cycle, with the allocator locked while the transport runs.
  std::size_t step() {
    std::size_t count = 0;
    {
      const NoAllocScope no_alloc;
      count = transport_->poll(clock_.now_ns(), events_);
    }
    for (std::size_t i = 0; i < count; ++i) {
      Event event = events_[i];
      if (event.kind == EventKind::frame) {
        frames.push_back({event.lane, std::string(reinterpret_cast<const char*>(
                                                      event.bytes.data()),
                                                  event.bytes.size())});
      }
      event.bytes = {};
      seen.push_back(event);
    }
    return count;
  }

  [[nodiscard]] std::size_t count(EventKind kind) const {
    std::size_t n = 0;
    for (const Event& event : seen) n += event.kind == kind ? 1 : 0;
    return n;
  }
  [[nodiscard]] const Event* last(EventKind kind) const {
    for (std::size_t i = seen.size(); i > 0; --i) {
      if (seen[i - 1].kind == kind) return &seen[i - 1];
    }
    return nullptr;
  }

  bool post_frame(LaneId lane, std::string_view text) {
    const NoAllocScope no_alloc;
    return transport_->try_post_frame(lane, std::as_bytes(std::span(text)));
  }
  bool post_chunk(LaneId lane, const ChunkPost& post) {
    const NoAllocScope no_alloc;
    return transport_->try_post_chunk(lane, post);
  }

  tcp::TcpTransport& operator*() { return *transport_; }
  tcp::TcpTransport* operator->() { return transport_.get(); }
  void destroy() { transport_.reset(); }

  std::vector<Event> seen;
  std::vector<Frame> frames;

 private:
  SteadyClock clock_;
  std::vector<Event> events_;
  std::unique_ptr<tcp::TcpTransport> transport_;
};

// Polls the nodes in turn until `done`; fails the test after kPatienceNs.
inline void run_until(std::initializer_list<Node*> nodes, const std::function<bool()>& done) {
  const SteadyClock clock;
  const TimeNs give_up_ns = clock.now_ns() + kPatienceNs;
  while (!done()) {
    for (Node* node : nodes) node->step();
    if (clock.now_ns() >= give_up_ns) {
      FAIL("what the test waits for did not happen");
    }
  }
}

struct Pair {
  explicit Pair(tcp::IoChoice io) : Pair(options_for(1, io, false), options_for(2, io, true)) {}
  Pair(const tcp::TcpOptions& a, const tcp::TcpOptions& b) : dialler(a), listener(b) { connect(); }

  void connect() {
    auto lane = dialler->open_lane(listener->listen_address(), 77);
    REQUIRE(lane.ok());
    run_until({&dialler, &listener}, [&] {
      return dialler.count(EventKind::lane_up) == 1 && listener.count(EventKind::lane_up) == 1;
    });
    here = *lane;
    there = listener.last(EventKind::lane_up)->lane;
  }
  void run(const std::function<bool()>& done) { run_until({&dialler, &listener}, done); }

  Node dialler;
  Node listener;
  LaneId here;
  LaneId there;
};

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(count);
  std::uint64_t x = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::size_t at = 0; at < count; at += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(bytes.data() + at, &x, std::min<std::size_t>(8, count - at));
  }
  return bytes;
}

// Source and sink of equal piece sizes, laid out differently in memory.
struct Transfer {
  Transfer(const std::vector<std::uint32_t>& piece_sizes, std::uint64_t seed) {
    std::uint64_t total = 0;
    for (const std::uint32_t size : piece_sizes) total += size;
    from = random_bytes(total, seed);
    to.assign(total + 16 * piece_sizes.size(), std::byte{0xEE});
    std::uint64_t at = 0;
    std::uint64_t gap = 0;
    for (const std::uint32_t size : piece_sizes) {
      source.add(from.data() + at, size);
      gap += 16;
      sink.add(to.data() + at + gap, size);
      at += size;
    }
    source.with_digests();
    source_view = source.payload();
    sink_view = sink.payload();
  }
  [[nodiscard]] bool arrived() const {
    for (std::size_t i = 0; i < source_view.pieces.size(); ++i) {
      if (std::memcmp(source_view.pieces[i].address, sink_view.pieces[i].address,
                      source_view.pieces[i].bytes) != 0) {
        return false;
      }
    }
    return true;
  }
  // Everything between the sink's pieces is as it was.
  [[nodiscard]] bool gaps_untouched() const {
    std::size_t at = 0;
    for (const transport::Piece& piece : sink_view.pieces) {
      const auto begin = static_cast<std::size_t>(piece.address - to.data());
      for (; at < begin; ++at) {
        if (to[at] != std::byte{0xEE}) return false;
      }
      at = begin + piece.bytes;
    }
    return true;
  }

  std::vector<std::byte> from;
  std::vector<std::byte> to;
  PayloadBuilder source;
  PayloadBuilder sink;
  Payload source_view;
  Payload sink_view;
};

// Posts the whole payload in chunks of `chunk_bytes`, as fast as the lane takes them.
struct Sender {
  Sender(Node& from, LaneId on, const Transfer& what, LeaseId into, std::uint32_t size, bool first)
      : node(from), lane(on), transfer(what), lease(into), chunk_bytes(size), critical(first) {}
  void post_more() {
    while (at < transfer.source_view.total_bytes) {
      ChunkPost post;
      post.lease = lease;
      post.transfer = 5;
      post.source = &transfer.source_view;
      post.offset = at;
      post.bytes = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(chunk_bytes, transfer.source_view.total_bytes - at));
      post.bytes = test::clip_to_units(transfer.source_view, at, post.bytes,
                                       transport::wire::kMaxChunkDigests);
      post.critical = critical;
      post.cookie = posted;
      if (!node.post_chunk(lane, post)) return;
      at += post.bytes;
      ++posted;
    }
  }
  [[nodiscard]] bool finished() const {
    return at == transfer.source_view.total_bytes && node.count(EventKind::chunk_done) == posted;
  }
  Node& node;
  LaneId lane;
  const Transfer& transfer;
  LeaseId lease;
  std::uint32_t chunk_bytes;
  bool critical;
  std::uint64_t at = 0;
  std::size_t posted = 0;
};

inline constexpr std::array<tcp::IoChoice, 2> kBackends{tcp::IoChoice::io_uring,
                                                        tcp::IoChoice::epoll};

}  // namespace kvrail::test
