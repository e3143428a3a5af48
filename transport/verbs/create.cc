#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvrail/base/bits.h"
#include "transport/verbs/core.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::uint32_t kSegmentPages = 8192;  // 262,144 segments that peers may have told us of
constexpr int kBacklog = 128;

Error system_error(const std::string& what) {
  const Code code = errno == EADDRINUSE ? Code::address_in_use : Code::io_error;
  return Error{{code, Scope::engine, errno}, what + ": " + std::strerror(errno)};
}

Result<void> check(const VerbsOptions& options) {
  const auto bad = [](const char* text) {
    return Error{{Code::invalid_argument, Scope::engine}, text};
  };
  if (options.node == 0 || options.incarnation == 0)
    return bad("verbs: node and incarnation must not be 0");
  if (options.max_lanes == 0 || options.max_lanes > 64)
    return bad("verbs: max_lanes must be 1 to 64");
  if (options.max_leases == 0 || options.max_leases > wire::kMaxLeaseSlots)
    return bad("verbs: max_leases must be 1 to 4096");
  if (!is_power_of_two(options.max_chunks_in_flight) ||
      options.max_chunks_in_flight > kMaxUnacked) {
    return bad("verbs: max_chunks_in_flight must be a power of two up to 256");
  }
  if (options.max_chunk_bytes == 0 || options.max_chunk_bytes > wire::kMaxChunkBytes) {
    return bad("verbs: max_chunk_bytes must be 1 to 1 MiB");
  }
  if (options.receive_slots < 8 || options.receive_slots > kMostReceiveSlots)
    return bad("verbs: receive_slots must be 8 to 1024");
  if (options.retry_count == 0 || options.retry_count > 6) {
    return bad("verbs: retry_count must be 1 to 6; some devices take 7 as for ever");
  }
  if (options.ack_timeout == 0 || options.ack_timeout > 31)
    return bad("verbs: ack_timeout must be 1 to 31");
  return {};
}

}  // namespace

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::create(const VerbsOptions& options) {
  if (auto good = check(options); !good.ok()) return std::move(good).error();
  VerbsOptions fitting = options;
  auto devices = Devices::open(options.devices, options.max_lanes * completions_of_lane(options),
                               options.windows);
  if (!devices.ok()) return std::move(devices).error();
  const std::uint32_t fit = devices->completions_of_least() / completions_of_lane(options);
  if (fit == 0) {
    return Error{
        {Code::limit, Scope::engine},
        "verbs: the device's completion queue is too small for one lane; lower receive_slots"};
  }
  // A queue that can overrun is no queue: fewer lanes instead.
  fitting.max_lanes = std::min(fitting.max_lanes, fit);
  auto core = std::make_unique<Core>(fitting, std::move(devices).value());
  if (auto started = core->start(); !started.ok()) return std::move(started).error();
  return std::unique_ptr<VerbsTransport>(std::move(core));
}

Core::Core(const VerbsOptions& options, Devices devices)
    : options_(options),
      devices_(std::move(devices)),
      device_names_(devices_.names()),
      memory_(devices_),
      leases_(options.max_leases),
      segments_(kSegmentPages),
      bounce_(memory_, options.max_chunk_bytes),
      context_{options_, counters_, devices_, memory_, leases_, segments_, bounce_},
      generations_(options.max_lanes, 0),
      lease_ranges_(options.max_leases) {
  caps_.name = "verbs";
  caps_.max_frame_bytes = kMaxFramePayload;
  caps_.max_chunk_bytes = options.max_chunk_bytes;
  caps_.max_leases = options.max_leases;
  caps_.max_chunks_in_flight = options.max_chunks_in_flight;
  caps_.verifies_digests = options.integrity;
  caps_.registers_memory = true;
  for (std::uint32_t i = 0; i < options.max_lanes; ++i)
    lanes_.push_back(std::make_unique<Lane>(context_, i));
}

Core::~Core() {
  lanes_.clear();  // queue pairs go before the memory that they name
  context_.say_goodbyes();
  if (listener_ != nullptr) ::rdma_destroy_id(listener_);
  if (context_.events != nullptr) ::rdma_destroy_event_channel(context_.events);
  if (wait_fd_ >= 0) ::close(wait_fd_);
}

Result<void> Core::start() {
  context_.events = ::rdma_create_event_channel();
  if (context_.events == nullptr) return system_error("verbs: no channel for connection events");
  if (auto made = make_wait(); !made.ok()) return made;
  return options_.listen_address.empty() ? Result<void>{} : listen();
}

Result<void> Core::make_wait() {
  wait_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (wait_fd_ < 0) return system_error("verbs: no epoll descriptor");
  std::vector<std::pair<int, Source>> fds{{context_.events->fd, Source::connections}};
  for (const Device& device : devices_.all()) {
    fds.emplace_back(device.channel->fd, Source::notices);
    fds.emplace_back(device.context->async_fd, Source::devices);
  }
  for (const auto& [fd, source] : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(source);
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
        ::epoll_ctl(wait_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return system_error("verbs: cannot wait for events");
    }
  }
  return {};
}

Result<void> Core::listen() {
  Result<SocketAddress> address = parse_address(options_.listen_address, PortZero::allowed);
  if (!address.ok()) return std::move(address).error();
  if (::rdma_create_id(context_.events, &listener_, nullptr, RDMA_PS_TCP) != 0) {
    listener_ = nullptr;
    return system_error("verbs: cannot listen");
  }
  // A restarted node takes its port again while the old connections are still going away.
  int yes = 1;
  static_cast<void>(
      ::rdma_set_option(listener_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)));
  if (::rdma_bind_addr(listener_, address->get()) != 0) {
    Error error = system_error("verbs: cannot listen on " + to_string(*address));
    if (error.status.detail == ENODEV || error.status.detail == EADDRNOTAVAIL) {
      error.message += "; give an address of an RDMA device's port (rdma link, ip addr)";
    }
    return error;
  }
  if (!address->is_wildcard() && devices_.find(listener_->verbs) == nullptr) {
    return Error{{Code::invalid_argument, Scope::engine},
                 "verbs: " + to_string(*address) + " belongs to a device that was not chosen"};
  }
  if (::rdma_listen(listener_, kBacklog) != 0)
    return system_error("verbs: cannot listen on " + to_string(*address));
  SocketAddress bound;
  bound.length = address->length;
  std::memcpy(bound.get(), ::rdma_get_local_addr(listener_), bound.length);
  listen_address_ = to_string(bound);
  return {};
}

}  // namespace kvrail::transport::verbs
