// The conformance suite's frame: one set of tests over every transport.
//
// A transport takes part by a Factory that makes Worlds: two nodes of it, side 0 and side 1, in one
// process and one thread. The suite polls both, posts, waits for events with a deadline (never by
// sleeping) and checks what transport.h promises. Data-path calls run under NoAllocScope.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvrail/base/no_alloc.h"
#include "tests/support/payload_builder.h"
#include "transport/transport.h"

namespace kvrail::test {

class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  // Null after kill().
  [[nodiscard]] virtual transport::Transport* side(int which) = 0;
  // What the other side dials to reach `which`.
  [[nodiscard]] virtual std::string address(int which) = 0;
  // A well-formed address where nobody listens.
  [[nodiscard]] virtual std::string dead_address() = 0;
  // The process of that side dies: its transport is destroyed without a word.
  virtual void kill(int which) = 0;
  // It comes back at the same address with a new incarnation.
  virtual void restart(int which) = 0;
  // Memory for payloads, registered with that side's transport, all zero; lives as long as the
  // World, across kill() and restart() (registered again).
  [[nodiscard]] virtual std::byte* memory(int which, std::size_t bytes) = 0;
  [[nodiscard]] virtual TimeNs now_ns() = 0;
  // Time moves only in wait().
  [[nodiscard]] virtual bool is_virtual() const { return false; }
  // Until either side may have work, at most `most_ns`. The default parks both on wait_fd().
  virtual void wait(TimeNs most_ns);

  [[nodiscard]] static constexpr NodeId node(int which) { return which == 0 ? 11 : 22; }
  // First life: 1000 + which; each restart adds 10.
  [[nodiscard]] Incarnation incarnation(int which) const {
    return 1000 + static_cast<Incarnation>(which) + 10 * restarts_[static_cast<std::size_t>(which)];
  }

 protected:
  std::array<Incarnation, 2> restarts_{0, 0};
};

struct Factory {
  const char* name;
  // Null with a printed reason where the transport cannot run on this machine.
  std::unique_ptr<World> (*make)();
};
// The factories to test: all, or the one that the environment variable KVRAIL_CONFORMANCE names.
[[nodiscard]] std::vector<Factory> factories();

// Memory from a memfd, for Worlds whose transport shares memory by file descriptor.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();
  [[nodiscard]] std::byte* base() const { return base_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Seen {
  transport::Event event;
  std::vector<std::byte> bytes;  // copy of a frame's
};

// Two sides under test and everything that they reported.
class Pair {
 public:
  explicit Pair(std::unique_ptr<World> made) : world(std::move(made)) {}

  std::unique_ptr<World> world;
  std::array<std::vector<Seen>, 2> log;

  [[nodiscard]] transport::Transport& at(int side) { return *world->side(side); }
  // Polls both sides until `done`, at most 20 s. False when that passed first.
  [[nodiscard]] bool run_until(const std::function<bool()>& done);
  // Polls both sides once; returns the number of events. max: events per poll.
  std::size_t poll_once(std::size_t max = 64);
  std::size_t poll_side(int side, std::size_t max = 64);

  // Opens a lane from `from`, waits for both lane_up; REQUIREs that it works.
  struct Lanes {
    std::array<transport::LaneId, 2> id;
  };
  [[nodiscard]] Lanes connect(int from = 0, std::uint64_t cookie = 7);

  [[nodiscard]] std::size_t count(int side, transport::EventKind kind) const;
  [[nodiscard]] const Seen* find(int side, transport::EventKind kind, std::size_t nth = 0) const;

  [[nodiscard]] bool post_frame(int side, transport::LaneId lane, std::span<const std::byte> bytes);
  [[nodiscard]] bool post_chunk(int side, transport::LaneId lane, const transport::ChunkPost& post);
  // Posts the whole payload in chunks, polling while the lane is full; cookies count from 0.
  // Returns the number of chunks.
  [[nodiscard]] std::uint64_t post_all(int side, transport::LaneId lane, transport::LeaseId lease,
                                       const transport::Payload& source, std::uint32_t chunk_bytes,
                                       bool critical = false);
};

// Runs f over every factory with a fresh World.
void for_each_transport(const std::function<void(Pair&)>& f);

[[nodiscard]] std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed);
void fill_pattern(std::span<std::byte> out, std::uint64_t seed);

// Of each transport's own factory file.
[[nodiscard]] std::unique_ptr<World> make_sim_world();
[[nodiscard]] std::unique_ptr<World> make_shm_world();
[[nodiscard]] std::unique_ptr<World> make_tcp_uring_world();
[[nodiscard]] std::unique_ptr<World> make_tcp_epoll_world();
[[nodiscard]] std::unique_ptr<World> make_verbs_world();
[[nodiscard]] std::unique_ptr<World> make_verbs_send_world();

}  // namespace kvrail::test
