#include <string>

#include "codec/tokens.h"
#include "codec/varint.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {

std::size_t varint_bytes(std::span<const TokenId> tokens) noexcept {
  std::size_t bytes = 0;
  for (const TokenId id : tokens) bytes += varint_size(id);
  return bytes;
}

std::size_t encode_tokens(std::span<const TokenId> tokens, std::span<std::byte> out) noexcept {
  std::size_t at = 0;
  for (const TokenId id : tokens) {
    KVRAIL_ASSERT(varint_size(id) <= out.size() - at);
    at += put_varint(id, out.data() + at);
  }
  return at;
}

namespace {

Error malformed(const char* what, std::size_t at) {
  return Error{{Code::protocol_error, Scope::transfer, static_cast<std::int32_t>(at)},
               std::string("token ids: ") + what + " at byte " + std::to_string(at)};
}

}  // namespace

Result<std::size_t> decode_tokens(std::span<const std::byte> in, std::span<TokenId> out) {
  std::size_t at = 0;
  for (TokenId& id : out) {
    switch (get_varint(in, at, id)) {
      case VarintFault::none:
        break;
      case VarintFault::ends_inside:
        return malformed("input ends inside an id", at);
      case VarintFault::too_large:
        return malformed("id over 32 bits", at - 1);
      case VarintFault::padded:
        return malformed("id is padded", at - 1);
    }
  }
  return at;
}

}  // namespace kvrail::codec
