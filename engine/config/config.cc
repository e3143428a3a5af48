#include "engine/config/config.h"

#include <algorithm>
#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include <toml++/toml.h>

namespace kvrail::engine {
namespace {

constexpr std::size_t kMaxConfigBytes = 1 << 20;

// Where a message says what is wrong: "kvraild.toml:7: runtime.slice: ...". Of several tables of one name, `slot` is
// what tells them apart.
class Place {
 public:
  Place(ConfigSource& source, std::string section, std::string slot = {})
      : source_(source), section_(std::move(section)), slot_(slot.empty() ? section_ : std::move(slot)) {}
  void note(const toml::key& key) const {
    source_.lines.insert_or_assign(slot_ + "." + std::string(key.str()), key.source().begin.line);
  }
  [[nodiscard]] Error error(const toml::key& key, const std::string& what) const {
    return at(key.source().begin.line, key.str(), what);
  }
  [[nodiscard]] Error at(std::uint64_t line, std::string_view key, const std::string& what) const {
    const std::string name = section_.empty() ? std::string(key) : section_ + "." + std::string(key);
    return Error{{Code::invalid_argument, Scope::engine},
                 source_.file + ":" + std::to_string(line) + ": " + name + ": " + what};
  }

 private:
  ConfigSource& source_;
  std::string section_;
  std::string slot_;
};

// One key: reads its node into the struct, or says what is wrong with the value.
using Reader = std::function<std::optional<std::string>(const toml::node&)>;
using Readers = std::map<std::string, Reader, std::less<>>;

// `left_out`: what leaving the key out means, where that is allowed.
Reader text(std::string& out, const char* left_out = nullptr) {
  return [&out, left_out](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<std::string>();
    if (!value) return "must be a string";
    if (value->empty()) {
      return std::string("must not be empty").append(left_out == nullptr ? "" : "; leave the key out ").append(left_out == nullptr ? "" : left_out);
    }
    if (value->find('\0') != std::string::npos) return "must not hold a zero byte";
    out = *value;
    return std::nullopt;
  };
}

Reader flag(bool& out) {
  return [&out](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<bool>();
    if (!value) return "must be true or false";
    out = *value;
    return std::nullopt;
  };
}

template <class T>
Reader integer(T& out, std::int64_t least, std::int64_t most) {
  return [&out, least, most](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < least || *value > most) {
      return "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    }
    out = static_cast<T>(*value);
    return std::nullopt;
  };
}

// A share, in millionths.
Reader share(std::uint32_t& out_ppm, double most, const char* range) {
  return [&out_ppm, most, range](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value<double>();
    if (!node.is_number() || !value || !(*value >= 0 && *value <= most)) return std::string("must be a number, allowed is ") + range;
    out_ppm = static_cast<std::uint32_t>(std::lround(1e6 * *value));
    return std::nullopt;
  };
}

Reader token_ids(std::vector<TokenId>& out, std::size_t most) {
  return [&out, most](const toml::node& node) -> std::optional<std::string> {
    const std::string wanted =
        "must be an array of up to " + std::to_string(most) + " whole numbers from 0 to 4294967295";
    const toml::array* array = node.as_array();
    if (array == nullptr || array->size() > most) return wanted;
    for (const toml::node& element : *array) {
      const auto value = element.value_exact<std::int64_t>();
      if (!value || *value < 0 || *value > UINT32_MAX) return wanted;
      out.push_back(static_cast<TokenId>(*value));
    }
    std::sort(out.begin(), out.end());
    return std::nullopt;
  };
}

// A string with a unit, within bounds told in the same unit words.
template <class T, class Parse>
Reader measure(T& out, Parse parse, std::int64_t least, std::int64_t most, const char* range) {
  return [&out, parse, least, most, range](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<std::string>();
    if (!value) return std::string("must be a string with a unit, allowed is ") + range;
    const auto parsed = parse(*value);
    if (!parsed.ok()) return parsed.error().message;
    const auto number = static_cast<std::int64_t>(parsed.value());
    if (number < least || number > most) return "\"" + *value + "\" is out of range, allowed is " + range;
    out = static_cast<T>(number);
    return std::nullopt;
  };
}

template <class T>
Reader choice(T& out, std::vector<std::pair<std::string_view, T>> allowed) {
  return [&out, allowed](const toml::node& node) -> std::optional<std::string> {
    const auto value = node.value_exact<std::string>();
    std::string names;
    for (const auto& [name, meaning] : allowed) {
      if (value && *value == name) {
        out = meaning;
        return std::nullopt;
      }
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    return "must be one of " + names;
  };
}

std::string known(const Readers& readers) {
  std::string names;
  for (const auto& [name, reader] : readers) names += (names.empty() ? "" : ", ") + name;
  return names;
}

Result<void> read_table(const toml::table& table, const Readers& readers, const Place& place) {
  for (const auto& [key, node] : table) {
    const auto found = readers.find(key.str());
    if (found == readers.end()) return place.error(key, "unknown key; known here are " + known(readers));
    if (auto wrong = found->second(node)) return place.error(key, *wrong);
    place.note(key);
  }
  return {};
}

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kTiB = std::int64_t{1} << 40;

Readers runtime_readers(Config& c) {
  return {{"mode", choice<WorkerMode>(c.mode, {{"shared", WorkerMode::shared}, {"dedicated", WorkerMode::dedicated}})},
          {"idle", choice<IdlePolicy>(c.idle, {{"adaptive", IdlePolicy::adaptive},
                                               {"spin", IdlePolicy::spin},
                                               {"yield", IdlePolicy::yield}})},
          {"spin", measure(c.spin_ns, parse_duration, 1, kSecondNs, "1 ns to 1 s")},
          {"core", integer(c.core, 0, 4095)},
          {"lane_core", integer(c.lane_core, 0, 4095)},
          {"slice", measure(c.slice_ns, parse_duration, 5 * kMillisecondNs, 20 * kMillisecondNs, "5 ms to 20 ms")},
          {"suspend_below_percent", integer(c.suspend_below_percent, 0, 50)},
          {"record", text(c.record, "to record nothing")},
          {"record_bytes", measure(c.record_bytes, parse_bytes, kMiB, 1024 * kMiB, "1 MiB to 1 GiB")},
          {"drain", measure(c.drain_ns, parse_duration, kMillisecondNs, 600 * kSecondNs, "1 ms to 10 min")}};
}

Readers memory_readers(Config& c) {
  return {{"receive_arena", measure(c.receive_arena_bytes, parse_bytes, kMiB, kTiB, "1 MiB to 1 TiB")},
          {"agent_arena", measure(c.agent_arena_bytes, parse_bytes, kMiB, kTiB, "1 MiB to 1 TiB")},
          {"tables", measure(c.table_bytes, parse_bytes, 16 * kMiB, kTiB, "16 MiB to 1 TiB")},
          {"max_blocks", integer(c.max_blocks, 1024, 1 << 26)},
          {"hugepages", flag(c.hugepages)},
          {"lock", flag(c.lock_memory)}};
}

Readers tcp_readers(Config& c) {
  return {{"listen", text(c.tcp_listen, "not to listen")},
          {"psk_file", text(c.psk_file, "for no key")},
          {"insecure", flag(c.insecure)},
          {"congestion", text(c.congestion, "for the default")},
          {"pacing", measure(c.pacing_bytes_per_s, parse_rate, 1'000, INT64_MAX, "at least 8 kbit/s")},
          {"rate_hint", measure(c.rate_hint_bytes_per_s, parse_rate, 1'000, INT64_MAX, "at least 8 kbit/s")},
          {"force_epoll", flag(c.force_epoll)}};
}

Readers transfer_readers(Config& c) {
  return {{"integrity", flag(c.integrity)},
          {"policy", choice<ChoiceSetting>(c.choice, {{"model", ChoiceSetting::model},
                                                      {"greedy", ChoiceSetting::greedy},
                                                      {"static", ChoiceSetting::fixed}})},
          {"medium", choice<Medium>(c.policy, {{"automatic", Medium::automatic},
                                               {"tokens", Medium::tokens},
                                               {"full", Medium::full},
                                               {"lossless", Medium::lossless},
                                               {"exact", Medium::exact},
                                               {"int8", Medium::int8},
                                               {"int4", Medium::int4},
                                               {"lowrank", Medium::lowrank},
                                               {"topk", Medium::topk},
                                               {"window", Medium::window},
                                               {"split", Medium::split}})},
          {"lineage_floor", share(c.lineage_floor_ppm, 0.999'999, "0 to 0.999999")},
          {"refresh", flag(c.refresh)},
          {"eager_limit", measure(c.eager_limit_bytes, parse_bytes, 1, 16 * 1024, "1 B to 16 KiB")},
          {"window_tokens", integer(c.window_tokens, 0, 1 << 20)},
          {"topk_percent", integer(c.topk_percent, 0, 99)},
          {"sparse_values", choice<Medium>(c.sparse_values, {{"full", Medium::full},
                                                             {"lossless", Medium::lossless},
                                                             {"int8", Medium::int8},
                                                             {"int4", Medium::int4}})},
          {"summary_tokens", integer(c.summary_tokens, 0, 16'384)},
          {"summary_separators", token_ids(c.summary_separators, 64)},
          {"keepalive", measure(c.keepalive_ns, parse_duration, 10 * kMillisecondNs, 60 * kSecondNs, "10 ms to 1 min")},
          {"dead_after",
           measure(c.dead_after_ns, parse_duration, 20 * kMillisecondNs, 600 * kSecondNs, "20 ms to 10 min")}};
}

Readers offload_readers(Config& c) {
  return {{"directory", text(c.offload_directory, "for no tier")},
          {"capacity", measure(c.offload_capacity_bytes, parse_bytes, 4 * kMiB, 64 * kTiB, "4 MiB to 64 TiB")},
          {"segment", measure(c.offload_segment_bytes, parse_bytes, kMiB, 4096 * kMiB, "1 MiB to 4 GiB")},
          {"coding", choice<Medium>(c.offload_coding, {{"full", Medium::full},
                                                       {"lossless", Medium::lossless},
                                                       {"int8", Medium::int8},
                                                       {"int4", Medium::int4}})},
          {"below_percent", integer(c.offload_below_percent, 1, 90)},
          {"until_percent", integer(c.offload_until_percent, 1, 95)},
          {"direct", choice<DirectIo>(c.offload_direct, {{"auto", DirectIo::automatic}, {"on", DirectIo::on}, {"off", DirectIo::off}})},
          {"io_uring", flag(c.offload_io_uring)},
          {"depth", integer(c.offload_depth, 1, 128)},
          {"max_blocks", integer(c.offload_max_blocks, 1024, 1 << 26)},
          {"commit_after", measure(c.offload_commit_ns, parse_duration, 1, kSecondNs, "1 ns to 1 s")},
          {"commit_bytes", measure(c.offload_commit_bytes, parse_bytes, 1, 1024 * kMiB, "1 B to 1 GiB")},
          {"slow_after", measure(c.offload_slow_after_ns, parse_duration, kMillisecondNs, 60 * kSecondNs, "1 ms to 1 min")}};
}

Readers log_readers(Config& c) {
  return {{"level", choice<std::string>(c.log_level, {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"},
                                                      {"error", "error"}})}};
}

// An array of tables, each read by `make(element)`.
template <class T, class Make>
Reader list(std::vector<T>& out, ConfigSource& source, const std::string& section, Make make) {
  return [&out, &source, section, make](const toml::node& node) -> std::optional<std::string> {
    const toml::array* array = node.as_array();
    if (array == nullptr) return "must be an array of tables, [[" + section + "]]";
    for (const toml::node& element : *array) {
      const toml::table* table = element.as_table();
      if (table == nullptr) return "must be an array of tables, [[" + section + "]]";
      T item;
      const Place place(source, section, section + "[" + std::to_string(out.size()) + "]");
      if (auto read = read_table(*table, make(item), place); !read.ok()) return read.error().message;
      out.push_back(std::move(item));
    }
    return std::nullopt;
  };
}

Reader section(ConfigSource& source, const std::string& name, Readers readers) {
  return [&source, name, readers = std::move(readers)](const toml::node& node) -> std::optional<std::string> {
    const toml::table* table = node.as_table();
    if (table == nullptr) return "must be a table, [" + name + "]";
    if (auto read = read_table(*table, readers, Place(source, name)); !read.ok()) return read.error().message;
    return std::nullopt;
  };
}

Readers top_readers(Config& c) {
  ConfigSource& source = c.source;
  Readers attach{{"socket", text(c.socket, "for the default")},
                 {"max_agents", integer(c.max_agents, 1, 65'536)},
                 {"any_uid", flag(c.any_uid)},
                 {"tenant", list(c.tenants, source, "attach.tenant", [](TenantRule& rule) {
                    return Readers{{"uid", integer(rule.uid, 0, UINT32_MAX)}, {"name", text(rule.tenant)}};
                  })}};
  return {{"node", section(source, "node", {{"id", integer(c.node_id, 1, INT64_MAX)}})},
          {"runtime", section(source, "runtime", runtime_readers(c))},
          {"attach", section(source, "attach", std::move(attach))},
          {"memory", section(source, "memory", memory_readers(c))},
          {"tcp", section(source, "tcp", tcp_readers(c))},
          {"shm", section(source, "shm", {{"listen", text(c.shm_listen, "not to listen")}})},
          {"verbs", section(source, "verbs", {{"listen", text(c.verbs_listen, "not to listen")},
                                              {"device", text(c.verbs_device, "for the default")}})},
          {"transfer", section(source, "transfer", transfer_readers(c))},
          {"offload", section(source, "offload", offload_readers(c))},
          {"codec", section(source, "codec", {{"profile", text(c.profile, "to use the built-in figures")}})},
          {"log", section(source, "log", log_readers(c))},
          {"workflow", list(c.workflows, source, "workflow", [](WorkflowFile& workflow) {
             return Readers{{"name", text(workflow.name)}, {"file", text(workflow.file)}};
           })},
          {"peer", list(c.peers, source, "peer", [](PeerConfig& peer) {
             return Readers{{"address", text(peer.address)}, {"transport", text(peer.transport)}};
           })}};
}

}  // namespace

Result<Config> parse_config(std::string_view text, std::string_view name) {
  const std::string file(name);
  if (text.size() > kMaxConfigBytes) {
    return Error{{Code::too_large, Scope::engine}, file + ": larger than 1 MiB, this is no configuration"};
  }
  if (text.find('\0') != std::string_view::npos) {
    return Error{{Code::invalid_argument, Scope::engine}, file + ": holds a zero byte, this is no text file"};
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    return Error{{Code::invalid_argument, Scope::engine}, file + ": starts with a byte order mark; save it without"};
  }
  toml::table parsed;
  // The parser's exceptions end here. (Built without them it goes on after an error, into its own
  // assertions.)
  try {
    parsed = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return Error{{Code::invalid_argument, Scope::engine},
                 file + ":" + std::to_string(error.source().begin.line) + ": " + std::string(error.description())};
  }
  Config config;
  config.source.file = file;
  for (const auto& [key, node] : parsed) {
    const Readers readers = top_readers(config);
    const auto found = readers.find(key.str());
    if (found == readers.end()) {
      return Place(config.source, "").error(key, "unknown key or section; known are " + known(readers));
    }
    if (auto wrong = found->second(node)) {
      // Errors of inner keys name their own line already.
      if (wrong->starts_with(file)) return Error{{Code::invalid_argument, Scope::engine}, *wrong};
      return Place(config.source, "").error(key, *wrong);
    }
  }
  if (auto valid = validate(config); !valid.ok()) return std::move(valid).error();
  return config;
}

Result<Config> load_config(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{{Code::not_found, Scope::engine, errno}, path + ": " + std::strerror(errno)};
  }
  if (!S_ISREG(info.st_mode)) {
    return Error{{Code::invalid_argument, Scope::engine}, path + ": is not a regular file"};
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{{Code::permission_denied, Scope::engine, errno}, path + ": " + std::strerror(errno)};
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto config = parse_config(text, path);
  // A relative path is meant from where the file lies, as a service has no folder of its own to count from.
  if (config.ok() && !config->profile.empty()) {
    config->profile = (std::filesystem::path(path).parent_path() / config->profile).string();
  }
  if (config.ok()) {
    for (WorkflowFile& workflow : config->workflows) {
      workflow.file = (std::filesystem::path(path).parent_path() / workflow.file).string();
    }
  }
  return config;
}

}  // namespace kvrail::engine
