// A verbs node for tests to talk to, kill, stop and start again. Usage: verbs_peer ADDRESS
// It shows whoever connects a lease of 4 MiB and tells its name in a frame "L" + generation; answers
// "D" with the XXH3 of that memory; and after "W" + generation writes into the other side's lease
// {1, generation} until the lane is gone. It works in the background, and ends by a signal only.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kvrail/base/prng.h"
#include "tests/support/payload_builder.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::test {
namespace {

using namespace kvrail::transport;

constexpr std::size_t kBytes = 4 << 20;
constexpr std::uint32_t kChunk = 64 * 1024;

class Peer {
 public:
  explicit Peer(std::unique_ptr<verbs::VerbsTransport> transport)
      : transport_(std::move(transport)), sink_memory_(kBytes), source_memory_(kBytes) {
    sink_.add(sink_memory_.data(), kBytes);
    source_.add(source_memory_.data(), kBytes).with_digests();
    sink_view_ = sink_.payload();
    source_view_ = source_.payload();
  }

  bool start() {
    return transport_->register_memory(sink_memory_.data(), kBytes, -1).ok() &&
           transport_->register_memory(source_memory_.data(), kBytes, -1).ok();
  }

  [[noreturn]] void run() {
    for (;;) {
      std::array<Event, 64> events;
      const std::size_t count = transport_->poll(clock_.now_ns(), events);
      for (const Event& event : std::span(events).first(count)) on_event(event);
      while (!frames_.empty() &&
             transport_->try_post_frame(frames_.front().lane, frames_.front().bytes))
        frames_.pop_front();
      while (writes_to_ != 0 && transport_->try_post_chunk(writes_on_, next_chunk())) ++posted_;
      if (count == 0) wait();
    }
  }

 private:
  enum class Sink { free, shown, withdrawn };
  struct Frame {
    LaneId lane;
    std::array<std::byte, 9> bytes;
  };

  void on_event(const Event& event) {
    switch (event.kind) {
      case EventKind::lane_up:
        lanes_.push_back(event.lane);
        peer_ = event.peer;
        if (state_ == Sink::free) show();
        if (state_ == Sink::shown) say(event.lane, 'L', generation_);
        break;
      case EventKind::lane_down:
        forget(event.lane);
        break;
      case EventKind::lease_withdrawn:
        state_ = Sink::free;
        if (lanes_.empty()) break;
        show();
        for (const LaneId lane : lanes_) say(lane, 'L', generation_);
        break;
      case EventKind::frame:
        on_frame(event.lane, event.bytes);
        break;
      default:
        break;
    }
  }

  void forget(LaneId lane) {
    std::erase(lanes_, lane);
    std::erase_if(frames_, [lane](const Frame& frame) { return frame.lane == lane; });
    if (writes_on_ == lane) writes_to_ = 0;
    if (!lanes_.empty() || state_ != Sink::shown) return;
    transport_->withdraw({0, generation_});
    state_ = Sink::withdrawn;
  }
  void on_frame(LaneId lane, std::span<const std::byte> bytes) {
    if (bytes[0] == std::byte{'D'}) {
      say(lane, 'D', XXH3_64bits(sink_memory_.data(), kBytes));
    } else if (bytes.size() == 9) {
      std::memcpy(&writes_to_, bytes.data() + 1, sizeof(writes_to_));
      writes_on_ = lane;
    }
  }
  void show() {
    state_ = Sink::shown;
    transport_->expose({0, ++generation_}, peer_, sink_view_);
  }
  void say(LaneId lane, char what, std::uint64_t value) {
    Frame& frame = frames_.emplace_back(Frame{lane, {static_cast<std::byte>(what)}});
    std::memcpy(frame.bytes.data() + 1, &value, sizeof(value));
  }
  [[nodiscard]] ChunkPost next_chunk() const {
    ChunkPost post;
    post.lease = {1, static_cast<std::uint32_t>(writes_to_)};
    post.source = &source_view_;
    post.offset = posted_ * kChunk % kBytes;
    post.bytes = kChunk;
    return post;
  }
  void wait() {
    if (!transport_->arm()) return;
    pollfd one{transport_->wait_fd(), POLLIN, 0};
    static_cast<void>(::poll(&one, 1, 50));
  }

  SteadyClock clock_;
  std::unique_ptr<verbs::VerbsTransport> transport_;
  std::vector<std::byte> sink_memory_;
  std::vector<std::byte> source_memory_;
  PayloadBuilder sink_;
  PayloadBuilder source_;
  Payload sink_view_;
  Payload source_view_;
  Sink state_ = Sink::free;
  std::vector<LaneId> lanes_;
  NodeId peer_ = 0;
  std::uint32_t generation_ = 0;
  std::uint64_t writes_to_ = 0;
  LaneId writes_on_;
  std::uint64_t posted_ = 0;
  std::deque<Frame> frames_;
};

int run(const char* address, int ready) {
  verbs::VerbsOptions options;
  options.node = 22;
  options.incarnation = random_u64() | 1;
  options.listen_address = address;
  auto made = verbs::VerbsTransport::create(options);
  if (!made.ok()) {
    std::fprintf(stderr, "verbs_peer: %s\n", made.error().message.c_str());
    return 1;
  }
  Peer peer(std::move(made).value());
  if (!peer.start()) return 1;
  if (::write(ready, "", 1) != 1) return 1;
  ::close(ready);
  peer.run();
}

// Goes into the background once it listens, and prints under which process id.
int start(const char* address) {
  std::array<int, 2> ready{};
  if (::pipe(ready.data()) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ready[0]);
    ::close(STDOUT_FILENO);
    ::setsid();
    return run(address, ready[1]);
  }
  ::close(ready[1]);
  char byte = 0;
  if (child < 0 || ::read(ready[0], &byte, 1) != 1) return 1;
  std::printf("%d\n", static_cast<int>(child));
  return 0;
}

}  // namespace
}  // namespace kvrail::test

int main(int argc, char** argv) {
  return argc == 2 ? kvrail::test::start(argv[1]) : 2;
}
