#include "perf/model/model.h"

#include <cmath>

#include "kvrail/base/assert.h"

namespace kvrail::model {

Layout Model::layout(std::uint32_t block_tokens, Dtype dtype) const {
  KVRAIL_ASSERT(dtype == Dtype::bf16 || dtype == Dtype::fp32);
  Layout layout;
  layout.model_id = id_;
  layout.layers = shape_.layers;
  layout.kv_heads = shape_.kv_heads;
  layout.head_dim = shape_.head_dim;
  layout.block_tokens = block_tokens;
  layout.dtype = dtype;
  layout.rope_base = shape_.rope_base;
  return layout;
}

std::span<const float> Model::embedding(TokenId token) const {
  KVRAIL_ASSERT(token < shape_.vocabulary);
  return std::span(embedding_).subspan(std::size_t{token} * shape_.dim, shape_.dim);
}

void Model::fill_rope_tables() {
  const std::size_t pairs = shape_.head_dim / 2;
  rope_cos_.resize(shape_.max_tokens * pairs);
  rope_sin_.resize(shape_.max_tokens * pairs);
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const double frequency =
        std::pow(double{shape_.rope_base}, -2.0 * static_cast<double>(pair) / shape_.head_dim);
    for (std::size_t position = 0; position < shape_.max_tokens; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      rope_cos_[position * pairs + pair] = static_cast<float>(std::cos(angle));
      rope_sin_[position * pairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace kvrail::model
