// Checkpoints of llama2.c: seven int32 (dim, hidden, layers, heads, KV heads, vocabulary, context),
// then float32 tensors, each kind for all layers together. A negative vocabulary means that the
// classifier is stored apart.
#include <cstdlib>
#include <cstring>

#include "kvrail/base/byte_order.h"
#include "perf/model/model_file.h"

namespace kvrail::model {
namespace {

constexpr std::size_t kHeaderBytes = 28;

class FloatReader {
 public:
  explicit FloatReader(const std::byte* at) : at_(at) {}
  std::vector<float> vector(std::uint64_t count) {
    std::vector<float> values(count);
    std::memcpy(values.data(), at_, count * sizeof(float));
    at_ += count * sizeof(float);
    return values;
  }
  Matrix matrix(std::uint32_t in, std::uint32_t out) {
    return transposed(vector(std::uint64_t{in} * out), in, out);
  }
  void skip(std::uint64_t count) { at_ += count * sizeof(float); }

 private:
  const std::byte* at_;
};

std::uint64_t values_of(const ModelShape& s, bool own_classifier) {
  const std::uint64_t dim = s.dim;
  const std::uint64_t layer =
      2 * dim + 2 * dim * dim + 2 * dim * s.kv_width() + 3 * dim * s.ffn_dim;
  const std::uint64_t tables = std::uint64_t{s.max_tokens} * s.head_dim;
  return s.vocabulary * dim * (own_classifier ? 2 : 1) + s.layers * layer + dim + tables;
}

void read_layers(FloatReader& tensors, const ModelShape& s, std::vector<LayerWeights>& layers) {
  layers.resize(s.layers);
  const auto each = [&](auto&& read) {
    for (LayerWeights& layer : layers) {
      read(layer);
    }
  };
  each([&](LayerWeights& l) { l.attention_norm = tensors.vector(s.dim); });
  each([&](LayerWeights& l) { l.query = tensors.matrix(s.dim, s.query_width()); });
  each([&](LayerWeights& l) { l.key = tensors.matrix(s.dim, s.kv_width()); });
  each([&](LayerWeights& l) { l.value = tensors.matrix(s.dim, s.kv_width()); });
  each([&](LayerWeights& l) { l.output = tensors.matrix(s.query_width(), s.dim); });
  each([&](LayerWeights& l) { l.ffn_norm = tensors.vector(s.dim); });
  each([&](LayerWeights& l) { l.gate = tensors.matrix(s.dim, s.ffn_dim); });
  each([&](LayerWeights& l) { l.down = tensors.matrix(s.ffn_dim, s.dim); });
  each([&](LayerWeights& l) { l.up = tensors.matrix(s.dim, s.ffn_dim); });
}

}  // namespace

Result<Model> Model::load_llama2c(const std::filesystem::path& path) {
  auto file = read_file(path);
  if (!file) {
    return std::move(file).error();
  }
  const std::span<const std::byte> bytes = *file;
  if (bytes.size() < kHeaderBytes) {
    return bad_file(path, "truncated: the header alone has 28 bytes");
  }
  const auto field = [&](std::size_t i) {
    return static_cast<std::int32_t>(load_le32(bytes.data() + 4 * i));
  };
  for (const std::size_t i : {0U, 1U, 2U, 3U, 4U, 6U}) {
    if (field(i) <= 0) {
      return bad_file(path, "not a llama2.c checkpoint (a size in its header isn't positive)");
    }
  }
  const auto size = [&](std::size_t i) { return static_cast<std::uint32_t>(field(i)); };
  const bool own_classifier = field(5) < 0;
  Model model;
  ModelShape& s = model.shape_;
  s.dim = size(0);
  s.ffn_dim = size(1);
  s.layers = size(2);
  s.heads = size(3);
  s.kv_heads = size(4);
  s.vocabulary = own_classifier ? 0U - size(5) : size(5);
  s.max_tokens = size(6);
  if (s.dim % s.heads != 0) {
    return bad_file(path, "dim isn't a multiple of heads");
  }
  s.head_dim = s.dim / s.heads;
  const std::string fault = shape_fault(s);
  if (!fault.empty()) {
    return bad_file(path, fault);
  }
  const std::uint64_t expected = kHeaderBytes + 4 * values_of(s, own_classifier);
  if (bytes.size() != expected) {
    return bad_file(path, std::to_string(bytes.size()) + " bytes, the header promises " +
                              std::to_string(expected));
  }
  model.id_ = hash_of(bytes);
  FloatReader tensors(bytes.data() + kHeaderBytes);
  model.embedding_ = tensors.vector(std::uint64_t{s.vocabulary} * s.dim);
  read_layers(tensors, s, model.layers_);
  model.final_norm_ = tensors.vector(s.dim);
  tensors.skip(std::uint64_t{s.max_tokens} *
               s.head_dim);  // Tables of cos and sin, which we compute.
  model.classifier_ = own_classifier ? tensors.matrix(s.dim, s.vocabulary)
                                     : transposed(model.embedding_, s.dim, s.vocabulary);
  model.fill_rope_tables();
  return model;
}

}  // namespace kvrail::model
