// The owner's half of a dedicated lane worker: a Transport that only passes records on.
#include <unistd.h>

#include <cstring>

#include "engine/runtime/lane_worker.h"

namespace kvrail::engine {

using transport::ChunkPost;
using transport::Event;
using transport::EventKind;
using transport::LaneId;
using transport::LeaseId;

LaneProxy::LaneProxy(LaneWorker& worker) : worker_(worker), lanes_(LaneWorker::kMaxLanes) {}

LaneProxy::~LaneProxy() = default;

const transport::Caps& LaneProxy::caps() const noexcept { return worker_.real_.caps(); }

Result<LaneId> LaneProxy::open_lane(std::string_view address, std::uint64_t cookie) {
  const LaneId lane = lanes_.try_emplace();
  if (!lane.valid()) return Error{{Code::out_of_capacity, Scope::lane}, "no lane is free"};
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::open;
  command.lane = lane;
  command.cookie = cookie;
  std::byte* copy = worker_.command_bytes_.reserve(address.size() + 1, command.release_to);
  if (copy != nullptr) {
    std::memcpy(copy, address.data(), address.size());
    command.bytes = copy;
    command.length = address.size();
    if (worker_.push(command)) {
      worker_.command_bytes_.commit(command.release_to);
      return lane;
    }
  }
  lanes_.erase(lane);
  return Error{{Code::busy, Scope::lane}, "the lane worker is busy; the dial is tried again"};
}

void LaneProxy::close_lane(LaneId lane) noexcept {
  Lane* entry = lanes_.get(lane);
  if (entry == nullptr || entry->down) return;
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::close;
  command.lane = entry->real;
  if (!entry->real.valid() || !worker_.push(command)) entry->close_when_opened = true;
}

bool LaneProxy::try_post_frame(LaneId lane, std::span<const std::byte> frame) noexcept {
  const Lane* entry = lanes_.get(lane);
  if (entry == nullptr || !entry->real.valid() || entry->down || worker_.commands_.write_available() == 0) return false;
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::frame;
  command.lane = entry->real;
  std::byte* copy = worker_.command_bytes_.reserve(frame.size(), command.release_to);
  if (copy == nullptr) return false;
  std::memcpy(copy, frame.data(), frame.size());
  command.bytes = copy;
  command.length = frame.size();
  worker_.command_bytes_.commit(command.release_to);
  return worker_.push(command);
}

bool LaneProxy::try_post_chunk(LaneId lane, const ChunkPost& chunk) noexcept {
  Lane* entry = lanes_.get(lane);
  if (entry == nullptr || !entry->real.valid() || entry->down) return false;
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::chunk;
  command.lane = entry->real;
  command.proxy = lane;
  command.chunk = chunk;
  if (!worker_.push(command)) return false;
  ++entry->chunks;
  return true;
}

void LaneProxy::expose(LeaseId lease, NodeId peer, const transport::Payload& sink) noexcept {
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::expose;
  command.lease = lease;
  command.peer = peer;
  command.sink = sink;
  // The contract has no refusal here. The lane worker drains its queue in every cycle, so a full one
  // is a moment's matter.
  while (!worker_.push(command)) {
  }
}

void LaneProxy::withdraw(LeaseId lease) noexcept {
  LaneWorker::Command command;
  command.kind = LaneWorker::CommandKind::withdraw;
  command.lease = lease;
  while (!worker_.push(command)) {  // as in expose()
  }
}

Result<void> LaneProxy::register_memory(std::byte* base, std::uint64_t bytes, int fd) {
  Result<void> result;
  worker_.worker_.call([&] { result = worker_.real_.register_memory(base, bytes, fd); });
  return result;
}

void LaneProxy::unregister_memory(std::byte* base) noexcept {
  worker_.worker_.call([&] { worker_.real_.unregister_memory(base); });
}

std::size_t LaneProxy::poll(TimeNs now_ns, std::span<Event> events) noexcept {
  static_cast<void>(now_ns);  // deadlines are the lane worker's
  worker_.owner_parked_.store(0, std::memory_order_relaxed);  // awake: no more signals
  if (release_to_ != 0) worker_.event_bytes_.release(release_to_);
  release_to_ = 0;
  std::size_t count = 0;
  LaneWorker::Note note;
  while (count < events.size()) {
    if (ended_.valid()) {
      events[count++] = lanes_.get(ended_)->last;
      lanes_.erase(ended_);
      ended_ = LaneId{};
      continue;
    }
    if (!worker_.events_.pop(note)) break;
    if (note.release_to != 0) release_to_ = note.release_to;
    if (note.answers_open) {
      Lane* entry = lanes_.get(note.proxy);
      KVRAIL_ASSERT(entry != nullptr);
      if (note.event.lane.valid()) {
        entry->real = note.event.lane;
        by_real_index_[note.event.lane.index] = note.proxy;
        if (entry->close_when_opened) close_lane(note.proxy);
      } else {
        lanes_.erase(note.proxy);
        note.event.kind = EventKind::lane_down;
        note.event.lane = note.proxy;
        events[count++] = note.event;
      }
    } else if (note.answers_chunk) {
      note.event.lane = note.proxy;
      events[count++] = note.event;
      chunk_answered(note.proxy);
    } else if (translate(note.event)) {
      events[count++] = note.event;
    }
  }
  return count;
}

void LaneProxy::chunk_answered(LaneId lane) noexcept {
  Lane* entry = lanes_.get(lane);
  KVRAIL_ASSERT_MSG(entry != nullptr && entry->chunks > 0, "every chunk is answered once, before its lane is down");
  if (--entry->chunks == 0 && entry->down) ended_ = lane;
}

LaneId LaneProxy::proxy_of(LaneId real) noexcept {
  const LaneId proxy = by_real_index_[real.index];
  const Lane* entry = lanes_.get(proxy);
  return entry != nullptr && entry->real == real ? proxy : LaneId{};
}

bool LaneProxy::translate(Event& event) noexcept {
  if (!event.lane.valid()) return true;  // lease_withdrawn names no lane
  const LaneId real = event.lane;
  LaneId proxy = proxy_of(real);
  if (!proxy.valid() && event.kind == EventKind::lane_up) {  // the peer dialled
    proxy = lanes_.try_emplace();
    KVRAIL_ASSERT_MSG(proxy.valid(), "as many proxy lanes as real ones");
    lanes_.get(proxy)->real = real;
    by_real_index_[real.index] = proxy;
  }
  if (!proxy.valid()) return false;
  event.lane = proxy;
  if (event.kind == EventKind::chunk_done) chunk_answered(proxy);
  if (event.kind != EventKind::lane_down) return true;
  Lane& entry = *lanes_.get(proxy);
  if (entry.chunks > 0) {  // still among the commands: the lane worker answers them
    entry.down = true;
    entry.last = event;
    return false;
  }
  lanes_.erase(proxy);
  return true;
}

int LaneProxy::wait_fd() const noexcept { return worker_.wait_fd_; }

bool LaneProxy::arm() noexcept {
  std::uint64_t value = 0;
  [[maybe_unused]] const ssize_t got = ::read(worker_.wait_fd_, &value, sizeof(value));
  worker_.owner_parked_.exchange(1, std::memory_order_acq_rel);
  return worker_.events_.read_available() == 0;
}

transport::LaneStats LaneProxy::stats(LaneId lane) const noexcept {
  const auto& table = lanes_;
  const Lane* entry = table.get(lane);
  if (entry == nullptr || !entry->real.valid()) return {};
  const auto& values = worker_.stats_[entry->real.index].values;
  const auto at = [&values](std::size_t k) { return values[k].load(std::memory_order_relaxed); };
  return {at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
}

}  // namespace kvrail::engine
