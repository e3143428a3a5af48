// The medium lossless: every bit pattern of a run, NaN payloads included, in about three quarters
// of its bytes. The exponents of neighbouring values lie close together: of 1,024 values a window
// of 15 exponents, put where it covers most of them, leaves four bits for an exponent, and the few
// outside follow in full. Sign and mantissa stay as they are, since they hold nothing to win.
//
// bf16 and fp32 are coded so; fp16 and fp8, whose exponents have five bits or fewer, are sent as
// they are, and so is a run that would grow. Damage is told: a plane carries a checksum over itself
// and the form of its run. docs/codecs.md has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.h"

namespace kvrail::codec {

[[nodiscard]] const Codec& lossless_codec() noexcept;

inline constexpr std::size_t kLosslessHeaderBytes = 9;  // checksum, form

/// Writes the checksum that makes decode() look at what follows it: for encode, and for tests that
/// damage a plane on purpose. `plane` has at least its header.
void seal_lossless(const RunShape& shape, std::span<std::byte> plane) noexcept;

}  // namespace kvrail::codec
