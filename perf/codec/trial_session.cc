#include "perf/codec/trial_session.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kvrail/base/assert.h"

namespace kvrail::fidelity {

TrialSession::TrialSession(const model::Model& model, std::uint32_t capacity)
    : session_(model, capacity),
      layout_(model.layout(64, Dtype::fp32)),
      slot_(layout_.block_bytes() / sizeof(float)) {}

KvSet TrialSession::kv(Dtype dtype) const {
  const model::ModelShape& shape = session_.model().shape();
  KvSet set{dtype, shape.layers, session_.length(), shape.kv_heads, shape.head_dim, {}, {}, {}, {}};
  set = set.empty_like(dtype);
  codec::RopeRule rule;
  rule.base = shape.rope_base;
  rule.rotary_dims = shape.head_dim;
  set.rope = Rope{rule, 0};
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const codec::MutableRun run = set.run(layer, 0, set.tokens);
    from_floats(dtype, session_.key(layer), run.k);
    from_floats(dtype, session_.value(layer), run.v);
  }
  return set;
}

// Tokens [token, token + count) of the set become rows [row, row + count); count <= block_tokens.
Result<void> TrialSession::import_rows(const KvSet& set, std::uint32_t row, std::uint32_t token,
                                       std::uint32_t count) {
  const std::size_t values = count * set.row_values();
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    const codec::RunView run = set.run(layer, token, count);
    for (const std::uint32_t side : {0U, 1U}) {
      const std::size_t at = layout_.row_offset(layer, side, 0) / sizeof(float);
      to_floats(set.dtype, side == 0 ? run.k : run.v, std::span(slot_).subspan(at, values));
    }
  }
  return session_.import_kv(layout_, row, count, std::as_bytes(std::span(slot_)), token);
}

Result<void> TrialSession::hold(const KvSet& set, std::span<const std::uint32_t> kept) {
  session_.truncate(0);
  const auto rows = kept.empty() ? set.tokens : static_cast<std::uint32_t>(kept.size());
  const auto token_of = [&](std::uint32_t row) { return kept.empty() ? row : kept[row]; };
  for (std::uint32_t row = 0; row < rows;) {
    const std::uint32_t token = token_of(row);
    std::uint32_t count = 1;
    while (count < layout_.block_tokens && row + count < rows &&
           token_of(row + count) == token + count)
      ++count;
    if (auto done = import_rows(set, row, token, count); !done.ok()) return done;
    row += count;
  }
  return {};
}

Result<std::vector<float>> TrialSession::logits_of(std::span<const TokenId> tokens) {
  std::vector<float> logits(tokens.size() * session_.model().shape().vocabulary);
  const std::uint32_t length = session_.length();
  if (auto done = session_.append(tokens, logits); !done.ok()) return std::move(done).error();
  session_.truncate(length);
  return logits;
}

Result<std::vector<float>> TrialSession::logits_of(std::span<const TokenId> tokens,
                                                   std::uint32_t step, Queries& queries) {
  const model::ModelShape& shape = session_.model().shape();
  const std::uint32_t length = session_.length();
  const std::size_t width = shape.query_width();
  queries = Queries{shape.heads, 0, std::vector<std::vector<float>>(shape.layers)};
  session_.tap_queries([&](std::uint32_t layer, std::uint32_t first, std::span<const float> tile) {
    for (std::uint32_t t = 0; t < tile.size() / width; ++t) {
      if ((first - length + t) % step != 0) continue;
      const auto row = tile.subspan(t * width, width);
      queries.of_layer[layer].insert(queries.of_layer[layer].end(), row.begin(), row.end());
    }
  });
  auto logits = logits_of(tokens);
  session_.tap_queries({});
  queries.count = static_cast<std::uint32_t>(queries.of_layer[0].size() / width);
  return logits;
}

namespace {

// p over the keys of one KV head that a query sees, `rows` of them, `stride` apart.
void attention_weights(const float* query, const float* keys, std::size_t stride,
                       std::uint32_t head_dim, std::span<float> p) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  float greatest = -std::numeric_limits<float>::infinity();
  for (std::size_t row = 0; row < p.size(); ++row) {
    float score = 0;
    for (std::uint32_t d = 0; d < head_dim; ++d) score += query[d] * keys[row * stride + d];
    p[row] = score * scale;
    greatest = std::max(greatest, p[row]);
  }
  double sum = 0;
  for (float& weight : p) {
    weight = std::exp(weight - greatest);
    sum += weight;
  }
  for (float& weight : p) weight = static_cast<float>(weight / sum);
}

std::vector<float> lengths(const float* values, std::size_t stride, std::uint32_t head_dim,
                           std::uint32_t rows) {
  std::vector<float> result(rows);
  for (std::uint32_t row = 0; row < rows; ++row) {
    float squares = 0;
    for (std::uint32_t d = 0; d < head_dim; ++d)
      squares += values[row * stride + d] * values[row * stride + d];
    result[row] = std::sqrt(squares);
  }
  return result;
}

}  // namespace

Result<std::vector<float>> TrialSession::importance(std::span<const TokenId> tokens) {
  const model::ModelShape& shape = session_.model().shape();
  const std::uint32_t held = session_.length();
  const std::uint32_t group = shape.heads / shape.kv_heads;
  std::vector<std::vector<float>> queries(shape.layers);
  session_.tap_queries([&](std::uint32_t layer, std::uint32_t, std::span<const float> tile) {
    queries[layer].insert(queries[layer].end(), tile.begin(), tile.end());
  });
  const auto read = session_.append(tokens);
  session_.tap_queries({});
  if (!read.ok()) return Error{read.error()};
  std::vector<float> importance(held), p(session_.length());
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (std::uint32_t head = 0; head < shape.heads; ++head) {
      const std::size_t at = std::size_t{head / group} * shape.head_dim;
      const float* keys = session_.key(layer).data() + at;
      const std::vector<float> v =
          lengths(session_.value(layer).data() + at, shape.kv_width(), shape.head_dim, held);
      for (std::uint32_t t = 0; t < tokens.size(); ++t) {
        const float* query =
            queries[layer].data() + (std::size_t{t} * shape.heads + head) * shape.head_dim;
        attention_weights(query, keys, shape.kv_width(), shape.head_dim,
                          std::span(p).first(held + t + 1));
        for (std::uint32_t row = 0; row < held; ++row)
          importance[row] = std::max(importance[row], p[row] * v[row]);
      }
    }
  }
  session_.truncate(held);
  return importance;
}

}  // namespace kvrail::fidelity
