// A small Llama-shaped decoder in plain C++: the weights and their files. session.h runs them.
//
// It exists so that tests, demo and benchmarks can hand over real KV: state that a trained model
// really computed, whose damage shows in its answers. It is no inference server.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "kvrail/base/result.h"
#include "kvrail/types.h"
#include "perf/model/vocabulary.h"

namespace kvrail::model {

struct ModelShape {
  std::uint32_t dim = 0;
  std::uint32_t layers = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t ffn_dim = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t max_tokens = 0;
  float rope_base = 10000.0F;
  float norm_epsilon = 1e-5F;

  [[nodiscard]] std::uint32_t query_width() const noexcept { return heads * head_dim; }
  [[nodiscard]] std::uint32_t kv_width() const noexcept { return kv_heads * head_dim; }
};

/// A linear map kept as [in][out]: a row holds one input's weights to all outputs, so that the
/// inner loop runs along outputs and needs no sum across vector lanes.
struct Matrix {
  std::uint32_t in = 0;
  std::uint32_t out = 0;
  std::vector<float> values;
};

struct LayerWeights {
  std::vector<float> attention_norm;
  Matrix query, key, value, output;
  std::vector<float> ffn_norm;
  Matrix gate, up, down;
};

/// Immutable after loading; any number of Sessions in any threads may read it. It must outlive
/// them.
class Model {
 public:
  /// Reads a file written by scripts/train-model (perf/model/README.md describes the format).
  [[nodiscard]] static Result<Model> load(const std::filesystem::path& path);
  /// Reads a float32 checkpoint of llama2.c (".bin", the version without a magic number).
  [[nodiscard]] static Result<Model> load_llama2c(const std::filesystem::path& path);

  Model(Model&&) noexcept = default;
  Model& operator=(Model&&) noexcept = default;

  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }
  /// Empty for llama2.c checkpoints, whose tokens BpeTokenizer knows.
  [[nodiscard]] const Vocabulary& vocabulary() const noexcept { return vocabulary_; }
  /// A hash of the whole file: equal ids mean equal weights.
  [[nodiscard]] Hash128 id() const noexcept { return id_; }
  /// The Layout of this model's KV in blocks of `block_tokens` tokens; dtype bf16 or fp32.
  [[nodiscard]] Layout layout(std::uint32_t block_tokens = 64, Dtype dtype = Dtype::bf16) const;

  // For Session.
  [[nodiscard]] std::span<const float> embedding(TokenId token) const;
  [[nodiscard]] const std::vector<LayerWeights>& layers() const noexcept { return layers_; }
  [[nodiscard]] std::span<const float> final_norm() const noexcept { return final_norm_; }
  [[nodiscard]] const Matrix& classifier() const noexcept { return classifier_; }
  /// cos and sin of every (position, pair): [max_tokens][head_dim / 2].
  [[nodiscard]] std::span<const float> rope_cos() const noexcept { return rope_cos_; }
  [[nodiscard]] std::span<const float> rope_sin() const noexcept { return rope_sin_; }

 private:
  Model() = default;
  void fill_rope_tables();

  ModelShape shape_;
  Vocabulary vocabulary_;
  Hash128 id_;
  std::vector<float> embedding_;  // [vocabulary][dim]
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  Matrix classifier_;
  std::vector<float> rope_cos_;
  std::vector<float> rope_sin_;
};

}  // namespace kvrail::model
