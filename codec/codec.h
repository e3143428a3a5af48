// One interface for every medium that is made of KV: encode(data) -> (encoded, meta) and
// decode(encoded, meta) -> approximation (design.md §6).
//
// What is coded at a time is a run: K and V of consecutive tokens of one layer. Runs are
// independent of each other, so a stream of them is coded, sent and decoded piece by piece, and one
// that is cut short is usable as far as it came. An encoded run has one to three planes; each plane
// refines what the ones before it give, and a decoder takes any number of them from the first on.
//
// Threads: none of its own; every call is a pure function of its arguments (but for the nanoseconds
// it reports), and allocates nothing unless it refuses with a sentence. The same input gives the
// same bytes on every instruction set: floats are handled in a fixed order and never contracted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::codec {

inline constexpr std::size_t kMaxPlanes = 3;

/// The form of a run. Zero tokens are legal: they encode to nothing.
struct RunShape {
  Dtype dtype = Dtype::bf16;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t tokens = 0;

  [[nodiscard]] constexpr std::uint64_t row_values() const noexcept {
    return std::uint64_t{kv_heads} * head_dim;
  }
  [[nodiscard]] constexpr std::uint64_t row_bytes() const noexcept {
    return row_values() * dtype_bytes(dtype);
  }
  /// Of K or of V alone.
  [[nodiscard]] constexpr std::uint64_t side_values() const noexcept {
    return tokens * row_values();
  }
  [[nodiscard]] constexpr std::uint64_t side_bytes() const noexcept { return tokens * row_bytes(); }
  [[nodiscard]] constexpr std::uint64_t raw_bytes() const noexcept { return 2 * side_bytes(); }
};
[[nodiscard]] constexpr RunShape run_shape(const Layout& layout, std::uint32_t tokens) noexcept {
  return {layout.dtype, layout.kv_heads, layout.head_dim, tokens};
}

/// K and V of a run, each [token][kv_head][dim], at any alignment.
struct RunView {
  std::span<const std::byte> k, v;
};
struct MutableRun {
  std::span<std::byte> k, v;
};

using Planes = std::array<std::span<const std::byte>, kMaxPlanes>;
using MutablePlanes = std::array<std::span<std::byte>, kMaxPlanes>;

/// What is known of an encoded run besides its bytes. It travels with them.
struct Meta {
  Medium medium = Medium::full;
  std::uint8_t planes = 0;                        // that there are, 1 to kMaxPlanes
  std::uint8_t form = 0;                          // a variant that the codec defines, 0 by default
  std::array<std::uint64_t, kMaxPlanes> bytes{};  // of each plane
  std::array<std::uint32_t, kMaxPlanes>
      epsilon_ppm{};  // ε, millionths, of what planes 0..i decode to
};

/// What a call did. `status` is ok, or
///   unsupported  encode only: this input cannot be coded (NaN or Inf where the codec is lossy,
///   values too
///                large to rotate); send the run by full or lossless
///   corrupt      decode only: the planes are no encoding of such a run; the output is all zero
///   layout_mismatch  decode only: coded with another basis (lowrank); the output is all zero
struct Report {
  Status status;
  std::uint64_t raw_bytes = 0;      // of the run, not encoded
  std::uint64_t encoded_bytes = 0;  // of all planes that were written or read
  std::uint32_t epsilon_ppm = 0;    // of the approximation that these planes give
  std::uint64_t ns = 0;
  [[nodiscard]] double ns_per_byte() const noexcept {
    return raw_bytes == 0 ? 0.0 : static_cast<double>(ns) / static_cast<double>(raw_bytes);
  }
};

class Codec {
 public:
  virtual ~Codec() = default;
  [[nodiscard]] virtual Medium medium() const noexcept = 0;
  [[nodiscard]] virtual std::size_t planes() const noexcept = 0;
  /// Whether runs of this form can be coded. Makes no sentence, so it suits a data path.
  [[nodiscard]] virtual bool takes(const RunShape& shape) const noexcept = 0;
  /// The same; where they can't, Code::unsupported, with why and what to use instead.
  [[nodiscard]] Result<void> can_encode(const RunShape& shape) const;
  /// Most bytes that `plane` of such a run can take. Exact where a plane's size depends on the form
  /// alone.
  [[nodiscard]] virtual std::uint64_t bound(const RunShape& shape,
                                            std::size_t plane) const noexcept = 0;
  /// Bytes of working memory that encode and decode need, at alignment 64.
  [[nodiscard]] virtual std::size_t scratch_bytes(const RunShape& shape) const noexcept = 0;

  /// `out` has room for bound() bytes of every plane; `meta` says how many were used. Needs
  /// can_encode().
  Report encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                std::span<std::byte> scratch, Meta& meta) const noexcept;
  /// Takes planes 0 to meta.planes - 1. Writes every byte of `out`, whatever the planes hold; reads
  /// nothing outside of them. `meta` and the planes may come from a stranger.
  Report decode(const RunShape& shape, const Meta& meta, const Planes& in, const MutableRun& out,
                std::span<std::byte> scratch) const noexcept;

 private:
  /// Of a form that takes() refuses; never called where it takes all.
  [[nodiscard]] virtual Error refusal(const RunShape& shape) const;
  virtual Status do_encode(const RunShape& shape, const RunView& in, const MutablePlanes& out,
                           std::span<std::byte> scratch, Meta& meta) const noexcept = 0;
  virtual Status do_decode(const RunShape& shape, const Meta& meta, const Planes& in,
                           const MutableRun& out, std::span<std::byte> scratch) const noexcept = 0;
};

/// The codec of a medium: full, lossless, int4, int8, exact. Null for media that are no coding of
/// KV rows (tokens, reference, summary, split) or that need more than the rows (topk, window:
/// sparse.h; lowrank: lowrank.h).
[[nodiscard]] const Codec* codec_for(Medium medium) noexcept;

}  // namespace kvrail::codec
