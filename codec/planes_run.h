// A run as planes: K and V, whatever their form, by the SIMD kernels where they are made of tiles
// and by the plain code elsewhere. The codecs int4, int8 and exact and the engine's blocks
// (planes.h) are both made of such runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "codec/planes_plain.h"
#include "codec/planes_shape.h"

namespace kvrail::codec {

/// Bytes of a run's first two planes: [K steps][V steps][K high][V high], and [K low][V low].
struct RunPlaneBytes {
  std::uint64_t plane0 = 0;
  std::uint64_t plane1 = 0;
};
[[nodiscard]] RunPlaneBytes run_plane_bytes(const PlaneShape& cut, std::uint32_t tokens) noexcept;

/// Floats of working memory for a run of this form.
[[nodiscard]] std::uint32_t plane_buffer_floats(const PlaneShape& cut) noexcept;

struct PlaneRun {
  RunShape shape;
  bool rotate_v = false;
  float* buffer = nullptr;  // plane_buffer_floats()
};

struct RunTally {
  bool refused = false;  // NaN, Inf, or values too large to rotate
  double noise = 0;      // of two planes, as the steps tell it: a uniform error inside each code
  double energy = 0;     // of the values
  /// Noise over energy. With the first plane alone it is kFirstPlaneNoise times as much.
  [[nodiscard]] double nmse() const noexcept { return energy > 0 ? noise / energy : 0; }
};
/// A code of the first plane is 16 codes of both wide, and errors count squared.
inline constexpr double kFirstPlaneNoise = 256;
/// Millionths, rounded up, at least 1 and at most 10^6: ε of what is not exact is never 0.
[[nodiscard]] std::uint32_t epsilon_of(double nmse) noexcept;

/// `plane1` may be empty: then only the first plane is written.
[[nodiscard]] RunTally encode_planes(const PlaneRun& run, const RunView& in,
                                     std::span<std::byte> plane0, std::span<std::byte> plane1);
/// `plane1` may be empty: then the middle of the sixteen values that share a high nibble is given.
/// False where a step is none that an encoder writes; what is written then is finite and of no use.
[[nodiscard]] bool decode_planes(const PlaneRun& run, std::span<const std::byte> plane0,
                                 std::span<const std::byte> plane1, const MutableRun& out);

}  // namespace kvrail::codec
