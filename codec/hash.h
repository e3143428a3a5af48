// Names of meaning (block hashes, layout fingerprint) and checksums of bytes (digests).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvrail/types.h"

namespace kvrail::codec {

[[nodiscard]] Result<void> validate(const Layout& layout);           // one clear line when refused
[[nodiscard]] Hash128 fingerprint(const Layout& layout) noexcept;    // XXH3-128 of a fixed byte form
[[nodiscard]] Hash128 hash_of(std::string_view text) noexcept;       // model ids, tokenizer ids
// Parent of the first block: (tenant, fingerprint). Tenants never share a hash.
[[nodiscard]] Hash128 root_hash(std::string_view tenant, const Layout& layout) noexcept;
// A full block or a tail: the same function, so a tail is named by (parent, its token ids).
[[nodiscard]] Hash128 chain(const Hash128& parent, std::span<const TokenId> tokens) noexcept;
// One XXH3-64 per unit of up to kDigestUnitBytes; out.size() == units.
void digests(std::span<const std::byte> piece, std::span<std::uint64_t> out) noexcept;
[[nodiscard]] std::uint64_t digest(std::span<const std::byte> unit) noexcept;
// With a seed, for bytes that mean something only together with a few numbers.
[[nodiscard]] std::uint64_t digest(std::span<const std::byte> unit, std::uint64_t seed) noexcept;
[[nodiscard]] Hash128 encoding_id(std::span<const std::byte> plane0) noexcept;

}  // namespace kvrail::codec
