// --layout: RoPE data of K and V that come from files.
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

// As engine/config has it: no exceptions of toml++ beyond this file.
#include <toml++/toml.h>

#include "perf/codec/input_file.h"
#include "perf/codec/kv_set.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint64_t kMostFileBytes = 1U << 20;
constexpr std::int64_t kMostPosition = 1LL << 30;

// Reads one value; empty, or what is allowed.
using Reader = std::function<std::string(const toml::node&)>;

Reader positive(float& out, double most) {
  return [&out, most](const toml::node& node) -> std::string {
    const auto value = node.value<double>();
    if (!node.is_number() || !value || !(*value > 0.0 && *value <= most))
      return "a number above 0, at most " + std::to_string(static_cast<std::int64_t>(most));
    out = static_cast<float>(*value);
    return {};
  };
}

Reader whole(std::uint32_t& out, std::int64_t least, std::int64_t most) {
  return [&out, least, most](const toml::node& node) -> std::string {
    const auto value = node.value<std::int64_t>();
    if (!node.is_integer() || !value || *value < least || *value > most)
      return "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    out = static_cast<std::uint32_t>(*value);
    return {};
  };
}

std::map<std::string, Reader, std::less<>> readers_for(Rope& rope) {
  std::map<std::string, Reader, std::less<>> readers;
  readers["rope_base"] = positive(rope.rule.base, 1e12);
  readers["rope_scale"] = positive(rope.rule.scale, 1e6);
  readers["rotary"] = [&rope](const toml::node& node) -> std::string {
    const auto value = node.value<std::string_view>();
    if (!value || (*value != "interleaved" && *value != "half"))
      return "\"interleaved\" (pairs of neighbours) or \"half\" (pairs half a head apart)";
    rope.rule.pairing =
        *value == "half" ? codec::RopePairing::half_split : codec::RopePairing::interleaved;
    return {};
  };
  readers["rotary_dims"] = whole(rope.rule.rotary_dims, 0, 2 * codec::kMaxRopePairs);
  readers["positions_start"] = whole(rope.first_position, 0, kMostPosition);
  return readers;
}

Error fault_at(const InputFile& file, const toml::source_region& where, const std::string& what) {
  return Error{{Code::invalid_argument},
               file.path() + ":" + std::to_string(where.begin.line) + ": " + what};
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 160)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

}  // namespace

Result<Rope> load_layout(const std::string& path, std::uint32_t head_dim) {
  auto file = InputFile::open(path);
  if (!file.ok()) return std::move(file).error();
  if (file->size() > kMostFileBytes)
    return file->fault("has " + std::to_string(file->size()) + " bytes; a layout has at most " +
                       std::to_string(kMostFileBytes));
  auto text = file->text(0, file->size());
  if (!text.ok()) return std::move(text).error();
  toml::table table;
  try {
    table = toml::parse(*text, path);
  } catch (const toml::parse_error& error) {
    return fault_at(*file, error.source(), one_line(error.description()) + "; correct the line");
  }
  Rope rope;
  rope.rule.rotary_dims = head_dim;
  const auto readers = readers_for(rope);
  for (const auto& [key, node] : table) {
    const auto reader = readers.find(key.str());
    if (reader == readers.end()) {
      return fault_at(*file, key.source(),
                      one_line(key.str()).append(": is no key of a layout; there are ") +
                          "rope_base, rope_scale, rotary, rotary_dims and positions_start");
    }
    if (const std::string allowed = reader->second(node); !allowed.empty())
      return fault_at(*file, node.source(), one_line(key.str()) + ": needs " + allowed);
  }
  if (auto good = codec::validate(rope.rule, head_dim); !good.ok())
    return file->fault(good.error().message);
  return rope;
}

}  // namespace kvrail::fidelity
