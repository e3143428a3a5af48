// Headers of .safetensors files.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "kvrail/base/byte_order.h"
#include "perf/codec/tensor.h"

namespace kvrail::fidelity {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kNamesShown = 6;

struct ElementType {
  std::string_view name;
  std::uint64_t bits;
};
constexpr std::array kTypes{
    ElementType{"F4", 4},      ElementType{"F6_E2M3", 6}, ElementType{"F6_E3M2", 6},
    ElementType{"BOOL", 8},    ElementType{"U8", 8},      ElementType{"I8", 8},
    ElementType{"F8_E5M2", 8}, ElementType{"F8_E4M3", 8}, ElementType{"F8_E8M0", 8},
    ElementType{"I16", 16},    ElementType{"U16", 16},    ElementType{"F16", 16},
    ElementType{"BF16", 16},   ElementType{"I32", 32},    ElementType{"U32", 32},
    ElementType{"F32", 32},    ElementType{"F64", 64},    ElementType{"I64", 64},
    ElementType{"U64", 64},    ElementType{"C64", 64}};

// A name from a file in an error message: short, and of printable letters only.
std::string shown(const std::string& name) {
  std::string out;
  for (const char c : name.substr(0, 48)) out += c >= ' ' && c <= '~' ? c : '?';
  return "\"" + out + (name.size() > 48 ? "…\"" : "\"");
}

// The object that the text is, with any key that it has twice noted. No exception leaves here.
std::optional<json> parse(const std::string& text, std::optional<std::string>& twice) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) twice = key;
    }
    return true;
  };
  json parsed = json::parse(text, watch, false);
  if (parsed.is_discarded() || !parsed.is_object()) return std::nullopt;
  return parsed;
}

bool is_size(const json& value) {
  return value.is_number_unsigned();
}

// Fills `out` from one entry of the header; empty, or what is wrong.
std::string read_entry(const json& entry, std::uint64_t data_begin, std::uint64_t data_bytes,
                       NamedTensor& out) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array()) {
    return "lacks dtype, shape or data_offsets";
  }
  out.dtype = entry["dtype"].get<std::string>();
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const ElementType& t) { return t.name == out.dtype; });
  if (type == kTypes.end()) return "is of an unknown type " + shown(out.dtype);
  const json& offsets = entry["data_offsets"];
  if (offsets.size() != 2 || !is_size(offsets[0]) || !is_size(offsets[1]))
    return "has data_offsets that are no pair of sizes";
  for (const json& size : entry["shape"]) {
    if (!is_size(size)) return "has a shape that is no list of sizes";
    out.place.shape.push_back(size.get<std::uint64_t>());
  }
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (begin > end || end > data_bytes) {
    return "lies at bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
           std::to_string(data_bytes) + " that the file has";
  }
  const auto bits = bytes_of(out.place.shape, type->bits);
  if (!bits || *bits % 8 != 0 || *bits / 8 != end - begin) {
    return "has " + std::to_string(end - begin) + " bytes; its shape and type need " +
           (bits ? std::to_string(*bits / 8) : std::string("more than 2^64"));
  }
  out.place.offset = data_begin + begin;
  out.place.bytes = end - begin;
  if (out.dtype == "BF16") out.place.dtype = Dtype::bf16;
  if (out.dtype == "F16") out.place.dtype = Dtype::fp16;
  if (out.dtype == "F32") out.place.dtype = Dtype::fp32;
  return {};
}

bool is_metadata(const json& value) {
  return value.is_object() && std::all_of(value.begin(), value.end(),
                                          [](const json& entry) { return entry.is_string(); });
}

// The tensors must follow each other without holes from the header's end to the file's.
Result<void> check_coverage(const InputFile& file, const std::vector<NamedTensor>& tensors,
                            std::uint64_t data_begin) {
  std::uint64_t at = data_begin;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.place.offset != at) {
      return file.fault("tensor " + shown(tensor.name) + " begins at byte " +
                        std::to_string(tensor.place.offset - data_begin) +
                        " where the one before it ends at " + std::to_string(at - data_begin) +
                        ": tensors may neither overlap nor leave holes; write the file again");
    }
    at += tensor.place.bytes;
  }
  if (at != file.size()) {
    return file.fault(std::to_string(file.size() - at) +
                      " bytes at its end belong to no tensor; write the file again");
  }
  return {};
}

Result<std::string> header_text(const InputFile& file) {
  std::array<std::byte, 8> length_bytes{};
  if (file.size() < length_bytes.size())
    return file.fault("has " + std::to_string(file.size()) + " bytes; a header needs 8 at least");
  if (auto done = file.read(0, length_bytes); !done.ok()) return std::move(done).error();
  const std::uint64_t length = load_le64(length_bytes.data());
  if (length > kMostHeaderBytes || length > file.size() - length_bytes.size()) {
    return file.fault("says that its header has " + std::to_string(length) + " bytes; " +
                      std::to_string(file.size() - length_bytes.size()) + " follow and " +
                      std::to_string(kMostHeaderBytes) +
                      " are allowed: it was cut short, or is no .safetensors file");
  }
  return file.text(length_bytes.size(), length);
}

}  // namespace

Result<std::vector<NamedTensor>> safetensors_places(const InputFile& file) {
  auto text = header_text(file);
  if (!text.ok()) return std::move(text).error();
  std::optional<std::string> twice;
  std::optional<json> header;
  if (text->starts_with('{')) header = parse(*text, twice);
  if (!header) return file.fault("its header is no JSON object in UTF-8; write the file again");
  if (twice)
    return file.fault("its header has the key " + shown(*twice) + " twice; write the file again");
  const std::uint64_t data_begin = 8 + text->size();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") {
      if (!is_metadata(entry)) return file.fault("its __metadata__ is no list of texts");
      continue;
    }
    NamedTensor tensor;
    tensor.name = name;
    if (const std::string fault = read_entry(entry, data_begin, file.size() - data_begin, tensor);
        !fault.empty()) {
      return file.fault("tensor " + shown(name) + " " + fault +
                        ": it was cut short, or its header lies");
    }
    tensors.push_back(std::move(tensor));
  }
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return std::pair(a.place.offset, a.place.bytes) < std::pair(b.place.offset, b.place.bytes);
  });
  if (auto covered = check_coverage(file, tensors, data_begin); !covered.ok())
    return std::move(covered).error();
  return tensors;
}

Result<TensorPlace> safetensors_place(const InputFile& file, const std::string& name,
                                      const std::vector<std::string>& usual,
                                      const std::string& option) {
  auto tensors = safetensors_places(file);
  if (!tensors.ok()) return std::move(tensors).error();
  const NamedTensor* found = name.empty() && tensors->size() == 1 ? &tensors->front() : nullptr;
  std::string names;
  for (const NamedTensor& tensor : *tensors) {
    const bool wanted = name.empty()
                            ? std::find(usual.begin(), usual.end(), tensor.name) != usual.end()
                            : tensor.name == name;
    if (wanted && found == nullptr) found = &tensor;
    const auto index = static_cast<std::size_t>(&tensor - tensors->data());
    if (index < kNamesShown) names += (index == 0 ? "" : ", ") + shown(tensor.name);
    if (index == kNamesShown) names += ", …";
  }
  if (found == nullptr) {
    return file.fault((name.empty() ? std::string("has several tensors or none")
                                    : "has no tensor " + shown(name)) +
                      "; choose by " + option + " among: " + (names.empty() ? "none" : names));
  }
  if (!found->place.dtype) {
    return file.fault("tensor " + shown(found->name) + " is of type " + found->dtype +
                      "; BF16, F16 and F32 can be read: convert it first");
  }
  return found->place;
}

}  // namespace kvrail::fidelity
