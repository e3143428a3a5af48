// The calibrated basis of the medium lowrank: for each group of layers, K and V apart, the
// directions along which a model's rows vary, greatest first, and what each is worth.
//
// A row of K (before RoPE) or V is cut into segments of whole heads. A segment's basis has a mean,
// `components` orthonormal directions, and for each direction the quantiser's step at 1 to
// kMaxComponentBits bits and the gain: by how much the error falls, as the model sees it, with the
// first bit, the second, and so on. Who wants a rate spends bits where they gain most until a
// threshold θ (reverse water-filling with the real quantisers' errors).
//
// A basis is named by the XXH3-128 of its bytes; encoded runs carry that id, and only the basis of
// that id decodes them. docs/codecs.md describes the file.
//
// Threads: immutable after parse(); any number may read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "codec/rope.h"
#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::codec {

inline constexpr std::uint32_t kMaxComponentBits = 10;
/// Rows of a basis in memory end at a multiple of this many floats, filled with zeros.
inline constexpr std::uint32_t kBasisLanes = 16;

enum class Side : std::uint8_t { k = 0, v = 1 };

struct BasisShape {
  Hash128 model_id;  // zero: of no particular model
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t heads_per_segment = 0;  // divides kv_heads
  std::uint32_t components = 0;         // of a segment, at most its values
  std::uint32_t groups = 0;             // of layers that share a basis
  RopeRule rope;                        // rotary_dims 0: K is taken as it is

  [[nodiscard]] std::uint32_t segments() const noexcept { return kv_heads / heads_per_segment; }
  [[nodiscard]] std::uint32_t segment_values() const noexcept {
    return heads_per_segment * head_dim;
  }
};

/// What a calibration writes. Segments are in the order [group][side][segment]; their tables are
/// [component][kMaxComponentBits], their matrix is [component][value].
struct BasisSegmentContent {
  std::vector<float> mean, steps, gains, matrix;
};
struct BasisContent {
  BasisShape shape;
  std::vector<double> frequencies;  // of each RoPE pair, radians a token
  std::vector<std::uint16_t> group_of_layer;
  std::vector<BasisSegmentContent> segments;
};
/// The file of a basis, id included. Steps, gains and matrix are rounded to bf16. The content must
/// fit its shape.
[[nodiscard]] std::vector<std::byte> basis_file(const BasisContent& content);

class Basis {
 public:
  /// Checks everything before use: sizes, the id, that every number is finite and in its range.
  /// Scales the directions to a length of one.
  /// Fails with invalid_argument, too_large, version_mismatch or corrupt and one clear line.
  [[nodiscard]] static Result<Basis> parse(std::span<const std::byte> file);

  [[nodiscard]] const Hash128& id() const noexcept { return id_; }
  [[nodiscard]] const BasisShape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::span<const double> frequencies() const noexcept { return frequencies_; }

  /// Whether KV of this Layout can be coded with it; else layout_mismatch and what differs.
  [[nodiscard]] Result<void> check(const Layout& layout) const;
  /// The same for a data path: what differs, in a word or two; null where nothing does.
  [[nodiscard]] const char* difference(const Layout& layout) const noexcept;

  /// Padded to kBasisLanes.
  [[nodiscard]] std::uint32_t value_stride() const noexcept { return value_stride_; }
  [[nodiscard]] std::uint32_t component_stride() const noexcept { return component_stride_; }

  struct Segment {
    const float* mean;      // [value_stride]
    const float* forward;   // [value][component_stride]
    const float* backward;  // [component][value_stride]
    const float* steps;     // [component][kMaxComponentBits]
    const float* gains;     // the same; never rising along the bits
  };
  [[nodiscard]] Segment segment(std::uint32_t layer, Side side, std::uint32_t index) const noexcept;

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };
  Basis() = default;
  [[nodiscard]] std::size_t segment_floats() const noexcept;
  [[nodiscard]] bool read_tables(const std::byte* file);
  [[nodiscard]] bool read_segments(const std::byte* at);

  Hash128 id_;
  BasisShape shape_;
  std::uint32_t value_stride_ = 0, component_stride_ = 0;
  std::vector<double> frequencies_;
  std::vector<std::uint16_t> group_of_layer_;
  std::unique_ptr<float[], Free> memory_;  // of all segments, at alignment 64
};

}  // namespace kvrail::codec
