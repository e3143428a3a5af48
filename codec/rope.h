// Rotary position embedding, undone and redone on rows of K, so that a codec sees K as the model
// made it: there it is of low rank, while RoPE smears it over positions.
//
// A pair of values at position p is turned by the angle p × frequency of the pair. Cosines and
// sines are computed here from basic arithmetic, so the same row gives the same bits on every
// machine, and depend on the row's position alone, not on the run that it is in.
//
// Exactness: an angle is off by less than 1e-8 for positions up to 2^24; a row that is turned back
// and forth in float differs by at most 3e-7 of its greatest value, so that few bf16 values round
// to a neighbour.
#pragma once

#include <cstdint>
#include <span>

#include "kvrail/base/result.h"

namespace kvrail::codec {

/// Which values of a head make a pair: 2i and 2i + 1, or i and i + rotary_dims / 2 (as in files of
/// Hugging Face).
enum class RopePairing : std::uint8_t { interleaved = 0, half_split = 1 };

struct RopeRule {
  float base = 10000.0F;
  float scale = 1.0F;             // positions are divided by it (linear scaling)
  std::uint32_t rotary_dims = 0;  // leading values of a head that are turned, even; 0: no RoPE
  RopePairing pairing = RopePairing::interleaved;
  friend bool operator==(const RopeRule&, const RopeRule&) noexcept = default;
};

inline constexpr std::uint32_t kMaxRopePairs = 288;

/// invalid_argument with one clear line where the rule is none for heads of `head_dim` values.
[[nodiscard]] Result<void> validate(const RopeRule& rule, std::uint32_t head_dim);

/// Radians a token of each pair, base^(-2i / rotary_dims) / scale; out.size() == rotary_dims / 2.
/// By the machine's pow(): what must have the same bits everywhere ships the result.
void rope_frequencies(const RopeRule& rule, std::span<double> out) noexcept;

/// Cosines and sines of one position after the other.
class RopeAngles {
 public:
  /// 0 < frequencies <= 2; they must outlive this.
  RopeAngles(std::span<const double> frequencies, std::uint32_t first_position) noexcept;
  void advance() noexcept;  // to the next position

  /// Of the current position, one for each pair.
  [[nodiscard]] std::span<const float> cos() const noexcept { return {cos_, pairs_}; }
  [[nodiscard]] std::span<const float> sin() const noexcept { return {sin_, pairs_}; }

 private:
  void anchor() noexcept;
  void step() noexcept;
  void round() noexcept;

  const double* frequencies_;
  std::size_t pairs_;
  std::uint32_t position_;
  // Exact at multiples of 64, turned on from there: a product for each pair and position.
  double exact_cos_[kMaxRopePairs], exact_sin_[kMaxRopePairs];
  double step_cos_[kMaxRopePairs], step_sin_[kMaxRopePairs];
  float cos_[kMaxRopePairs], sin_[kMaxRopePairs];
};

/// Turns one row [heads][head_dim] in place, by the angles or back by them.
void redo_rope(const RopeAngles& angles, RopePairing pairing, std::uint32_t head_dim,
               std::span<float> row) noexcept;
void undo_rope(const RopeAngles& angles, RopePairing pairing, std::uint32_t head_dim,
               std::span<float> row) noexcept;

}  // namespace kvrail::codec
