// Importance of tokens from their K alone, for topk where the agent supplies none: the leverage of
// a token's key before RoPE.
//
// The leverage of a row is x (XᵀX + δI)⁻¹ xᵀ, x being a head's key less the mean over tokens and X
// all of them: how much of the space of keys this token alone holds, 0 to 1. A key that many others
// resemble can be missed; one that none resembles is all that questions for it would find. A
// token's importance is the sum over heads and layers. After Compactor (arXiv 2507.08143), which
// uses leverage for eviction without queries; docs/codecs.md compares it with other measures.
//
// Two passes over a layer's K in its runs, in any cut:
//   Leverage leverage(kv_heads, head_dim, frequencies, pairing, memory);
//   for (run) leverage.add(shape, k, first_position);
//   leverage.close();
//   for (run) leverage.score(shape, k, first_position, importance of its tokens);   // adds
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "codec/rope.h"

namespace kvrail::codec {

class Leverage {
 public:
  [[nodiscard]] static std::size_t memory_doubles(std::uint32_t kv_heads,
                                                  std::uint32_t head_dim) noexcept;
  /// `frequencies` of RoPE (rope_frequencies), empty: K is taken as it is. They and `memory`, of
  /// memory_doubles(), must outlive this.
  Leverage(std::uint32_t kv_heads, std::uint32_t head_dim, std::span<const double> frequencies,
           RopePairing pairing, std::span<double> memory) noexcept;

  /// Rows with NaN, Inf or values of 2^125 and more are left out. bf16, fp16 or fp32.
  void add(const RunShape& shape, std::span<const std::byte> k,
           std::uint32_t first_position) noexcept;
  void close() noexcept;
  /// Adds to each token's importance; NaN for a row that add() leaves out. After close().
  void score(const RunShape& shape, std::span<const std::byte> k, std::uint32_t first_position,
             std::span<float> importance) const noexcept;

 private:
  template <class Use>
  void each_row(const RunShape& shape, std::span<const std::byte> k, std::uint32_t first_position,
                Use&& use) const noexcept;
  [[nodiscard]] std::span<double> matrix(std::uint32_t head) const noexcept;
  [[nodiscard]] std::span<double> mean(std::uint32_t head) const noexcept;
  void close_head(std::uint32_t head) noexcept;
  [[nodiscard]] double of_row(std::uint32_t head, std::span<const float> key) const noexcept;

  std::uint32_t kv_heads_, head_dim_;
  std::span<const double> frequencies_;
  RopePairing pairing_;
  std::uint64_t rows_ = 0;
  std::span<double> matrices_, means_;
  std::span<double> solved_;  // of one row
  std::span<float> row_;      // [kv_head][dim]
};

}  // namespace kvrail::codec
