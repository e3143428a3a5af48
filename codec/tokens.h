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
// As many ids as `out` has room for; returns the bytes they took. Code::protocol_error, with the byte in
// `detail`, where the input ends inside an id, or one is longer than it must be or than 32 bits.
[[nodiscard]] Result<std::size_t> decode_tokens(std::span<const std::byte> in, std::span<TokenId> out);

}  // namespace kvrail::codec
