// The lane thread's half; lane_proxy.cc has the owner's.
#include "engine/runtime/lane_worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>

#include "kvrail/base/no_alloc.h"

namespace kvrail::engine {

using transport::Event;
using transport::EventKind;

std::byte* ByteRing::reserve(std::size_t count, std::uint64_t& end) noexcept {
  KVRAIL_ASSERT(count <= capacity_ / 2);
  std::uint64_t start = head_;
  const std::size_t at = static_cast<std::size_t>(start % capacity_);
  if (at + count > capacity_) start += capacity_ - at;  // a string never wraps: leave the rest unused
  if (start + count - tail_.load(std::memory_order_acquire) > capacity_) return nullptr;  // R2 <- R1
  end = start + count;
  return bytes_.get() + start % capacity_;
}

LaneWorker::LaneWorker(transport::Transport& real, const WorkerOptions& options, const Clock& clock)
    : real_(real), wait_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), worker_(options, clock) {
  KVRAIL_ASSERT_MSG(wait_fd_ >= 0, "eventfd failed: out of file descriptors");
  worker_.add(*this);
}

LaneWorker::~LaneWorker() {
  worker_.stop();
  ::close(wait_fd_);
}

std::size_t LaneWorker::cycle(TimeNs now_ns) noexcept {
  std::size_t work = run_commands();
  work += forward_events(now_ns);
  publish_stats(now_ns);
  return work;
}

bool LaneWorker::arm() noexcept {
  return real_.arm() && commands_.read_available() == 0 && forwarded_ == buffered_;
}

std::span<const int> LaneWorker::wait_fds() const noexcept {
  auto& fds = const_cast<std::array<int, 1>&>(lane_fds_);
  fds[0] = real_.wait_fd();
  return fds;
}

// ---- commands ------------------------------------------------------------------------------------

bool LaneWorker::push(const Command& command) noexcept {
  if (!commands_.push(command)) return false;
  worker_.wake();
  return true;
}

std::size_t LaneWorker::run_commands() noexcept {
  std::size_t count = 0;
  while (count < kQueue && commands_.read_available() > 0) {
    const Command& command = commands_.front();
    if (!run(command)) break;  // the transport is full: this one goes first next time
    if (command.release_to != 0) command_bytes_.release(command.release_to);
    commands_.pop();
    ++count;
  }
  return count;
}

// Ids are of slots whose generations rise.
bool LaneWorker::gone(transport::LaneId lane) const noexcept {
  KVRAIL_ASSERT(lane.index < kMaxLanes);
  const transport::LaneId last = down_[lane.index];
  return last.valid() && lane.generation <= last.generation;
}

bool LaneWorker::answer_lost(const Command& command) noexcept {
  if (events_.write_available() <= 1) return false;
  Note note;
  note.answers_chunk = true;
  note.proxy = command.proxy;
  note.event.kind = EventKind::chunk_done;
  note.event.cookie = command.chunk.cookie;
  note.event.status = Status{Code::lane_lost, Scope::lane};
  tell(note);
  return true;
}

bool LaneWorker::run(const Command& command) noexcept {
  switch (command.kind) {
    case CommandKind::open:
      open(command);
      return true;
    case CommandKind::close:
      real_.close_lane(command.lane);
      return true;
    case CommandKind::frame:
      return gone(command.lane) || real_.try_post_frame(command.lane, {command.bytes, command.length});
    case CommandKind::chunk:
      return gone(command.lane) ? answer_lost(command) : real_.try_post_chunk(command.lane, command.chunk);
    case CommandKind::expose:
      real_.expose(command.lease, command.peer, command.sink);
      return true;
    case CommandKind::withdraw:
      real_.withdraw(command.lease);
      return true;
  }
  KVRAIL_UNREACHABLE();
}

void LaneWorker::open(const Command& command) noexcept {
  const AllowAllocScope control_path;  // once per dial, as the contract of open_lane() says
  Note note;
  note.answers_open = true;
  note.proxy = command.lane;
  note.event.cookie = command.cookie;
  auto lane = real_.open_lane({reinterpret_cast<const char*>(command.bytes), command.length}, command.cookie);
  if (lane.ok()) {
    note.event.lane = lane.value();
  } else {
    note.event.status = lane.status();
  }
  tell(note);
}

// ---- events --------------------------------------------------------------------------------------

std::size_t LaneWorker::forward_events(TimeNs now_ns) noexcept {
  if (forwarded_ == buffered_) {
    buffered_ = real_.poll(now_ns, buffer_);
    forwarded_ = 0;
    for (std::size_t i = 0; i < buffered_; ++i) {
      if (buffer_[i].kind == EventKind::lane_down && buffer_[i].lane.valid()) down_[buffer_[i].lane.index] = buffer_[i].lane;
    }
  }
  const std::size_t before = forwarded_;
  // One slot of the queue stays free for the answer to an open.
  while (forwarded_ < buffered_ && events_.write_available() > 1 && forward(buffer_[forwarded_])) ++forwarded_;
  return forwarded_ - before;
}

bool LaneWorker::forward(const Event& event) noexcept {
  Note note;
  note.event = event;
  if (event.kind == EventKind::frame && !event.bytes.empty()) {
    std::byte* copy = event_bytes_.reserve(event.bytes.size(), note.release_to);
    if (copy == nullptr) return false;
    std::memcpy(copy, event.bytes.data(), event.bytes.size());
    note.event.bytes = {copy, event.bytes.size()};
    event_bytes_.commit(note.release_to);
  }
  if (event.lane.valid()) {
    KVRAIL_ASSERT(event.lane.index < kMaxLanes);
    known_[event.lane.index] = event.kind == EventKind::lane_down ? transport::LaneId{} : event.lane;
  }
  tell(note);
  return true;
}

void LaneWorker::tell(const Note& note) noexcept {
  const bool pushed = events_.push(note);
  KVRAIL_ASSERT_MSG(pushed, "room was checked before");
  if (owner_parked_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wait_fd_, &one, sizeof(one));
}

void LaneWorker::publish_stats(TimeNs now_ns) noexcept {
  if (now_ns < stats_due_ns_) return;
  stats_due_ns_ = now_ns + 10 * kMillisecondNs;
  for (std::size_t i = 0; i < kMaxLanes; ++i) {
    if (!known_[i].valid()) continue;
    const transport::LaneStats s = real_.stats(known_[i]);
    const std::array<std::uint64_t, 7> values{s.bytes_sent,      s.bytes_received, s.chunks_sent,    s.frames_sent,
                                              s.frames_received, s.malformed,      s.digest_failures};
    for (std::size_t k = 0; k < values.size(); ++k) {
      stats_[i].values[k].store(values[k], std::memory_order_relaxed);
    }
  }
}

}  // namespace kvrail::engine
