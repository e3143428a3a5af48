// Connections: what rdma_cm reports, and the queue pairs that it joins. The bulk pair is not known
// to rdma_cm: its number travels in the private data of request and answer, and it is joined along
// the path that the connection found.
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvrail/base/no_alloc.h"
#include "transport/verbs/lane.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::size_t kRingBytes = 256 * 1024;
constexpr std::size_t kCreditSlots = 8;
constexpr int kResolveMs = 2'000;
// How long the other side waits before it tries again where we had no receive posted, which never
// happens: 0.64 ms. Left at 0 it would be 655 ms.
constexpr std::uint8_t kReceiverNotReady = 12;
// Not 7, which some devices take as for ever.
constexpr std::uint8_t kNotReadyRetries = 6;
constexpr std::uint32_t kPacketMask = 0xffffff;

Status system_status(Code code) noexcept {
  return Status{code, Scope::lane, errno};
}

}  // namespace

Status Lane::dial(LaneId id, std::uint64_t cookie, const SocketAddress& to) noexcept {
  KVRAIL_ASSERT(state_ == LaneState::unused);
  reset();
  id_ = id;
  dialled_ = true;
  cookie_ = cookie;
  if (::rdma_create_id(context_.events, &connection_, this, RDMA_PS_TCP) != 0) {
    connection_ = nullptr;
    return system_status(Code::io_error);
  }
  SocketAddress address = to;
  if (::rdma_resolve_addr(connection_, nullptr, address.get(), kResolveMs) != 0) {
    const Status status = system_status(Code::unreachable);
    destroy_pairs();
    return status;
  }
  state_ = LaneState::connecting;
  deadline_ns_ = add_saturating(context_.now_ns, context_.options.handshake_timeout_ns);
  return {};
}

Status Lane::accept(LaneId id, rdma_cm_id* request, const ConnectionEvent& event) noexcept {
  KVRAIL_ASSERT(state_ == LaneState::unused);
  reset();
  id_ = id;
  dialled_ = false;
  connection_ = request;
  request->context = this;
  Status status;
  if (!take_greeting(event)) {
    status = Status{Code::protocol_error, Scope::lane};
  } else if (status = make_pairs(); status.ok()) {
    status = connect();
  }
  if (!status.ok()) {
    static_cast<void>(::rdma_reject(request, nullptr, 0));
    destroy_pairs();
    return status;
  }
  state_ = LaneState::connecting;
  deadline_ns_ = add_saturating(context_.now_ns, context_.options.handshake_timeout_ns);
  return {};
}

bool Lane::take_greeting(const ConnectionEvent& event) noexcept {
  if (!decode(std::span(event.greeting).first(event.greeting_bytes), peer_greeting_)) return false;
  peer_control_posted_ = peer_greeting_.receive_slots;
  peer_bulk_posted_ = peer_greeting_.bulk_receives;
  return true;
}

void Lane::on_connection_event(const ConnectionEvent& event) noexcept {
  if (state_ == LaneState::unused || state_ == LaneState::ended) return;
  Status status;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (::rdma_resolve_route(connection_, kResolveMs) != 0)
        status = system_status(Code::unreachable);
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      status = make_pairs();
      if (status.ok()) status = connect();
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      connected_ = true;
      if (dialled_ && !take_greeting(event)) {
        status = Status{Code::protocol_error, Scope::lane};
        break;
      }
      status = join_pairs();
      if (!status.ok()) break;
      state_ = LaneState::greeting;
      {
        HandshakeConfig config;
        config.node = context_.options.node;
        config.incarnation = context_.options.incarnation;
        config.psk = &context_.options.psk;
        const Nonce nonce = random_nonce();
        handshake_ = dialled_ ? Handshake::dial(config, nonce, LaneKind::control, random_u64())
                              : Handshake::listen(config, nonce);
      }
      greet();
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      fading_ = true;
      if (!is_alive()) status = Status{Code::lane_lost, Scope::lane};
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_REJECTED:
      status =
          Status{Code::unreachable, Scope::lane, event.status < 0 ? -event.status : ECONNREFUSED};
      break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      status = Status{Code::lane_lost, Scope::device};
      break;
    default:
      break;
  }
  if (!status.ok()) end(status, Code::lane_lost);
}

Status Lane::make_memory() noexcept {
  const std::size_t slots = context_.options.receive_slots * kSlotBytes;
  const std::size_t bytes = slots + kRingBytes + kCreditSlots * kEnvelopeBytes;
  if (memory_ == nullptr) {
    memory_ = std::make_unique<std::byte[]>(bytes);
    for (DigestRing& digests : in_digests_) digests.make_memory();
  }
  if (memory_key_ == nullptr || memory_key_->pd != device_->domain) {
    // Kept from one connection to the next: registering is most of what reconnecting costs.
    forget_memory();
    memory_key_ =
        ::ibv_reg_mr(device_->domain, memory_.get(), bytes, unsigned{IBV_ACCESS_LOCAL_WRITE});
    if (memory_key_ == nullptr) return system_status(Code::limit);
  }
  ring_.set_memory({memory_.get() + slots, kRingBytes});
  return {};
}

Status Lane::make_pair(std::size_t stream) noexcept {
  SendQueue& queue = queues_[stream];
  for (const std::uint32_t most_inline : {256u, 64u, 0u}) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = device_->completions;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = kSendDepth;
    wanted.cap.max_recv_wr = stream == kControl ? context_.options.receive_slots : kBulkReceives;
    wanted.cap.max_send_sge = device_->max_sge;
    wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = most_inline;
    if (stream == kBulk) {
      queue.pair = ::ibv_create_qp(device_->domain, &wanted);
    } else if (::rdma_create_qp(connection_, device_->domain, &wanted) == 0) {
      queue.pair = connection_->qp;
    }
    if (queue.pair != nullptr) {
      queue.depth = kSendDepth;
      queue.aside = device_->windows != nullptr ? kBindSlots : 0;
      queue.most_sge = device_->max_sge;
      queue.most_inline = most_inline;
      return {};
    }
  }
  return system_status(Code::limit);
}

Status Lane::make_pairs() noexcept {
  const AllowAllocScope allow;  // once for each connection
  device_ = context_.devices.find(connection_->verbs);
  if (device_ == nullptr || device_->failed) return Status{Code::unreachable, Scope::device};
  if (device_->is_down(port())) return Status{Code::unreachable, Scope::device, ENETDOWN};
  if (const Status status = make_memory(); !status.ok()) return status;
  if (const Status status = make_pair(kControl); !status.ok()) return status;
  own_greeting_ = Greeting{.receive_slots = context_.options.receive_slots,
                           .bulk_receives = 0,
                           .bulk_queue = 0,
                           .bulk_packet = 0,
                           .mtu_bytes = 0};
  const bool immediates = device_->immediates && context_.options.mode == WriteMode::automatic;
  if (immediates && (dialled_ || peer_greeting_.bulk_receives != 0)) {
    if (const Status status = make_pair(kBulk); !status.ok()) return status;
    ibv_qp_attr attributes{};
    int mask = 0;
    attributes.qp_state = IBV_QPS_INIT;
    if (::rdma_init_qp_attr(connection_, &attributes, &mask) != 0)
      return system_status(Code::io_error);
    // A dialler's connection does not know yet what its peer may do.
    attributes.qp_access_flags =
        unsigned{IBV_ACCESS_LOCAL_WRITE} | unsigned{IBV_ACCESS_REMOTE_WRITE};
    if (::ibv_modify_qp(queues_[kBulk].pair, &attributes, mask | IBV_QP_ACCESS_FLAGS) != 0)
      return system_status(Code::io_error);
    own_greeting_.bulk_receives = kBulkReceives;
    own_greeting_.bulk_queue = queues_[kBulk].pair->qp_num;
    own_greeting_.bulk_packet = static_cast<std::uint32_t>(random_u64()) & kPacketMask;
  }
  post_receives();
  return {};
}

void Lane::post_receives() noexcept {
  control_spent_ = context_.options.receive_slots;
  if (has_bulk_pair()) bulk_spent_ = kBulkReceives;
  repost();
  // The greeting tells the peer of these.
  control_told_ = control_posted_;
  bulk_told_ = bulk_posted_;
}

Status Lane::connect() noexcept {
  std::array<std::byte, kGreetingBytes> greeting;
  encode(own_greeting_, greeting);
  rdma_conn_param parameters{};
  parameters.private_data = greeting.data();
  parameters.private_data_len = static_cast<std::uint8_t>(greeting.size());
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = context_.options.retry_count;
  parameters.rnr_retry_count = kNotReadyRetries;
  std::uint8_t timeout = context_.options.ack_timeout;
  // An older kernel does not know the option, and has the same bound in its own way.
  static_cast<void>(::rdma_set_option(connection_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
                                      &timeout, sizeof(timeout)));
  const int failed =
      dialled_ ? ::rdma_connect(connection_, &parameters) : ::rdma_accept(connection_, &parameters);
  return failed != 0 ? system_status(Code::unreachable) : Status{};
}

Status Lane::join_pairs() noexcept {
  ibv_qp_attr timer{};
  timer.qp_state = IBV_QPS_RTS;
  timer.min_rnr_timer = kReceiverNotReady;
  // iWARP has no such timer.
  static_cast<void>(
      ::ibv_modify_qp(queues_[kControl].pair, &timer, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER));
  if (!has_bulk_pair()) return {};
  if (peer_greeting_.bulk_receives == 0) {
    ::ibv_destroy_qp(queues_[kBulk].pair);  // the peer's device has no immediates
    queues_[kBulk] = SendQueue{};
    bulk_spent_ = 0;
    return {};
  }
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr attributes{};
    int mask = 0;
    attributes.qp_state = state;
    if (::rdma_init_qp_attr(connection_, &attributes, &mask) != 0)
      return system_status(Code::io_error);
    attributes.dest_qp_num = peer_greeting_.bulk_queue;
    attributes.rq_psn = peer_greeting_.bulk_packet;
    attributes.sq_psn = own_greeting_.bulk_packet;
    attributes.min_rnr_timer = kReceiverNotReady;
    attributes.retry_cnt = context_.options.retry_count;
    attributes.rnr_retry = kNotReadyRetries;
    if (::ibv_modify_qp(queues_[kBulk].pair, &attributes, mask) != 0)
      return system_status(Code::io_error);
  }
  return {};
}

std::span<std::byte> Lane::adopt(LaneId id, NodeId peer, Device& device,
                                 std::array<ibv_qp*, 2> pairs, ibv_mr* key) {
  KVRAIL_ASSERT(state_ == LaneState::unused && memory_key_ == nullptr);
  reset();
  const std::size_t slots = context_.options.receive_slots * kSlotBytes;
  memory_ = std::make_unique<std::byte[]>(slots + kRingBytes + kCreditSlots * kEnvelopeBytes);
  for (DigestRing& digests : in_digests_) digests.make_memory();
  ring_.set_memory({memory_.get() + slots, kRingBytes});
  memory_key_ = key;
  device_ = &device;
  for (const std::size_t stream : {kControl, kBulk}) {
    queues_[stream].pair = pairs[stream];
    queues_[stream].depth = kSendDepth;
    queues_[stream].most_sge = device.max_sge;
  }
  peer_greeting_ = Greeting{.receive_slots = context_.options.receive_slots,
                            .bulk_receives = kBulkReceives,
                            .bulk_queue = 0,
                            .bulk_packet = 0,
                            .mtu_bytes = 0};
  peer_control_posted_ = peer_greeting_.receive_slots;
  peer_bulk_posted_ = kBulkReceives;
  post_receives();
  rules_.handshaking = false;
  rules_.version = wire::kProtocolMax;
  id_ = id;
  peer_ = peer;
  state_ = LaneState::up;
  announced_ = true;
  return {memory_.get(), slots};
}

void Lane::disown() noexcept {
  for (SendQueue& queue : queues_) queue.pair = nullptr;
  memory_key_ = nullptr;
  state_ = LaneState::unused;
}

void Lane::forget_memory() noexcept {
  if (memory_key_ != nullptr) ::ibv_dereg_mr(memory_key_);
  memory_key_ = nullptr;
}

void LaneContext::say_goodbyes() noexcept {
  for (rdma_cm_id* const connection : unsaid) {
    static_cast<void>(::rdma_disconnect(connection));
    ::rdma_destroy_id(connection);
  }
  unsaid.clear();
}

void Lane::destroy_pairs() noexcept {
  const AllowAllocScope allow;
  drop_windows();
  if (connection_ != nullptr) {
    const bool later = connected_ && device_ != nullptr && device_->is_down(port());
    if (connected_ && !later) static_cast<void>(::rdma_disconnect(connection_));
    if (queues_[kBulk].pair != nullptr) ::ibv_destroy_qp(queues_[kBulk].pair);
    if (connection_->qp != nullptr) ::rdma_destroy_qp(connection_);
    connection_->context = nullptr;
    if (later) {
      context_.unsaid.push_back(connection_);
    } else {
      ::rdma_destroy_id(connection_);
    }
  }
  for (SendQueue& queue : queues_) queue.pair = nullptr;
  connection_ = nullptr;
  connected_ = false;
  for (Doorbell& doorbell : context_.doorbells) doorbell.reset();
}

}  // namespace kvrail::transport::verbs
