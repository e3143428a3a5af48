// Two verbs transports on this machine's device, polled by one thread.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::test {

namespace verbs = transport::verbs;
using transport::EventKind;

inline constexpr transport::LeaseId kLease{3, 9};
inline constexpr std::uint32_t kChunk = 64 * 1024;

// The stream's chunk of that number; its cookie is the number.
inline transport::ChunkPost chunk(const transport::Payload& source, std::uint64_t number) {
  transport::ChunkPost post;
  post.lease = kLease;
  post.transfer = 5;
  post.source = &source;
  post.offset = number * kChunk;
  post.bytes = kChunk;
  post.cookie = number;
  return post;
}

// Ends the program as skipped where there is no device.
inline std::string device_address() {
  static const std::string address = verbs::own_address();
  if (address.empty()) {
    const std::string why = verbs::why_unavailable();
    std::printf("SKIP: %s\n", why.empty() ? "no RDMA port has an address" : why.c_str());
    std::exit(77);
  }
  return address;
}

class TwoSides {
 public:
  using Tune = std::function<void(int, verbs::VerbsOptions&)>;
  explicit TwoSides(Tune tune = {}) : tune_(std::move(tune)) {
    for (const int which : {0, 1}) start(which);
  }

  [[nodiscard]] verbs::VerbsTransport& at(int side) { return *sides_[index(side)]; }
  [[nodiscard]] TimeNs now_ns() const { return clock_.now_ns(); }
  void kill(int side) { sides_[index(side)].reset(); }
  // A new life: it knows nothing of the one before.
  void restart(int side) {
    ++restarts_;
    start(side);
  }

  std::size_t poll(int side) {
    if (sides_[index(side)] == nullptr) return 0;
    std::array<transport::Event, 64> events;
    const std::size_t count = at(side).poll(clock_.now_ns(), events);
    for (const transport::Event& event : std::span(events).first(count)) {
      log[index(side)].push_back(event);
      log[index(side)].back().bytes = {};
    }
    return count;
  }
  // Polls the sides of `mask` (bit 0, bit 1) until `done`, at most 20 s.
  [[nodiscard]] bool until(const std::function<bool()>& done, unsigned mask = 3) {
    const TimeNs give_up = clock_.now_ns() + 20 * kSecondNs;
    while (clock_.now_ns() < give_up) {
      std::size_t events = 0;
      for (const int side : {0, 1}) {
        if ((mask >> side & 1u) != 0) events += poll(side);
      }
      if (done()) return true;
      if (events == 0) static_cast<void>(::poll(nullptr, 0, 1));
    }
    return false;
  }
  [[nodiscard]] std::size_t count(int side, EventKind kind) const {
    std::size_t n = 0;
    for (const transport::Event& event : log[index(side)]) n += event.kind == kind ? 1 : 0;
    return n;
  }
  [[nodiscard]] const transport::Event& last(int side, EventKind kind) const {
    const auto& events = log[index(side)];
    for (std::size_t i = events.size(); i > 0; --i) {
      if (events[i - 1].kind == kind) return events[i - 1];
    }
    FAIL("no such event");
    return events.front();
  }
  // A lane from side 0 to side 1: its ids on both.
  [[nodiscard]] std::array<transport::LaneId, 2> connect() {
    const std::size_t ups = count(1, EventKind::lane_up);
    const auto opened = at(0).open_lane(at(1).listen_address(), 7);
    REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.error().message));
    const std::size_t own = count(0, EventKind::lane_up);
    REQUIRE(until(
        [&] { return count(0, EventKind::lane_up) > own && count(1, EventKind::lane_up) > ups; }));
    return {last(0, EventKind::lane_up).lane, last(1, EventKind::lane_up).lane};
  }

  std::array<std::vector<transport::Event>, 2> log;

 private:
  static std::size_t index(int which) { return static_cast<std::size_t>(which); }
  void start(int which) {
    verbs::VerbsOptions options;
    options.node = static_cast<NodeId>(11 * (which + 1));
    options.incarnation = 1000 + static_cast<Incarnation>(which) + 10 * restarts_;
    options.listen_address = device_address() + ":0";
    options.silent_after_ns = 15 * kSecondNs;
    if (tune_) tune_(which, options);
    auto made = verbs::VerbsTransport::create(options);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    sides_[index(which)] = std::move(made).value();
  }

  Tune tune_;
  Incarnation restarts_ = 0;
  SteadyClock clock_;
  std::array<std::unique_ptr<verbs::VerbsTransport>, 2> sides_;
};

// A source of side 0 and a sink of side 1, both registered, of equal bytes.
struct Stream {
  Stream(TwoSides& sides, std::size_t bytes) : from(bytes), to(bytes) {
    Prng prng(bytes);
    for (std::byte& byte : from) byte = static_cast<std::byte>(prng.next_u64());
    REQUIRE(sides.at(0).register_memory(from.data(), bytes, -1).ok());
    REQUIRE(sides.at(1).register_memory(to.data(), bytes, -1).ok());
    source_pieces.add(from.data(), bytes).with_digests();
    sink_pieces.add(to.data(), bytes);
    source = source_pieces.payload();
    sink = sink_pieces.payload();
  }
  std::vector<std::byte> from;
  std::vector<std::byte> to;
  PayloadBuilder source_pieces;
  PayloadBuilder sink_pieces;
  transport::Payload source;
  transport::Payload sink;
};

}  // namespace kvrail::test
