#include "perf/codec/kv_set.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "codec/float_convert.h"
#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"
#include "perf/codec/tensor.h"

namespace kvrail::fidelity {
namespace {

constexpr std::uint64_t kMostLayers = 1024, kMostHeads = 1024, kMostDim = 576;  // as Layout
constexpr std::uint64_t kMostTokens = 1U << 24;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "(";
  for (const std::uint64_t size : shape) {
    if (text.size() > 1) text.append(", ");
    text.append(std::to_string(size));
  }
  return text + ")";
}

struct Side {
  const char* option;
  const std::string& path;
  const std::string& name;
  std::vector<std::string> usual;
};

Result<TensorPlace> place_of(const InputFile& file, const Side& side, std::optional<Dtype> dtype) {
  const bool npy = ends_with(side.path, ".npy");
  if (!npy && !ends_with(side.path, ".safetensors"))
    return file.fault("ends neither in .npy nor in .safetensors; convert it to one of them");
  if (npy && !side.name.empty())
    return file.fault("a .npy file has one tensor without a name; leave out " +
                      std::string(side.option) + "-name");
  auto place =
      npy ? npy_place(file)
          : safetensors_place(file, side.name, side.usual, std::string(side.option) + "-name");
  if (!place.ok()) return place;
  if (!place->dtype && dtype && dtype_bytes(*dtype) == 2) place->dtype = dtype;
  if (!place->dtype) {
    return file.fault(
        "has values of two bytes whose type the file does not say; give --dtype bf16 or fp16");
  }
  if (dtype && *dtype != *place->dtype) {
    return file.fault("has values of type " + std::string(dtype_name(*place->dtype)) +
                      ", but --dtype says " + std::string(dtype_name(*dtype)) +
                      "; leave out --dtype");
  }
  return place;
}

Result<void> check_shape(const InputFile& file, const TensorPlace& place) {
  const auto& shape = place.shape;
  if (shape.size() != 4) {
    return file.fault("has the shape " + shape_text(shape) +
                      "; [layer][token][kv_head][dim] is needed: reshape it");
  }
  const auto outside = [&](std::size_t i, std::uint64_t most) {
    return shape[i] == 0 || shape[i] > most;
  };
  if (outside(0, kMostLayers) || outside(1, kMostTokens) || outside(2, kMostHeads) ||
      outside(3, kMostDim)) {
    return file.fault("has the shape " + shape_text(shape) +
                      "; allowed are 1 to 1024 layers, 1 to 16777216 tokens, 1 to 1024 heads and " +
                      "1 to 576 dims: give a part of it");
  }
  return {};
}

Result<void> read_side(const InputFile& file, const TensorPlace& place,
                       std::vector<std::byte>& out) {
  try {
    out.resize(place.bytes);
  } catch (const std::exception&) {
    return Error{{Code::out_of_memory},
                 file.path() + ": no memory for " + std::to_string(place.bytes) +
                     " bytes; give fewer tokens"};
  }
  return file.read(place.offset, out);
}

template <class Span>
Span rows_of(Span all, const KvSet& set, std::uint32_t layer, std::uint32_t first,
             std::uint32_t count) {
  return all.subspan(set.row_offset(layer, first), count * set.row_bytes());
}

}  // namespace

codec::RunView KvSet::run(std::uint32_t layer, std::uint32_t first,
                          std::uint32_t count) const noexcept {
  return {rows_of(std::span(k), *this, layer, first, count),
          rows_of(std::span(v), *this, layer, first, count)};
}

codec::MutableRun KvSet::run(std::uint32_t layer, std::uint32_t first,
                             std::uint32_t count) noexcept {
  return {rows_of(std::span(k), *this, layer, first, count),
          rows_of(std::span(v), *this, layer, first, count)};
}

KvSet KvSet::empty_like(Dtype of) const {
  KvSet set{of, layers, tokens, kv_heads, head_dim, {}, {}, rope, {}};
  set.k.resize(set.side_bytes());
  set.v.resize(set.side_bytes());
  return set;
}

KvSet KvSet::head(std::uint32_t of_layers, std::uint32_t of_tokens) const {
  KVRAIL_ASSERT(of_layers <= layers && of_tokens <= tokens);
  KvSet set{dtype, of_layers, of_tokens, kv_heads, head_dim, {}, {}, rope, {}};
  if (!importance.empty())
    set.importance.assign(importance.begin(), importance.begin() + of_tokens);
  for (std::uint32_t layer = 0; layer < of_layers; ++layer) {
    const codec::RunView rows = run(layer, 0, of_tokens);
    set.k.insert(set.k.end(), rows.k.begin(), rows.k.end());
    set.v.insert(set.v.end(), rows.v.begin(), rows.v.end());
  }
  return set;
}

KvSet KvSet::part(std::uint32_t first, std::uint32_t end) const {
  KVRAIL_ASSERT(first <= end && end <= tokens);
  KvSet set{dtype, layers, end - first, kv_heads, head_dim, {}, {}, rope, {}};
  if (!importance.empty())
    set.importance.assign(importance.begin() + first, importance.begin() + end);
  if (set.rope) set.rope->first_position += first;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const codec::RunView rows = run(layer, first, set.tokens);
    set.k.insert(set.k.end(), rows.k.begin(), rows.k.end());
    set.v.insert(set.v.end(), rows.v.begin(), rows.v.end());
  }
  return set;
}

void to_floats(Dtype dtype, std::span<const std::byte> from, std::span<float> to) {
  KVRAIL_ASSERT(from.size() == to.size() * dtype_bytes(dtype));
  if (dtype == Dtype::fp32) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  KVRAIL_ASSERT(dtype == Dtype::bf16 || dtype == Dtype::fp16);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::uint16_t bits = load_le16(from.data() + 2 * i);
    to[i] = dtype == Dtype::bf16 ? codec::bf16_to_float(bits) : codec::fp16_to_float(bits);
  }
}

void from_floats(Dtype dtype, std::span<const float> from, std::span<std::byte> to) {
  KVRAIL_ASSERT(to.size() == from.size() * dtype_bytes(dtype));
  if (dtype == Dtype::fp32) {
    std::memcpy(to.data(), from.data(), to.size());
    return;
  }
  KVRAIL_ASSERT(dtype == Dtype::bf16 || dtype == Dtype::fp16);
  for (std::size_t i = 0; i < from.size(); ++i) {
    store_le16(to.data() + 2 * i, dtype == Dtype::bf16 ? codec::float_to_bf16(from[i])
                                                       : codec::float_to_fp16(from[i]));
  }
}

std::string_view dtype_name(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::bf16:
      return "bf16";
    case Dtype::fp16:
      return "fp16";
    case Dtype::fp32:
      return "fp32";
    default:
      return "fp8";
  }
}

Result<Dtype> parse_dtype(const std::string& name) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp32}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return Error{{Code::invalid_argument},
               "--dtype \"" + name + "\": there are bf16, fp16 and fp32; choose one of them"};
}

Result<KvSet> load_kv(const KvFiles& files) {
  const Side sides[] = {{"--k", files.k, files.k_name, {"k", "key", "keys"}},
                        {"--v", files.v, files.v_name, {"v", "value", "values"}}};
  KvSet set;
  std::optional<TensorPlace> first;
  for (const Side& side : sides) {
    auto file = InputFile::open(side.path);
    if (!file.ok()) return std::move(file).error();
    auto place = place_of(*file, side, files.dtype);
    if (!place.ok()) return std::move(place).error();
    if (auto good = check_shape(*file, *place); !good.ok()) return std::move(good).error();
    if (first && (first->shape != place->shape || first->dtype != place->dtype)) {
      return file->fault("has the shape " + shape_text(place->shape) + " and type " +
                         std::string(dtype_name(*place->dtype)) + ", K has " +
                         shape_text(first->shape) + " and " +
                         std::string(dtype_name(*first->dtype)) +
                         "; K and V must agree in both: give those of one context");
    }
    if (auto read = read_side(*file, *place, first ? set.v : set.k); !read.ok())
      return std::move(read).error();
    if (!first) first = std::move(*place);
  }
  set.dtype = *first->dtype;
  set.layers = static_cast<std::uint32_t>(first->shape[0]);
  set.tokens = static_cast<std::uint32_t>(first->shape[1]);
  set.kv_heads = static_cast<std::uint32_t>(first->shape[2]);
  set.head_dim = static_cast<std::uint32_t>(first->shape[3]);
  return set;
}

}  // namespace kvrail::fidelity
