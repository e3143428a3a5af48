// The nouns that every part of kvrail shares: layouts, media, hashes, names. Plain values, no
// behaviour beyond arithmetic; the wire and the shared-memory formats are written elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvrail/base/result.h"

namespace kvrail {

using NodeId = std::uint64_t;        // 0 is "no node"
using Incarnation = std::uint64_t;   // new at every start of a node, never 0
using TaskId = std::uint64_t;        // 0 is "no task"
using TransferId = std::uint64_t;    // unique per origin node and incarnation, never 0
using TokenId = std::uint32_t;

inline constexpr std::size_t kMaxNameBytes = 63;   // agents, contexts, tenants, workflows
inline constexpr std::uint32_t kDigestUnitBytes = 64 * 1024;  // one XXH3-64 per unit

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend constexpr bool operator==(const Hash128&, const Hash128&) noexcept = default;
};

// A name of bounded length that is copied by value; the form names take on every hot structure.
struct Name {
  std::array<char, kMaxNameBytes + 1> bytes{};  // zero-terminated
  [[nodiscard]] std::string_view view() const noexcept { return {bytes.data(), length()}; }
  [[nodiscard]] std::size_t length() const noexcept {
    std::size_t n = 0;
    while (n < kMaxNameBytes && bytes[n] != '\0') ++n;
    return n;
  }
  friend bool operator==(const Name&, const Name&) noexcept = default;
};

// Refuses names that are empty, longer than kMaxNameBytes, or hold control characters or spaces.
[[nodiscard]] inline Result<Name> make_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameBytes) {
    return Error{{Code::invalid_argument, Scope::transfer, static_cast<std::int32_t>(text.size())},
                 "a name must have 1 to 63 bytes"};
  }
  Name name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c <= 0x20 || c == 0x7f) {
      return Error{{Code::invalid_argument, Scope::transfer, c},
                   "a name must not hold spaces or control characters"};
    }
    name.bytes[i] = text[i];
  }
  return name;
}

enum class Dtype : std::uint8_t { bf16 = 1, fp16 = 2, fp32 = 3, fp8_e4m3 = 4, fp8_e5m2 = 5 };

[[nodiscard]] constexpr std::uint32_t dtype_bytes(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::bf16:
    case Dtype::fp16: return 2;
    case Dtype::fp32: return 4;
    case Dtype::fp8_e4m3:
    case Dtype::fp8_e5m2: return 1;
  }
  return 0;
}

// What makes KV meaningful. Two agents exchange KV only if every field is equal (the fingerprint,
// codec/hash.h). A block slot always has room for block_tokens tokens, in the canonical order
// [layer][K|V][token][kv_head][dim]; a partial block fills the first rows of each (layer, K|V).
struct Layout {
  Hash128 model_id;                // hash of the model's name and revision, given by the agent
  std::uint32_t layers = 0;        // 1 to 1,024
  std::uint32_t kv_heads = 0;      // 1 to 1,024
  std::uint32_t head_dim = 0;      // 1 to 576
  std::uint32_t block_tokens = 64; // 16 to 512, a multiple of 16
  Dtype dtype = Dtype::bf16;
  float rope_base = 10000.0F;
  float rope_scale = 1.0F;

  // Bytes of one token in one (layer, K|V).
  [[nodiscard]] constexpr std::uint64_t row_bytes() const noexcept {
    return std::uint64_t{kv_heads} * head_dim * dtype_bytes(dtype);
  }
  [[nodiscard]] constexpr std::uint64_t token_bytes() const noexcept { return 2 * layers * row_bytes(); }
  [[nodiscard]] constexpr std::uint64_t block_bytes() const noexcept { return block_tokens * token_bytes(); }
  // Offset of a token's row in its block slot; kv is 0 for K and 1 for V.
  [[nodiscard]] constexpr std::uint64_t row_offset(std::uint32_t layer, std::uint32_t kv,
                                                   std::uint32_t token) const noexcept {
    return ((std::uint64_t{layer} * 2 + kv) * block_tokens + token) * row_bytes();
  }
  friend bool operator==(const Layout&, const Layout&) noexcept = default;
};

enum class Medium : std::uint8_t {
  automatic = 0,  // only as a wish: the engine decides
  tokens = 1,
  full = 2,
  lossless = 3,
  int8 = 4,
  int4 = 5,
  exact = 6,
  topk = 7,
  window = 8,
  lowrank = 9,
  reference = 10,
  summary = 11,
  split = 12,
};
inline constexpr std::size_t kMediumCount = 13;
using MediumMask = std::uint32_t;
[[nodiscard]] constexpr MediumMask mask_of(Medium medium) noexcept {
  return MediumMask{1} << static_cast<unsigned>(medium);
}
[[nodiscard]] constexpr std::string_view medium_name(Medium medium) noexcept {
  constexpr std::array<std::string_view, kMediumCount> names{
      "automatic", "tokens", "full",    "lossless",  "int8",    "int4", "exact",
      "topk",      "window", "lowrank", "reference", "summary", "split"};
  const auto index = static_cast<std::size_t>(medium);
  return index < names.size() ? names[index] : std::string_view{"?"};
}

// Coded KV rows, in planes (docs/codecs.md). Their receiver decodes them into block slots.
[[nodiscard]] constexpr bool is_coded(Medium medium) noexcept {
  return medium == Medium::lossless || medium == Medium::int8 || medium == Medium::int4 ||
         medium == Medium::exact || medium == Medium::lowrank;
}
// KV of some tokens only; its delivery is terminal: it is never found by hash, nor a base for others.
[[nodiscard]] constexpr bool is_sparse(Medium medium) noexcept {
  return medium == Medium::topk || medium == Medium::window;
}
// Deliveries of KV of some tokens only: a version that came so is never sent on, nor listed.
[[nodiscard]] constexpr bool is_partial(Medium medium) noexcept {
  return is_sparse(medium) || medium == Medium::split;
}
// What arrives in block slots, by way of a lease.
[[nodiscard]] constexpr bool is_kv(Medium medium) noexcept {
  return medium == Medium::full || is_sparse(medium) || is_coded(medium);
}

// A role is its weight in the scheduler: executor 1, verifier 2, coordinator 3, or any number.
using RoleWeight = std::uint16_t;
inline constexpr RoleWeight kRoleExecutor = 1;
inline constexpr RoleWeight kRoleVerifier = 2;
inline constexpr RoleWeight kRoleCoordinator = 3;

// What an agent says of the machine it computes on (design: Probe). Prefill of x tokens on top of
// p tokens held costs about c0 + c*x + a*x*(x + 2p) ns; a is scaled by 2^-20 to stay an integer.
struct ComputeProfile {
  std::uint64_t prefill_fixed_ns = 0;
  std::uint64_t prefill_per_token_ns = 0;
  std::uint64_t prefill_quadratic_ns_q20 = 0;
  std::uint64_t decode_per_token_ns = 0;
};

}  // namespace kvrail
