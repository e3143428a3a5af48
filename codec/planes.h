// The medium int8 of the engine's blocks: nested planes (docs/codecs.md), each layer a run of its
// own in each plane, so that layers can be sent and decoded one by one and have equal parts. Plane
// 0 is an int4 code by itself. Values that are NaN, Inf or too large to rotate: see CodecReport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvrail/types.h"

namespace kvrail::codec {

struct PlaneSizes {
  std::uint64_t plane0_bytes = 0;
  std::uint64_t plane1_bytes = 0;
};

// Whether the layout's dtype and head_dim can be encoded; else a typed Code::unsupported with why.
[[nodiscard]] Result<void> can_encode(const Layout& layout);
// Every layer has an equal part of each plane.
[[nodiscard]] PlaneSizes plane_sizes(const Layout& layout, std::uint32_t tokens) noexcept;

struct CodecReport {
  double nmse = 0;                // of this call's values; 0 when not measured
  std::uint32_t epsilon_ppm = 0;  // sqrt-free estimate used as ε, millionths
  bool has_non_finite = false;    // NaN or Inf in the input, or values so large that rotating them
                                  // overflows: the block must travel by full instead
};

// Encodes layers [layer_begin, layer_end) of a canonical slot with `tokens` valid rows, into the
// whole-block planes given. Calling it per layer range lets the engine bound its work.
[[nodiscard]] CodecReport encode_int8(const Layout& layout, std::uint32_t tokens,
                                      std::span<const std::byte> slot, std::uint32_t layer_begin,
                                      std::uint32_t layer_end, std::span<std::byte> plane0,
                                      std::span<std::byte> plane1) noexcept;
// Inverse; plane1 empty gives the int4 approximation. Writes every valid row, nothing else.
void decode_int8(const Layout& layout, std::uint32_t tokens, std::span<const std::byte> plane0,
                 std::span<const std::byte> plane1, std::uint32_t layer_begin,
                 std::uint32_t layer_end, std::span<std::byte> slot) noexcept;

// Token ids as LEB128 varints, deltas not used (ids have no locality).
[[nodiscard]] std::size_t varint_bytes(std::span<const TokenId> tokens) noexcept;
std::size_t encode_tokens(std::span<const TokenId> tokens, std::span<std::byte> out) noexcept;
[[nodiscard]] Result<std::size_t> decode_tokens(std::span<const std::byte> in,
                                                std::span<TokenId> out);

}  // namespace kvrail::codec
