// How far what came back is from what was sent: NMSE, and the error that attention makes of it.
// docs/codecs.md has the formulas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "perf/codec/kv_set.h"

namespace kvrail::fidelity {

/// Queries that attend to a context: per layer [query][head][dim], after RoPE. `heads` is a
/// multiple of the set's KV heads; neighbouring heads share one.
struct Queries {
  std::uint32_t heads = 0;
  std::uint32_t count = 0;  // per layer
  std::vector<std::vector<float>> of_layer;
};
/// Stand-ins where no model gives queries: `kProxyQueries` for each KV head, of independent normal
/// components, each scaled so that its scores over the tokens have the standard deviation
/// kProxyDeviation. Drawn from a fixed seed.
inline constexpr std::uint32_t kProxyQueries = 16;
inline constexpr double kProxyDeviation = 2.0;
[[nodiscard]] Queries proxy_queries(const KvSet& set);

/// Error and power, as sums over values; a ratio is the figure, whatever was added up.
struct ErrorSum {
  double error = 0;
  double power = 0;
  void add(const ErrorSum& other) {
    error += other.error;
    power += other.power;
  }
  /// 0 where nothing differs; infinite where something does and nothing was there.
  [[nodiscard]] double ratio() const;
};

/// Of one side of a set, over equal forms. Values of equal bits differ by nothing, NaN and Inf too;
/// what is not finite has no part in the power.
[[nodiscard]] ErrorSum squared_error(Dtype dtype, std::span<const std::byte> exact,
                                     Dtype decoded_dtype, std::span<const std::byte> decoded);

/// ‖o' - o‖² and ‖o‖² over layers, query heads and queries, with o = Σ p v, p = softmax(q·k/√d).
struct AttentionErrors {
  ErrorSum both;    // K and V as decoded
  ErrorSum k_only;  // K as decoded, V exact
  ErrorSum v_only;
  void add(const AttentionErrors& other) {
    both.add(other.both);
    k_only.add(other.k_only);
    v_only.add(other.v_only);
  }
};
/// `kept`: the tokens that decoded attention sees, ascending; empty: all.
[[nodiscard]] AttentionErrors attention_errors(const KvSet& exact, const KvSet& decoded,
                                               std::span<const std::uint32_t> kept,
                                               const Queries& queries);

}  // namespace kvrail::fidelity
