// The transports of an engine, each made as its part of the configuration says.
#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/runtime/host.h"

namespace kvrail::engine {

bool Host::dials(std::string_view transport) const noexcept {
  return std::any_of(config_.peers.begin(), config_.peers.end(),
                     [transport](const PeerConfig& peer) { return peer.transport == transport; });
}

Result<void> Host::build_shm() {
  if (config_.shm_listen.empty() && !dials("shm")) return {};
  transport::shm::ShmOptions options;
  options.node = node_id_;
  options.incarnation = incarnation_;
  options.listen_path = config_.shm_listen;
  options.psk = &psk_;
  options.other_users = !psk_.empty();  // a peer of another user must prove the key
  auto shm = transport::shm::ShmTransport::open(options);
  if (!shm.ok()) return std::move(shm).error();
  shm_ = std::move(shm).value();
  return {};
}

Result<void> Host::build_tcp() {
  transport::tcp::TcpOptions options;
  options.node = node_id_;
  options.incarnation = incarnation_;
  options.psk = psk_;
  if (!config_.tcp_listen.empty()) {
    auto address = resolve_address(config_.tcp_listen);
    if (!address.ok()) {
      return setting_error(config_, address.status(), {"tcp.listen"}, "tcp.listen: " + address.error().message);
    }
    options.listen_address = std::move(address).value();
  }
  options.io = config_.force_epoll ? transport::tcp::IoChoice::epoll : transport::tcp::IoChoice::automatic;
  options.integrity = config_.integrity ? transport::tcp::Integrity::full : transport::tcp::Integrity::off;
  options.congestion_control = config_.congestion;
  options.bulk_rate_bytes_per_s = config_.pacing_bytes_per_s;
  auto tcp = transport::tcp::TcpTransport::create(options);
  if (!tcp.ok()) return std::move(tcp).error();
  tcp_ = std::move(tcp).value();
  if (!tcp_->warning().empty()) log_(LogLevel::warning, tcp_->warning());
  return {};
}

Result<void> Host::build_verbs() {
  if (config_.verbs_listen.empty() && !dials("verbs")) return {};
  transport::verbs::VerbsOptions options;
  options.node = node_id_;
  options.incarnation = incarnation_;
  options.psk = psk_;
  options.integrity = config_.integrity;
  if (!config_.verbs_listen.empty()) {
    auto address = resolve_address(config_.verbs_listen);
    if (!address.ok()) {
      return setting_error(config_, address.status(), {"verbs.listen"}, "verbs.listen: " + address.error().message);
    }
    options.listen_address = std::move(address).value();
  }
  if (config_.verbs_device != "auto") {
    std::istringstream names(config_.verbs_device);
    for (std::string name; std::getline(names, name, ',');) {
      if (!name.empty()) options.devices.push_back(name);
    }
  }
  auto verbs = transport::verbs::VerbsTransport::create(options);
  if (!verbs.ok()) {
    return setting_error(config_, verbs.status(), {"verbs.listen", "verbs.device"}, "verbs: " + verbs.error().message);
  }
  verbs_ = std::move(verbs).value();
  return {};
}

}  // namespace kvrail::engine
