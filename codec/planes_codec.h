// The media int4, int8 and exact: one, two and three nested planes of the same code
// (docs/codecs.md). What was cut after any plane decodes to the best so far, and a later plane
// refines it in place of being sent anew. Planes are kept and forwarded as they are: coding what
// was decoded once more loses more.
#pragma once

#include "codec/codec.h"

namespace kvrail::codec {

/// Which sides are rotated by a Hadamard transform over head_dim. K needs it: a few of its channels
/// are much wider than the others. V doesn't, as a rule. Meta::form tells a decoder.
enum class Rotation : std::uint8_t { k = 0, k_and_v = 1 };

/// Medium::int4, int8 or exact; other media give null.
[[nodiscard]] const Codec* planes_codec(Medium medium, Rotation rotation = Rotation::k) noexcept;

}  // namespace kvrail::codec
