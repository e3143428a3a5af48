// Relations between settings: what each key alone cannot say.
#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <utility>

#include "engine/config/config.h"
#include "transport/shm/packet_socket.h"

namespace kvrail::engine {
namespace {

constexpr std::uint64_t kMostSegments = 16'384;
constexpr std::size_t kMostSocketPathBytes = 107;  // what an address of a Unix socket has room for

using Keys = std::initializer_list<std::string_view>;

Error refused(const Config& config, Keys keys, const std::string& message) {
  return setting_error(config, {Code::invalid_argument, Scope::engine}, keys, message);
}

std::string slot(const char* section, std::size_t at, const char* key) {
  return std::string(section) + "[" + std::to_string(at) + "]." + key;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("[::1]:") ||
         address.starts_with("localhost:");
}

bool is_port(std::string_view text, std::uint32_t least) {
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size() && port >= least &&
         port <= 65'535;
}

// What is wrong with it, or nothing. The form alone: whether there is such a host is found out when
// it is needed.
std::string judge_address(const std::string& text, bool listens) {
  const std::size_t colon = text.rfind(':');
  const std::string_view host =
      std::string_view(text).substr(0, colon == std::string::npos ? 0 : colon);
  const std::size_t close = text.starts_with('[') ? text.find(']') : std::string::npos;
  const bool bracketed = close != std::string::npos && close > 1;
  if (!bracketed && std::count(text.begin(), text.end(), ':') > 1) {
    return "looks like an IPv6 address, which needs brackets around it, [v6]:port";
  }
  // The system would take a host of digits only for an IPv4 address.
  const bool digits = host.find_first_not_of("0123456789") == std::string_view::npos;
  if (host.empty() || digits || (host.front() == '[' && (!bracketed || colon != close + 1)) ||
      colon + 1 == text.size()) {
    return "needs the form host:port or [v6]:port";
  }
  if (!is_port(std::string_view(text).substr(colon + 1), listens ? 0 : 1))
    return "needs a port from 1 to 65535";
  if (!listens && (host == "0.0.0.0" || host == "[::]")) {
    return "is where nobody can be reached; give the address that the peer listens at";
  }
  return {};
}

std::string judge_shm_path(const std::string& path) {
  return transport::shm::is_valid_path(path)
             ? ""
             : "must be @name or an absolute path, of at most 107 bytes";
}

Result<void> validate_paths(const Config& config) {
  if (config.socket.empty()) {
    return refused(config, {"attach.socket"},
                   "attach.socket: must not be empty; agents attach there");
  }
  if (config.socket.size() > kMostSocketPathBytes) {
    return refused(config, {"attach.socket"},
                   "attach.socket: \"" + config.socket + "\" is longer than 107 bytes");
  }
  if (config.shm_listen.empty()) return {};
  if (const std::string wrong = judge_shm_path(config.shm_listen); !wrong.empty()) {
    return refused(config, {"shm.listen"}, "shm.listen: \"" + config.shm_listen + "\" " + wrong);
  }
  if (config.shm_listen == config.socket) {
    return refused(config, {"shm.listen", "attach.socket"},
                   "shm.listen: is attach.socket too; give each a path of its own");
  }
  return {};
}

Result<void> validate_workers(const Config& config) {
  if (config.lane_core < 0) return {};
  if (config.mode != WorkerMode::dedicated) {
    return refused(config, {"runtime.lane_core", "runtime.mode"},
                   "runtime.lane_core: only with runtime.mode = \"dedicated\"");
  }
  if (config.lane_core == config.core) {
    return refused(
        config, {"runtime.lane_core", "runtime.core"},
        "runtime.lane_core: equals runtime.core; two spinning workers on one core stop each other");
  }
  return {};
}

// An RDMA port is never a loopback one: other machines reach it.
Result<void> validate_verbs(const Config& config) {
  if (config.verbs_listen.empty()) return {};
  if (const std::string wrong = judge_address(config.verbs_listen, true); !wrong.empty()) {
    return refused(config, {"verbs.listen"}, "verbs.listen: \"" + config.verbs_listen + "\" " + wrong);
  }
  if (!config.psk_file.empty() || config.insecure) return {};
  return refused(config, {"verbs.listen", "tcp.insecure"},
                 "verbs.listen: can be reached from other machines; set tcp.psk_file to a file of at least 16 "
                 "random bytes that all nodes share, or tcp.insecure = true on a network that you trust");
}

Result<void> validate_security(const Config& config) {
  if (config.insecure && !config.psk_file.empty()) {
    return refused(config, {"tcp.insecure", "tcp.psk_file"},
                   "tcp.insecure: contradicts tcp.psk_file; keep one of them");
  }
  if (const auto verbs = validate_verbs(config); !verbs.ok()) return verbs;
  if (config.tcp_listen.empty()) return {};
  if (const std::string wrong = judge_address(config.tcp_listen, true); !wrong.empty()) {
    return refused(config, {"tcp.listen"}, "tcp.listen: \"" + config.tcp_listen + "\" " + wrong);
  }
  if (is_loopback(config.tcp_listen) || !config.psk_file.empty() || config.insecure) return {};
  return refused(config, {"tcp.listen", "tcp.insecure"},
                 "tcp.listen: \"" + config.tcp_listen +
                     "\" can be reached from other machines; set tcp.psk_file to a file of at "
                     "least 16 random bytes "
                     "that all nodes share, or tcp.insecure = true on a network that you trust");
}

Result<void> validate_tenants(const Config& config) {
  std::map<std::int64_t, std::size_t> uids;
  for (std::size_t i = 0; i < config.tenants.size(); ++i) {
    const TenantRule& rule = config.tenants[i];
    const std::string name_at = slot("attach.tenant", i, "name");
    const std::string uid_at = slot("attach.tenant", i, "uid");
    if (auto name = make_name(rule.tenant); !name.ok()) {
      return refused(config, {name_at, uid_at},
                     "attach.tenant: name \"" + rule.tenant + "\": " + name.error().message);
    }
    if (rule.uid < 0) {
      return refused(
          config, {name_at},
          "attach.tenant.uid: missing; say whose agents belong to \"" + rule.tenant + "\"");
    }
    if (const auto [first, fresh] = uids.emplace(rule.uid, i); !fresh) {
      return refused(config, {uid_at, slot("attach.tenant", first->second, "uid")},
                     "attach.tenant: uid " + std::to_string(rule.uid) +
                         " stands twice; a user has one tenant");
    }
  }
  return {};
}

Result<void> validate_peers(const Config& config) {
  std::map<std::string, std::size_t> addresses;
  for (std::size_t i = 0; i < config.peers.size(); ++i) {
    const PeerConfig& peer = config.peers[i];
    const std::string address_at = slot("peer", i, "address");
    const std::string transport_at = slot("peer", i, "transport");
    if (peer.transport != "tcp" && peer.transport != "shm" && peer.transport != "verbs") {
      return refused(config, {transport_at},
                     "peer.transport: \"" + peer.transport + "\" is not one of tcp, shm, verbs");
    }
    if (peer.address.empty()) {
      return refused(config, {transport_at},
                     "peer.address: missing; give \"host:port\" or, for shm, a path");
    }
    const std::string wrong =
        peer.transport == "shm" ? judge_shm_path(peer.address) : judge_address(peer.address, false);
    if (!wrong.empty()) {
      return refused(config, {address_at, transport_at},
                     "peer.address: \"" + peer.address + "\" " + wrong);
    }
    if (const auto [first, fresh] = addresses.emplace(peer.transport + " " + peer.address, i);
        !fresh) {
      return refused(config, {address_at, slot("peer", first->second, "address")},
                     "peer.address: \"" + peer.address + "\" stands twice");
    }
  }
  return {};
}

Result<void> validate_record(const Config& config) {
  if (config.record.empty() && config.record_bytes != Config{}.record_bytes) {
    return refused(config, {"runtime.record_bytes"}, "runtime.record_bytes: without runtime.record nothing is recorded; set it, or leave this out");
  }
  if (!config.record.empty() && !config.record.starts_with('/')) {
    return refused(config, {"runtime.record"}, "runtime.record: \"" + config.record + "\" must be an absolute path");
  }
  return {};
}

Result<void> validate_workflows(const Config& config) {
  constexpr std::size_t kMost = 16;  // as many as a tenant may describe itself
  if (config.workflows.size() > kMost) {
    return refused(config, {slot("workflow", kMost, "name")}, "workflow: at most 16 can be described; leave out those that are rare");
  }
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < config.workflows.size(); ++i) {
    const WorkflowFile& workflow = config.workflows[i];
    const std::string name_at = slot("workflow", i, "name"), file_at = slot("workflow", i, "file");
    if (workflow.name.empty()) return refused(config, {file_at}, "workflow.name: missing; give the name that tasks are begun with");
    if (auto name = make_name(workflow.name); !name.ok()) {
      return refused(config, {name_at}, "workflow.name: \"" + workflow.name + "\": " + name.error().message);
    }
    if (workflow.file.empty()) return refused(config, {name_at}, "workflow.file: missing; give the YAML file of its agent graph");
    if (const auto [first, fresh] = names.emplace(workflow.name, i); !fresh) {
      return refused(config, {name_at, slot("workflow", first->second, "name")},
                     "workflow.name: \"" + workflow.name + "\" stands twice");
    }
  }
  return {};
}

// A medium that would never be offered, and what would have no effect.
Result<void> validate_media(const Config& config) {
  if (config.choice == ChoiceSetting::fixed && config.policy == Medium::automatic) {
    return refused(config, {"transfer.policy", "transfer.medium"}, "transfer.policy: static needs a medium; name one in transfer.medium");
  }
  if (config.choice == ChoiceSetting::greedy && config.policy != Medium::automatic) {
    return refused(config, {"transfer.policy", "transfer.medium"},
                   "transfer.policy: greedy chooses, so transfer.medium must be automatic; leave one of them out");
  }
  if (config.policy == Medium::window && config.window_tokens == 0) {
    return refused(config, {"transfer.medium", "transfer.window_tokens"},
                   "transfer.medium: window needs transfer.window_tokens above 0");
  }
  if (config.policy == Medium::topk && config.topk_percent == 0) {
    return refused(config, {"transfer.medium", "transfer.topk_percent"},
                   "transfer.medium: topk needs transfer.topk_percent above 0");
  }
  if (!config.summary_separators.empty() && config.summary_tokens == 0) {
    return refused(config, {"transfer.summary_separators", "transfer.summary_tokens"},
                   "transfer.summary_separators: without transfer.summary_tokens the engine makes no summary; "
                   "set it, or leave them out");
  }
  return {};
}

Result<void> validate_offload(const Config& config) {
  if (config.offload_directory.empty()) {
    // The defaults may be written out.
    const auto settings = [](const Config& c) {
      return std::tie(c.offload_capacity_bytes, c.offload_segment_bytes, c.offload_coding, c.offload_direct, c.offload_io_uring,
                      c.offload_depth, c.offload_max_blocks, c.offload_commit_ns, c.offload_commit_bytes, c.offload_slow_after_ns,
                      c.offload_below_percent, c.offload_until_percent);
    };
    const Config defaults;
    if (settings(config) == settings(defaults)) return {};
    const auto first = config.source.lines.lower_bound("offload.");
    const bool named = first != config.source.lines.end() && first->first.starts_with("offload.");
    const std::string key = named ? first->first : "offload.capacity";
    return refused(config, {key}, key + ": without offload.directory there is no tier; set it, or leave this out");
  }
  if (!config.offload_directory.starts_with('/')) {
    return refused(config, {"offload.directory"}, "offload.directory: \"" + config.offload_directory + "\" must be an absolute path");
  }
  if (config.offload_until_percent < config.offload_below_percent) {
    return refused(config, {"offload.until_percent", "offload.below_percent"},
                   "offload.until_percent: must be at least offload.below_percent, else nothing would be written");
  }
  if (config.offload_segment_bytes % 4096 != 0) {
    return refused(config, {"offload.segment"}, "offload.segment: must be a multiple of 4 KiB");
  }
  // One that is written, one that is emptied, and two that hold something meanwhile.
  if (config.offload_capacity_bytes / 4 < config.offload_segment_bytes) {
    return refused(config, {"offload.capacity", "offload.segment"},
                   "offload.capacity: must be at least four times offload.segment; raise it or lower offload.segment");
  }
  if (config.offload_capacity_bytes / config.offload_segment_bytes > kMostSegments) {
    return refused(config, {"offload.capacity", "offload.segment"},
                   "offload.capacity: is more than " + std::to_string(kMostSegments) +
                       " times offload.segment, each an open file; raise offload.segment");
  }
  return {};
}

}  // namespace

Error setting_error(const Config& config, Status status,
                    std::initializer_list<std::string_view> keys, const std::string& message) {
  std::vector<std::string> lines;
  for (const std::string_view key : keys) {
    if (const auto at = config.source.lines.find(key); at != config.source.lines.end()) {
      lines.push_back(std::to_string(at->second));
    }
  }
  std::string text = config.source.file;
  if (!lines.empty()) text += ":" + lines[0];
  if (!text.empty()) text += ": ";
  text += message;
  for (std::size_t i = 1; i < lines.size(); ++i) text += (i == 1 ? " (see line " : ", ") + lines[i];
  if (lines.size() > 1) text += " too)";
  return Error{status, std::move(text)};
}

Result<void> validate(const Config& config) {
  if (config.dead_after_ns < 2 * config.keepalive_ns) {
    return refused(config, {"transfer.dead_after", "transfer.keepalive"},
                   "transfer.dead_after: must be at least twice transfer.keepalive, else a healthy "
                   "peer looks dead");
  }
  for (const auto step :
       {validate_paths, validate_workers, validate_security, validate_tenants, validate_record, validate_workflows, validate_peers,
        validate_media, validate_offload}) {
    if (auto good = step(config); !good.ok()) return good;
  }
  return {};
}

}  // namespace kvrail::engine
