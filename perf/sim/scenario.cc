#include "perf/sim/scenario.h"

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <toml++/toml.h>

#include "engine/config/config.h"
#include "perf/sim/text_input.h"

namespace kvrail::simulation {
namespace {

using Fault = std::optional<std::string>;
using Reader = std::function<Fault(const toml::node&)>;
using Readers = std::map<std::string, Reader, std::less<>>;

Reader number(double& out, double least, double most) {
  return [&out, least, most](const toml::node& node) -> Fault {
    const auto value = node.value<double>();
    if (!value || !(*value >= least && *value <= most))
      return "must be a number from " + std::to_string(least) + " to " + std::to_string(most);
    out = *value;
    return {};
  };
}

template <class Integer>
Reader count(Integer& out, std::int64_t least, std::int64_t most) {
  return [&out, least, most](const toml::node& node) -> Fault {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < least || *value > most)
      return "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    out = static_cast<Integer>(*value);
    return {};
  };
}

Reader flag(bool& out) {
  return [&out](const toml::node& node) -> Fault {
    const auto value = node.value_exact<bool>();
    if (!value) return "must be true or false";
    out = *value;
    return {};
  };
}

Reader text(std::string& out) {
  return [&out](const toml::node& node) -> Fault {
    const auto value = node.value_exact<std::string>();
    if (!value || value->empty()) return "must be a string that is not empty";
    out = *value;
    return {};
  };
}

// "10 Gbit/s", "5 ms", "1 MiB": as in the daemon's configuration.
template <class Value, class Parse>
Reader unit(Value& out, Parse parse) {
  return [&out, parse](const toml::node& node) -> Fault {
    const auto value = node.value_exact<std::string>();
    if (!value) return "must be a string with a unit";
    auto parsed = parse(*value);
    if (!parsed.ok()) return parsed.error().message;
    out = static_cast<Value>(*parsed);
    return {};
  };
}

template <class Value, class Convert>
Reader list(std::vector<Value>& out, Convert convert) {
  return [&out, convert](const toml::node& node) -> Fault {
    const toml::array* const array = node.as_array();
    if (array == nullptr || array->empty()) return "must be a list that is not empty";
    out.clear();
    for (const toml::node& item : *array) {
      const std::optional<Value> value = convert(item);
      if (!value) return "holds something that is not allowed there";
      out.push_back(*value);
    }
    return {};
  };
}

std::optional<std::string> as_text(const toml::node& node) {
  return node.value_exact<std::string>();
}

std::optional<Medium> as_medium(const toml::node& node) {
  const auto name = node.value_exact<std::string>();
  for (const Medium medium :
       {Medium::tokens, Medium::full, Medium::lossless, Medium::int8, Medium::int4, Medium::split}) {
    if (name && *name == medium_name(medium)) return medium;
  }
  return {};
}

std::optional<double> as_rate(const toml::node& node) {
  const auto value = node.value<double>();
  return value && *value > 0 && *value <= 1e6 ? value : std::nullopt;
}

std::optional<std::uint32_t> as_agents(const toml::node& node) {
  const auto value = node.value_exact<std::int64_t>();
  if (!value || *value < 2 || *value > 100'000) return {};
  return static_cast<std::uint32_t>(*value);
}

Reader arrivals(Arrivals& out) {
  return [&out](const toml::node& node) -> Fault {
    const auto value = node.value_exact<std::string>();
    if (!value || (*value != "poisson" && *value != "pareto_on_off")) return "must be \"poisson\" or \"pareto_on_off\"";
    out = *value == "poisson" ? Arrivals::poisson : Arrivals::pareto_on_off;
    return {};
  };
}

constexpr double kMost = 1e18;

Readers traffic_readers(Traffic& it) {
  return {{"arrivals", arrivals(it.arrivals)},
          {"per_second", number(it.per_second, 1e-3, 1e6)},
          {"transfers", count(it.transfers, 1, 100'000'000)},
          {"on_s", number(it.on_s, 1e-3, 1e4)},
          {"off_s", number(it.off_s, 1e-3, 1e4)},
          {"shape", number(it.shape, 1.01, 100)},
          {"median_tokens", number(it.median_tokens, 1, 1e7)},
          {"sigma", number(it.sigma, 0, 5)},
          {"least_tokens", count(it.least_tokens, 1, 10'000'000)},
          {"most_tokens", count(it.most_tokens, 1, 10'000'000)},
          {"deadline", unit(it.deadline_ns, engine::parse_duration)},
          {"slo", unit(it.slo_ns, engine::parse_duration)}};
}

Readers critical_readers(Critical& it) {
  return {{"per_second", number(it.per_second, 0, 1e6)},
          {"bytes", unit(it.bytes, engine::parse_bytes)},
          {"period", unit(it.period_ns, engine::parse_duration)},
          {"reserved", flag(it.reserved)}};
}

Readers cluster_readers(Cluster& it) {
  return {{"senders", count(it.senders, 1, 10'000)},
          {"receiver_nodes", count(it.receiver_nodes, 1, 10'000)},
          {"receivers", count(it.receivers, 1, 100'000)},
          {"link", unit(it.link_bytes_per_s, engine::parse_rate)},
          {"sender_nic", unit(it.sender_nic_bytes_per_s, engine::parse_rate)},
          {"receiver_nic", unit(it.receiver_nic_bytes_per_s, engine::parse_rate)},
          {"round_trip", unit(it.round_trip_ns, engine::parse_duration)},
          {"pool", unit(it.pool_bytes, engine::parse_bytes)},
          {"keep", unit(it.keep_ns, engine::parse_duration)},
          {"team_nodes", count(it.team_nodes, 2, 64)},
          {"codec_takes_time", flag(it.codec_takes_time)}};
}

Readers memory_readers(MemoryBound& it) {
  return {{"fraction", number(it.fraction, 0, 1)},
          {"restore", unit(it.restore_bytes_per_s, engine::parse_rate)},
          {"pause_s", number(it.pause_s, 0, 1e6)},
          {"tasks", count(it.tasks, 1, 100'000)},
          {"sessions", count(it.sessions, 1, 1000)},
          {"announce_s", number(it.announce_s, 0, 1e4)},
          {"skip", number(it.skip, 0, 1)}};
}

Readers top_readers(Scenario& it) {
  return {{"name", text(it.name)},
          {"models", list<std::string>(it.models, as_text)},
          {"gpu", text(it.gpu)},
          {"media", list<Medium>(it.media, as_medium)},
          {"block_tokens", count(it.block_tokens, 16, 512)},
          {"least_chunk", unit(it.least_chunk_bytes, engine::parse_bytes)},
          {"fidelity_floor_ppm", count(it.fidelity_floor_ppm, 0, 1'000'000)},
          {"graphs", list<std::string>(it.graphs, as_text)},
          {"tasks", count(it.tasks, 1, 100'000)},
          {"think_s", number(it.think_s, 0, 1e4)},
          {"describe", flag(it.describe)},
          {"links", text(it.links)},
          {"link_scale", number(it.link_scale_mbit_s, 1e-3, 1e7)},
          {"sweep_per_second", list<double>(it.sweep_per_second, as_rate)},
          {"sweep_agents", list<std::uint32_t>(it.sweep_agents, as_agents)},
          {"policies", list<std::string>(it.policies, as_text)}};
}

Readers model_readers(ModelClass& it) {
  return {{"parameters", number(it.parameters, 1e3, kMost)},
          {"layers", count(it.layers, 1, 1024)},
          {"kv_heads", count(it.kv_heads, 1, 1024)},
          {"head_dim", count(it.head_dim, 1, 576)},
          {"hidden", count(it.hidden, 1, 1'000'000)}};
}

Readers gpu_readers(GpuClass& it) {
  return {{"flops", number(it.flops, 1e6, kMost)}, {"memory_bytes_per_s", number(it.memory_bytes_per_s, 1e3, kMost)}};
}

Readers medium_readers(MediaProfile& profile, Medium medium) {
  MediumClass& it = profile.media[static_cast<std::size_t>(medium)];
  scheduler::MediumLoss& loss = profile.loss.media[static_cast<std::size_t>(medium)];
  return {{"ratio", number(it.ratio, 0.1, 1e4)},
          {"encode_bytes_per_s", number(it.encode_bytes_per_s, 0, kMost)},
          {"decode_bytes_per_s", number(it.decode_bytes_per_s, 0, kMost)},
          {"epsilon_ppm", count(loss.epsilon_ppm, 0, 1'000'000)},
          {"kappa_milli", count(loss.kappa_milli, 0, 1'000'000)},
          {"extra_tokens_milli", count(loss.extra_tokens_milli, 0, 1'000'000'000)}};
}

class Parser {
 public:
  Parser(Scenario& scenario, const std::string& path) : scenario_(scenario), path_(path) {}

  [[nodiscard]] std::optional<Error> read(const toml::table& root) {
    const Readers top = top_readers(scenario_);
    for (const auto& [key, node] : root) {
      std::optional<Error> fault;
      if (key == "traffic") {
        fault = section(key, node, traffic_readers(scenario_.traffic));
      } else if (key == "critical") {
        fault = section(key, node, critical_readers(scenario_.critical));
      } else if (key == "cluster") {
        fault = section(key, node, cluster_readers(scenario_.cluster));
      } else if (key == "memory") {
        fault = section(key, node, memory_readers(scenario_.memory));
      } else if (key == "model" || key == "gpu_class" || key == "medium") {
        fault = classes(key, node);
      } else {
        fault = one(std::string(key.str()), key, node, top);
      }
      if (fault) return fault;
    }
    return {};
  }

 private:
  [[nodiscard]] Error at(const toml::key& key, const std::string& name, const std::string& what) const {
    return input_error(path_, key.source().begin.line, name + ": " + what);
  }
  [[nodiscard]] std::optional<Error> one(const std::string& name, const toml::key& key, const toml::node& node,
                                         const Readers& readers) const {
    const auto reader = readers.find(key.str());
    if (reader == readers.end()) {
      std::string known;
      for (const auto& [other, unused] : readers) known += (known.empty() ? "" : ", ") + other;
      return at(key, name, "no such key; there are " + known);
    }
    if (const Fault fault = reader->second(node)) return at(key, name, *fault);
    return {};
  }
  [[nodiscard]] std::optional<Error> section(const toml::key& key, const toml::node& node, const Readers& readers) const {
    const std::string name(key.str());
    const toml::table* const table = node.as_table();
    if (table == nullptr) return at(key, name, "must be a table");
    for (const auto& [inner, value] : *table) {
      if (auto fault = one(name + "." + std::string(inner.str()), inner, value, readers)) return fault;
    }
    return {};
  }
  // [model.NAME], [gpu_class.NAME], [medium.NAME]
  [[nodiscard]] std::optional<Error> classes(const toml::key& key, const toml::node& node) {
    const toml::table* const table = node.as_table();
    if (table == nullptr) return at(key, std::string(key.str()), "must be a table of tables");
    for (const auto& [inner, value] : *table) {
      Readers readers;
      if (key == "model") {
        readers = model_readers(named(scenario_.model_classes, inner.str()));
      } else if (key == "gpu_class") {
        readers = gpu_readers(named(scenario_.gpu_classes, inner.str()));
      } else {
        const std::optional<Medium> medium = as_medium(toml::value<std::string>{std::string(inner.str())});
        if (!medium) return at(inner, std::string(inner.str()), "no such medium here");
        readers = medium_readers(scenario_.profile, *medium);
      }
      if (auto fault = section(inner, value, readers)) return fault;
    }
    return {};
  }
  template <class Class>
  static Class& named(std::vector<Class>& all, std::string_view name) {
    for (Class& one : all) {
      if (one.name == name) return one;
    }
    all.push_back(Class{});
    all.back().name = std::string(name);
    return all.back();
  }

  Scenario& scenario_;
  const std::string& path_;
};

std::string check_classes(const Scenario& it) {
  for (const ModelClass& model : it.model_classes) {
    if (model.parameters == 0 || model.layers == 0 || model.kv_heads == 0 || model.head_dim == 0 || model.hidden == 0)
      return "model." + model.name + " needs parameters, layers, kv_heads, head_dim and hidden";
  }
  for (const GpuClass& gpu : it.gpu_classes) {
    if (gpu.flops == 0 || gpu.memory_bytes_per_s == 0)
      return "gpu_class." + gpu.name + " needs flops and memory_bytes_per_s";
  }
  if (find(it.gpu_classes, it.gpu) == nullptr) return "gpu: no class \"" + it.gpu + "\"";
  for (const std::string& name : it.models) {
    const std::string_view plain = name.starts_with("foreign:") ? std::string_view(name).substr(8) : name;
    if (find(it.model_classes, plain) == nullptr) return "models: no class \"" + std::string(plain) + "\"";
  }
  return {};
}

std::string check(const Scenario& it) {
  if (it.traffic.least_tokens > it.traffic.most_tokens) return "traffic.least_tokens is more than most_tokens";
  if (it.block_tokens % 16 != 0) return "block_tokens must be a multiple of 16";
  const std::uint64_t chunk = it.least_chunk_bytes;
  if (chunk < 4096 || chunk > (16U << 20) || (chunk & (chunk - 1)) != 0)
    return "least_chunk must be a power of two from 4 KiB to 16 MiB";
  if (it.cluster.receiver_nodes > it.cluster.receivers) return "cluster.receivers must be at least receiver_nodes";
  if (!it.graphs.empty() && it.tasks == 0) return "graphs need tasks";
  if (it.memory.fraction > 0 && it.graphs.empty()) return "memory is bounded for agent graphs only, and there are no graphs";
  if (it.memory.restore_bytes_per_s == 0) return "memory.restore must be more than 0";
  if (it.critical.period_ns != 0 && it.critical.per_second > 0) return "critical: period and per_second exclude each other";
  return check_classes(it);
}

void resolve(std::string& file, const std::filesystem::path& folder) {
  if (!file.empty() && !std::filesystem::path(file).is_absolute()) file = (folder / file).lexically_normal().string();
}

}  // namespace

Result<Scenario> parse_scenario(const std::string& text, const std::string& path) {
  Scenario scenario;
  const std::filesystem::path file(path);
  scenario.name = file.stem().string();
  try {
    const toml::table root = toml::parse(text, path);
    if (auto fault = Parser(scenario, path).read(root)) return *std::move(fault);
  } catch (const toml::parse_error& error) {
    return input_error(path, error.source().begin.line, std::string(error.description()));
  }
  if (const std::string fault = check(scenario); !fault.empty())
    return Error{{Code::invalid_argument}, path + ": " + fault};
  resolve(scenario.links, file.parent_path());
  for (std::string& graph : scenario.graphs) resolve(graph, file.parent_path());
  return scenario;
}

Result<Scenario> load_scenario(const std::string& path) {
  auto text = read_text(path);
  if (!text.ok()) return std::move(text).error();
  return parse_scenario(*text, path);
}

}  // namespace kvrail::simulation
