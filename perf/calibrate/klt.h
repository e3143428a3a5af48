// Calibration of the medium lowrank: the Karhunen-Loève transform of a model's rows of K (RoPE
// undone) and V, for each group of layers and each segment of heads, and the quantisers of its
// components.
//
// Covariances are those of the rows that were added. Directions come from an eigen decomposition,
// greatest variance first. For each component and number of bits the uniform quantiser with the
// least squared error over the samples is searched; what each bit takes off that error, times the
// weight of the layer and side, is its gain. Where a later bit would gain more than an earlier one
// (peaked distributions), the gains of both are their mean.
//
// Threads: none of its own. It takes memory as it needs, about 8 bytes a value that is added.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/basis.h"

namespace kvrail::calibrate {

struct KltOptions {
  Hash128 model_id;  // zero: of no particular model
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  codec::RopeRule rope;  // rotary_dims 0: K is taken as it is
  std::uint32_t layers_per_group = 1;
  // A segment has as many heads as divide kv_heads and stay within this. The more, the more is
  // known of how heads vary together; but work per value grows with it, and the basis with its
  // square.
  std::uint32_t most_segment_values = 256;
  std::uint32_t components = 0;  // of a segment that are kept; 0: all
};

class KltFit {
 public:
  explicit KltFit(const KltOptions& options);

  /// Rows of consecutive tokens of one layer, [token][kv_head][dim], K after RoPE.
  void add(std::uint32_t layer, codec::Side side, std::span<const float> rows,
           std::uint32_t first_position);

  /// `weights` [layer][side]: what an error of 1 in a value of that side costs the model; empty:
  /// errors count relative to the side's own power. Needs rows of every layer and side.
  [[nodiscard]] codec::BasisContent fit(std::span<const double> weights) const;

  /// Mean square of a side's values, for weights.
  [[nodiscard]] double power(std::uint32_t layer, codec::Side side) const;

 private:
  [[nodiscard]] std::size_t index(std::uint32_t layer, codec::Side side) const {
    return std::size_t{layer} * 2 + static_cast<std::size_t>(side);
  }
  [[nodiscard]] codec::BasisSegmentContent fit_segment(std::uint32_t group, codec::Side side,
                                                       std::uint32_t segment, double weight) const;

  KltOptions options_;
  codec::BasisShape shape_;
  std::vector<double> frequencies_;
  std::vector<std::vector<float>> rows_;  // [layer][side], RoPE undone
};

}  // namespace kvrail::calibrate
