#include <string>

#include "codec/tokens.h"
#include "kvrail/base/assert.h"

namespace kvrail::codec {

std::size_t varint_bytes(std::span<const TokenId> tokens) noexcept {
  std::size_t bytes = 0;
  for (TokenId id : tokens) {
    do {
      ++bytes;
      id >>= 7;
    } while (id != 0);
  }
  return bytes;
}

std::size_t encode_tokens(std::span<const TokenId> tokens, std::span<std::byte> out) noexcept {
  std::size_t at = 0;
  for (TokenId id : tokens) {
    while (id >= 0x80U) {
      KVRAIL_ASSERT(at < out.size());
      out[at++] = static_cast<std::byte>((id & 0x7fU) | 0x80U);
      id >>= 7;
    }
    KVRAIL_ASSERT(at < out.size());
    out[at++] = static_cast<std::byte>(id);
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
    std::uint32_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at == in.size()) return malformed("input ends inside an id", at);
      const auto byte = static_cast<std::uint32_t>(in[at++]);
      if (shift == 28 && byte > 0x0fU) return malformed("id over 32 bits", at - 1);
      value |= (byte & 0x7fU) << shift;
      if ((byte & 0x80U) == 0) {
        // One id has one form; a padded zero would let two byte strings mean the same.
        if (byte == 0 && shift != 0) return malformed("id is padded", at - 1);
        break;
      }
    }
    id = value;
  }
  return at;
}

}  // namespace kvrail::codec
