// The configuration of kvraild: one struct, read once from a TOML file, validated as a whole, and
// never changed after start. An unknown key, a bad unit or a contradiction refuses to start, with
// one line that names the key, the value, what is allowed and the remedy. docs/config.md lists all keys.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/base/time.h"
#include "kvrail/types.h"

namespace kvrail::engine {

enum class WorkerMode : std::uint8_t { shared, dedicated };
enum class IdlePolicy : std::uint8_t { adaptive, spin, yield };
// How media are chosen: by the cost model, by each transfer's own least time, or as transfer.medium says.
enum class ChoiceSetting : std::uint8_t { model, greedy, fixed };
enum class DirectIo : std::uint8_t { automatic, on, off };

struct PeerConfig {
  std::string address;             // "host:port", "[v6]:port" (tcp, verbs) or a path (shm)
  std::string transport = "tcp";   // tcp | shm | verbs
  [[nodiscard]] bool operator==(const PeerConfig&) const = default;
};

// Which tenant a local user belongs to; without a rule the tenant is "uid-N".
struct TenantRule {
  std::int64_t uid = -1;   // -1: left out, which is refused; 0 would be root
  std::string tenant;
  [[nodiscard]] bool operator==(const TenantRule&) const = default;
};

// Where the settings stand, for messages: "tcp.listen", "peer[0].address" (counted from 0) to its line.
struct ConfigSource {
  std::string file;   // empty: the Config was built by hand
  std::map<std::string, std::uint64_t, std::less<>> lines;
  [[nodiscard]] bool operator==(const ConfigSource&) const = default;
};

// What tasks of a workflow are like, for all tenants: an agent graph in a YAML file.
struct WorkflowFile {
  std::string name, file;
  [[nodiscard]] bool operator==(const WorkflowFile&) const = default;
};

struct Config {
  ConfigSource source;
  // [node]
  NodeId node_id = 0;              // 0: drawn at random at start
  // [runtime]
  WorkerMode mode = WorkerMode::shared;
  IdlePolicy idle = IdlePolicy::adaptive;
  TimeNs spin_ns = -1;             // -1: as WorkerOptions and host.cc have it
  std::int32_t core = -1;          // pin the scheduler worker; -1: do not pin
  std::int32_t lane_core = -1;     // dedicated mode: pin the lane worker
  TimeNs slice_ns = 10 * kMillisecondNs;
  std::uint32_t suspend_below_percent = 40;
  TimeNs drain_ns = 10 * kSecondNs;
  std::string record;              // a file that decisions are recorded in; empty: they are not
  std::uint64_t record_bytes = 64ULL << 20;
  // [attach]
  std::string socket = "/run/kvrail/kvraild.sock";
  std::uint32_t max_agents = 256;
  std::vector<TenantRule> tenants; // [[attach.tenant]] uid, name
  bool any_uid = false;            // false: only root, the daemon's own user and users with a rule
  // [memory]
  std::uint64_t receive_arena_bytes = 256ULL << 20;
  std::uint64_t agent_arena_bytes = 64ULL << 20;
  std::uint64_t table_bytes = 256ULL << 20;
  std::uint32_t max_blocks = 1U << 18;
  bool hugepages = false;
  bool lock_memory = false;
  // [tcp]
  std::string tcp_listen;          // empty: does not listen
  std::string psk_file;
  bool insecure = false;           // listen beyond loopback without a key
  std::string congestion;          // empty: cubic on loopback, the system's default elsewhere
  std::uint64_t pacing_bytes_per_s = 0;   // 0: off
  std::uint64_t rate_hint_bytes_per_s = 0;
  bool force_epoll = false;
  // [shm]
  std::string shm_listen;          // empty: off
  // [verbs]
  std::string verbs_listen;        // empty: does not listen
  std::string verbs_device = "auto";   // or names, separated by commas
  // [transfer]
  bool integrity = true;
  Medium policy = Medium::automatic;
  ChoiceSetting choice = ChoiceSetting::model;
  std::uint32_t lineage_floor_ppm = 900'000;
  bool refresh = true;
  std::uint32_t eager_limit_bytes = 16 * 1024;
  std::uint32_t window_tokens = 0;
  std::uint32_t topk_percent = 50;
  Medium sparse_values = Medium::full;
  std::uint32_t summary_tokens = 0;
  std::vector<TokenId> summary_separators;  // ascending
  TimeNs keepalive_ns = kSecondNs;
  TimeNs dead_after_ns = 2'500 * kMillisecondNs;
  // [offload]
  std::string offload_directory;   // empty: no tier
  std::uint64_t offload_capacity_bytes = 16ULL << 30;
  std::uint64_t offload_segment_bytes = 64ULL << 20;
  Medium offload_coding = Medium::full;
  std::uint32_t offload_below_percent = 25, offload_until_percent = 40;
  DirectIo offload_direct = DirectIo::automatic;
  bool offload_io_uring = true;
  std::uint32_t offload_depth = 8;
  std::uint32_t offload_max_blocks = 1U << 18;
  TimeNs offload_commit_ns = 2 * kMillisecondNs;
  std::uint64_t offload_commit_bytes = 8ULL << 20;
  TimeNs offload_slow_after_ns = kSecondNs;
  // [codec]
  std::vector<WorkflowFile> workflows;  // [[workflow]]
  std::string profile;             // a file of kvrail-calibrate; empty: the built-in figures
  // [log]
  std::string log_level = "info";
  // [[peer]]
  std::vector<PeerConfig> peers;
  [[nodiscard]] bool operator==(const Config&) const = default;
};

// Parses and validates. `name` is what errors call the text (a path).
[[nodiscard]] Result<Config> parse_config(std::string_view text, std::string_view name);
[[nodiscard]] Result<Config> load_config(const std::string& path);
// Relations between settings; parse_config calls it, a program that builds a Config by hand must.
[[nodiscard]] Result<void> validate(const Config& config);
// "FILE:7: MESSAGE (see line 3 too)": the lines of those of the `keys` that stand in the file, the first one in front.
[[nodiscard]] Error setting_error(const Config& config, Status status, std::initializer_list<std::string_view> keys,
                                  const std::string& message);

// "64 MiB", "1GiB", "4096 B": an integer and one of B, KiB, MiB, GiB, TiB; no fraction, no bare
// number. Refuses 0, overflow and anything else.
[[nodiscard]] Result<std::uint64_t> parse_bytes(std::string_view text);
// "20us", "10 ms", "2s", "5min".
[[nodiscard]] Result<TimeNs> parse_duration(std::string_view text);
// "1 Gbit/s", "125 MB/s": bytes per second out.
[[nodiscard]] Result<std::uint64_t> parse_rate(std::string_view text);

}  // namespace kvrail::engine
