// Token ids as LEB128 varints; deltas are not used, as ids have no locality.
#pragma once

#include <cstddef>
#include <span>

#include "kvrail/base/result.h"
#include "kvrail/types.h"

namespace kvrail::codec {

[[nodiscard]] std::size_t varint_bytes(std::span<const TokenId> tokens) noexcept;
// `out` has room for varint_bytes(); returns what was written.
std::size_t encode_tokens(std::span<const TokenId> tokens, std::span<std::byte> out) noexcept;
// The number of ids; Code::corrupt where the bytes are no varints of 32 bits, or too many for `out`.
[[nodiscard]] Result<std::size_t> decode_tokens(std::span<const std::byte> in, std::span<TokenId> out);

}  // namespace kvrail::codec
