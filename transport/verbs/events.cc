// What comes from below: connection events, completions, and what a device says of itself.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "kvrail/base/no_alloc.h"
#include "transport/verbs/completion_table.h"
#include "transport/verbs/core.h"

namespace kvrail::transport::verbs {
namespace {

constexpr int kCompletionsAtOnce = 32;
constexpr int kMostBatches = 16;
constexpr int kMostEvents = 64;  // of connections, in one poll

}  // namespace

// One system call where there is nothing, which is nearly always.
void Core::read_events() noexcept {
  std::array<epoll_event, 1 + 2 * kMaxDevices> ready;
  const int count =
      ::epoll_wait(wait_fd_, ready.data(), static_cast<int>(ready.size()), 0);
  std::uint32_t sources = 0;
  for (int i = 0; i < count; ++i) sources |= 1u << ready[static_cast<std::size_t>(i)].data.u32;
  const auto has = [sources](Source source) {
    return (sources >> static_cast<std::uint32_t>(source) & 1u) != 0;
  };
  if (has(Source::connections)) read_connection_events();
  if (has(Source::devices)) read_device_events();
  for (Device& device : devices_.all()) {
    if (device.overran->exchange(false)) mend_overrun(device);
  }
}

void Core::read_connection_events() noexcept {
  const AllowAllocScope allow;  // a few for each connection, none for a transfer
  for (int i = 0; i < kMostEvents; ++i) {
    rdma_cm_event* event = nullptr;
    if (::rdma_get_cm_event(context_.events, &event) != 0) return;
    ConnectionEvent copy;
    copy.type = event->event;
    copy.status = event->status;
    const bool greets =
        copy.type == RDMA_CM_EVENT_CONNECT_REQUEST || copy.type == RDMA_CM_EVENT_ESTABLISHED;
    if (greets && event->param.conn.private_data != nullptr) {
      copy.greeting_bytes =
          std::min<std::size_t>(event->param.conn.private_data_len, copy.greeting.size());
      std::copy_n(static_cast<const std::byte*>(event->param.conn.private_data),
                  copy.greeting_bytes, copy.greeting.begin());
    }
    rdma_cm_id* const connection = event->id;
    // Acknowledged before it is acted on: a connection is destroyed only when none is open.
    static_cast<void>(::rdma_ack_cm_event(event));
    if (copy.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      on_request(connection, copy);
    } else if (connection != listener_ && connection->context != nullptr) {
      static_cast<Lane*>(connection->context)->on_connection_event(copy);
    }
  }
}

void Core::on_request(rdma_cm_id* request, const ConnectionEvent& event) noexcept {
  const std::uint32_t index = take_lane();
  if (index == kNoLane) {
    ++counters_.refused_lanes;
    static_cast<void>(::rdma_reject(request, nullptr, 0));
    ::rdma_destroy_id(request);
    return;
  }
  if (lanes_[index]->accept(new_id(index), request, event).ok()) {
    ++counters_.accepted;
  } else {
    ++counters_.handshakes_failed;
  }
}

// True if there was anything.
bool Core::poll_completions() noexcept {
  bool any = false;
  std::array<ibv_wc, kCompletionsAtOnce> completions;
  for (Device& device : devices_.all()) {
    if (device.completions == nullptr) continue;
    for (int batch = 0; batch < kMostBatches; ++batch) {
      const int count = ::ibv_poll_cq(device.completions, kCompletionsAtOnce, completions.data());
      if (count <= 0) break;
      any = true;
      for (const ibv_wc& one : std::span(completions).first(static_cast<std::size_t>(count))) {
        const WorkId id = WorkId::unpack(one.wr_id);
        if (id.lane >= lanes_.size()) continue;
        Lane& lane = *lanes_[id.lane];
        const CompletionRule rule = rule_of(one.status);
        if (rule.blame == Blame::none) {
          lane.on_completion(id, one);
          continue;
        }
        if ((lane.id().generation & 0xffffu) != id.generation) {
          ++counters_.stale_completions;
          continue;
        }
        counters_.failed_completions += rule.blame == Blame::follows ? 0 : 1;
        if (one.status == IBV_WC_MW_BIND_ERR && device.windows != nullptr) device.windows->refuse();
        counters_.device_failures += rule.blame == Blame::device ? 1 : 0;
        lane.end(Status{Code::lane_lost, rule.scope, static_cast<std::int32_t>(one.status)},
                 Code::lane_lost);
      }
      if (count < kCompletionsAtOnce) break;
    }
  }
  return any;
}

void Core::drain_notices() noexcept {
  for (Device& device : devices_.all()) {
    if (device.completions == nullptr) continue;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned int count = 0;
    while (::ibv_get_cq_event(device.channel, &queue, &context) == 0) ++count;
    if (count > 0) ::ibv_ack_cq_events(device.completions, count);
  }
}

template <class IsHit>
void Core::end_lanes(const Device& device, int why, IsHit&& is_hit) noexcept {
  for (auto& lane : lanes_) {
    if (lane->device() == &device && is_hit(*lane))
      lane->end(Status{Code::lane_lost, Scope::device, why}, Code::lane_lost);
  }
  unfinished_ = true;
}

void Core::read_device_events() noexcept {
  const AllowAllocScope allow;
  for (Device& device : devices_.all()) {
    ibv_async_event event{};
    while (::ibv_get_async_event(device.context, &event) == 0) {
      const ibv_event_type type = event.event_type;
      if (type == IBV_EVENT_CQ_ERR) Devices::note_overrun(event.element.cq);
      const auto port = static_cast<std::uint8_t>(event.element.port_num);
      ::ibv_ack_async_event(&event);
      on_device_event(device, type, port);
    }
  }
}

// What a device says of itself. A queue pair's own troubles come as completions.
void Core::on_device_event(Device& device, ibv_event_type type, std::uint8_t port) noexcept {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
      ++counters_.device_failures;
      device.failed = true;
      return end_lanes(device, EIO, [](const Lane&) { return true; });
    case IBV_EVENT_PORT_ERR:
      // A link takes longer to come back than retries last: its lanes' chunks are free for others
      // at once. Whoever dials again is refused until it is active.
      ++counters_.ports_down;
      if (port < 64) device.ports_down |= std::uint64_t{1} << port;
      return end_lanes(device, ENETDOWN, [port](const Lane& lane) { return lane.port() == port; });
    case IBV_EVENT_PORT_ACTIVE:
      if (port < 64) device.ports_down &= ~(std::uint64_t{1} << port);
      return context_.say_goodbyes();
    case IBV_EVENT_GID_CHANGE:
      ++counters_.gid_changes;
      return end_lanes(device, EADDRNOTAVAIL, [port, &device](const Lane& lane) {
        return lane.port() == port && !Devices::has_gid(device, port, lane.gid());
      });
    default:
      return;
  }
}

// A queue that overran has lost completions that nothing will bring. All that used it goes, and it
// is made anew.
void Core::mend_overrun(Device& device) noexcept {
  const AllowAllocScope allow;
  ++counters_.device_failures;
  end_lanes(device, EOVERFLOW, [](const Lane&) { return true; });
  static_cast<void>(Devices::renew_completions(device));
}

}  // namespace kvrail::transport::verbs
