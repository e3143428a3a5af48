// The medium lowrank: rows of K (RoPE undone) and V in a calibrated basis, each component with the
// bits that it deserves at the rate asked for, many with none. One plane.
//
// Components get bits where a bit lowers the error most as the model sees it, down to a threshold θ
// that is the same for all layers, K and V (reverse water-filling). θ is chosen from a fixed scale
// of sixteenths of an octave, its index travels in the run, and bits follow from it by comparisons
// alone, so both sides always agree. Quantisers are uniform with as many levels as the bits allow,
// of the step that the calibration found best; codes are packed without an entropy coder.
// docs/codecs.md has the bytes.
//
//   auto basis = Basis::parse(file);
//   const std::uint16_t theta = theta_for_rate(*basis, 2.0);       // bits a value, over all layers
//   const LowRank codec(*basis, layer, first_position, theta);     // costs nothing to make
//   codec.encode(shape, run, planes, scratch, meta);
//
// A run is decoded by the very basis that encoded it: any other answers layout_mismatch, for which
// the remedy is to get the basis by the id that lowrank_header() reads, or another medium.
#pragma once

#include <optional>

#include "codec/basis.h"
#include "codec/codec.h"

namespace kvrail::codec {

inline constexpr std::size_t kLowRankHeaderBytes = 32;
inline constexpr std::uint16_t kMaxTheta = 2047;
inline constexpr std::uint32_t kMaxLowRankPosition = (1U << 24) - 1;

/// The greatest fidelity that `bits_per_value` allows, averaged over all layers, K and V, in runs
/// of `tokens` tokens, headers included. kMaxTheta (means only) where even that is too much.
[[nodiscard]] std::uint16_t theta_for_rate(const Basis& basis, double bits_per_value,
                                           std::uint32_t tokens = 64) noexcept;
/// The threshold itself, 2^(theta / 16 - 64): components have the bits that gain at least this.
[[nodiscard]] float theta_of(std::uint16_t theta) noexcept;
/// Of one layer's encoded run.
[[nodiscard]] std::uint64_t lowrank_bytes(const Basis& basis, std::uint32_t layer,
                                          std::uint16_t theta, std::uint32_t tokens) noexcept;

struct LowRankHeader {
  Hash128 basis;
  std::uint16_t theta = 0;
  std::uint16_t layer = 0;
  std::uint32_t first_position = 0;
};
/// What an encoded run says of itself, to find its basis by. Empty where it is no such run.
[[nodiscard]] std::optional<LowRankHeader> lowrank_header(
    std::span<const std::byte> encoded) noexcept;

class LowRank final : public Codec {
 public:
  /// For runs of this layer whose first token is at `first_position`, up to kMaxLowRankPosition.
  /// The basis must outlive this.
  LowRank(const Basis& basis, std::uint32_t layer, std::uint32_t first_position,
          std::uint16_t theta) noexcept;

  [[nodiscard]] Medium medium() const noexcept override { return Medium::lowrank; }
  [[nodiscard]] std::size_t planes() const noexcept override { return 1; }
  [[nodiscard]] bool takes(const RunShape& shape) const noexcept override;
  [[nodiscard]] std::uint64_t bound(const RunShape& shape,
                                    std::size_t plane) const noexcept override;
  [[nodiscard]] std::size_t scratch_bytes(const RunShape& shape) const noexcept override;

 private:
  [[nodiscard]] Error refusal(const RunShape& shape) const override;
  struct Work;
  Status do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                   std::span<std::byte> scratch, Meta& meta) const noexcept override;
  Status do_decode(const RunShape& shape, const Meta& meta, const Planes& in, const MutableRun& out,
                   std::span<std::byte> scratch) const noexcept override;

  const Basis* basis_;
  std::uint32_t layer_;
  std::uint32_t first_position_;
  std::uint16_t theta_;
};

}  // namespace kvrail::codec
