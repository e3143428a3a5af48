#include "engine/config/profile.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include <toml++/toml.h>

namespace kvrail::engine {
namespace {

constexpr std::size_t kMaxProfileBytes = 1 << 20;
constexpr std::int64_t kVersion = 1;

Error refused(std::string_view file, std::uint64_t line, std::string_view what) {
  return Error{{Code::invalid_argument, Scope::engine},
               std::string(file).append(":").append(std::to_string(line)).append(": ").append(what)};
}

// One reader's state: the first thing that is wrong ends it.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] Error&& error() && { return std::move(*error_); }

  void fail(const toml::key& key, const std::string& what) {
    if (!error_) error_ = refused(file_, key.source().begin.line, std::string(key.str()).append(": ").append(what));
  }
  template <class T>
  void whole(const toml::key& key, const toml::node& node, T& out, std::int64_t most) {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < 0 || *value > most)
      return fail(key, std::string("must be a whole number from 0 to ").append(std::to_string(most)));
    out = static_cast<T>(*value);
  }
  void number(const toml::key& key, const toml::node& node, double& out) {
    const auto value = node.value<double>();  // whole numbers too
    if (!value || !std::isfinite(*value)) return fail(key, "must be a number");
    out = *value;
  }
  void text(const toml::key& key, const toml::node& node, std::string& out) {
    const auto value = node.value_exact<std::string>();
    if (!value || value->find('\0') != std::string::npos) return fail(key, "must be a string");
    out = *value;
  }
  void hash(const toml::key& key, const toml::node& node, Hash128& out) {
    const auto value = node.value_exact<std::string>();
    if (!value || value->size() != 32 || value->find_first_not_of("0123456789abcdef") != std::string::npos)
      return fail(key, "must be a string of 32 hex digits");
    out.high = std::stoull(value->substr(0, 16), nullptr, 16);
    out.low = std::stoull(value->substr(16), nullptr, 16);
  }
  // Calls `of(key, node)` for each entry; it says whether it knows the key.
  template <class Of>
  void table(const toml::key& key, const toml::node& node, Of of) {
    const toml::table* const inner = node.as_table();
    if (inner == nullptr) return fail(key, "must be a table");
    entries(*inner, of);
  }
  template <class Of>
  void entries(const toml::table& inner, Of of) {
    for (const auto& [name, node] : inner) {
      if (failed()) return;
      if (!of(name, node)) return fail(name, "unknown key; docs/codecs.md lists those of a profile");
    }
  }

 private:
  std::string_view file_;
  std::optional<Error> error_;
};

std::optional<Medium> medium_called(std::string_view name) {
  for (std::size_t i = 1; i < kMediumCount; ++i)
    if (medium_name(static_cast<Medium>(i)) == name) return static_cast<Medium>(i);
  return std::nullopt;
}

void read_figures(Reader& reader, const toml::key& key, const toml::node& node, codec::MediumFigures& out) {
  out.known = true;
  reader.table(key, node, [&](const toml::key& name, const toml::node& value) {
    double* const to = name.str() == "epsilon"        ? &out.epsilon
                       : name.str() == "kappa"        ? &out.kappa
                       : name.str() == "extra_tokens" ? &out.extra_tokens
                                                      : nullptr;
    if (to != nullptr) reader.number(name, value, *to);
    return to != nullptr;
  });
}

void read_depth(Reader& reader, const toml::table& table, codec::ProfileDepth& out) {
  reader.entries(table, [&](const toml::key& key, const toml::node& node) {
    if (key.str() == "up_to_tokens") {
      reader.whole(key, node, out.up_to_tokens, std::int64_t{1} << 40);
      return true;
    }
    if (key.str() != "media") return false;
    reader.table(key, node, [&](const toml::key& name, const toml::node& figures) {
      const auto medium = medium_called(name.str());
      if (medium) read_figures(reader, name, figures, out.media[static_cast<std::size_t>(*medium)]);
      return medium.has_value();
    });
    return true;
  });
}

void read_depths(Reader& reader, const toml::key& key, const toml::node& node, codec::Profile& out) {
  const toml::array* const depths = node.as_array();
  if (depths == nullptr) return reader.fail(key, "must be an array of tables, [[depth]]");
  for (const toml::node& element : *depths) {
    const toml::table* const table = element.as_table();
    if (table == nullptr) return reader.fail(key, "must be an array of tables, [[depth]]");
    out.depths.emplace_back();
    read_depth(reader, *table, out.depths.back());
  }
}

bool read_lowrank(Reader& reader, const toml::key& key, const toml::node& node, codec::Profile& out) {
  if (key.str() == "basis") return reader.text(key, node, out.basis_file), true;
  if (key.str() == "id") return reader.hash(key, node, out.basis_id), true;
  if (key.str() == "theta") return reader.whole(key, node, out.theta, UINT16_MAX), true;
  return false;
}

bool read_protection(Reader& reader, const toml::key& key, const toml::node& node, codec::Protection& out) {
  std::uint32_t* const to = key.str() == "first_layers"   ? &out.first_layers
                            : key.str() == "last_layers"  ? &out.last_layers
                            : key.str() == "first_blocks" ? &out.first_blocks
                            : key.str() == "last_blocks"  ? &out.last_blocks
                                                          : nullptr;
  const bool blocks = to == &out.first_blocks || to == &out.last_blocks;
  if (to != nullptr) reader.whole(key, node, *to, blocks ? codec::kMaxProtectedBlocks : 1 << 20);
  return to != nullptr;
}

void read_profile(Reader& reader, const toml::table& table, codec::Profile& out, std::int64_t& version) {
  reader.entries(table, [&](const toml::key& key, const toml::node& node) {
    if (key.str() == "version") {
      reader.whole(key, node, version, INT64_MAX);
    } else if (key.str() == "model") {
      reader.hash(key, node, out.model_id);
    } else if (key.str() == "lowrank") {
      reader.table(key, node, [&](const toml::key& k, const toml::node& n) { return read_lowrank(reader, k, n, out); });
      // Of a threshold that is not there none may be assumed: the figures are for the one that was calibrated.
      const toml::table* const lowrank = node.as_table();
      if (lowrank != nullptr && !(lowrank->contains("theta") && lowrank->contains("id") && !out.basis_file.empty())) {
        reader.fail(key, "needs basis (a file), id and theta, as kvrail-calibrate writes them");
      }
    } else if (key.str() == "protection") {
      reader.table(key, node,
                   [&](const toml::key& k, const toml::node& n) { return read_protection(reader, k, n, out.protection); });
    } else if (key.str() == "depth") {
      read_depths(reader, key, node, out);
    } else {
      return false;
    }
    return true;
  });
}

}  // namespace

Result<codec::Profile> parse_profile(std::string_view text, std::string_view name) {
  const std::string file(name);
  if (text.size() > kMaxProfileBytes || text.find('\0') != std::string_view::npos)
    return refused(file, 1, "this is no profile: it holds a zero byte or is larger than 1 MiB");
  toml::table parsed;
  // The parser's exceptions end here.
  try {
    parsed = toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return refused(file, error.source().begin.line, error.description());
  }
  codec::Profile profile;
  std::int64_t version = 0;
  Reader reader(file);
  read_profile(reader, parsed, profile, version);
  if (reader.failed()) return std::move(reader).error();
  if (version != kVersion) {
    return Error{{Code::version_mismatch, Scope::engine},
                 file + ": version must be 1; calibrate again with this kvrail"};
  }
  if (auto valid = validate(profile); !valid.ok())
    return Error{valid.error().status, file + ": " + valid.error().message};
  return profile;
}

Result<codec::Profile> load_profile(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return Error{{Code::not_found, Scope::engine, errno}, path + ": " + std::strerror(errno)};
  if (!S_ISREG(info.st_mode))
    return Error{{Code::invalid_argument, Scope::engine}, path + ": is not a regular file"};
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{{Code::permission_denied, Scope::engine, errno}, path + ": " + std::strerror(errno)};
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return parse_profile(text, path);
}

scheduler::DepthLoss loss_of(const codec::Profile& profile) noexcept {
  scheduler::DepthLoss out;
  for (std::size_t i = 0; i < std::min(profile.depths.size(), out.depths.size()); ++i) {
    const codec::ProfileDepth& depth = profile.depths[i];
    out.up_to_tokens[i] = i + 1 == profile.depths.size() ? UINT64_MAX : depth.up_to_tokens;
    for (std::size_t medium = 0; medium < kMediumCount; ++medium) {
      const codec::MediumFigures& of = depth.media[medium];
      if (!of.known) continue;
      const auto whole = [](double value) {
        return static_cast<std::uint32_t>(std::min(std::round(value), 4e9));
      };
      // What loses something never counts as exact.
      const std::uint32_t epsilon = of.epsilon > 0 ? std::max(whole(1e6 * of.epsilon), 1U) : 0;
      out.depths[i].media[medium] = {epsilon, whole(1e3 * of.kappa), whole(1e3 * of.extra_tokens)};
    }
  }
  return out;
}

}  // namespace kvrail::engine
