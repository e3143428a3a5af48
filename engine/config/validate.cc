// Relations between settings: what each key alone cannot say.
#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "engine/config/config.h"

namespace kvrail::engine {
namespace {

Error refused(std::string message) {
  return Error{{Code::invalid_argument, Scope::engine}, std::move(message)};
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("[::1]:") || address.starts_with("localhost:");
}

bool is_port(std::string_view text, std::uint32_t least) {
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size() && port >= least && port <= 65'535;
}

// The form alone: whether there is such a host is found out when it is needed.
Result<void> validate_address(const char* key, const std::string& text, bool listens) {
  const auto wrong = [&](const char* why) { return refused(std::string(key) + ": \"" + text + "\" " + why); };
  const std::size_t colon = text.rfind(':');
  const std::string_view host = std::string_view(text).substr(0, colon == std::string::npos ? 0 : colon);
  const std::size_t close = text.starts_with('[') ? text.find(']') : std::string::npos;
  const bool bracketed = close != std::string::npos && close > 1;
  if (!bracketed && std::count(text.begin(), text.end(), ':') > 1) {
    return wrong("looks like an IPv6 address, which needs brackets around it, [v6]:port");
  }
  // The system would take a host of digits only for an IPv4 address.
  const bool digits = host.find_first_not_of("0123456789") == std::string_view::npos;
  if (host.empty() || digits || (host.front() == '[' && (!bracketed || colon != close + 1)) || colon + 1 == text.size()) {
    return wrong("needs the form host:port or [v6]:port");
  }
  if (!is_port(std::string_view(text).substr(colon + 1), listens ? 0 : 1)) {
    return wrong("needs a port from 1 to 65535");
  }
  if (!listens && (host == "0.0.0.0" || host == "[::]")) {
    return wrong("is where nobody can be reached; give the address that the peer listens at");
  }
  return {};
}

Result<void> validate_security(const Config& config) {
  if (config.insecure && !config.psk_file.empty()) {
    return refused("tcp.insecure: contradicts tcp.psk_file; keep one of them");
  }
  if (config.tcp_listen.empty()) return {};
  if (auto good = validate_address("tcp.listen", config.tcp_listen, true); !good.ok()) return good;
  if (is_loopback(config.tcp_listen)) return {};
  if (config.psk_file.empty() && !config.insecure) {
    return refused("tcp.listen: \"" + config.tcp_listen +
                   "\" can be reached from other machines; set tcp.psk_file to a file of at least 16 random bytes "
                   "that all nodes share, or tcp.insecure = true on a network that you trust");
  }
  return {};
}

Result<void> validate_names(const Config& config) {
  std::set<std::int64_t> uids;
  for (const TenantRule& rule : config.tenants) {
    if (auto name = make_name(rule.tenant); !name.ok()) {
      return refused("attach.tenant: name \"" + rule.tenant + "\": " + name.error().message);
    }
    if (rule.uid < 0) return refused("attach.tenant.uid: missing; say whose agents belong to \"" + rule.tenant + "\"");
    if (!uids.insert(rule.uid).second) {
      return refused("attach.tenant: uid " + std::to_string(rule.uid) + " stands twice; a user has one tenant");
    }
  }
  std::set<std::string> addresses;
  for (const PeerConfig& peer : config.peers) {
    if (peer.transport != "tcp" && peer.transport != "shm") {
      return refused("peer.transport: \"" + peer.transport + "\" is not one of tcp, shm");
    }
    if (peer.address.empty()) return refused("peer.address: missing; give \"host:port\" or, for shm, a path");
    if (peer.transport == "tcp") {
      if (auto good = validate_address("peer.address", peer.address, false); !good.ok()) return good;
    }
    if (!addresses.insert(peer.transport + " " + peer.address).second) {
      return refused("peer.address: \"" + peer.address + "\" stands twice");
    }
  }
  return {};
}

}  // namespace

Result<void> validate(const Config& config) {
  // A path for a Unix socket has room for 107 bytes.
  for (const std::string* path : {&config.socket, &config.shm_listen}) {
    if (path->size() > 107) return refused("socket path \"" + *path + "\" is longer than 107 bytes");
  }
  if (config.socket.empty()) return refused("attach.socket: must not be empty; agents attach there");
  if (config.dead_after_ns < 2 * config.keepalive_ns) {
    return refused("transfer.dead_after: must be at least twice transfer.keepalive, else a healthy peer looks dead");
  }
  if (config.lane_core >= 0 && config.mode != WorkerMode::dedicated) {
    return refused("runtime.lane_core: only with runtime.mode = \"dedicated\"");
  }
  if (config.lane_core >= 0 && config.lane_core == config.core) {
    return refused("runtime.lane_core: equals runtime.core; two spinning workers on one core stop each other");
  }
  if (auto secure = validate_security(config); !secure.ok()) return secure;
  return validate_names(config);
}

}  // namespace kvrail::engine
