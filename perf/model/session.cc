#include "perf/model/session.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kvrail/base/assert.h"
#include "perf/model/kernels.h"

namespace kvrail::model {
namespace {

constexpr std::uint32_t kTileTokens = 32;      // Tokens for which one pass reads the weights once.
constexpr std::uint32_t kAttentionTokens = 4;  // Tokens that share one read of a head's K and V.
constexpr std::uint32_t kStep = 16;            // Outputs that the multiply kernel takes at a time.

std::uint32_t rounded_up(std::uint32_t count) {
  return (count + kStep - 1) / kStep * kStep;
}

void multiply(const Matrix& matrix, const float* x, std::uint32_t rows, float* y) {
  kernels().multiply({.x = x,
                      .x_stride = matrix.in,
                      .rows = rows,
                      .w = matrix.values.data(),
                      .w_stride = matrix.out,
                      .inputs = matrix.in,
                      .outputs = matrix.out,
                      .y = y,
                      .y_stride = matrix.out});
}

void rms_norm(std::span<const float> weight, float epsilon, const float* x, std::uint32_t rows,
              float* y) {
  const std::size_t dim = weight.size();
  for (std::uint32_t r = 0; r < rows; ++r, x += dim, y += dim) {
    float squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      squares += x[i] * x[i];
    }
    const float scale = 1.0F / std::sqrt(squares / static_cast<float>(dim) + epsilon);
    for (std::size_t i = 0; i < dim; ++i) {
      y[i] = x[i] * scale * weight[i];
    }
  }
}

void add(const std::vector<float>& from, std::size_t count, std::vector<float>& to) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] += from[i];
  }
}

bool all_finite(const float* values, std::size_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

}  // namespace

Session::Session(const Model& model, std::uint32_t capacity_tokens)
    : model_(&model), capacity_(capacity_tokens), key_stride_(rounded_up(capacity_tokens) + kStep) {
  const ModelShape& s = model.shape();
  KVRAIL_ASSERT_MSG(capacity_tokens > 0 && capacity_tokens <= s.max_tokens,
                    "a session holds 1 to max_tokens tokens");
  cache_.resize(s.layers);
  for (LayerCache& cache : cache_) {
    cache.key_before.resize(std::size_t{capacity_} * s.kv_width());
    cache.key.resize(std::size_t{capacity_} * s.kv_width());
    cache.value.resize(std::size_t{capacity_} * s.kv_width());
    cache.key_by_dim.resize(std::size_t{key_stride_} * s.kv_width());
  }
  position_.resize(capacity_);
  logits_.resize(s.vocabulary);
  hidden_.resize(std::size_t{kTileTokens} * s.dim);
  normed_.resize(std::size_t{kTileTokens} * s.dim);
  query_.resize(std::size_t{kTileTokens} * s.query_width());
  mixed_.resize(std::size_t{kTileTokens} * s.query_width());
  projected_.resize(std::size_t{kTileTokens} * s.dim);
  gate_.resize(std::size_t{kTileTokens} * s.ffn_dim);
  up_.resize(std::size_t{kTileTokens} * s.ffn_dim);
  // One attention tile: the queries and results of one KV head's group, then their scores.
  const std::size_t rows = std::size_t{kAttentionTokens} * (s.heads / s.kv_heads);
  scores_.resize(rows * (key_stride_ + 2 * s.head_dim));
  tile_logits_.resize(std::size_t{kTileTokens} * s.vocabulary);
}

std::span<const float> Session::logits() const noexcept {
  return has_logits_ ? std::span<const float>(logits_) : std::span<const float>{};
}

TokenId Session::greedy() const {
  KVRAIL_ASSERT_MSG(has_logits_, "append a token first");
  return static_cast<TokenId>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
}

void Session::truncate(std::uint32_t length) {
  KVRAIL_ASSERT(length <= length_);
  length_ = length;
  has_logits_ = false;
}

std::uint32_t Session::next_position() const noexcept {
  return length_ == 0 ? 0 : position_[length_ - 1] + 1;
}

Result<void> Session::append(std::span<const TokenId> tokens, std::span<float> all_logits) {
  const ModelShape& s = model_->shape();
  KVRAIL_ASSERT(all_logits.empty() || all_logits.size() >= tokens.size() * s.vocabulary);
  if (tokens.size() > capacity_ - length_ || tokens.size() > s.max_tokens - next_position()) {
    return Error{{Code::too_large},
                 "the session holds " + std::to_string(capacity_) + " tokens up to position " +
                     std::to_string(s.max_tokens) + "; " + std::to_string(length_) +
                     " are held and " + std::to_string(tokens.size()) + " more don't fit"};
  }
  for (const TokenId token : tokens) {
    if (token >= s.vocabulary) {
      return Error{
          {Code::invalid_argument},
          "token " + std::to_string(token) + " is not below " + std::to_string(s.vocabulary)};
    }
  }
  const std::uint32_t length_before = length_;
  for (std::size_t begin = 0; begin < tokens.size(); begin += kTileTokens) {
    const auto tile =
        tokens.subspan(begin, std::min<std::size_t>(kTileTokens, tokens.size() - begin));
    compute_tile(tile, all_logits.empty() ? nullptr : all_logits.data() + begin * s.vocabulary);
    if (!all_finite(tile_logits_.data(), tile.size() * s.vocabulary)) {
      truncate(length_before);
      return Error{{Code::corrupt}, "a logit is NaN or Inf: the KV that was imported is damaged"};
    }
  }
  return {};
}

void Session::compute_tile(std::span<const TokenId> tokens, float* all_logits) {
  const ModelShape& s = model_->shape();
  const auto count = static_cast<std::uint32_t>(tokens.size());
  const std::uint32_t first_position = next_position();
  for (std::uint32_t t = 0; t < count; ++t) {
    position_[length_ + t] = first_position + t;
    std::ranges::copy(model_->embedding(tokens[t]), hidden_.begin() + std::ptrdiff_t{t} * s.dim);
  }
  for (std::uint32_t i = 0; i < s.layers; ++i) {
    const LayerWeights& weights = model_->layers()[i];
    rms_norm(weights.attention_norm, s.norm_epsilon, hidden_.data(), count, normed_.data());
    multiply(weights.query, normed_.data(), count, query_.data());
    compute_kv(i, count);
    if (query_tap_) {
      query_tap_(i, length_, std::span(query_).first(std::size_t{count} * s.query_width()));
    }
    attention(i, count);
    multiply(weights.output, mixed_.data(), count, projected_.data());
    add(projected_, std::size_t{count} * s.dim, hidden_);
    feed_forward(weights, count);
  }
  rms_norm(model_->final_norm(), s.norm_epsilon, hidden_.data(), count, normed_.data());
  multiply(model_->classifier(), normed_.data(), count, tile_logits_.data());
  std::copy_n(tile_logits_.data() + std::size_t{count - 1} * s.vocabulary, s.vocabulary,
              logits_.data());
  if (all_logits != nullptr) {
    std::copy_n(tile_logits_.data(), std::size_t{count} * s.vocabulary, all_logits);
  }
  length_ += count;
  has_logits_ = true;
}

// K and V of the tile's tokens from normed_, and RoPE for K and the queries.
void Session::compute_kv(std::uint32_t layer, std::uint32_t tokens) {
  const ModelShape& s = model_->shape();
  const LayerWeights& weights = model_->layers()[layer];
  LayerCache& cache = cache_[layer];
  const std::size_t offset = std::size_t{length_} * s.kv_width();
  multiply(weights.key, normed_.data(), tokens, cache.key_before.data() + offset);
  multiply(weights.value, normed_.data(), tokens, cache.value.data() + offset);
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const std::uint32_t row = length_ + t;
    rotate(query_.data() + std::size_t{t} * s.query_width(), s.heads, position_[row], 1.0F);
    const float* before = cache.key_before.data() + std::size_t{row} * s.kv_width();
    float* key = cache.key.data() + std::size_t{row} * s.kv_width();
    std::copy_n(before, s.kv_width(), key);
    rotate(key, s.kv_heads, position_[row], 1.0F);
    store_key(cache, row);
  }
}

void Session::attention(std::uint32_t layer, std::uint32_t tokens) {
  for (std::uint32_t head = 0; head < model_->shape().kv_heads; ++head) {
    for (std::uint32_t begin = 0; begin < tokens; begin += kAttentionTokens) {
      attend_tile(layer, head, begin, std::min(kAttentionTokens, tokens - begin));
    }
  }
}

// Some neighbouring tokens, all query heads of one KV head. All rows are scored against the keys
// that the last token sees; a row's keys of its own future then get weight 0, which changes no bit
// of its sum.
void Session::attend_tile(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t begin,
                          std::uint32_t tokens) {
  const ModelShape& s = model_->shape();
  const LayerCache& cache = cache_[layer];
  const std::uint32_t group = s.heads / s.kv_heads;
  const std::uint32_t rows = group * tokens;
  const std::uint32_t keys = length_ + begin + tokens;
  float* query = scores_.data();
  float* result = query + std::size_t{rows} * s.head_dim;
  float* scores = result + std::size_t{rows} * s.head_dim;
  const std::size_t head_offset = std::size_t{kv_head} * group * s.head_dim;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    std::copy_n(query_.data() + std::size_t{begin + t} * s.query_width() + head_offset,
                std::size_t{group} * s.head_dim, query + std::size_t{t} * group * s.head_dim);
  }
  kernels().multiply(
      {.x = query,
       .x_stride = s.head_dim,
       .rows = rows,
       .w = cache.key_by_dim.data() + std::size_t{kv_head} * s.head_dim * key_stride_,
       .w_stride = key_stride_,
       .inputs = s.head_dim,
       .outputs = rounded_up(keys),
       .y = scores,
       .y_stride = key_stride_});
  const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
  for (std::uint32_t r = 0; r < rows; ++r) {
    const std::uint32_t visible = length_ + begin + r / group + 1;
    float* row = scores + std::size_t{r} * key_stride_;
    kernels().softmax(row, visible, scale);
    std::fill(row + visible, row + keys, 0.0F);
  }
  kernels().multiply({.x = scores,
                      .x_stride = key_stride_,
                      .rows = rows,
                      .w = cache.value.data() + std::size_t{kv_head} * s.head_dim,
                      .w_stride = s.kv_width(),
                      .inputs = keys,
                      .outputs = s.head_dim,
                      .y = result,
                      .y_stride = s.head_dim});
  for (std::uint32_t t = 0; t < tokens; ++t) {
    std::copy_n(result + std::size_t{t} * group * s.head_dim, std::size_t{group} * s.head_dim,
                mixed_.data() + std::size_t{begin + t} * s.query_width() + head_offset);
  }
}

void Session::feed_forward(const LayerWeights& weights, std::uint32_t tokens) {
  const ModelShape& s = model_->shape();
  rms_norm(weights.ffn_norm, s.norm_epsilon, hidden_.data(), tokens, normed_.data());
  multiply(weights.gate, normed_.data(), tokens, gate_.data());
  multiply(weights.up, normed_.data(), tokens, up_.data());
  kernels().swiglu(gate_.data(), up_.data(), std::size_t{tokens} * s.ffn_dim);
  multiply(weights.down, gate_.data(), tokens, projected_.data());
  add(projected_, std::size_t{tokens} * s.dim, hidden_);
}

void Session::store_key(LayerCache& cache, std::uint32_t row) {
  const std::uint32_t width = model_->shape().kv_width();
  const float* key = cache.key.data() + std::size_t{row} * width;
  for (std::size_t d = 0; d < width; ++d) {
    cache.key_by_dim[d * key_stride_ + row] = key[d];
  }
}

// Turns neighbouring pairs, as Llama's original weights have them; direction -1 turns back.
void Session::rotate(float* heads, std::uint32_t head_count, std::uint32_t position,
                     float direction) const {
  const std::size_t pairs = model_->shape().head_dim / 2;
  const float* cos = model_->rope_cos().data() + position * pairs;
  const float* sin = model_->rope_sin().data() + position * pairs;
  for (std::uint32_t head = 0; head < head_count; ++head, heads += 2 * pairs) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const float even = heads[2 * i];
      const float odd = heads[2 * i + 1];
      const float turn = direction * sin[i];
      heads[2 * i] = even * cos[i] - odd * turn;
      heads[2 * i + 1] = even * turn + odd * cos[i];
    }
  }
}

std::span<const float> Session::key(std::uint32_t layer) const {
  KVRAIL_ASSERT(layer < cache_.size());
  return std::span(cache_[layer].key).first(std::size_t{length_} * model_->shape().kv_width());
}

std::span<const float> Session::key_before_rope(std::uint32_t layer) const {
  KVRAIL_ASSERT(layer < cache_.size());
  return std::span(cache_[layer].key_before)
      .first(std::size_t{length_} * model_->shape().kv_width());
}

std::span<const float> Session::value(std::uint32_t layer) const {
  KVRAIL_ASSERT(layer < cache_.size());
  return std::span(cache_[layer].value).first(std::size_t{length_} * model_->shape().kv_width());
}

}  // namespace kvrail::model
