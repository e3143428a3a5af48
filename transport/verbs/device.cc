#include "transport/verbs/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "transport/verbs/queue_pair.h"
#include "transport/verbs/verbs_transport.h"

namespace kvrail::transport::verbs {
namespace {

constexpr std::size_t kMaxGids = 512;

Error failure(const std::string& what) {
  return Error{{errno == ENOMEM ? Code::limit : Code::io_error, Scope::engine, errno},
               what + ": " + std::strerror(errno)};
}

Result<void> set_up(Device& device, std::uint32_t completions, bool windows) {
  ibv_device_attr attributes{};
  if (::ibv_query_device(device.context, &attributes) != 0)
    return failure("cannot ask " + device.name);
  device.max_sge = std::min(static_cast<std::uint32_t>(attributes.max_sge), kMaxSge);
  device.max_region_bytes = attributes.max_mr_size;
  device.immediates = device.context->device->transport_type == IBV_TRANSPORT_IB;
  device.domain = ::ibv_alloc_pd(device.context);
  if (device.domain == nullptr) return failure("no protection domain of " + device.name);
  // Of type 2B: bound to a queue pair. What type 2A asks of us more, nobody makes any more.
  if (windows && (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0)
    device.windows = std::make_unique<WindowPool>(device.domain);
  device.channel = ::ibv_create_comp_channel(device.context);
  if (device.channel == nullptr) return failure("no completion channel of " + device.name);
  for (const int fd : {device.channel->fd, device.context->async_fd}) {
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
      return failure("cannot set up " + device.name);
  }
  device.entries = std::min(static_cast<int>(completions), attributes.max_cqe);
  device.completions = ::ibv_create_cq(device.context, device.entries, device.overran.get(),
                                       device.channel, 0);
  if (device.completions == nullptr) {
    return failure("no completion queue of " + std::to_string(device.entries) + " entries on " +
                   device.name);
  }
  return {};
}

std::uint32_t bytes_of(ibv_mtu mtu) noexcept {
  return 128u << static_cast<unsigned>(mtu);
}

// Width x (signalling rate of one lane), in the codes of the port attributes.
std::uint64_t rate_of(const ibv_port_attr& port) noexcept {
  const std::uint64_t lanes = port.active_width == 1    ? 1
                              : port.active_width == 2  ? 4
                              : port.active_width == 4  ? 8
                              : port.active_width == 8  ? 12
                              : port.active_width == 16 ? 2
                                                        : 1;
  constexpr std::array<std::pair<std::uint32_t, std::uint64_t>, 8> kMbit{{{1, 2'500},
                                                                          {2, 5'000},
                                                                          {4, 10'000},
                                                                          {8, 10'000},
                                                                          {16, 14'000},
                                                                          {32, 25'000},
                                                                          {64, 50'000},
                                                                          {128, 100'000}}};
  for (const auto& [code, mbit] : kMbit) {
    if (port.active_speed == code) return lanes * mbit * 1'000'000;
  }
  return 0;
}

int numa_node_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

PortView view_of(const Device& device, std::uint8_t number, const ibv_port_attr& port) {
  PortView view;
  view.device = device.name;
  view.port = number;
  view.active = port.state == IBV_PORT_ACTIVE;
  view.link = device.context->device->transport_type == IBV_TRANSPORT_IWARP ? LinkKind::iwarp
              : port.link_layer == IBV_LINK_LAYER_ETHERNET                  ? LinkKind::ethernet
                                                                            : LinkKind::infiniband;
  view.mtu_bytes = bytes_of(port.active_mtu);
  view.rate_bits_per_s = rate_of(port);
  view.numa_node = numa_node_of(device.name);
  return view;
}

}  // namespace

Devices::~Devices() {
  for (Device& device : devices_) {
    device.windows.reset();
    if (device.completions != nullptr) ::ibv_destroy_cq(device.completions);
    if (device.channel != nullptr) ::ibv_destroy_comp_channel(device.channel);
    if (device.domain != nullptr) ::ibv_dealloc_pd(device.domain);
  }
  if (list_ != nullptr) ::rdma_free_devices(list_);
}

Result<Devices> Devices::open(const std::vector<std::string>& names, std::uint32_t completions,
                              bool windows) {
  if (const std::string why = why_unavailable(); !why.empty())
    return Error{{Code::unsupported, Scope::engine}, why};
  Devices opened;
  int count = 0;
  opened.list_ = ::rdma_get_devices(&count);
  if (opened.list_ == nullptr)
    return failure("the RDMA connection manager can't be used (is rdma_ucm loaded?)");
  for (int i = 0; i < count && opened.devices_.size() < kMaxDevices; ++i) {
    Device device;
    device.context = opened.list_[i];
    device.name = ::ibv_get_device_name(device.context->device);
    if (!names.empty() && std::find(names.begin(), names.end(), device.name) == names.end())
      continue;
    device.index = static_cast<std::uint32_t>(opened.devices_.size());
    opened.devices_.push_back(std::move(device));
    if (auto ready = set_up(opened.devices_.back(), completions, windows); !ready.ok())
      return std::move(ready).error();
  }
  if (opened.devices_.empty()) {
    return Error{{Code::not_found, Scope::engine},
                 "no RDMA device of the configured names; this machine has others"};
  }
  return opened;
}

bool Devices::renew_completions(Device& device) noexcept {
  ::ibv_destroy_cq(device.completions);
  device.completions = ::ibv_create_cq(device.context, device.entries, device.overran.get(),
                                       device.channel, 0);
  device.failed = device.failed || device.completions == nullptr;
  return device.completions != nullptr;
}

bool Devices::has_gid(const Device& device, std::uint8_t port, const ibv_gid& gid) noexcept {
  std::array<ibv_gid_entry, kMaxGids> gids;
  const auto found = ::ibv_query_gid_table(device.context, gids.data(), gids.size(), 0);
  if (found < 0) return true;  // not known to be gone
  return std::any_of(gids.begin(), gids.begin() + found, [&](const ibv_gid_entry& entry) {
    return entry.port_num == port && std::memcmp(entry.gid.raw, gid.raw, sizeof(gid.raw)) == 0;
  });
}

Device* Devices::find(const ibv_context* context) noexcept {
  for (Device& device : devices_) {
    if (device.context == context) return &device;
  }
  return nullptr;
}

std::uint32_t Devices::completions_of_least() const noexcept {
  int least = INT32_MAX;
  for (const Device& device : devices_) least = std::min(least, device.completions->cqe);
  return static_cast<std::uint32_t>(least);
}

std::string Devices::names() const {
  std::string all;
  for (const Device& device : devices_) all += (all.empty() ? "" : ", ") + device.name;
  return all;
}

std::vector<PortView> Devices::ports() const {
  std::vector<PortView> views;
  std::vector<ibv_gid_entry> gids(kMaxGids);
  for (const Device& device : devices_) {
    ibv_device_attr attributes{};
    if (::ibv_query_device(device.context, &attributes) != 0) continue;
    const auto found = ::ibv_query_gid_table(device.context, gids.data(), gids.size(), 0);
    for (std::uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
      ibv_port_attr port{};
      if (::ibv_query_port(device.context, number, &port) != 0) continue;
      PortView& view = views.emplace_back(view_of(device, number, port));
      for (ssize_t i = 0; i < found; ++i) {
        const ibv_gid_entry& entry = gids[static_cast<std::size_t>(i)];
        if (entry.port_num != number) continue;
        GidEntry& gid = view.gids.emplace_back();
        std::memcpy(gid.gid.data(), entry.gid.raw, gid.gid.size());
        gid.index = entry.gid_index;
        gid.kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidKind::roce_v2
                   : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::roce_v1
                                                            : GidKind::infiniband;
      }
    }
  }
  return views;
}

std::string why_unavailable() {
  int count = 0;
  ibv_device** const list = ::ibv_get_device_list(&count);
  if (list != nullptr) ::ibv_free_device_list(list);
  if (count > 0) return {};
  return "there is no RDMA device on this machine (ibv_devices lists none)";
}

std::string own_address(const std::vector<std::string>& names) {
  auto devices = Devices::open(names, 1, false);
  if (!devices.ok()) return {};
  const std::vector<PortView> ports = devices->ports();
  for (const bool v4 : {true, false}) {
    for (const PortChoice& choice :
         rank_ports(ports, {.devices = {}, .numa_node = -1, .v4_peer = v4})) {
      // The other GIDs are no addresses that a socket knows.
      if (choice.rank > GidRank::routable_v6) continue;
      const Gid& gid = ports[choice.port].gids[choice.gid].gid;
      std::array<char, INET6_ADDRSTRLEN> text{};
      if (v4) return ::inet_ntop(AF_INET, gid.data() + 12, text.data(), text.size());
      std::string address("[");
      return address.append(::inet_ntop(AF_INET6, gid.data(), text.data(), text.size()))
          .append("]");
    }
  }
  return {};
}

}  // namespace kvrail::transport::verbs
