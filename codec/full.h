// The medium full: rows as they are, K then V. Any dtype, fp8 included, any head_dim.
#pragma once

#include "codec/codec.h"

namespace kvrail::codec {

[[nodiscard]] const Codec& full_codec() noexcept;

}  // namespace kvrail::codec
