#include "codec/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "kvrail/base/assert.h"
#include "kvrail/base/byte_order.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvrail::codec {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token ids are hashed as they lie in memory; a big-endian host needs a swap here");

Hash128 from_xxh(XXH128_hash_t hash) noexcept { return {hash.low64, hash.high64}; }

// The byte form that the fingerprint covers. A new field of Layout must be added here, at the end.
constexpr std::size_t kLayoutFormBytes = 48;

std::array<std::byte, kLayoutFormBytes> byte_form(const Layout& layout) noexcept {
  std::array<std::byte, kLayoutFormBytes> form{};
  store_le64(form.data(), layout.model_id.low);
  store_le64(form.data() + 8, layout.model_id.high);
  store_le32(form.data() + 16, layout.layers);
  store_le32(form.data() + 20, layout.kv_heads);
  store_le32(form.data() + 24, layout.head_dim);
  store_le32(form.data() + 28, layout.block_tokens);
  store_le32(form.data() + 32, static_cast<std::uint32_t>(layout.dtype));
  store_le32(form.data() + 36, std::bit_cast<std::uint32_t>(layout.rope_base));
  store_le32(form.data() + 40, std::bit_cast<std::uint32_t>(layout.rope_scale));
  return form;
}

// A chunk carries a digest for each piece that it completes, at most 4,096 of them. A piece is a
// (layer, block), or (layer, K|V) rows of a block that is not whole; with these bounds the pieces of
// 256 KiB stay below that.
constexpr std::uint64_t kMinRunBytes = 128;
constexpr std::uint64_t kMinRowBytes = 16;
constexpr std::uint32_t kMostThinLayers = 512;  // of rows thinner than that

Error refused(std::string message, std::uint64_t value) {
  return Error{{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(value)}, std::move(message)};
}

std::string limits(const char* field, std::uint64_t value, const char* range) {
  return std::string("layout: ") + field + " is " + std::to_string(value) + ", allowed is " + range;
}

}  // namespace

Result<void> validate(const Layout& layout) {
  if (layout.layers < 1 || layout.layers > 1024) return refused(limits("layers", layout.layers, "1 to 1024"), layout.layers);
  if (layout.kv_heads < 1 || layout.kv_heads > 1024) {
    return refused(limits("kv_heads", layout.kv_heads, "1 to 1024"), layout.kv_heads);
  }
  if (layout.head_dim < 1 || layout.head_dim > 576) {
    return refused(limits("head_dim", layout.head_dim, "1 to 576"), layout.head_dim);
  }
  if (layout.block_tokens < 16 || layout.block_tokens > 512 || layout.block_tokens % 16 != 0) {
    return refused(limits("block_tokens", layout.block_tokens, "16 to 512 in steps of 16"), layout.block_tokens);
  }
  if (dtype_bytes(layout.dtype) == 0) {
    return refused(limits("dtype", static_cast<std::uint64_t>(layout.dtype), "1 (bf16) to 5 (fp8_e5m2)"),
                   static_cast<std::uint64_t>(layout.dtype));
  }
  const std::uint64_t run_bytes = 2 * layout.block_tokens * layout.row_bytes();
  if (run_bytes < kMinRunBytes) {
    return refused(limits("the size of a block in one layer, in bytes,", run_bytes, "128 or more: use more block_tokens"),
                   run_bytes);
  }
  if (layout.row_bytes() < kMinRowBytes && layout.layers > kMostThinLayers) {
    return refused(limits("layers", layout.layers, "1 to 512 where a token has less than 16 bytes per layer"),
                   layout.layers);
  }
  if (!std::isfinite(layout.rope_base) || !std::isfinite(layout.rope_scale) || layout.rope_base < 0) {
    return refused("layout: rope_base and rope_scale must be finite, rope_base not negative", 0);
  }
  return {};
}

Hash128 fingerprint(const Layout& layout) noexcept {
  const auto form = byte_form(layout);
  return from_xxh(XXH3_128bits(form.data(), form.size()));
}

Hash128 hash_of(std::string_view text) noexcept { return from_xxh(XXH3_128bits(text.data(), text.size())); }

Hash128 root_hash(std::string_view tenant, const Layout& layout) noexcept {
  KVRAIL_ASSERT(tenant.size() <= kMaxNameBytes);
  // Fixed-width fields, so that no two (tenant, layout) pairs can have the same byte form.
  std::array<std::byte, kMaxNameBytes + 1 + kLayoutFormBytes> form{};
  form[0] = static_cast<std::byte>(tenant.size());
  std::memcpy(form.data() + 1, tenant.data(), tenant.size());
  const auto layout_form = byte_form(layout);
  std::memcpy(form.data() + 1 + kMaxNameBytes, layout_form.data(), layout_form.size());
  return from_xxh(XXH3_128bits(form.data(), form.size()));
}

Hash128 chain(const Hash128& parent, std::span<const TokenId> tokens) noexcept {
  // Most blocks are short, and setting up the streaming state costs ten times their hash.
  constexpr std::size_t kShortTokens = 64;
  if (tokens.size() <= kShortTokens) {
    std::array<std::byte, 16 + kShortTokens * sizeof(TokenId)> form;
    store_le64(form.data(), parent.low);
    store_le64(form.data() + 8, parent.high);
    std::copy_n(reinterpret_cast<const std::byte*>(tokens.data()), tokens.size_bytes(), form.data() + 16);
    return from_xxh(XXH3_128bits(form.data(), 16 + tokens.size_bytes()));
  }
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  std::array<std::byte, 16> head{};
  store_le64(head.data(), parent.low);
  store_le64(head.data() + 8, parent.high);
  XXH3_128bits_update(&state, head.data(), head.size());
  XXH3_128bits_update(&state, tokens.data(), tokens.size_bytes());
  return from_xxh(XXH3_128bits_digest(&state));
}

void digests(std::span<const std::byte> piece, std::span<std::uint64_t> out) noexcept {
  KVRAIL_ASSERT(out.size() == (piece.size() + kDigestUnitBytes - 1) / kDigestUnitBytes);
  for (std::uint64_t& value : out) {
    const auto unit = piece.first(std::min<std::size_t>(piece.size(), kDigestUnitBytes));
    value = digest(unit);
    piece = piece.subspan(unit.size());
  }
}

Hash128 encoding_id(std::span<const std::byte> plane0) noexcept {
  return from_xxh(XXH3_128bits(plane0.data(), plane0.size()));
}

}  // namespace kvrail::codec
