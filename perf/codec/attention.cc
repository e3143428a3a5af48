// Attention of given queries over a context, exact and decoded, and the difference it makes.
//
// Queries are taken kLanes at a time, with the query as the inner index of every array: the inner
// loops then need no sum across vector lanes, and the order of additions is fixed.
#include <algorithm>
#include <array>
#include <cmath>

#include "kvrail/base/assert.h"
#include "kvrail/base/prng.h"
#include "perf/codec/errors.h"

namespace kvrail::fidelity {
namespace {

constexpr std::size_t kLanes = 16;
using Lanes = std::array<float, kLanes>;

struct Rows {
  const float* values;
  std::size_t stride;
};

// K and V of one layer as floats.
struct LayerValues {
  std::vector<float> k, v;
  void load(const KvSet& set, std::uint32_t layer) {
    const std::size_t count = std::size_t{set.tokens} * set.row_values();
    k.resize(count);
    v.resize(count);
    const codec::RunView run = set.run(layer, 0, set.tokens);
    to_floats(set.dtype, run.k, k);
    to_floats(set.dtype, run.v, v);
  }
};

Lanes score(const float* key, const std::vector<Lanes>& query) {
  Lanes sum{};
  for (std::size_t d = 0; d < query.size(); ++d) {
    for (std::size_t q = 0; q < kLanes; ++q) sum[q] += key[d] * query[d][q];
  }
  return sum;
}

// p of each of the tokens for each query: softmax over the tokens.
void softmax(std::vector<Lanes>& p) {
  Lanes greatest;
  greatest.fill(-std::numeric_limits<float>::infinity());
  for (const Lanes& row : p) {
    for (std::size_t q = 0; q < kLanes; ++q) greatest[q] = std::max(greatest[q], row[q]);
  }
  std::array<double, kLanes> sum{};
  for (Lanes& row : p) {
    for (std::size_t q = 0; q < kLanes; ++q) {
      row[q] = std::exp(row[q] - greatest[q]);
      sum[q] += row[q];
    }
  }
  Lanes inverse;
  for (std::size_t q = 0; q < kLanes; ++q) inverse[q] = static_cast<float>(1.0 / sum[q]);
  for (Lanes& row : p) {
    for (std::size_t q = 0; q < kLanes; ++q) row[q] *= inverse[q];
  }
}

class HeadAttention {
 public:
  HeadAttention(std::uint32_t tokens, std::span<const std::uint32_t> kept, std::uint32_t head_dim)
      : kept_(kept.begin(), kept.end()), head_dim_(head_dim) {
    for (std::uint32_t token = 0; token < tokens; ++token) all_.push_back(token);
    if (kept_.empty()) kept_ = all_;
  }

  // One KV head, up to kLanes queries of one head of its group ([dim][query], already over √d).
  void add(const Rows& k, const Rows& v, const Rows& k_decoded, const Rows& v_decoded,
           const std::vector<Lanes>& query, std::size_t queries, AttentionErrors& sums) {
    weigh(k, all_, query, exact_p_);
    weigh(k_decoded, kept_, query, decoded_p_);
    mix(v, all_, exact_p_, exact_);
    const auto compare = [&](ErrorSum& sum) {
      for (std::size_t d = 0; d < head_dim_; ++d) {
        for (std::size_t q = 0; q < queries; ++q) {
          const double difference = double{other_[d][q]} - exact_[d][q];
          sum.error += difference * difference;
          sum.power += double{exact_[d][q]} * exact_[d][q];
        }
      }
    };
    mix(v_decoded, kept_, decoded_p_, other_);
    compare(sums.both);
    mix(v, kept_, decoded_p_, other_);
    compare(sums.k_only);
    mix(v_decoded, all_, exact_p_, other_);
    compare(sums.v_only);
  }

 private:
  static void weigh(const Rows& k, const std::vector<std::uint32_t>& tokens,
                    const std::vector<Lanes>& query, std::vector<Lanes>& p) {
    p.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      p[i] = score(k.values + tokens[i] * k.stride, query);
    softmax(p);
  }
  void mix(const Rows& v, const std::vector<std::uint32_t>& tokens, const std::vector<Lanes>& p,
           std::vector<Lanes>& out) const {
    out.assign(head_dim_, Lanes{});
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const float* value = v.values + tokens[i] * v.stride;
      for (std::size_t d = 0; d < head_dim_; ++d) {
        for (std::size_t q = 0; q < kLanes; ++q) out[d][q] += p[i][q] * value[d];
      }
    }
  }

  std::vector<std::uint32_t> all_, kept_;
  std::size_t head_dim_;
  std::vector<Lanes> exact_p_, decoded_p_, exact_, other_;
};

// Queries [first, first + count) of one head as [dim][query], over √d.
void gather(const std::vector<float>& queries, std::uint32_t heads, std::uint32_t head,
            std::size_t first, std::size_t count, std::vector<Lanes>& out) {
  const std::size_t head_dim = out.size();
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (std::size_t d = 0; d < head_dim; ++d) {
    out[d] = Lanes{};
    for (std::size_t q = 0; q < count; ++q)
      out[d][q] = queries[((first + q) * heads + head) * head_dim + d] * scale;
  }
}

double normal(Prng& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform01()));
  return radius * std::cos(6.283185307179586 * random.uniform01());
}

// Scales each query so that its scores have the deviation that the proxy promises.
void scale_queries(const LayerValues& layer, const KvSet& set, std::vector<float>& queries) {
  std::vector<Lanes> query(set.head_dim);
  static_assert(kProxyQueries == kLanes);
  for (std::uint32_t head = 0; head < set.kv_heads; ++head) {
    gather(queries, set.kv_heads, head, 0, kLanes, query);
    std::array<double, kLanes> sum{}, squares{};
    for (std::uint32_t token = 0; token < set.tokens; ++token) {
      const float* key =
          layer.k.data() + token * set.row_values() + std::size_t{head} * set.head_dim;
      const Lanes scores = score(key, query);
      for (std::size_t q = 0; q < kLanes; ++q) {
        sum[q] += scores[q];
        squares[q] += double{scores[q]} * scores[q];
      }
    }
    for (std::size_t q = 0; q < kLanes; ++q) {
      const double mean = sum[q] / set.tokens;
      const double variance = squares[q] / set.tokens - mean * mean;
      if (!(variance > 0) || !std::isfinite(variance)) continue;
      const auto factor = static_cast<float>(kProxyDeviation / std::sqrt(variance));
      float* at = queries.data() + (q * set.kv_heads + head) * set.head_dim;
      for (std::size_t d = 0; d < set.head_dim; ++d) at[d] *= factor;
    }
  }
}

}  // namespace

Queries proxy_queries(const KvSet& set) {
  Prng random(20260);
  Queries queries{set.kv_heads, kProxyQueries, {}};
  LayerValues values;
  for (std::uint32_t layer = 0; layer < set.layers; ++layer) {
    std::vector<float> drawn(kProxyQueries * set.row_values());
    for (float& value : drawn) value = static_cast<float>(normal(random));
    values.load(set, layer);
    scale_queries(values, set, drawn);
    queries.of_layer.push_back(std::move(drawn));
  }
  return queries;
}

AttentionErrors attention_errors(const KvSet& exact, const KvSet& decoded,
                                 std::span<const std::uint32_t> kept, const Queries& queries) {
  KVRAIL_ASSERT(queries.of_layer.size() == exact.layers && queries.heads % exact.kv_heads == 0);
  const std::size_t stride = exact.row_values();
  const std::uint32_t group = queries.heads / exact.kv_heads;
  HeadAttention attention(exact.tokens, kept, exact.head_dim);
  std::vector<Lanes> query(exact.head_dim);
  LayerValues a, b;
  AttentionErrors sums;
  for (std::uint32_t layer = 0; layer < exact.layers; ++layer) {
    a.load(exact, layer);
    b.load(decoded, layer);
    for (std::uint32_t head = 0; head < queries.heads; ++head) {
      const std::size_t at = std::size_t{head / group} * exact.head_dim;
      for (std::size_t first = 0; first < queries.count; first += kLanes) {
        const std::size_t count = std::min<std::size_t>(kLanes, queries.count - first);
        gather(queries.of_layer[layer], queries.heads, head, first, count, query);
        attention.add({a.k.data() + at, stride}, {a.v.data() + at, stride},
                      {b.k.data() + at, stride}, {b.v.data() + at, stride}, query, count, sums);
      }
    }
  }
  return sums;
}

}  // namespace kvrail::fidelity
