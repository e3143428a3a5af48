// q8_0 and q4_0, the block formats of ggml that llama.cpp stores a quantised KV cache in: what our
// media are compared with. Computed here from the public description of the formats; blocks of 32
// values with one fp16 scale.
//
//   q8_0  34 bytes: scale d = max|x| / 127, then 32 int8 round(x / d), halves away from zero
//   q4_0  18 bytes: scale d = m / -8 with m the value of the greatest magnitude, then 16 bytes of
//         nibbles min(15, trunc(x / d + 8.5)): values 0 to 15 low, 16 to 31 high; x' = (q - 8) d
// Source: github.com/ggml-org/ggml, ggml-common.h and ggml-quants.c.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvrail::fidelity {

inline constexpr std::size_t kGgmlBlockValues = 32;

enum class GgmlFormat : std::uint8_t { q8_0, q4_0 };

[[nodiscard]] std::string_view ggml_name(GgmlFormat format) noexcept;
[[nodiscard]] std::size_t ggml_block_bytes(GgmlFormat format) noexcept;
/// Bytes that hold `values` values; a last block that is not full counts whole.
[[nodiscard]] std::uint64_t ggml_bytes(GgmlFormat format, std::uint64_t values) noexcept;

/// Blocks run over the values in their order; a last one that is not full is filled with zeros.
/// Finite values. `out` has ggml_bytes() bytes.
void ggml_encode(GgmlFormat format, std::span<const float> values, std::span<std::byte> out);
void ggml_decode(GgmlFormat format, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace kvrail::fidelity
