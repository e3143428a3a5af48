// What comes from below: connection events, completions, and what a device says of itself.
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
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned int count = 0;
    while (::ibv_get_cq_event(device.channel, &queue, &context) == 0) ++count;
    if (count > 0) ::ibv_ack_cq_events(device.completions, count);
  }
}

void Core::read_device_events() noexcept {
  const AllowAllocScope allow;
  for (Device& device : devices_.all()) {
    ibv_async_event event{};
    while (::ibv_get_async_event(device.context, &event) == 0) {
      const bool dead = event.event_type == IBV_EVENT_DEVICE_FATAL;
      // Of a port that went down the connection manager and our own keepalive tell; a completion
      // queue that overran, or a device that died, has lost completions that nothing will bring.
      const bool lost = dead || event.event_type == IBV_EVENT_CQ_ERR;
      ::ibv_ack_async_event(&event);
      if (!lost) continue;
      ++counters_.device_failures;
      device.failed = device.failed || dead;
      for (auto& lane : lanes_) {
        if (lane->device() == &device)
          lane->end(Status{Code::lane_lost, Scope::device}, Code::lane_lost);
      }
    }
  }
}

}  // namespace kvrail::transport::verbs
